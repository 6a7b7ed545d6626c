# SPDX-License-Identifier: Apache-2.0
"""Objects as Pascal VOC lists them.

    Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt

Pixels count from 1 unless some box starts at 0, and a box holds its last pixel; `difficult` objects (1 or true) are
neither trained on nor evaluated on.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import UserError, counted, some
from ...text import readable
from ..targets.objects import Objects
from .annotated import annotated, check_names
from .files import is_image
from .folders import images_among, scan
from .labels import natural
from .places import Places
from .several import YES
from .source import Source
from .written import files_of, lines_of, number, subfolder, text_of, whole


def annotations(root: Path) -> list[Path]:
    """Return the annotations in XML of a folder that has some."""
    folder = subfolder(root, "annotations")
    return files_of(folder, ".xml") if folder else []


def open_voc(root: Path) -> Source:
    """Open such a folder."""
    pictures = {Path(entry.path).stem for entry in images_among(scan(root)[0])}
    places, files = Places(root, "its annotation"), annotations(root)
    read = [(file, *_voc(file)) for file in files]
    starts = [box[side] for _, _, _, entries in read for _, box, _ in entries for side in (0, 1)]
    first = 0 if any(start == 0 for start in starts) else 1
    classes = check_names(sorted({name for _, _, _, entries in read for name, _, _ in entries}, key=natural), root)
    numbers = {name: number for number, name in enumerate(classes)}
    paths, objects = list[str](), list[Objects]()
    for file, name, size, entries in read:
        places.what, hint = str(file), "jpegimages/"  # masks lie in folders next to it
        paths.append(places.find(name, hint) or places.find(file.stem, hint) or places.required(name, hint))
        boxes = [
            [x - first, y - first, right - first + 1, bottom - first + 1] for _, (x, y, right, bottom), _ in entries
        ]
        labels = [numbers[readable(label)] for label, _, _ in entries]
        objects.append(Objects.of(boxes, labels, None, size, [difficult for _, _, difficult in entries]))
    names = [(Path(path).stem, file.stem) for path, file in zip(paths, files, strict=True)]
    splits, warnings = _splits(root, names, pictures)
    counting = [] if first else ["boxes start at 0, so that pixels are taken to count from 0"]
    if left := sorted(pictures - {name for each in names for name in each}, key=natural):
        warnings.append(f"not read: {counted(len(left), 'image')} without an annotation: {some(left, 3)}")
    return annotated(files[0].parent, root, paths, splits, classes, objects, [*counting, *places.warnings(), *warnings])


_Entry = tuple[str, tuple[float, float, float, float], bool]


def _voc(file: Path) -> tuple[str, tuple[int, int] | None, list[_Entry]]:
    """Return image, its size, and objects (class, corners, difficult) of one file."""
    text = text_of(file)
    if "<!ENTITY" in text:
        raise UserError(f"{file} defines entities, which annotations have no need of")
    try:
        tree = ET.fromstring(text)
        name, size = tree.findtext("filename") or file.stem, None
        if tree.find("size") is not None:
            sides = [tree.findtext(f"size/{side}") for side in ("height", "width")]
            height, width = (whole(side) if side and side.strip() else 0 for side in sides)
            size = (height, width) if height and width else None
        entries: list[_Entry] = []
        for element in tree.iter("object"):
            left, top, right, bottom = (
                number(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            difficult = (element.findtext("difficult") or "").strip().lower() in YES
            entries.append((_text(element, "name"), (left, top, right, bottom), difficult))
    except (ET.ParseError, ValueError) as error:
        raise UserError(f"{file} is no annotation as Pascal VOC writes it: {error}") from error
    return name, size, entries


def _text(tree: ET.Element, place: str) -> str:
    text = (tree.findtext(place) or "").strip()
    if not text:
        raise ValueError(f"{place} is missing")
    return text


def _splits(root: Path, names: Sequence[tuple[str, str]], pictures: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the split of every image, train where no list names it, and warnings about the lists.

    Raises: UserError for a list that names no image, since its images would be trained on, and for an image of two
        lists.
    """
    rows = {name: row for of in (1, 0) for row, name in enumerate(each[of] for each in names)}
    splits: dict[int, str] = {}
    warnings: list[str] = []
    folder = subfolder(subfolder(root, "ImageSets") or root, "Main")
    lists = {file.stem.lower(): file for file in files_of(folder, ".txt")} if folder else {}
    for file in (present := [lists[kind] for kind in ("train", "val", "test") if kind in lists]):
        listed = [_spellings(line) for _, line in lines_of(file)]
        named = [next((rows[name] for name in spellings if name in rows), None) for spellings in listed]
        if twice := [names[row][0] for row in named if row in splits]:
            others = sorted({splits[row] for row in named if row in splits})
            raise UserError(
                f"{file} names {counted(len(twice), 'image')} that {' and '.join(f'{kind}.txt' for kind in others)} "
                f"names, too: {some(twice, 3)}; an image is in one split"
            )
        splits |= {row: file.stem.lower() for row in named if row is not None}
        lost = [spellings for spellings, row in zip(listed, named, strict=True) if row is None]
        if lost and len(lost) == len(listed) and not any(name in pictures for spellings in lost for name in spellings):
            raise UserError(f"{file} names no image of {root}: {some([each[0] for each in lost], 3)}")
        if lost:
            what = f"{counted(len(lost), 'image')} without an annotation"
            warnings.append(f"{file.name} of ImageSets/Main names {what}: {some([each[0] for each in lost], 1)}")
    if present and (rest := [image for row, (image, _) in enumerate(names) if row not in splits]):
        listers = some([file.name for file in present])
        unlisted = f"{counted(len(rest), 'image')} for training that no list of ImageSets/Main names ({listers})"
        warnings.append(f"{unlisted}: {some(rest, 3)}")
    return [splits.get(row, "train") for row in range(len(names))], warnings


def _spellings(line: str) -> list[str]:
    """Return the names that a line may mean, the likeliest first: all of it, without a class's -1, 0 or 1, without
    folders and without the ending of an image."""
    whole = line.strip()
    names = dict.fromkeys([whole, re.sub(r"\s+(-1|0|1)$", "", whole)])
    names |= dict.fromkeys([name.replace("\\", "/").rpartition("/")[2] for name in names])
    return list(names | dict.fromkeys([Path(name).stem for name in names if is_image(name)]))
