# SPDX-License-Identifier: Apache-2.0
"""Objects as a plain CSV lists them: path,label,x0,y0,x1,y1[,split], a line an object, pixels; a line without label is
an image without objects.
"""

import csv
import io
from dataclasses import replace
from pathlib import Path

from ...disk import read_text
from ...errors import UserError
from ..annotations import NOTHING
from ..sources.labels import natural
from ..sources.table import split_in, whole_numbers
from .source import DenseSource, check_names, images_of, objects_of

COLUMNS = ("path", "label", "x0", "y0", "x1", "y1")


def is_box_csv(file: Path) -> bool:
    """Whether a file's first line names the columns of boxes."""
    if file.suffix.lower() not in (".csv", ".tsv") or not file.is_file():
        return False
    with file.open("rb") as opened:
        header = opened.readline(1000).decode("utf-8-sig", "replace").lower()
    return {"x0", "y0", "x1", "y1"} <= {word.strip() for word in header.replace(";", ",").replace("\t", ",").split(",")}


def open_box_csv(file: Path) -> DenseSource:
    """Open such a file."""
    text = read_text(file, "list")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
    if missing := [name for name in COLUMNS if name not in columns]:
        raise UserError(f"{file} needs the columns {','.join(COLUMNS)}[,split]; it lacks {', '.join(missing)}")
    by_path: dict[str, list[tuple[str, list[float]]]] = {}
    splits: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        if None in row:
            raise UserError(f"{file}, line {line}: more values than the {len(columns)} columns")
        values = {name: (row[column] or "").strip() for name, column in columns.items()}
        path = values["path"]
        split = split_in(values["split"], f"{file}, line {line}") if "split" in values else "train"
        if splits.setdefault(path, split) != split:
            raise UserError(f"{file}, line {line}: {path} stands in two splits, {splits[path]} and {split}")
        entries, sides = by_path.setdefault(path, []), [values[name] for name in COLUMNS[2:]]
        if values["label"]:
            try:
                entries.append((values["label"], [float(side) for side in sides]))
            except ValueError as error:
                raise UserError(f"{file}, line {line}: x0,y0,x1,y1 must be pixels, got {','.join(sides)}") from error
        elif any(sides):
            raise UserError(f"{file}, line {line}: a box without a label")
    labels = list({label for entries in by_path.values() for label, _ in entries})
    names = dict(zip(labels, whole_numbers(labels), strict=True))
    classes = check_names(sorted({*names.values()}, key=natural), file)
    number = {label: classes.index(name) for label, name in names.items()}
    objects = [
        objects_of([box for _, box in entries], [number[label] for label, _ in entries]) if entries else NOTHING
        for entries in by_path.values()
    ]
    kinds = [splits[path] for path in by_path]
    images = replace(images_of(file.parent, list(by_path), kinds, file), name=file.name)
    return DenseSource(images, classes, objects)
