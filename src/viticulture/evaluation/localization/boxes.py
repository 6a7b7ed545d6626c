# SPDX-License-Identifier: Apache-2.0
"""True boxes of objects, read from files: {image's name: boxes in the original's pixels}.

    boxes.txt                       NAME LEFT TOP RIGHT BOTTOM, one box a line; the right and bottom pixels belong to it
    bounding_boxes.txt              CUB-200-2011's, or its folder: ID LEFT TOP WIDTH HEIGHT, with images.txt (ID NAME)
    *.json                          COCO's instances; crowds, which are not single objects, are left out

An image may have any number of boxes. Boxes are stored as left, top, right and bottom edge: the pixel in the corner is
0, 0, 1, 1. A box names an image by the end of its path: `cat/1.jpg` is the box of `photos/test/cat/1.jpg`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...data.sources.published import by_number
from ...data.sources.written import json_of, lines_of
from ...data.transforms.crop import BoxCrop
from ...errors import UserError
from .metrics import Boxes

_CUB = ("bounding_boxes.txt", "images.txt")
_ROUNDING = 1.0  # pixels that a box may reach beyond its image


def read_boxes(file: str | Path) -> dict[str, Boxes]:
    """Read boxes by the names in the file; each image has one or more.

    Raises: UserError for a missing file, an unknown layout, or an invalid box; it names the line.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        path /= _CUB[0]
    if not path.is_file():
        raise UserError(f"no file of boxes at {path} (looked in {Path.cwd()})")
    if path.suffix.lower() == ".json":
        by_name = _coco(path)
    elif path.name == _CUB[0]:
        by_name = _cub(path)
    else:
        by_name = _plain(path)
    if not by_name:
        raise UserError(f"{path} holds no boxes")
    return {name: np.array(boxes, dtype=np.float64) for name, boxes in by_name.items()}


def boxes_of(names: Sequence[str], boxes: Mapping[str, Boxes]) -> list[Boxes | None]:
    """Match boxes with images by the longest end of an image's path that has boxes; None without a match.

    Raises: UserError if no image has boxes, or two images would share them.
    """
    matched_by: dict[str, str] = {}
    matched: list[Boxes | None] = []
    for name in names:
        parts = name.split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        key = next((end for end in ends if end in boxes), None)
        if key is not None and matched_by.setdefault(key, name) != name:
            raise UserError(
                f"the boxes of {key} could be those of {matched_by[key]} or of {name}; "
                "write more of the path in the box file"
            )
        matched.append(None if key is None else boxes[key])
    if not matched_by:
        raise UserError(
            f"none of the {len(names)} images has a box: the images are named like {names[0]}, "
            f"the boxes like {next(iter(boxes))}"
        )
    return matched


def in_view(boxes: Boxes, size: tuple[int, int], crop: BoxCrop, image_size: tuple[int, int]) -> Boxes:
    """Convert boxes to pixels of the student's input, clipped to the crop.

        x' = (x / W - left) / width * W',    with left and width of the crop as shares of the original's width W

    and the same in height. A box outside the crop is left out.

    Args:
        boxes: [n, 4], pixels of the original.
        crop: of the student's images, without random numbers.

    Returns: [m, 4], m <= n.
    Raises: UserError for a box that reaches out of the original.
    """
    height, width = size
    over = boxes > np.array([width, height, width, height]) + _ROUNDING
    if over.any():
        box = boxes[over.any(1)][0].tolist()
        raise UserError(
            f"a box ends outside its image: edges {box} (left, top, right, bottom) in {width}x{height} pixels; "
            "boxes are in pixels of the original image"
        )
    share = crop.boxes(torch.empty(1, 0), torch.tensor([size]), image_size)[0].numpy()
    top, left, high, wide = share
    origin, span = np.array([left, top] * 2), np.array([wide, high] * 2)
    target = np.array([image_size[1], image_size[0]] * 2, dtype=np.float64)
    cropped = np.clip((boxes / np.array([width, height] * 2) - origin) / span, 0, 1) * target
    inside: Boxes = cropped[(cropped[:, 2:] - cropped[:, :2] > 1e-6).all(1)]  # without rounded touching edges
    return inside


BoxLists = dict[str, list[list[float]]]


def _plain(path: Path) -> BoxLists:
    by_name: BoxLists = {}
    for number, line in lines_of(path):
        line_name = f"{path}, line {number}"
        name, left, top, right, bottom = _fields(line_name, line, "NAME LEFT TOP RIGHT BOTTOM")
        by_name.setdefault(name, []).append(_edges(line_name, [left, top, right + 1, bottom + 1]))
    return by_name


def _cub(path: Path) -> BoxLists:
    listing = path.with_name(_CUB[1])
    if not listing.is_file():
        raise UserError(f"{path} numbers its images; {_CUB[1]}, which names them, is missing next to it")
    names = by_number(listing)
    by_name: BoxLists = {}
    for number, line in lines_of(path):
        line_name = f"{path}, line {number}"
        image, left, top, width, height = _fields(line_name, line, "ID LEFT TOP WIDTH HEIGHT")
        if image not in names:
            raise UserError(f"{line_name}: image {image} is not in {listing.name}")
        by_name.setdefault(names[image], []).append(_edges(line_name, [left, top, left + width, top + height]))
    return by_name


def _coco(path: Path) -> BoxLists:
    by_name: BoxLists = {}
    try:
        content: dict[str, Any] = json_of(path)
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        for number, annotation in enumerate(content["annotations"]):
            if annotation.get("iscrowd"):
                continue
            left, top, width, height = map(float, annotation["bbox"])
            edges = _edges(f"{path}, annotation {number}", [left, top, left + width, top + height])
            by_name.setdefault(names[annotation["image_id"]], []).append(edges)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a COCO file of instances ({type(error).__name__}: {error}); it needs images with id and "
            "file_name, and annotations with image_id and bbox"
        ) from error
    return by_name


def _fields(line_name: str, line: str, layout: str) -> tuple[str, float, float, float, float]:
    """Split a line into a name, which may hold spaces, and four numbers."""
    name, *words = line.rsplit(maxsplit=4)
    try:
        a, b, c, d = map(float, words)
    except ValueError as error:
        raise UserError(f"{line_name}: expected {layout}, got {line!r}") from error
    return name, a, b, c, d


def _edges(line_name: str, edges: list[float]) -> list[float]:
    left, top, right, bottom = edges
    if not all(map(math.isfinite, edges)) or left < 0 or top < 0 or right <= left or bottom <= top:
        raise UserError(
            f"{line_name}: a box needs left < right and top < bottom, none below 0; got edges {left:g} {top:g} "
            f"{right:g} {bottom:g}"
        )
    return edges
