# SPDX-License-Identifier: Apache-2.0
"""Batches of images with what is in them: the images of the plain loader, followed by their objects or masks.

    image   [B, channels, H, W] float32, normalized  index  [B] int64
    boxes   [B, N, 4] float32, pixels of the canvas, N the most objects of an image in the batch
    labels  [B, N] int64, -1 where an image has fewer
    masks   [B, ceil(N / 8), H, W] uint8, where masks are learnt: object k is bit k % 8 of plane k // 8
    classes [B, H, W] int64 instead of these three, 255 for no class: a batch of a segmenter
    labeled [B] float32 beside it, pixels with a class: the mean over the batch's images, which its parts keep

Held-out batches hold boxes and labels of crowds besides, `crowd_boxes` and `crowd_labels`.

The plain loader is a pure function of (seed, epoch, step), and what follows is one of the same draw: a resumed run sees
the same boxes, and so do two processes.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..image_set import CachedImages, Images
from ..stream import StreamImages
from ..targets.objects import UNLABELED, Annotations, Boxed
from ..transforms.crop import Letterbox
from ..transforms.follow import Placement, follow, follow_classes, follow_crowds, placement
from ..transforms.transform import send
from .batch import Batch
from .evaluation import Input, as_seen, evaluation_views
from .loader import Loader

WHOLE = Letterbox()
"""How images are shown that are judged."""


class DenseLoader:
    """Augmented training batches, without end to the epochs; each pass starts where the last one stopped.

    Args:
        plain: loads the images, by one augmentation that objects can follow (`follow.check_follows`).
        annotations: of the same images.
        masks: whether masks of objects are learnt.
    """

    def __init__(self, plain: Loader, annotations: Annotations, masks: bool = False) -> None:
        self.plain, self.annotations, self.masks = plain, annotations, masks

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self.plain)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch."""
        epoch, step = self.plain.epoch, self.plain.next
        for number, batch in enumerate(self.plain, step):
            yield self._followed(batch, epoch, number)

    def state_dict(self) -> dict[str, int]:
        """Where the next batch stands."""
        return self.plain.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the batch that a state names; takes effect at the next pass."""
        self.plain.load_state_dict(state)

    def batch(self, epoch: int, step: int) -> Batch:
        """This process's part of one step."""
        return self._followed(self.plain.batch(epoch, step), epoch, step)

    def _followed(self, batch: Batch, epoch: int, step: int) -> Batch:
        draw, (augment,) = self.plain.draw(epoch, step), self.plain.augments
        place = placement(augment, sizes_of(self.plain.images, draw.numbers), side_of(self.plain.images), draw.u[0])
        truth = targets(place, draw.numbers, self.annotations, self.masks)
        device = batch["image"].device
        return {"image": batch["image"], "index": batch["index"], **{k: send(v, device) for k, v in truth.items()}}


def targets(place: Placement, numbers: Tensor, annotations: Annotations, masks: bool = False) -> dict[str, Tensor]:
    """What is to be learnt of a batch, as the head of this file says, on the CPU.

    Args:
        place: where its images went.
        numbers: [B] which images they are.
        annotations: of the split.
        masks: whether masks of objects are wanted.
    """
    rows = numbers.tolist()
    if not isinstance(annotations, Boxed):
        kept = [annotations.pixels[annotations.rows[row]] for row in rows]
        classes = torch.stack([follow_classes(place, i, pixels) for i, pixels in enumerate(kept)])
        return {"classes": classes, "labeled": labeled(classes)}
    followed = [follow(place, i, annotations.objects[row], masks) for i, row in enumerate(rows)]
    batch = _joined(followed)
    if masks:
        most = batch["labels"].shape[1]
        batch["masks"] = torch.zeros(len(rows), -(-most // 8), *place.canvas, dtype=torch.uint8)
    for i, each in enumerate(followed):
        for k, plane in enumerate(each.get("masks", ())):
            batch["masks"][i, k // 8] |= plane << (k % 8)
    return batch


def labeled(classes: Tensor) -> Tensor:
    """Pixels with a class of a batch's images [B, H, W], their mean for each image, [B]."""
    return ((classes != UNLABELED).sum() / len(classes)).repeat(len(classes))


def _joined(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Boxes [B, N, 4] and labels [B, N] of a batch's images, -1 where an image has fewer than N."""
    most = max((len(each["labels"]) for each in rows), default=0)
    batch = {"boxes": torch.zeros(len(rows), most, 4), "labels": torch.full((len(rows), most), -1)}
    for i, each in enumerate(rows):
        count = len(each["labels"])
        batch["boxes"][i, :count], batch["labels"][i, :count] = each["boxes"], each["labels"]
    return batch


def crowds(place: Placement, numbers: Tensor, annotations: Annotations) -> dict[str, Tensor]:
    """What counts for nothing where a batch is judged, as `targets` tells what is learnt: `crowd_boxes` [B, N, 4] and
    `crowd_labels` [B, N]; nothing where pixels have classes, which say so themselves."""
    if not isinstance(annotations, Boxed):
        return {}
    followed = [follow_crowds(place, i, annotations.objects[row]) for i, row in enumerate(numbers.tolist())]
    return {f"crowd_{name}": value for name, value in _joined(followed).items()}


def unpacked(planes: Tensor, count: int) -> Tensor:
    """Masks [count, H, W] uint8 out of one image's planes [P, H, W]."""
    bits = torch.arange(count, device=planes.device)
    return (planes[bits // 8] >> (bits % 8).to(torch.uint8)[:, None, None]) & 1


def dense_views(
    images: Images, expected: Input, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Placement]]:
    """Every image once, in order, whole: numbers [B], images [B, C, H, W] normalized on the device, where they went."""
    seen = as_seen(expected, WHOLE)
    for numbers, pixels in evaluation_views(images, expected, batch_size, device, WHOLE):
        nothing = torch.empty(len(numbers), 0)
        place = placement(seen, sizes_of(images, numbers), side_of(images), nothing)
        yield numbers, seen.normalize(send(pixels, device)), place


def dense_batches(
    images: Images, annotations: Annotations, expected: Input, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """Every image once, in order, whole, with what is in it; as a training batch, but for masks of objects, and with
    what is not learnt (`crowds`)."""
    for numbers, pixels, place in dense_views(images, expected, batch_size, device):
        known = {**targets(place, numbers, annotations), **crowds(place, numbers, annotations)}
        truth = {name: send(value, device) for name, value in known.items()}
        yield {"image": pixels, "index": send(numbers, device), **truth}


def sizes_of(images: Images, numbers: Tensor) -> Tensor:
    """Height and width of some originals, [B, 2]; those of streamed images are looked up."""
    sizes = images.records.sizes[numbers]
    if (sizes > 0).all():
        return sizes
    return torch.tensor([images.extent(number) for number in numbers.tolist()])


def side_of(images: Images) -> int:
    """Side of the square in which images are kept, pixels."""
    if isinstance(images, StreamImages):
        return images.size
    assert isinstance(images, CachedImages)
    return images.pixels.shape[-1]
