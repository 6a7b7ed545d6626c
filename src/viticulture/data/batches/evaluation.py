# SPDX-License-Identifier: Apache-2.0
"""Images for evaluation: cropped, in batches, in order, nothing random."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..image_set import Images, StreamedImages
from ..targets.objects import Annotations
from ..transforms.crop import CenterCrop, Crop, Letterbox
from ..transforms.placement import Placement, placement
from ..transforms.transform import send
from ..transforms.view import Augment
from ..workers import ahead, worker_count
from .loader import fetch
from .targets import Batch, crowd_batch, target_batch

WHOLE = Letterbox()  # the crop of images for detectors and segmenters


PIXELS, MAX_BATCH = 2**21, 256
"""Limits of a batch: 256 images up to 90 px, 41 of 224 px. Larger batches take a CPU no less time, and their
activations more memory."""


def usual_batch(image_size: tuple[int, int]) -> int:
    """Return the images of a batch for images of this height and width."""
    return min(MAX_BATCH, max(PIXELS // (image_size[0] * image_size[1]), 1))


class Input(Protocol):
    """A student's input: a dataset and a DataSpec both have it."""

    @property
    def image_size(self) -> tuple[int, int]: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def evaluation_batches(
    images: Images, expected: Input, batch_size: int, device: torch.device, crop: Crop | None = None
) -> Iterator[Batch]:
    """Yield every image once, in order, unchanged but for size; the last batch may be smaller. `expected`: image size,
    mean and standard deviation. `crop`: null takes the largest centered part of the input's shape.
    """
    normalize = evaluation_view(expected).normalize
    for numbers, view in evaluation_views(images, expected, batch_size, device, crop):
        labels, pixels = images.records.labels[numbers], normalize(send(view, device))
        yield {"image": pixels, "label": send(labels, device), "index": send(numbers, device)}


def evaluation_views(
    images: Images, expected: Input, batch_size: int, device: torch.device, crop: Crop | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same before normalization: numbers of images [B], and their pixels [B, C, H, W] uint8."""
    cut = partial(_cut, images, evaluation_view(expected, crop), device)
    parts = torch.split(torch.arange(len(images)), batch_size)
    streamed = isinstance(images, StreamedImages)
    views = ahead(cut, parts, worker_count(None, needed=True)) if streamed else map(cut, parts)
    return zip(parts, views, strict=True)


def whole_views(
    images: Images, expected: Input, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Placement]]:
    """Yield every image once, in order, whole: numbers [B], images [B, C, H, W] normalized on the device, their
    placement."""
    view = evaluation_view(expected, WHOLE)
    for numbers, pixels in evaluation_views(images, expected, batch_size, device, WHOLE):
        place = placement(view, images.sizes(numbers), images.side, torch.empty(len(numbers), 0))
        yield numbers, view.normalize(send(pixels, device)), place


def target_batches(
    images: Images, targets: Annotations, expected: Input, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """Yield every image once, in order, whole, with its targets; as a training batch, but without masks of objects, and
    with crowds."""
    for numbers, pixels, place in whole_views(images, expected, batch_size, device):
        truth = {**target_batch(place, numbers, targets), **crowd_batch(place, numbers, targets)}
        on_device = {name: send(value, device) for name, value in truth.items()}
        yield {"image": pixels, "index": send(numbers, device), **on_device}


def evaluation_view(expected: Input, crop: Crop | None = None) -> Augment:
    """The view of an image in evaluation."""
    return Augment([crop or CenterCrop()], expected.image_size, expected.mean, expected.std, 0)


def _cut(images: Images, augment: Augment, device: torch.device, numbers: Tensor) -> Tensor:
    nothing = torch.empty(len(numbers), 0)  # no random numbers
    if isinstance(images, StreamedImages):
        return images.cut(numbers, [augment], [nothing])[0]
    return augment.cut(fetch(images, numbers, device), images.records.sizes[numbers], nothing)
