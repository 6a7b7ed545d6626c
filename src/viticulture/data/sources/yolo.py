# SPDX-License-Identifier: Apache-2.0
"""Objects as YOLO lists them.

    images/.../a.jpg and labels/.../a.txt     CLASS CENTER_X CENTER_Y WIDTH HEIGHT, shares of the image, or
                                              CLASS x y x y ..., an outline
    data.yaml or classes.txt                  names of the classes

Classes are numbered from 0. What data.yaml names as train, val and test, folders or lists of images, is looked for by
the ends of its paths, which may begin anywhere; a split that it does not name is in folders of its word. Of poses
(kpt_shape) the boxes are read.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ...disk import matching
from ...errors import UserError, counted, some
from ...text import read_yaml
from ..images.decode import Unreadable, image_size
from ..targets.objects import NO_OBJECTS, Objects, Shape
from .annotated import annotated, check_names, comparison_of, folders_of, in_folder, split_by_folder
from .files import open_file
from .folders import holds_image, images_among, scan
from .labels import split_of
from .source import Source
from .written import files_of, lines_of, number, subfolder, text_of, whole


def is_yolo(root: Path) -> bool:
    """Return whether a folder has a `labels` folder of text files, and names of classes."""
    return any(subfolder(folder, "labels") for folder in (root, *matching(root, "*"))) and _names_file(root) is not None


def open_yolo(root: Path) -> Source:
    """Open such a folder."""
    names = _names_file(root)
    assert names is not None
    declared: dict[str, Any] = {}
    if names.suffix.lower() == ".txt":
        listed: Any = [line for _, line in lines_of(names)]
    else:
        declared = _declared(names)
        listed = declared["names"]
        if isinstance(listed, dict):
            if set(listed) != {*map(str, range(len(listed)))}:
                raise UserError(f"{names}: the numbers of the classes must count from 0, got {some([*listed], 5)}")
            listed = [listed[str(number)] for number in range(len(listed))]
    if not all(isinstance(name, str) for name in listed):
        raise UserError(f"{names}: a class has one name, got {some([str(each) for each in listed], 5)}")
    classes = check_names(listed, names)
    files = scan(root)[0]
    among = [file for file in files if "images" in folders_of(file.path) and holds_image(file.path)]
    paths = sorted(file.path for file in images_among(among))
    if not paths:
        raise UserError(f"{root} has labels, but no images in a folder called images")
    passed = sorted({file.path for file in among} - {*paths})
    warnings = [f"passed over {counted(len(passed), 'array')} next to pictures: {some(passed, 3)}"] if passed else []
    texts = sorted(file.path for file in files if "labels" in folders_of(file.path))
    plain = comparison_of([file.path for file in files])
    listing = {plain(path[:-4]) + ".txt": path for path in texts if path.lower().endswith(".txt")}
    labels = {file.path: f"{in_folder(file.path, 'labels')}.txt" for file in among}
    used = {*map(plain, labels.values()), plain(names.relative_to(root).as_posix())}
    idle = sorted(listing[path] for path in listing.keys() - used)
    warnings += [f"{counted(len(idle), 'file')} of labels without an image: {some(idle, 3)}"] if idle else []
    splits, more = _splits(root, names.name, declared, paths)
    shape = declared.get("kpt_shape") or ["0"]
    if not isinstance(shape, list) or not all(str(side).isdecimal() for side in shape):
        raise UserError(f"{names}: kpt_shape must be points and numbers of each, got {shape!r}")
    lists = {path: listing.get(plain(labels[path]), labels[path]) for path in splits}
    if shared := [text for text, images in Counter(lists.values()).items() if images > 1 and text in texts]:
        raise UserError(f"{root} has several images of one file of labels: {some(shared, 5)}")
    keypoints = prod(map(int, shape))  # numbers of a pose, which stand behind its box
    objects = [_objects(root / path, root / lists[path], classes, keypoints) for path in splits]
    return annotated(root, root, list(splits), list(splits.values()), classes, objects, [*warnings, *more])


def _splits(
    root: Path, what: str, declared: Mapping[str, Any], paths: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return image -> its split, and warnings.

    A split for which no image is named has those in folders of its word; any other image that is not named is left out.
    """
    entries = {kind: entry for word, entry in declared.items() if entry and (kind := split_of(str(word)))}
    on_disk, warnings = dict.fromkeys(paths), list[str]()
    named: dict[str, set[str]] = {}
    for kind, entry in entries.items():
        listed = list(_named(root, entry, str(declared.get("path") or ""), on_disk))
        named[kind] = {*listed} - {""}
        if lost := listed.count(""):
            warnings.append(f"{what} names {counted(lost, 'image')} for {kind} that the folder does not hold")
        elif not listed:
            warnings.append(f"{what} names no image of its {kind} split")
    for kind, other in (("val", "train"), ("test", "train"), ("val", "test")):
        if twice := named.get(kind, set()) & named.get(other, set()):
            warnings.append(
                f"{what} names {counted(len(twice), 'image')} for {kind} and {other}; they are for {other} alone"
            )
    splits = {path: kind for kind in ("val", "test", "train") for path in named.get(kind, ())}
    splits |= {path: word for path in paths if path not in splits and not named.get(word := split_by_folder(path))}
    if left := [path for path in paths if path not in splits]:
        warnings.append(f"left out {counted(len(left), 'image')} of no split that {what} names: {some(left, 3)}")
    return {path: splits[path] for path in paths if path in splits}, warnings


def _named(root: Path, entry: Any, start: str, paths: Collection[str]) -> Iterator[str]:
    """Yield the images that a split's folder, list of images, or several of these below `start` name, "" for a missing
    one."""
    for name in map(str, entry if isinstance(entry, list) else [entry]):
        for end in _ends(f"{start}/{name}"):
            if end.endswith(".txt") and (root / end).is_file():
                around = end.rpartition("/")[0]
                for _, line in lines_of(root / end):
                    yield next((place for place in _ends(f"{around}/{line}") if place in paths), "")
                break
            if below := [path for path in paths if path.startswith(f"{end}/" if end else "")]:
                yield from below
                break


def _ends(name: str) -> list[str]:
    """Return the relative paths that a name from anywhere may mean, the longest first."""
    parts = [part for part in name.strip().replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return ["/".join(parts[start:]) for start in range(len(parts))] or [""]


def _names_file(root: Path) -> Path | None:
    for file in files_of(root, ".yaml", ".yml"):
        values = _declared(file)
        if isinstance(values, dict) and isinstance(values.get("names"), list | dict):
            return file
    texts = [*files_of(root, ".txt"), *files_of(subfolder(root, "labels") or root, ".txt")]
    return next((file for file in texts if file.stem.lower() == "classes"), None)


def _declared(names: Path) -> Any:
    """Return the content of data.yaml, all of it text: a class may be called 007 or no."""
    return read_yaml(text_of(names), str(names), as_text=True)


def _objects(image: Path, file: Path, classes: Sequence[str], keypoints: int) -> Objects:
    lines = lines_of(file) if file.exists() else []
    if not lines:
        return NO_OBJECTS
    try:
        with open_file(image) as opened:
            height, width = image_size(opened, str(image))
    except (OSError, Unreadable) as error:
        raise UserError(f"cannot read {image}, whose boxes are shares of its size: {error}") from error
    boxes, labels, shapes = list[list[float]](), list[int](), list[Shape]()
    for place, line in lines:
        words = line.split()
        try:
            label, values = whole(words[0]), [number(word) for word in words[1:]]
        except ValueError as error:
            row = " ".join(words[:5])
            raise UserError(f"{file}, line {place}: must be a class's number, then shares, got {row!r}") from error
        if not 0 <= label < len(classes):
            raise UserError(f"{file}, line {place}: class {label}, and the {len(classes)} classes are numbered from 0")
        if len(values) == 4 + keypoints:
            x, y, w, h = values[:4]
            boxes.append([(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height])
        elif len(values) >= 6 and len(values) % 2 == 0:
            outline = [value * (width, height)[i % 2] for i, value in enumerate(values)]
            shapes.append([outline])
            boxes.append([min(outline[::2]), min(outline[1::2]), max(outline[::2]), max(outline[1::2])])
        else:
            raise UserError(
                f"{file}, line {place}: a class and 4 numbers, or pairs of an outline, got {len(words)} words"
            )
        labels.append(label)
    return Objects.of(boxes, labels, tuple(shapes) if len(shapes) == len(boxes) else None, (height, width))
