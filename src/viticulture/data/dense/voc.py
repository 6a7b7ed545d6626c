# SPDX-License-Identifier: Apache-2.0
"""Objects as Pascal VOC lists them.

    Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt

Pixels count from 1 unless some box starts at 0, and a box holds its last pixel; `difficult` objects (1 or true) are
neither learnt from nor judged by.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from ...disk import matching, read_text
from ...errors import UserError, counted, some
from ..annotations import NOTHING, Objects
from ..sources.files import is_image
from ..sources.folders import by_name, holds_image, images_among, scan, without_links
from ..sources.labels import natural
from ..sources.several import YES
from .source import DenseSource, check_names, folders_of, images_of, objects_of


def is_voc(root: Path) -> bool:
    """Whether a folder has a folder of annotations in XML."""
    folder = root / "Annotations"
    return folder.is_dir() and bool(matching(folder, "*.xml"))


def open_voc(root: Path) -> DenseSource:
    """Open such a folder."""
    files_below = scan(root)[0]
    below = by_name(file for file in files_below if holds_image(file.path))
    stems: dict[str, list[str]] = {}
    for entry in images_among(files_below):
        stems.setdefault(Path(entry.path).stem, []).append(entry.path)
    files = matching(root / "Annotations", "*.xml")
    read = [(file, *_voc(file)) for file in files]
    starts = [box[side] for _, _, _, entries in read for _, box, _ in entries for side in (0, 1)]
    first = 0 if any(start == 0 for start in starts) else 1
    classes = check_names(sorted({name for _, _, _, entries in read for name, _, _ in entries}, key=natural), root)
    paths: list[str] = []
    objects: list[Objects] = []
    for file, name, size, entries in read:
        named = below.get(name) or stems.get(file.stem, [])
        named = [path for path in named if "JPEGImages" in folders_of(path)] or named  # masks are beside it
        if len(named := without_links(root, sorted(named))) != 1:
            which = f"there are several: {some(named, 3)}" if named else f"there is none of that name below {root}"
            raise UserError(f"{file} is about the image {name!r}, and {which}")
        paths += named
        boxes = [
            [left - first, top - first, right - first + 1, bottom - first + 1]
            for _, (left, top, right, bottom), _ in entries
        ]
        labels = [classes.index(label) for label, _, _ in entries]
        difficult = torch.tensor([hard for _, _, hard in entries], dtype=torch.bool)
        plain = objects_of(boxes, labels, None, size)
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
        for element in tree.iter("object"):
            left, top, right, bottom = (
                float(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            difficult = (element.findtext("difficult") or "").strip().lower() in YES
            entries.append((_text(element, "name"), (left, top, right, bottom), difficult))
    except (ET.ParseError, ValueError) as error:
        raise UserError(f"{file} is no annotation as Pascal VOC writes it: {error}") from error
    return name, size, entries


def _text(tree: ET.Element, place: str) -> str:
    text = tree.findtext(place)
    if not text or not text.strip():
        raise ValueError(f"{place} is missing")
    return text.strip()


def _voc_splits(root: Path, names: Sequence[tuple[str, str]], pictures: Collection[str]) -> tuple[list[str], list[str]]:
    """The split of every image, train where no list names it, and what a person should know of the lists.

    Args:
        root: holds ImageSets/Main.
        names: of each image its own and its annotation's, without endings.
        pictures: the same of all images below the folder, whether there is an annotation or not.

    Raises: UserError for a list none of whose names is that of an image: its images would be learnt from; and for an
        image of two lists.
    """
    rows = {name: row for of in (1, 0) for row, name in enumerate(each[of] for each in names)}
    splits: dict[int, str] = {}
    notes: list[str] = []
    lists = [root / "ImageSets" / "Main" / f"{kind}.txt" for kind in ("train", "val", "test")]
    for file in (present := [file for file in lists if file.is_file()]):
        listed = [_spellings(line) for line in read_text(file, "split").splitlines() if line.strip()]
        named = [next((rows[name] for name in spellings if name in rows), None) for spellings in listed]
        if twice := [names[row][0] for row in named if row in splits]:
            others = sorted({splits[row] for row in named if row in splits})
            raise UserError(
                f"{file} names {counted(len(twice), 'image')} that {' and '.join(f'{kind}.txt' for kind in others)} "
                f"names, too: {some(twice, 3)}; an image stands in one split"
            )
        splits |= {row: file.stem for row in named if row is not None}
        lost = [spellings for spellings, row in zip(listed, named, strict=True) if row is None]
        if lost and len(lost) == len(listed) and not any(name in pictures for spellings in lost for name in spellings):
            raise UserError(f"{file} names no image of {root}: {some([each[0] for each in lost], 3)}")
        if lost:
            what = f"{counted(len(lost), 'image')} without an annotation"
            notes.append(f"{file.name} of ImageSets/Main names {what}: {some([each[0] for each in lost], 1)}")
    if present and (rest := [own for row, (own, _) in enumerate(names) if row not in splits]):
        listers = some([file.name for file in present])
        unlisted = f"{counted(len(rest), 'image')} for training that no list of ImageSets/Main names ({listers})"
        notes.append(f"{unlisted}: {some(rest, 3)}")
    return [splits.get(row, "train") for row in range(len(names))], notes


def _spellings(line: str) -> list[str]:
    """Names that a line of a list may mean, the likeliest first: all of it, without a class's -1, 0 or 1, without
    folders and without the ending of an image."""
    whole = line.strip()
    names = dict.fromkeys([whole, re.sub(r"\s+(-1|0|1)$", "", whole)])
    names |= dict.fromkeys([name.replace("\\", "/").rpartition("/")[2] for name in names])
    return list(names | dict.fromkeys([Path(name).stem for name in names if is_image(name)]))
