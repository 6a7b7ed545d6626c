# SPDX-License-Identifier: Apache-2.0
"""Images to be judged: the crop, in batches, in order, nothing drawn."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..image_set import Images
from ..stream import StreamImages, ahead, helpers
from ..transforms.crop import CenterCrop, Crop
from ..transforms.transform import send
from ..transforms.view import Augment
from .batch import Batch
from .loader import fetch


class Input(Protocol):
    """What a student expects of an image; a data set and a DataSpec both say it."""

    @property
    def image_size(self) -> tuple[int, int]: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def evaluation_batches(
    images: Images, expected: Input, batch_size: int, device: torch.device, crop: Crop | None = None
) -> Iterator[Batch]:
    """Every image once, in order, unchanged but for size; the last batch may be smaller.

    Args:
        images: of any split.
        expected: image size, mean and standard deviation.
        batch_size: images at once.
        device: where batches are made.
        crop: which part of an image is looked at; null takes the largest centered part of the input's shape.
    """
    normalize = as_seen(expected).normalize
    for part, view in evaluation_views(images, expected, batch_size, device, crop):
        labels = images.records.labels[part]
        pixels = normalize(send(view, device))
        yield {"image": pixels, "label": send(labels, device), "index": send(part, device)}


def evaluation_views(
    images: Images, expected: Input, batch_size: int, device: torch.device, crop: Crop | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same before normalization: numbers of images [B], and their pixels [B, C, H, W] uint8."""
    augment = as_seen(expected, crop)
    parts = torch.split(torch.arange(len(images)), batch_size)
    if isinstance(images, StreamImages):
        views = ahead(partial(_cut, images, augment), parts, helpers(None, needed=True))
    else:
        views = (augment.cut(fetch(images, part, device), images.records.sizes[part], _nothing(part)) for part in parts)
    return zip(parts, views, strict=True)


def as_seen(expected: Input, crop: Crop | None = None) -> Augment:
    """What happens to an image that is looked at without learning from it."""
    return Augment([crop or CenterCrop()], expected.image_size, expected.mean, expected.std, 0)


def _cut(images: StreamImages, augment: Augment, numbers: Tensor) -> Tensor:
    return images.cut(numbers, [augment], [_nothing(numbers)])[0]


def _nothing(numbers: Tensor) -> Tensor:
    """Uniform numbers where nothing is random."""
    return torch.empty(len(numbers), 0)
