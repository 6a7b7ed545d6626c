# SPDX-License-Identifier: Apache-2.0
"""What a set of objects, or of classes of pixels, holds, before anything is trained on it."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from ...errors import UserError, some
from ..decode import Unreadable
from ..sources.labels import alike
from .mask_folders import MEANINGLESS, read_mask
from .prepare import OUTSIDE, one_class, orientation
from .source import DenseSource
from .turn import turned

SMALL, LARGE = 32.0**2, 96.0**2  # areas between which COCO calls an object medium, pixels


@dataclass(frozen=True)
class DenseInspection:
    """What a set holds.

    Args:
        name: what it is called.
        kind: "objects" or "pixels".
        classes: names.
        images: split -> images.
        counts: split -> objects of each class, crowds left out, or images that show it.
        sizes: "small" (up to 32x32 pixels), "medium" (up to 96x96), "large" -> these objects; empty for pixels.
        bare: images without objects.
        crowds: objects that are crowds, which are not learnt.
        outside: boxes that are empty or reach outside their image.
        masks: whether objects have masks.
        unreadable: name -> what is wrong with the image or its mask.
        notes: what else a person should know.
        data: the path, as a command names it.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    images: dict[str, int]
    counts: dict[str, tuple[int, ...]]
    sizes: dict[str, int]
    bare: int
    crowds: int
    outside: int
    masks: bool
    unreadable: dict[str, str]
    notes: tuple[str, ...]
    data: str = "DATA"


def inspect_dense(source: DenseSource) -> DenseInspection:
    """Look at every image's header, and at every mask."""
    splits, classes = source.images.splits, len(source.classes)
    counts = {split: np.zeros(classes, np.int64) for split in splits}
    sizes, totals, unreadable = Counter[str](), Counter[str](), dict[str, str]()
    for split, rows in splits.items():
        for row in rows.tolist():
            try:
                size = source.images.size_of(row)
                if source.objects is None:
                    counts[split] += _shown(source, row, size)
                    continue
                objects = source.objects[row]
                if len(objects) and objects.size is not None and objects.size != size:
                    boxes = dataclasses.replace(objects, shapes=None)
                    objects = turned(boxes, size, orientation(source, row), source.images.names[row])
            except (Unreadable, UserError) as error:
                unreadable[source.images.names[row]] = str(error)
                continue
            learnt = ~objects.crowd
            counts[split] += np.bincount(objects.labels[learnt].numpy(), minlength=classes)
            totals["bare"] += not len(objects)
            totals["crowds"] += int(objects.crowd.sum())
            totals["all"] += len(objects)
            totals["drawn"] += len(objects) if source.objects[row].shapes else 0
            height, width = size
            corners = objects.boxes
            sides = torch.tensor([width, height, width, height], dtype=torch.float32)
            within = ((corners >= -OUTSIDE) & (corners <= sides + OUTSIDE)).all(1)  # no NaN is
            solid = (corners[:, 2:] > corners[:, :2]).all(1)
            totals["outside"] += int((~(within & solid)).sum())
            areas = (corners[:, 2:] - corners[:, :2]).prod(1) if objects.areas is None else objects.areas
            for area in areas[learnt].tolist():
                sizes["small" if area <= SMALL else "medium" if area <= LARGE else "large"] += 1
    return DenseInspection(
        name=source.images.name,
        kind="pixels" if source.objects is None else "objects",
        classes=source.classes,
        images={split: len(rows) for split, rows in splits.items()},
        counts={split: tuple(each.tolist()) for split, each in counts.items()},
        sizes=dict(sizes),
        bare=totals["bare"],
        crowds=totals["crowds"],
        outside=totals["outside"],
        masks=0 < totals["drawn"] == totals["all"],
        unreadable=unreadable,
        notes=(*source.notes, *alike(source.classes), *_untaught(source, counts)),
    )


def _untaught(source: DenseSource, counts: dict[str, np.ndarray]) -> list[str]:
    """A remark for masks of one class, and for each split with classes that no training image has."""
    if "train" not in counts:
        return []
    classes, absent = source.classes, counts["train"] == 0
    labels_of = {split: np.flatnonzero(absent & (each > 0)).tolist() for split, each in counts.items()}
    alone = one_class(classes, counts["train"].tolist()) if source.masks is not None else ""
    remarks = [alone] if alone else []
    return remarks + [
        f"in {split}, but in no image to learn from: {some([classes[label] for label in labels], 5)}"
        for split, labels in labels_of.items()
        if labels
    ]


def _shown(source: DenseSource, row: int, size: tuple[int, int]) -> np.ndarray:
    """Which classes a mask shows, [C] 0 or 1."""
    assert source.masks is not None
    assert source.values is not None
    seen = np.unique(read_mask(source.masks[row], source.values, size, orientation(source, row)))
    shown = np.zeros(len(source.classes), np.int64)
    shown[seen[seen < min(len(source.classes), MEANINGLESS)]] = 1
    return shown
