# SPDX-License-Identifier: Apache-2.0
"""A detector or a segmenter looking at images, whole and in order; its answers in pixels of the originals."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from ...data.batches.evaluation import whole_views
from ...data.batches.loader import CPU
from ...data.image_set import Images
from ...data.targets.outlines import encoded
from ...models.data_spec import DataSpec
from ...models.detection.detector import Detector
from ...models.detection.networks import load_network
from ...models.detection.segmenter import Segmenter
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..model import device_for

BATCH = 16
INSIDE = 0.5  # share from which a pixel belongs to a mask
STRETCHED = 1 << 26  # values of a map that are held at once, 256 MB


@dataclass(frozen=True, eq=False)
class DenseSubject:
    """A detector or a segmenter, and how it is shown images.

    Args:
        network: in inference mode, on `device`.
        data_spec: its classes, image size and colors.
        device: where it computes.
    """

    network: Detector | Segmenter
    data_spec: DataSpec
    device: torch.device = CPU


def of_run(run: RunFolder, weights: str = "") -> DenseSubject:
    """A run's network; weights: best, last or ema, by default those that count."""
    network, data_spec = load_network(run.weights(weights or run.which()[0]))
    device = device_for(config_of(run))
    return DenseSubject(network.to(device), data_spec, device)


@dataclass(frozen=True, eq=False)
class Found:
    """Objects found in one image, most certain first.

    Args:
        boxes: [n, 4] float32 left, top, right, bottom, pixels of the original.
        scores: [n] float32, in [0, 1].
        labels: [n] int64.
        outlines: n masks as run lengths {size, counts}; None without masks.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    outlines: list[dict[str, object]] | None = None


@torch.inference_mode()
def find(subject: DenseSubject, images: Images) -> Iterator[Found]:
    """What a detector finds in every image, in order."""
    for _, pixels, place in whole_views(images, subject.data_spec, BATCH, subject.device):
        for i, output in enumerate(subject.network(pixels)):
            boxes = place.back(i, output["boxes"].float().cpu())
            solid = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)  # in padding there is nothing
            boxes, rest = boxes[solid], {name: value.float().cpu()[solid] for name, value in output.items()}
            outlines = None
            if "masks" in rest:
                height, width = place.sizes[i].tolist()
                outlines = [encoded(mask) for mask in _pasted(rest["masks"], boxes, height, width)]
            labels = rest["labels"].long().numpy()
            yield Found(boxes.numpy(), rest["scores"].numpy(), labels, outlines)


def _pasted(masks: Tensor, boxes: Tensor, height: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Masks [n, 28, 28] of boxes as bitmaps [H, W]."""
    for mask, box in zip(masks, boxes, strict=True):
        yield (paste_masks_in_image(mask[None, None], box[None], (height, width))[0, 0] >= INSIDE).numpy()


@torch.inference_mode()
def classify_pixels(subject: DenseSubject, images: Images) -> Iterator[NDArray[np.uint8]]:
    """What a segmenter says of every image, in order: [H, W] classes, in the size of the original."""
    for _, pixels, place in whole_views(images, subject.data_spec, BATCH, subject.device):
        logits = subject.network(pixels).float()
        for i in range(len(logits)):
            height, width = place.extents[i].tolist()
            size = (int(place.sizes[i, 0]), int(place.sizes[i, 1]))
            yield _likeliest(logits[i : i + 1, :, :height, :width], size).cpu().numpy()


def _likeliest(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Of logits [1, C, h, w] stretched to H and W the likeliest class of every pixel, [H, W] uint8.

    Of large images a few classes are stretched at once: a photograph of 50 megapixels in 20 classes would be 4 GB.
    """
    (H, W), best, place = size, None, None
    some = max(1, STRETCHED // (H * W))
    for first, part in enumerate(torch.split(logits, some, 1)):
        value, label = F.interpolate(part, size=size, mode="bilinear")[0].max(0)
        label = label.to(torch.uint8) + first * some
        if best is None or place is None:
            best, place = value, label
        else:
            higher = value > best  # of equals the first stays, as argmax has it
            best, place = torch.where(higher, value, best), torch.where(higher, label, place)
    assert place is not None
    return place
