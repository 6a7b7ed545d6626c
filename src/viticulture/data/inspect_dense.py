# SPDX-License-Identifier: Apache-2.0
"""What a set of objects, or of classes of pixels, holds, before anything is trained on it."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import UserError, some
from .annotated import OUTSIDE, orientation
from .image_settings import MAX_SIDE
from .images.decode import Unreadable
from .sources.annotated import DenseSource
from .sources.labels import alike
from .sources.mask_folders import read_mask
from .target_checks import narrow_boxes, needed_of_mask, needed_of_split, one_class, thin_classes
from .targets.objects import Objects
from .targets.turn import turned

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


def inspect_dense(source: DenseSource, image_size: int = MAX_SIDE) -> DenseInspection:
    """Read every image's header, and every mask.

    Args:
        source: the set.
        image_size: that it would be trained at, pixels; by default the largest that there is.
    """
    splits, classes = source.images.splits, len(source.classes)
    counts = {split: np.zeros(classes, np.int64) for split in splits}
    sizes, totals, unreadable = Counter[str](), Counter[str](), dict[str, str]()
    narrow = list[str]()
    for split, rows in splits.items():
        seen, extents, needed = list[Objects](), list[tuple[int, int]](), list[np.ndarray]()
        for row in rows.tolist():
            try:
                size = source.images.size_of(row)
                if source.objects is None:
                    shown, wanted = _shown(source, row, size)
                    counts[split] += shown
                    needed.append(wanted)
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
            seen.append(objects.part(within & solid))
            extents.append(size)
            totals["outside"] += int((~(within & solid)).sum())
            areas = (corners[:, 2:] - corners[:, :2]).prod(1) if objects.areas is None else objects.areas
            for area in areas[learnt].tolist():
                sizes["small" if area <= SMALL else "medium" if area <= LARGE else "large"] += 1
        if seen:
            narrow += narrow_boxes(source.classes, split, seen, needed_of_split(seen, extents), image_size)
        if needed and split == "train":
            narrow += thin_classes(source.classes, np.stack(needed), image_size)
    return DenseInspection(
        name=source.images.name,
        kind=source.kind,
        classes=source.classes,
        images={split: len(rows) for split, rows in splits.items()},
        counts={split: tuple(each.tolist()) for split, each in counts.items()},
        sizes=dict(sizes),
        bare=totals["bare"],
        crowds=totals["crowds"],
        outside=totals["outside"],
        masks=0 < totals["drawn"] == totals["all"],
        unreadable=unreadable,
        notes=(*source.notes, *alike(source.classes), *_untaught(source, counts), *narrow),
    )


def _untaught(source: DenseSource, counts: dict[str, np.ndarray]) -> list[str]:
    """A warning for masks of one class, and for each split with classes that no training image has."""
    if "train" not in counts:
        return []
    classes, absent = source.classes, counts["train"] == 0
    labels_of = {split: np.flatnonzero(absent & (each > 0)).tolist() for split, each in counts.items()}
    alone = one_class(classes, counts["train"].tolist()) if source.masks is not None else ""
    warnings = [alone] if alone else []
    return warnings + [
        f"in {split}, but in no image to learn from: {some([classes[label] for label in labels], 5)}"
        for split, labels in labels_of.items()
        if labels
    ]


def _shown(source: DenseSource, row: int, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Which classes a mask shows, [C] 0 or 1, and the image size that each value needs, [256]."""
    assert source.masks is not None
    assert source.values is not None
    needed = needed_of_mask(read_mask(source.masks[row], source.values, size, orientation(source, row)))
    return (needed[: len(source.classes)] > 0).astype(np.int64), needed
