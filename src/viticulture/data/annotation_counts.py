# SPDX-License-Identifier: Apache-2.0
"""Inspect objects and masks of a data set: how many, how large, and what training would not learn of them."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..errors import UserError, some
from .images.decode import Unreadable
from .sources.labels import alike
from .sources.mask_folders import read_mask
from .sources.source import Source
from .target_checks import OUTSIDE, narrow_boxes, needed_of_mask, needed_of_split, one_class, thin_classes
from .targets.objects import Objects

SMALL, LARGE = 32.0**2, 96.0**2  # areas between which COCO calls an object medium, pixels


@dataclass(frozen=True)
class AnnotationCounts:
    """Properties of objects; of masks of classes, zero and empty."""

    # "small" (to 32x32 pixels), "medium" (to 96x96), "large" -> objects, crowds left out; None for masks.
    sizes: dict[str, int] | None
    empty: int
    crowds: int  # objects that are crowds, which are not trained on
    outside: int  # boxes that are empty or reach outside their image
    masks: bool


class Annotated(NamedTuple):
    """Inspected objects or masks: parts of an `Inspection`."""

    counts: dict[str, tuple[int, ...]]
    unreadable: dict[str, str]
    warnings: list[str]
    properties: AnnotationCounts


def inspect_annotations(source: Source, extents: Mapping[int, tuple[int, int]], image_size: int) -> Annotated:
    """Count the objects or masks of the readable images, whose heights and widths in pixels are `extents`.
    `image_size`: at which they would be trained on, pixels.
    """
    classes = len(source.classes)
    counts = {split: np.zeros(classes, np.int64) for split in source.splits}
    sizes, totals, unreadable = Counter[str](), Counter[str](), dict[str, str]()
    narrow = list[str]()
    for split, rows in source.splits.items():
        held, of_held, needed = list[Objects](), list[tuple[int, int]](), list[np.ndarray]()
        for row in (row for row in rows.tolist() if row in extents):
            size = extents[row]
            try:
                if isinstance(source.targets, list):
                    objects = source.targets[row]
                    if len(objects) and objects.size is not None and objects.size != size:
                        boxes = dataclasses.replace(objects, shapes=None)
                        objects = boxes.turned(size, source.orientation(row), source.names[row])
                else:
                    path, values = source.masks.paths[row], source.masks.values
                    needed.append(needed_of_mask(read_mask(path, values, size, source.orientation(row))))
                    counts[split] += needed[-1][:classes] > 0
                    continue
            except (Unreadable, UserError) as error:
                unreadable[source.names[row]] = str(error)
                continue
            counts[split] += np.bincount(objects.labels[~objects.crowd].numpy(), minlength=classes)
            corners, (height, width) = objects.boxes, size
            sides = torch.tensor([width, height, width, height], dtype=torch.float32)
            within = ((corners >= -OUTSIDE) & (corners <= sides + OUTSIDE)).all(1)  # no NaN is
            solid = within & (corners[:, 2:] > corners[:, :2]).all(1)
            totals.update(
                empty=not len(objects),
                crowds=int(objects.crowd.sum()),
                all=len(objects),
                drawn=len(objects) if source.targets[row].shapes else 0,
                outside=int((~solid).sum()),
            )
            held.append(objects.part(solid))
            of_held.append(size)
            areas = (corners[:, 2:] - corners[:, :2]).prod(1) if objects.areas is None else objects.areas
            for area in areas[~objects.crowd].tolist():
                sizes["small" if area <= SMALL else "medium" if area <= LARGE else "large"] += 1
        if held:
            narrow += narrow_boxes(source.classes, split, held, needed_of_split(held, of_held), image_size)
        if needed and split == "train":
            narrow += thin_classes(source.classes, np.stack(needed), image_size)
    return Annotated(
        {split: tuple(each.tolist()) for split, each in counts.items()},
        unreadable,
        [*alike(source.classes), *_untrained(source, counts), *narrow],
        AnnotationCounts(
            sizes=dict(sizes) if isinstance(source.targets, list) else None,
            empty=totals["empty"],
            crowds=totals["crowds"],
            outside=totals["outside"],
            masks=0 < totals["drawn"] == totals["all"],
        ),
    )


def _untrained(source: Source, counts: Mapping[str, np.ndarray]) -> list[str]:
    """Return a warning for masks of one class, and for each split with classes that no training image has."""
    if "train" not in counts:
        return []
    alone = "" if isinstance(source.targets, list) else one_class(source.classes, counts["train"].tolist())
    absent = counts["train"] == 0
    names = {
        split: [source.classes[label] for label in np.flatnonzero(absent & (each > 0))]
        for split, each in counts.items()
    }
    return [
        *([alone] if alone else []),
        *(f"in {split}, but in no training image: {some(each, 5)}" for split, each in names.items() if each),
    ]
