# SPDX-License-Identifier: Apache-2.0
"""Objects as YOLO lists them.

    images/.../a.jpg and labels/.../a.txt     CLASS CENTER_X CENTER_Y WIDTH HEIGHT, shares of the image, or
                                              CLASS x y x y ..., an outline
    data.yaml or classes.txt                  names of the classes

Classes are numbered from 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...disk import read_text
from ...errors import UserError, counted, some
from ...text import read_yaml
from ..annotations import NOTHING, Objects, Shape
from ..decode import Unreadable, image_size
from ..sources.files import open_file
from ..sources.folders import holds_image, images_among, scan
from .source import DenseSource, check_names, folders_of, images_of, objects_of, split_by_folder


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
    among = [file for file in files if "images" in folders_of(file.path) and holds_image(file.path)]
    paths = sorted(file.path for file in images_among(among))
    if not paths:
        raise UserError(f"{root} has labels, but no images in a folder called images")
    passed = sorted({file.path for file in among} - {*paths})
    notes = [f"passed over {counted(len(passed), 'array')} beside pictures: {some(passed, 3)}"] if passed else []
    listing = {file.path for file in files if "labels" in folders_of(file.path) and file.path.endswith(".txt")}
    idle = sorted(listing - {_labels_of(file.path) for file in among} - {names.relative_to(root).as_posix()})
    notes += [f"{counted(len(idle), 'file')} of labels without an image: {some(idle, 3)}"] if idle else []
    objects = [_yolo(root, path, classes) for path in paths]
    images = images_of(root, paths, [split_by_folder(path) for path in paths], root)
    return DenseSource(images, classes, objects, notes=tuple(notes))


def _names_file(root: Path) -> Path | None:
    for file in [*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]:
        values = read_yaml(read_text(file, "names"), str(file))
        if isinstance(values, dict) and isinstance(values.get("names"), list | dict):
            return file
    return next((file for file in (root / "classes.txt", root / "labels" / "classes.txt") if file.is_file()), None)


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
    return objects_of(boxes, labels, drawn, (height, width))


def _size(path: Path) -> tuple[int, int]:
    """Height and width of an upright image, from its header."""
    try:
        with open_file(path) as file:
            return image_size(file, str(path))
    except (OSError, Unreadable) as error:
        raise UserError(f"cannot read {path}, whose boxes are shares of its size: {error}") from error
