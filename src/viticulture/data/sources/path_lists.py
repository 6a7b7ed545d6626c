# SPDX-License-Identifier: Apache-2.0
"""Lists of paths in text files, one a split, named by any of them: `viticulture train domainnet/clipart_train.txt`.

    clipart_train.txt, clipart_test.txt                 DomainNet, ImageNet-LT (ImageNet_LT_train.txt, _val, _test)
    train.txt, test.txt, val.txt                        Caltech-101 and many others
    trainval.txt, test.txt                              both in one; with a train.txt only if it is named

    PATH NUMBER     relative to the lists' folder; classes are called by the folder that all their images stand in
    PATH            the class is the folder that the image stands in

Source: github.com/VisionLearningGroup (DomainNet), github.com/zhmiao/OpenLongTailRecognition-OLTR (ImageNet-LT).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import UserError, counted, some
from .labels import split_of
from .listed import Listed, from_list
from .source import Source
from .written import files_of, lines_of

_SPLIT = re.compile(r"(?P<stem>.*?)(?P<split>train|trainval|val|valid|validation|test)", re.IGNORECASE)
BOTH = "trainval"


def open_lists(path: Path) -> Source:
    """Open a list and those of the other splits next to it.

    Raises: UserError for a name without a split, two lists of one split, invalid lines, or missing training images.
    """
    match = _SPLIT.fullmatch(path.stem)
    if match is None:
        raise UserError(f"{path} must say by its name which split it lists, as NAME_train.txt or test.txt do")
    lists, warnings = _lists(path, match["stem"])
    if "train" not in lists:
        raise UserError(f"{path} has no {match['stem']}train.txt next to it, which would list the training images")
    lines = {kind: lines_of(file) for kind, file in lists.items()}
    rows = {kind: [_row(file, number, line) for number, line in lines[kind]] for kind, file in lists.items()}
    names = _class_names([row for kind in rows for row in rows[kind]], rows["train"])
    images = [
        Listed(path, names[label], kind, where=f"line {number} of {lists[kind].name}")
        for kind in rows
        for (path, label), (number, _) in zip(rows[kind], lines[kind], strict=True)
    ]
    warnings += _contradictions(images)
    return from_list(match["stem"].strip("_- ") or path.parent.name or path.name, path.parent, images, warnings)


def _contradictions(images: Sequence[Listed]) -> tuple[str, ...]:
    """Warn about images in the folder of another class than that of their number: each list may number the classes
    differently."""
    classes = {image.label for image in images}
    wrong = [image for image in images if (folder := Path(image.path).parent.name) in classes and folder != image.label]
    examples = some([f"{image.path} ({image.where}: {image.label})" for image in wrong], 3)
    what = "in the folder of another class than their number says; the lists may number classes differently"
    return (f"{counted(len(wrong), 'image')} {what}: {examples}",) if wrong else ()


def _lists(path: Path, stem: str) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the list of each split, out of those of that stem, and a warning that names the others. The named list is
    read, and no other one of its split; one of training and validation images excludes lists of either."""
    listed = sorted({path, *files_of(path.parent, ".txt")})
    words = {file: file.stem[len(stem) :].lower() for file in listed if file.stem.lower().startswith(stem.lower())}
    kinds = {file: kind for file, word in words.items() if (kind := "train" if word == BOTH else split_of(word))}
    both = {file for file in kinds if words[file] == BOTH}
    unread = {file for file, kind in kinds.items() if kind == kinds[path]} - {path}
    if path not in both and any(kind == "train" for file, kind in kinds.items() if file not in both):
        unread |= both
    elif both:
        unread |= {file for file, kind in kinds.items() if kind == "val"} - {path}
    lists: dict[str, Path] = {}
    for file, kind in kinds.items():
        if file not in unread and lists.setdefault(kind, file) != file:
            raise UserError(f"{lists[kind]} and {file.name} both list the {kind} split; keep one of them")
    others = some([file.name for file in kinds if file in unread])
    return lists, (f"lists that were not read next to {path.name}: {others}",) if unread else ()


def _row(file: Path, number: int, line: str) -> tuple[str, str]:
    """Return path and label; without a number the folder is the label."""
    match = re.fullmatch(r"(.+?)\s+(\d+)(?:\.0*)?", line)
    path, label = (match[1], match[2]) if match else (line, "")
    path = path.replace("\\", "/").removeprefix("./")
    folder = Path(path).parent.name
    if not (label or folder):
        raise UserError(f"{file}, line {number}: expected PATH NUMBER, or CLASS/FILE, got {line!r}")
    return path, label or f"/{folder}"


def _class_names(rows: list[tuple[str, str]], train: list[tuple[str, str]]) -> Mapping[str, str]:
    """Return label -> name: the one folder of its training images, if no other class has it; else the number."""
    folders: dict[str, set[str]] = {}
    for path, label in train:
        folders.setdefault(label, set()).add(Path(path).parent.name)
    single = {label: next(iter(names)) for label, names in folders.items() if len(names) == 1 and "" not in names}
    taken = list(single.values())
    clear = len(single) == len(folders) and len(set(taken)) == len(taken)
    every = {label for _, label in rows}
    return {
        label: label[1:] if label.startswith("/") else single.get(label, label) if clear else label for label in every
    }
