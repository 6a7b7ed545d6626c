# SPDX-License-Identifier: Apache-2.0
"""A batch, from the loader to the losses: its images, and their objects and masks where the augmentation put them.

    boxes   [B, N, 4] float32, pixels of the canvas, N the most objects of an image in the batch
    labels  [B, N] int64, -1 where an image has fewer
    masks   [B, ceil(N / 8), H, W] uint8, of objects, on request: object k is bit k % 8 of plane k // 8
    classes [B, H, W] int64 instead of these three, 255 for no class: a batch for a segmenter
    labeled [B] float32 with it, pixels with a class: the mean over the batch, which survives splitting the batch

Evaluation batches also hold boxes and labels of crowds, `crowd_boxes` and `crowd_labels`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..targets.objects import UNLABELED, Annotations, Boxed, Objects
from ..transforms.placement import MIN_SIDE, Placement

TEACHER_IMAGE = "teacher_image"

Batch = dict[str, Tensor]
"""Images of one step, or of one pass over held-out images, by these names. (Objects and masks: targets.py.)

    image  [B, channels, H, W] float, normalized
    teacher_image [B, channels, h, w] float, the same crop and changes of `image` in another size, where the recipe has
           one for teachers (`images.teacher_size`)
    label  [B] int64, or [B, C] float once mixup or smoothing made it a distribution; of several labels an image always
           [B, C] float, 1 for each class in the image
    index  [B] int64, the image's number in its split
    class_weight [B] float, N / (C n) of the image's class with n of N held-out images, where classes count alike
    image2 [B, channels, H, W] float, the second view, where the recipe has one (`augment2`)
    image3 [B, channels, h, w] float, and so on: local crops, where the method needs them (`augment_local_crops`)
    noise  [B, N] float in [0, 1), where the method needs it
    kept   [B, K] int64, the visible patches, where the method masks the others
"""


ROUNDING = 1e-2  # pixels by which a box that is not cut may lose of its sides


def target_batch(place: Placement, numbers: Tensor, targets: Annotations, masks: bool = False) -> dict[str, Tensor]:
    """The targets of a batch, on the CPU."""
    rows = numbers.tolist()
    if not isinstance(targets, Boxed):
        planes = [targets.pixels[targets.rows[row]] for row in rows]
        classes = torch.stack([place.mask(i, pixels, UNLABELED).long() for i, pixels in enumerate(planes)])
        return {"classes": classes, "labeled": labeled(classes)}
    objects = [placed_objects(place, i, targets.objects[row], masks) for i, row in enumerate(rows)]
    batch = _joined(objects)
    if masks:
        batch["masks"] = torch.zeros(len(rows), -(-batch["labels"].shape[1] // 8), *place.canvas, dtype=torch.uint8)
    for i, each in enumerate(objects):
        for k, plane in enumerate(each.get("masks", ())):
            batch["masks"][i, k // 8] |= plane << (k % 8)
    return batch


def crowd_batch(place: Placement, numbers: Tensor, targets: Annotations) -> dict[str, Tensor]:
    """`crowd_boxes` [B, N, 4] and `crowd_labels` [B, N] of a batch, in which predictions do not count as wrong; empty
    for classes of pixels."""
    if not isinstance(targets, Boxed):
        return {}
    crowds = [objects.part(objects.crowd) for objects in (targets.objects[row] for row in numbers.tolist())]
    placed = [{"boxes": place.boxes(i, each.boxes), "labels": each.labels} for i, each in enumerate(crowds)]
    return {f"crowd_{name}": value for name, value in _joined(placed).items()}


def placed_objects(place: Placement, i: int, objects: Objects, masks: bool) -> dict[str, Tensor]:
    """Boxes [n, 4], labels [n], and on request masks [n, H, W] uint8 of the objects of image i that are trained on.

    Crowds are left out, and so are objects of which less than a pixel is left, or no pixel of their mask. The box of an
    object that the canvas cuts bounds what is left of its mask, where masks are requested.
    """
    objects = objects.part(~objects.crowd)
    boxes = place.boxes(i, objects.boxes)
    visible = (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(1)
    boxes, objects = boxes[visible], objects.part(visible)
    if not masks:
        return {"boxes": boxes, "labels": objects.labels}
    assert objects.shapes is not None or not len(objects)  # an image without objects has no shapes either
    planes = place.outlines(i, objects.shapes or ())
    visible = torch.from_numpy(planes.any((1, 2)))
    whole = (objects.boxes[:, 2:] - objects.boxes[:, :2]) * place.factors(i)[0].flip(0)
    cut = (boxes[:, 2:] - boxes[:, :2] < whole - ROUNDING).any(1) & visible
    for k in cut.nonzero()[:, 0].tolist():
        down, across = (planes[k].any(axis).nonzero()[0] for axis in (1, 0))
        boxes[k] = torch.tensor([across[0], down[0], across[-1] + 1, down[-1] + 1])
    return {"boxes": boxes[visible], "labels": objects.labels[visible], "masks": torch.from_numpy(planes)[visible]}


def labeled(classes: Tensor) -> Tensor:
    """Pixels with a class of a batch's images [B, H, W], their mean for each image, [B]."""
    return ((classes != UNLABELED).sum() / len(classes)).repeat(len(classes))


def unpacked(planes: Tensor, count: int) -> Tensor:
    """Masks [count, H, W] uint8 out of one image's planes [P, H, W]."""
    bits = torch.arange(count, device=planes.device)
    return (planes[bits // 8] >> (bits % 8).to(torch.uint8)[:, None, None]) & 1


def _joined(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Boxes [B, N, 4] and labels [B, N] of a batch's images, -1 where an image has fewer than N."""
    most = max((len(each["labels"]) for each in rows), default=0)
    batch = {"boxes": torch.zeros(len(rows), most, 4), "labels": torch.full((len(rows), most), -1)}
    for i, each in enumerate(rows):
        count = len(each["labels"])
        batch["boxes"][i, :count], batch["labels"][i, :count] = each["boxes"], each["labels"]
    return batch
