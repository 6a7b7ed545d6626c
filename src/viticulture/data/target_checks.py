# SPDX-License-Identifier: Apache-2.0
"""Counts of every class in each split, and which objects and classes are lost at a training's image size.

A box of w x h pixels in an image of W x H that is resized whole to a canvas of S x S, is

    min(w, h) S / max(W, H)     pixels

wide, and one of less than a pixel is no target (`placement.MIN_SIDE`). A class of a mask counts as wide as the shorter
of its longest run along a row and its longest run along a column. What S makes of that a pixel is the size that is
needed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError, counted, some
from .image_settings import MAX_SIDE
from .sources.labels import alike
from .targets.objects import UNLABELED, Annotations, Boxed, Masked, Objects
from .transforms.placement import MIN_SIDE

OUTSIDE = 1.0  # pixels by which a box may reach outside its image: lists are rounded
STEP = 32  # sizes that are recommended are multiples of it, as every usual patch divides them
FEW = 0.1  # share of a class's images in which it may be thinner than a pixel without a note: masks have stray pixels


def counts(classes: Sequence[str], held: Annotations) -> Tensor:
    """Objects of every class, crowds left out, or pixels of every class in the store, [C] int64."""
    if isinstance(held, Boxed):
        labels = torch.cat(
            [objects.labels[~objects.crowd] for objects in held.objects] or [torch.zeros(0, dtype=torch.int64)]
        )
        return torch.bincount(labels, minlength=len(classes))
    total = torch.zeros(256, dtype=torch.int64)
    for part in torch.split(held.rows, 64):
        total += torch.bincount(held.pixels[part].flatten().long(), minlength=256)
    return total[: len(classes)]


def warnings_of(
    classes: Sequence[str], held: Mapping[str, Annotations], needed: Mapping[str, NDArray[np.float32]], image_size: int
) -> list[str]:
    """Warnings about the splits of a training. `needed`: image sizes that classes of masks need, [N, 256] of each split
    (`needed_of_mask`); empty of objects. Raises: UserError where nothing is left to train on.
    """
    present = {split: counts(classes, each).tolist() for split, each in held.items()}
    train = held["train"]
    what = "object" if isinstance(train, Boxed) else "labeled pixel"
    lost = {split: _lost(each, present[split]) for split, each in needed.items()}
    if lost.get("train") and sum(map(bool, present["train"])) < 2:
        left = some([name for name, count in zip(classes, present["train"], strict=True) if count]) or "no class"
        (why,) = gone(classes, "train", needed["train"], present["train"], image_size)
        raise UserError(f"{left} is all that is left to train on: {why}")
    if not any(present["train"]):
        crowds = isinstance(train, Boxed) and any(len(objects) for objects in train.objects)
        crowded = " but crowds and difficult ones" if crowds else ""
        raise UserError(f"there is no {what} in any training image{crowded}; there is nothing to train on")
    if isinstance(train, Masked) and (why := one_class(classes, present["train"])):
        raise UserError(why)
    notes = alike(classes)
    absent = {
        split: [classes[i] for i, count in enumerate(each) if not count and i not in lost.get(split, ())]
        for split, each in present.items()
    }
    notes += [f"no training image has {some(absent['train'], 5)}"] if absent["train"] else []
    for split, each in needed.items():
        notes += gone(classes, split, each, present[split], image_size)
    if "train" in needed:
        notes += thin_classes(classes, needed["train"], image_size, lost["train"])
    for split in ("val", "test"):  # what is not trained either is reported above
        if names := [name for name in absent.get(split, ()) if name not in absent["train"]]:
            notes.append(f"no {split} image shows {some(names, 5)}: {unshown(train)}")
    if isinstance(train, Boxed) and (bare := sum(not len(objects) for objects in train.objects)):
        notes.append(f"{counted(bare, 'training image')} of {len(train.objects)} without objects")
    return notes


def needed_of_split(objects: Sequence[Objects], extents: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """The image size that makes each box of a split a pixel wide, [n], crowds left out; inf where it is empty."""
    boxes = [each.boxes[~each.crowd] for each in objects]
    sides = torch.cat([(each[:, 2:] - each[:, :2]).amin(1) for each in boxes]).double().numpy()
    longer = np.repeat([MIN_SIDE * max(extent) for extent in extents], list(map(len, boxes)))
    return np.divide(longer, sides, out=np.full(len(sides), np.inf), where=sides > 0)


def needed_of_mask(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The image size that makes each class of a mask [H, W] a pixel wide, [256]; 0 where it has no pixel."""
    runs = np.minimum(_longest_runs(pixels), _longest_runs(np.ascontiguousarray(pixels.T)))
    return np.divide(max(pixels.shape), runs, out=np.zeros(256, np.float32), where=runs > 0, casting="same_kind")


def _longest_runs(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The longest run of each value along a row, [256] pixels."""
    ends = np.ones(pixels.shape, dtype=bool)
    np.not_equal(pixels[:, 1:], pixels[:, :-1], out=ends[:, :-1])
    places = np.flatnonzero(ends)
    longest = np.zeros(256, np.float32)
    np.maximum.at(longest, pixels.ravel()[places], np.diff(places, prepend=-1).astype(np.float32))
    return longest


def narrow_boxes(
    classes: Sequence[str], split: str, objects: Sequence[Objects], needed: NDArray[np.float64], image_size: int
) -> list[str]:
    """A warning where boxes are less than a pixel wide."""
    labels = torch.cat([each.labels[~each.crowd] for each in objects]).numpy()
    narrow = needed > image_size
    if not narrow.any():
        return []
    every = np.bincount(labels, minlength=len(classes))
    by_class = enumerate(np.bincount(labels[narrow], minlength=len(classes)).tolist())
    names = some([f"{classes[label]}: {count:,} of {every[label]:,}" for label, count in by_class if count], 5)
    left_out = ", left out of training unless enlarged" if split == "train" else ""
    return [
        f"less than a pixel wide at image size {image_size}: {narrow.sum():,} of {counted(len(needed), 'object')} in "
        f"{split} images ({names}){left_out}; {keep_by(float(needed.max()))}"
    ]


def check_wide_enough(needed: NDArray[np.float64], image_size: int, enlarged: float) -> None:
    """Raises: UserError where no object of the training images is a pixel wide. `enlarged`: times by which it shows an
    image larger than whole, at most.
    """
    if (needed > image_size * enlarged).all():
        raise UserError(
            f"all {counted(len(needed), 'object')} of the training images are less than a pixel wide at image size "
            f"{image_size}, so that nothing is left to train on; {keep_by(float(needed.max()))}"
        )


def thin_classes(
    classes: Sequence[str], needed: NDArray[np.float32], image_size: int, but: Sequence[int] = ()
) -> list[str]:
    """A warning where classes of masks are less than a pixel wide in more than a few of their images."""
    there, thin = (needed > 0).sum(0), needed > image_size
    often = [i for i in range(len(classes)) if i not in but and thin[:, i].sum() > FEW * there[i]]
    if not often:
        return []
    names = some([f"{classes[i]} in {thin[:, i].sum():,} of {there[i]:,} images" for i in often], 5)
    cure = keep_by(float(needed[:, often].max()))
    return [f"at image size {image_size} classes are less than a pixel wide, of which little is left: {names}; {cure}"]


def keep_by(needed: float) -> str:
    """Say how to keep what needs an image size."""
    size = int(-(-needed // STEP)) * STEP if np.isfinite(needed) else MAX_SIDE + 1
    return f"--image-size {size} keeps all" if size <= MAX_SIDE else "cut the images into parts to keep all"


def _lost(needed: NDArray[np.float32], counts: Sequence[int]) -> list[int]:
    """Return labels of classes that masks have, and of which no pixel is left."""
    return [label for label, count in enumerate(counts) if not count and needed[:, label].any()]


def gone(
    classes: Sequence[str], what: str, needed: NDArray[np.float32], counts: Sequence[int], image_size: int
) -> list[str]:
    """A warning where masks have classes of which no pixel is left."""
    if not (labels := _lost(needed, counts)):
        return []
    names = [f"{classes[i]} ({counted(int((needed[:, i] > 0).sum()), 'image')})" for i in labels]
    cure = keep_by(max(float(needed[:, labels].max()), 1.5 * image_size))
    return [f"at image size {image_size} no pixel is left in {what} masks of {some(names, 5)}; {cure}"]


def unshown(held: Annotations) -> str:
    """Say how a class without examples counts: AP leaves it out, mIoU only where no pixel is predicted as it."""
    if isinstance(held, Boxed):
        return "nothing is measured of what no image shows"
    return "where a pixel is said to be such a class its IoU is 0, else it counts for nothing"


def one_class(classes: Sequence[str], present: Sequence[int]) -> str:
    """Say why masks of a single class cannot train a network; "" for more. `shown`: pixels or images of each class."""
    only = [name for name, count in zip(classes, present, strict=True) if count]
    if len(only) != 1:
        return ""
    return (
        f"all labeled pixels of the training images are {only[0]}, and it takes two classes to tell them apart; in a "
        f"mask the value {UNLABELED} means no class: give what it marks the number of its class"
    )
