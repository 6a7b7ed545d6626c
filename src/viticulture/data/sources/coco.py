# SPDX-License-Identifier: Apache-2.0
"""Objects in COCO's JSON.

    annotations/instances_train.json, instances_val.json, ...     images anywhere below the folder
    train/_annotations.coco.json, ...                             the same next to the images, as Roboflow writes it
    one .json file                                                images next to it, or next to its folder

Files of a split say so in their name or their folder's, by a separate word; without a split, all images are for
training. Classes come in the order of their numbers, whatever these are.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch

from ...disk import decoded, matching
from ...errors import UserError, counted
from ...keywords import BITS
from ...text import readable
from ..targets.objects import NO_OBJECTS, Objects
from .annotated import annotated, check_names
from .json_lists import unlisted
from .labels import split_of
from .places import Places
from .several import YES
from .source import Source
from .written import files_of, json_of, name_of

_REQUIRED = {"images": ("id", "file_name"), "annotations": ("image_id", "category_id"), "categories": ("id", "name")}
"""Parts of a list, and the keys of every entry of each."""
_NUMBERS = {"annotations": ("category_id",), "categories": ("id",)}
_SPLITS = {"trainval": "train", "minival": "val", "eval": "val", "evaluation": "val"}
"""Words for a split that only lists use."""


def listings(path: Path) -> list[Path]:
    """Return the files of such lists: the path itself, or files below a folder; none where it is something else."""
    folders = [path, *matching(path, "*")] if path.is_dir() else []
    files = [path] if path.is_file() else [file for folder in folders for file in files_of(folder, ".json")]
    lists = [file for file in files if file.suffix.lower() == ".json" and file.is_file() and _is_listing(file)]
    return [file for file in lists if file.name.startswith("instances")] or lists


def _is_listing(file: Path) -> bool:
    """Return whether a file is such a list, with boxes or without any annotation, without reading all of a large one. A
    damaged one is recognized by its name, so that it is reported and no split is missed."""
    try:
        with file.open("rb") as opened:
            start = opened.read(1 << 20)
            if file.stat().st_size > len(start):
                with mmap(opened.fileno(), 0, access=ACCESS_READ) as whole:
                    return any(f'"{key}"'.encode() in start for key in _REQUIRED) and any(
                        re.search(rb'"%s"\s*:\s*[\[{]\s*[^\s\]}]' % key, whole) for key in (b"bbox", b"segmentation")
                    )
        content = json.loads(decoded(start))
        if content.keys() >= _REQUIRED.keys():
            entries = content["annotations"]
            return not entries or any(entry.get("bbox") or entry.get("segmentation") for entry in entries)
    except OSError:
        return False
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    return file.name.lower().startswith("instances") or file.name == "_annotations.coco.json"


def open_coco(path: Path) -> Source:
    """Open a list or a folder of lists. Raises: UserError for lists that contradict themselves or each other."""
    files, root = listings(path), _root(path)
    contents = {file: _read(file) for file in files}
    categories: dict[int, str] = {}
    for file, content in contents.items():
        for category in content["categories"]:
            number, name = category["id"], name_of(category["name"])
            if categories.setdefault(number, name) != name:
                raise UserError(
                    f"{file} calls category {number} {name!r}, which it or another calls {categories[number]!r}"
                )
    numbers = {number: label for label, number in enumerate(sorted(categories))}
    classes = check_names([categories[number] for number in numbers], files[0])
    paths, splits, objects = list[str](), list[str](), list[Objects]()
    split_names, places = _splits(files, root), Places(root, "")
    for file, content in contents.items():
        split, places.what, places.near = split_names[file], str(file), _near(file, root)
        by_image: dict[Any, list[dict[str, Any]]] = {}
        for annotation in content["annotations"]:
            by_image.setdefault(annotation["image_id"], []).append(annotation)
        for image in content["images"]:
            paths.append(places.required(str(image["file_name"]), split))
            splits.append(split)
            sides = (image.get("height"), image.get("width"))
            size = None if None in sides else sides
            if size is not None and not all(isinstance(side, int | float) for side in size):
                raise UserError(f"{file}: height and width of {image['file_name']} must be numbers, got {size}")
            objects.append(_objects(file, by_image.pop(image["id"], []), numbers, size))
        if by_image:
            raise UserError(
                f"{file} has objects of {counted(len(by_image), 'image')} that it does not list: an image_id "
                f"{unlisted(next(iter(by_image)), [image['id'] for image in content['images']])}"
            )
    source = annotated(path, root, paths, splits, classes, objects, places.warnings())
    return replace(source, lists=tuple(map(str, files)))


@dataclass(frozen=True)
class Numbering:
    """Names of a list's images and classes."""

    images: Mapping[Path, int | float | str]
    categories: Mapping[str, int]
    sizes: Mapping[Path, tuple[Any, Any]]  # file -> declared height and width, pixels; None where the list does not say


def numbering(file: Path) -> Numbering:
    """Read the names of one list, which may lack objects, as those of images that are evaluated elsewhere do."""
    root, content, split = _root(file), _read(file, ("images", "categories")), _splits([file], file.parent)[file]
    places = Places(root, str(file), _near(file, root))
    listed = {root / places.required(str(image["file_name"]), split): image for image in content["images"]}
    return Numbering(
        {path: image["id"] for path, image in listed.items()},
        {readable(name_of(each["name"])): each["id"] for each in content["categories"]},
        {path: (image.get("height"), image.get("width")) for path, image in listed.items()},
    )


def _root(path: Path) -> Path:
    """Return the folder below which the images of a folder of lists, or of one list, are."""
    return path if path.is_dir() else (path.parent.parent if path.parent.name.lower() == "annotations" else path.parent)


def _near(file: Path, root: Path) -> str:
    return file.parent.relative_to(root).as_posix()


def _read(file: Path, parts: Iterable[str] = _REQUIRED) -> dict[str, Any]:
    content = json_of(file)
    try:
        for part in parts:
            if not isinstance(content[part], list) or not all(isinstance(entry, dict) for entry in content[part]):
                raise TypeError(part)
            for name in _REQUIRED[part]:
                kinds = (int, float) if name in _NUMBERS.get(part, ()) else (int, float, str)
                if wrong := [entry[name] for entry in content[part] if not isinstance(entry[name], kinds)]:
                    raise TypeError(f"{name} {wrong[0]!r} of {part}")
            for category in content[part] if part == "categories" else ():
                name_of(category["name"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is no list of objects as COCO writes it: {error} is missing or wrong") from error
    names: dict[Any, str] = {}
    for image in content["images"]:
        if image["id"] in names:
            raise UserError(
                f"{file} gives two images the id {image['id']}, {names[image['id']]} and {image['file_name']}; it is "
                "unclear which of them has its objects"
            )
        names[image["id"]] = str(image["file_name"])
    return content


def _splits(files: Sequence[Path], root: Path) -> dict[Path, str]:
    """Return the split that each file's name, or its folder's, says by a word, as in instances_val2017; else train.

    Raises: UserError where one of several hides such a word in another, as mytest: its images might be trained on.
    """
    splits: dict[Path, str] = {}
    for file in files:
        names = [file.stem, file.parent.name] if file.parent != root else [file.stem]
        words = [word for name in names for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", name)]
        split_named = next((split for word in words if (split := _SPLITS.get(word.lower()) or split_of(word))), None)
        if split_named is None and len(files) > 1 and re.search("train|val|test", "/".join(names).lower()):
            raise UserError(
                f"it is unclear of which split {file} is; name train, val or test by a separate word, as in "
                "boxes_test.json"
            )
        splits[file] = split_named or "train"
    return splits


def _objects(
    file: Path, entries: list[dict[str, Any]], numbers: Mapping[int, int], size: tuple[int, int] | None
) -> Objects:
    if not entries:
        return NO_OBJECTS
    for entry in entries:
        if entry.get("category_id") not in numbers:
            ids = list(numbers)
            few = ", ".join(map(str, ids)) if len(ids) <= 5 else f"{len(ids)}, from {ids[0]} to {ids[-1]}"
            raise UserError(
                f"{file} has an object of category {entry.get('category_id')!r}, which it does not name; it names {few}"
            )
        box = entry.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
            raise UserError(f"{file}: an object's bbox must be left, top, width, height, got {box!r}")
    boxes = [[x, y, x + w, y + h] for x, y, w, h in (entry["bbox"] for entry in entries)]
    shapes = tuple(shape for entry in entries if (shape := entry.get("segmentation")))
    areas = [area for entry in entries if _is_number(area := entry.get("area", 0)) and area > 0]
    objects = Objects.of(
        boxes,
        [numbers[entry["category_id"]] for entry in entries],
        shapes if len(shapes) == len(entries) else None,
        size,
        [str(entry.get("iscrowd")).lower() in YES for entry in entries],
    )
    return replace(objects, areas=torch.tensor(areas, dtype=torch.float64) if len(areas) == len(entries) else None)


def _is_number(value: Any) -> bool:
    """Return whether JSON gave a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < 2**BITS)
