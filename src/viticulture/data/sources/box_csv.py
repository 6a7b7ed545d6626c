# SPDX-License-Identifier: Apache-2.0
"""Objects in a plain CSV: path,label,x0,y0,x1,y1[,split], a line per object, pixels; a line without label is an image
without objects.
"""

from collections import Counter
from pathlib import Path

from ...errors import UserError
from ..targets.objects import Objects
from .annotated import annotated, check_names
from .labels import MISSING, natural
from .source import Source
from .table import split_in, whole_numbers
from .written import csv_rows, header_of, number

COLUMNS = ("path", "label", "x0", "y0", "x1", "y1")


def is_box_csv(file: Path) -> bool:
    """Return whether a file's header names the columns of boxes."""
    return file.suffix.lower() in (".csv", ".tsv") and file.is_file() and {*COLUMNS[2:]} <= header_of(file)


def open_box_csv(file: Path) -> Source:
    """Open a CSV of boxes."""
    header, rows, separator = csv_rows(file, padded=True)
    names = [name.lower() for name in header]
    if missing := [name for name in COLUMNS if name not in names]:
        raise UserError(f"{file} needs the columns {','.join(COLUMNS)}[,split]; it lacks {', '.join(missing)}")
    if twice := [name for name, often in Counter(names).items() if often > 1 and name in (*COLUMNS, "split")]:
        raise UserError(f"{file} has two columns {twice[0]}; keep one of them")
    by_path: dict[str, list[tuple[str, list[float]]]] = {}
    splits: dict[str, str] = {}
    for line, cells in rows:
        values = dict(zip(names, cells, strict=True))
        path, label = values["path"], values["label"]
        split = split_in(values["split"], f"{file}, line {line}") if "split" in values else "train"
        if splits.setdefault(path, split) != split:
            raise UserError(f"{file}, line {line}: {path} is in two splits, {splits[path]} and {split}")
        entries, sides = by_path.setdefault(path, []), [values[name] for name in COLUMNS[2:]]
        if all(MISSING.fullmatch(side) or not side for side in sides) and (not label or MISSING.fullmatch(label)):
            continue
        if not label:
            raise UserError(f"{file}, line {line}: a box without a label")
        try:
            if separator == "," and any("," in side for side in sides):
                raise ValueError("a comma of thousands, or of decimals")
            entries.append((label, [number(side) for side in sides]))
        except ValueError as error:
            raise UserError(f"{file}, line {line}: x0,y0,x1,y1 must be pixels, got {','.join(sides)}") from error
    labels = list({label for entries in by_path.values() for label, _ in entries})
    words = dict(zip(labels, whole_numbers(labels), strict=True))
    classes = check_names(sorted({*words.values()}, key=natural), file)
    places = {name: place for place, name in enumerate(classes)}
    objects = [
        Objects.of([box for _, box in entries], [places[words[label]] for label, _ in entries])
        for entries in by_path.values()
    ]
    return annotated(file, file.parent, list(by_path), [splits[path] for path in by_path], classes, objects)
