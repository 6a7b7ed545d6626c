# SPDX-License-Identifier: Apache-2.0
"""From what a person names to images with objects, or with classes of pixels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from .open import open_source
from .sources.annotated import DenseSource, without_copies
from .sources.box_csv import is_box_csv, open_box_csv
from .sources.coco import listings, open_coco
from .sources.mask_folders import is_mask_folder, open_masks
from .sources.source import Source
from .sources.voc import is_voc, open_voc
from .sources.yolo import is_yolo, open_yolo

BOXES = (
    "annotations/instances_train.json (COCO), images/ beside labels/ with data.yaml (YOLO), Annotations/*.xml (Pascal "
    "VOC) or a CSV with path,label,x0,y0,x1,y1"
)
MASKS = "images/ beside masks/ (PNG) with classes.json"


def recognized(data: str | Path) -> str:
    """What a path holds: "objects", "pixels" (classes of them), or "" for anything else."""
    path = Path(data).expanduser()
    try:
        if path.is_dir():
            if listings(path) or is_voc(path) or is_yolo(path):
                return "objects"
            return "pixels" if is_mask_folder(path) else ""
        if path.is_file():
            return "objects" if is_box_csv(path) or listings(path) else ""
    except OSError:
        pass
    return ""


def open_any(data: Any) -> Source | DenseSource:
    """Open images as every command that needs no classes does: with the objects or masks that lie beside them, else as
    `open_source` does."""
    kind = recognized(data) if isinstance(data, str) else ""
    return open_dense(data, kind) if kind else open_source(data)


def open_dense(data: str | Path, wanted: str) -> DenseSource:
    """Open images with what is wanted of them, "objects" or "pixels".

    Raises: UserError where the path holds something else, or nothing.
    """
    path = Path(data).expanduser()
    if not path.exists():
        raise UserError(f"no such file or folder: {str(data)!r}")
    held = recognized(path)
    if held != wanted:
        expected = BOXES if wanted == "objects" else MASKS
        have = {"objects": "boxes of objects", "pixels": "classes of pixels", "": "neither boxes nor masks"}[held]
        mend = {
            "objects": "learn by --recipe detection/photos",
            "pixels": "learn by --recipe segmentation/photos",
            "": "unpack it first" if path.suffix == ".zip" else f"expected {expected}",
        }[held]
        raise UserError(f"{path} holds {have}; {mend}")
    if wanted == "pixels":
        return open_masks(path)
    for ours, opened in ((is_box_csv, open_box_csv), (listings, open_coco), (is_voc, open_voc), (is_yolo, open_yolo)):
        if ours(path):
            source = without_copies(_in_pixels(opened(path)))
            return replace(source, notes=(*source.notes, *source.images.notes))
    raise AssertionError(held)


def _in_pixels(source: DenseSource) -> DenseSource:
    """A source of objects as it is. Raises: UserError where all boxes of a split lie in the images' first pixel."""
    assert source.objects is not None
    for split, rows in source.images.splits.items():
        boxes = torch.cat([source.objects[row].boxes for row in rows])
        if len(boxes) and float(boxes.max()) <= 1:
            raise UserError(
                f"boxes of {source.images.name} must be pixels, and all {len(boxes)} of the {split} images lie within "
                "0 to 1, as shares of an image's sides do; multiply them by these"
            )
    return source
