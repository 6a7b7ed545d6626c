# SPDX-License-Identifier: Apache-2.0
"""Outlines of objects as COCO writes them, and bitmaps, by the code that COCO evaluates masks with.

pycocotools draws polygons and reads run lengths; it comes with the extra `dense`, and only masks of objects need it.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...errors import UserError
from .objects import Shape

FINE = 5.0  # steps within a pixel to which COCO's code rounds corners

FAR = 10  # times the longer side of its image that a corner may lie away


@cache
def check_outlines() -> Any:
    """Return pycocotools.mask. Raises: UserError where it is not installed, so that masks cannot be drawn."""
    if find_spec("pycocotools") is None:
        raise UserError(
            "masks of objects need pycocotools, which is not installed; run: pip install 'viticulture[dense]', or "
            "learn boxes alone: --method.masks false"
        )
    return import_module("pycocotools.mask")


def run_lengths(shape: Shape, height: int, width: int) -> dict[str, Any]:
    """An outline as compressed run lengths {size, counts}, for an image of that size, pixels."""
    coco = check_outlines()
    if isinstance(shape, list):
        return coco.merge(coco.frPyObjects(shape, height, width))
    if isinstance(shape["counts"], list):
        return coco.frPyObjects(dict(shape), height, width)
    counts = shape["counts"]
    return {"size": list(shape["size"]), "counts": counts.encode() if isinstance(counts, str) else counts}


def fault(shape: Any, height: int, width: int) -> str:
    """Why an outline cannot be drawn in an image of that size; "" where it can."""
    if isinstance(shape, list):
        try:
            parts = [np.asarray(part) for part in shape]
        except ValueError:
            return "its corners are no numbers"
        if any(part.dtype.kind not in "iuf" for part in parts):
            return "its corners are no numbers"
        whole = all(part.ndim == 1 and len(part) >= 6 and len(part) % 2 == 0 for part in parts)
        if not (parts and whole and all(np.isfinite(part).all() for part in parts)):
            return "it lacks corners"
        far = any(np.abs(part).max() > FAR * max(height, width) for part in parts)  # COCO's code walks along every edge
        return "its corners lie far outside the image" if far else ""
    if not isinstance(shape, dict) or not {"size", "counts"} <= shape.keys():
        return "it is neither a list of polygons nor run lengths"
    if shape["size"] != [height, width]:
        return f"its run lengths are of the size {shape['size']}"
    counts = shape["counts"]
    if isinstance(counts, list):
        fits = all(type(run) is int and run >= 0 for run in counts) and sum(counts) == height * width
    else:
        try:
            fits = bitmap(shape, height, width).shape == (height, width)
        except (TypeError, ValueError):
            fits = False
    return "" if fits else "its run lengths do not fill the image"


def bitmap(shape: Shape, height: int, width: int) -> np.ndarray:
    """An outline as [H, W] uint8, 1 inside."""
    pixels: np.ndarray = check_outlines().decode(run_lengths(shape, height, width))
    return pixels


def bounded(shape: Shape, height: int, width: int) -> tuple[np.ndarray, int, int]:
    """The part of the same in which it is anything, and its top and left, pixels: small ones are drawn fast.

    COCO's code rounds corners to fifths of a pixel before it draws; a polygon of such corners that is moved by whole
    pixels it draws as where it was.
    """
    if not isinstance(shape, list):
        return bitmap(shape, height, width), 0, 0
    parts = [np.asarray(part, dtype=np.float64).reshape(-1, 2) for part in shape]
    points, ends = np.concatenate(parts), np.array([width, height])
    low = np.clip(np.floor(points.min(0)), 0, ends - 1).astype(int)
    high = np.clip(np.ceil(points.max(0)) + 1, low + 1, ends).astype(int)
    steps = [np.trunc(FINE * part + 0.5) - FINE * low for part in parts]
    moved = [(np.where(part < 0, part - 0.75, part) / FINE).ravel().tolist() for part in steps]  # cut towards zero
    return bitmap(moved, int(high[1] - low[1]), int(high[0] - low[0])), int(low[1]), int(low[0])


def encoded(pixels: np.ndarray) -> dict[str, Any]:
    """A bitmap [H, W] as run lengths that JSON can hold."""
    encoding = check_outlines().encode(np.asfortranarray(pixels.astype(np.uint8)))
    return {"size": [int(side) for side in encoding["size"]], "counts": encoding["counts"].decode("ascii")}


def overlaps(detected: list[dict[str, Any]], true: list[dict[str, Any]], crowd: list[bool]) -> np.ndarray:
    """Intersection over union of masks, [n, m]; with a crowd, the share of the detected mask inside it."""
    if not detected or not true:
        return np.zeros((len(detected), len(true)))
    shares: np.ndarray = check_outlines().iou(detected, true, [int(each) for each in crowd])
    return shares


def area(outline: dict[str, Any]) -> float:
    """Count the pixels of a mask in run lengths."""
    return float(check_outlines().area(outline))
