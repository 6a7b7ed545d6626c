# SPDX-License-Identifier: Apache-2.0
"""Objects as YOLO, Pascal VOC and plain CSV list them.

YOLO    images/.../a.jpg and labels/.../a.txt: CLASS CENTER_X CENTER_Y WIDTH HEIGHT, shares of the image, or
        CLASS x y x y ..., an outline; names of the classes in data.yaml or classes.txt; numbers count from 0
VOC     Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt; pixels count from 1 unless some box starts
        at 0, and a box holds its last pixel; `difficult` objects are neither learnt from nor judged by
CSV     path,label,x0,y0,x1,y1[,split], a line an object, pixels; a line without label is an image without objects
"""

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...disk import read_text
from ...errors import UserError, counted, some
from ...text import read_yaml
from ..annotations import NOTHING, Objects, Shape
from ..decode import Unreadable, image_size
from ..sources.files import open_file
from ..sources.folders import holds_image, images_among, is_image, scan
from ..sources.labels import natural, split_of
from .source import DenseSource, check_names, images_of

CSV_COLUMNS = ("path", "label", "x0", "y0", "x1", "y1")


def split_in(path: str) -> str:
    """The split that a folder on a path names; train where none does."""
    return next((kind for part in path.split("/")[:-1] if (kind := split_of(part)) is not None), "train")


def is_yolo(root: Path) -> bool:
    """Whether a folder has a `labels` folder of text files, and names of classes."""
    folders = [root / "labels", *root.glob("*/labels")]
    return any(folder.is_dir() for folder in folders) and _names_file(root) is not None


def open_yolo(root: Path) -> DenseSource:
    """Open such a folder."""
    names = _names_file(root)
    assert names is not None
    if names.suffix == ".txt":
        listed: Any = [line.strip() for line in read_text(names, "names").splitlines() if line.strip()]
    else:
        listed = read_yaml(read_text(names, "names"), str(names))["names"]
        if isinstance(listed, dict):
            if set(listed) != set(range(len(listed))):
                raise UserError(f"{names}: the numbers of the classes must count from 0, got {list(listed)[:5]}")
            listed = [listed[number] for number in range(len(listed))]
    classes = check_names(listed, names)
    files = scan(root)[0]
    among = [file for file in files if "images" in _folders(file.path) and holds_image(file.path)]
    paths = sorted(file.path for file in images_among(among))
    if not paths:
        raise UserError(f"{root} has labels, but no images in a folder called images")
    passed = sorted({file.path for file in among} - {*paths})
    notes = [f"passed over {counted(len(passed), 'array')} beside pictures: {some(passed, 3)}"] if passed else []
    listing = {file.path for file in files if "labels" in _folders(file.path) and file.path.endswith(".txt")}
    idle = sorted(listing - {_labels_of(file.path) for file in among} - {names.relative_to(root).as_posix()})
    notes += [f"{counted(len(idle), 'file')} of labels without an image: {some(idle, 3)}"] if idle else []
    objects = [_yolo(root, path, classes) for path in paths]
    images = images_of(root, paths, [split_in(path) for path in paths], root)
    return DenseSource(images, classes, objects, notes=tuple(notes))


def _names_file(root: Path) -> Path | None:
    for file in [*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]:
        values = read_yaml(read_text(file, "names"), str(file))
        if isinstance(values, dict) and isinstance(values.get("names"), list | dict):
            return file
    return next((file for file in (root / "classes.txt", root / "labels" / "classes.txt") if file.is_file()), None)


def _folders(path: str) -> list[str]:
    return path.split("/")[:-1]


def _labels_of(path: str) -> str:
    """The path of an image's labels."""
    parts = path.rpartition(".")[0].split("/")
    place = len(parts) - 1 - parts[::-1].index("images")
    return "/".join([*parts[:place], "labels", *parts[place + 1 :]]) + ".txt"


def _yolo(root: Path, path: str, classes: Sequence[str]) -> Objects:
    file = root / _labels_of(path)
    lines = [line.split() for line in read_text(file, "labels").splitlines() if line.strip()] if file.exists() else []
    if not lines:
        return NOTHING
    height, width = _size(root / path)
    boxes: list[list[float]] = []
    labels: list[int] = []
    shapes: list[Shape] = []
    for number, words in enumerate(lines, 1):
        try:
            label, values = int(words[0]), [float(word) for word in words[1:]]
        except ValueError as error:
            told = " ".join(words[:5])
            raise UserError(f"{file}, line {number}: must be a class's number, then shares, got {told!r}") from error
        if not 0 <= label < len(classes):
            raise UserError(f"{file}, line {number}: class {label}, and the {len(classes)} classes are numbered from 0")
        if len(values) == 4:
            x, y, w, h = values
            boxes.append([(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height])
        elif len(values) >= 6 and len(values) % 2 == 0:
            outline = [value * (width, height)[i % 2] for i, value in enumerate(values)]
            shapes.append([outline])
            boxes.append([min(outline[::2]), min(outline[1::2]), max(outline[::2]), max(outline[1::2])])
        else:
            raise UserError(
                f"{file}, line {number}: a class and 4 numbers, or pairs of an outline, got {len(words)} words"
            )
        labels.append(label)
    drawn = tuple(shapes) if len(shapes) == len(boxes) else None
    return _plain(boxes, labels, drawn, (height, width))


def is_voc(root: Path) -> bool:
    """Whether a folder has a folder of annotations in XML."""
    folder = root / "Annotations"
    return folder.is_dir() and any(folder.glob("*.xml"))


def open_voc(root: Path) -> DenseSource:
    """Open such a folder."""
    files_below = scan(root)[0]
    below: dict[str, list[str]] = {}
    stems: dict[str, list[str]] = {}
    for entry in files_below:
        if holds_image(entry.path):
            below.setdefault(Path(entry.path).name, []).append(entry.path)
    for entry in images_among(files_below):
        stems.setdefault(Path(entry.path).stem, []).append(entry.path)
    files = sorted((root / "Annotations").glob("*.xml"))
    read = [(file, *_voc(file)) for file in files]
    starts = [box[side] for _, _, _, entries in read for _, box, _ in entries for side in (0, 1)]
    first = 0 if any(start == 0 for start in starts) else 1
    classes = check_names(sorted({name for _, _, _, entries in read for name, _, _ in entries}, key=natural), root)
    paths: list[str] = []
    objects: list[Objects] = []
    for file, name, size, entries in read:
        named = below.get(name) or stems.get(file.stem, [])
        named = [path for path in named if "JPEGImages" in _folders(path)] or named  # masks are beside it
        if len(named) != 1:
            which = f"there are several: {some(named, 3)}" if named else f"there is none of that name below {root}"
            raise UserError(f"{file} is about the image {name!r}, and {which}")
        paths += named
        boxes = [
            [left - first, top - first, right - first + 1, bottom - first + 1]
            for _, (left, top, right, bottom), _ in entries
        ]
        labels = [classes.index(label) for label, _, _ in entries]
        difficult = torch.tensor([hard for _, _, hard in entries], dtype=torch.bool)
        plain = _plain(boxes, labels, None, size)
        objects.append(Objects(plain.boxes, plain.labels, difficult, None, size) if entries else NOTHING)
    counting = [] if first else ["boxes start at 0, so that pixels are taken to count from 0"]
    names = [(Path(path).stem, file.stem) for path, file in zip(paths, files, strict=True)]
    splits, notes = _voc_splits(root, names, stems)
    images = images_of(root, paths, splits, root / "Annotations")
    return DenseSource(images, classes, objects, notes=(*counting, *notes))


_Entry = tuple[str, tuple[float, float, float, float], bool]


def _voc(file: Path) -> tuple[str, tuple[int, int] | None, list[_Entry]]:
    """Image, its size, and objects (class, corners, difficult) of one file."""
    text = read_text(file, "annotation")
    if "<!ENTITY" in text:
        raise UserError(f"{file} defines entities, which annotations have no need of")
    try:
        tree = ET.fromstring(text)
        name, size = tree.findtext("filename") or file.stem, None
        if tree.find("size") is not None:
            size = int(_text(tree, "size/height")), int(_text(tree, "size/width"))
            size = size if all(size) else None
        entries: list[_Entry] = []
        for found in tree.iter("object"):
            left, top, right, bottom = (
                float(_text(found, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            entries.append(
                (_text(found, "name"), (left, top, right, bottom), (found.findtext("difficult") or "0") == "1")
            )
    except (ET.ParseError, ValueError) as error:
        raise UserError(f"{file} is no annotation as Pascal VOC writes it: {error}") from error
    return name, size, entries


def _text(tree: ET.Element, place: str) -> str:
    found = tree.findtext(place)
    if not found or not found.strip():
        raise ValueError(f"{place} is missing")
    return found.strip()


def _voc_splits(root: Path, names: Sequence[tuple[str, str]], pictures: Collection[str]) -> tuple[list[str], list[str]]:
    """The split of every image, train where no list names it, and what a person should know of the lists.

    Args:
        root: holds ImageSets/Main.
        names: of each image its own and its annotation's, without endings.
        pictures: the same of all images below the folder, whether there is an annotation or not.

    Raises: UserError for a list none of whose names is that of an image: its images would be learnt from.
    """
    rows = {name: row for of in (1, 0) for row, name in enumerate(each[of] for each in names)}
    splits: dict[int, str] = {}
    notes: list[str] = []
    lists = [root / "ImageSets" / "Main" / f"{kind}.txt" for kind in ("train", "val", "test")]
    for file in (present := [file for file in lists if file.is_file()]):
        listed = [_spellings(line) for line in read_text(file, "split").splitlines() if line.strip()]
        named = [next((rows[name] for name in spellings if name in rows), None) for spellings in listed]
        splits |= {row: file.stem for row in named if row is not None}
        lost = [spellings for spellings, row in zip(listed, named, strict=True) if row is None]
        if lost and len(lost) == len(listed) and not any(name in pictures for spellings in lost for name in spellings):
            raise UserError(f"{file} names no image of {root}: {some([each[0] for each in lost], 3)}")
        if lost:
            what = f"{counted(len(lost), 'image')} without an annotation"
            notes.append(f"{file.name} of ImageSets/Main names {what}: {some([each[0] for each in lost], 1)}")
    if present and (rest := [own for row, (own, _) in enumerate(names) if row not in splits]):
        listers = some([file.name for file in present])
        told = f"{counted(len(rest), 'image')} for training that no list of ImageSets/Main names ({listers})"
        notes.append(f"{told}: {some(rest, 3)}")
    return [splits.get(row, "train") for row in range(len(names))], notes


def _spellings(line: str) -> list[str]:
    """Names that a line of a list may mean, the likeliest first: all of it, without a class's -1, 0 or 1, without
    folders and without the ending of an image."""
    whole = line.strip()
    names = dict.fromkeys([whole, re.sub(r"\s+(-1|0|1)$", "", whole)])
    names |= dict.fromkeys([name.replace("\\", "/").rpartition("/")[2] for name in names])
    return list(names | dict.fromkeys([Path(name).stem for name in names if is_image(name)]))


def is_box_csv(file: Path) -> bool:
    """Whether a file's first line names the columns of boxes."""
    if file.suffix.lower() not in (".csv", ".tsv") or not file.is_file():
        return False
    with file.open("rb") as opened:
        header = opened.readline(1000).decode("utf-8-sig", "replace").lower()
    return {"x0", "y0", "x1", "y1"} <= {word.strip() for word in header.replace(";", ",").replace("\t", ",").split(",")}


def open_box_csv(file: Path) -> DenseSource:
    """Open such a file."""
    text = read_text(file, "list").removeprefix("\ufeff")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
    if missing := [name for name in CSV_COLUMNS if name not in columns]:
        raise UserError(f"{file} needs the columns {','.join(CSV_COLUMNS)}[,split]; it lacks {', '.join(missing)}")
    by_path: dict[str, list[tuple[str, list[float]]]] = {}
    splits: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        if None in row:
            raise UserError(f"{file}, line {line}: more values than the {len(columns)} columns")
        values = {name: (row[column] or "").strip() for name, column in columns.items()}
        path, split = values["path"], values.get("split", "") or "train"
        if split_of(split) is None:
            raise UserError(f"{file}, line {line}: split must be train, val or test, got {split!r}")
        if splits.setdefault(path, split) != split:
            raise UserError(f"{file}, line {line}: {path} stands in two splits, {splits[path]} and {split}")
        entries, sides = by_path.setdefault(path, []), [values[name] for name in CSV_COLUMNS[2:]]
        if values["label"]:
            try:
                entries.append((values["label"], [float(side) for side in sides]))
            except ValueError as error:
                raise UserError(f"{file}, line {line}: x0,y0,x1,y1 must be pixels, got {','.join(sides)}") from error
        elif any(sides):
            raise UserError(f"{file}, line {line}: a box without a label")
    labels = {label for entries in by_path.values() for label, _ in entries}
    classes = check_names(sorted(labels, key=natural), file)
    objects = [
        _plain([box for _, box in entries], [classes.index(label) for label, _ in entries]) if entries else NOTHING
        for entries in by_path.values()
    ]
    kinds = [split_of(splits[path]) or "train" for path in by_path]
    images = replace(images_of(file.parent, list(by_path), kinds, file), name=file.name)
    return DenseSource(images, classes, objects)


def _plain(
    boxes: Iterable[Sequence[float]],
    labels: list[int],
    shapes: tuple[Shape, ...] | None = None,
    size: tuple[int, int] | None = None,
) -> Objects:
    corners = torch.tensor([list(box) for box in boxes], dtype=torch.float32).reshape(-1, 4)
    return Objects(
        corners, torch.tensor(labels, dtype=torch.int64), torch.zeros(len(labels), dtype=torch.bool), shapes, size
    )


def _size(path: Path) -> tuple[int, int]:
    """Height and width of an upright image, from its header."""
    try:
        with open_file(path) as file:
            return image_size(file, str(path))
    except (OSError, Unreadable) as error:
        raise UserError(f"cannot read {path}, whose boxes are shares of its size: {error}") from error
