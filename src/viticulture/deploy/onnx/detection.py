# SPDX-License-Identifier: Apache-2.0
"""A detector or a segmenter as an ONNX file that takes an image as a camera records it.

    image [H, W, 3] uint8, RGB, upright, of any size from 2 pixels each way; of a run with other channels as many of
          levels, to which a named range must have been applied

    detector     ->  boxes [n, 4] float32 left, top, right, bottom in the image's pixels, scores [n], labels [n] int64,
                     and with masks: masks [n, H, W] bool; the highest scores first
    segmenter    ->  classes [H, W] uint8

Resizing, padding, normalization, the selection of boxes and the way back to the image's pixels are inside. Resizing has
the same two steps as in a run (data/transforms/resample.py, data/transforms/crop.py): the image is resized to the
square of the cache, then made as large as the canvas allows in its original shape, the rest padded with the mean color.
Values are rounded to uint8 after each step. A run's kernels round within a step too, and may differ by a gray level,
on which a detector's boxes, proposals and scores near the minimum may depend. So the network is compared with itself
under such changes, and the file is compared on the image whose outputs they change the least.

Metadata are JSON texts: `classes`, `kind` (detection or segmentation), `input`, `outputs`, `image_size` (of the
network's input, pixels), `mean`, `std` and, if one was named, `range`. Masks of n objects take 5 n H W bytes while they
are computed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.batches.evaluation import WHOLE, evaluation_view
from ...data.transforms.crop import CanvasCrop
from ...data.transforms.view import Augment
from ...models.data_spec import DataSpec
from ...models.detection.detector import Detector
from ...models.detection.networks import Segmenter
from .detections import Detections
from .graph import Graph, Run

MAX_DIFFERENT = 0.02  # share of boxes or pixels that may differ on a suitable image
UNSTABLE = 0.25  # share from which an image with boxes suits less than one without any
CLOSE = {"boxes": 0.5, "scores": 1e-2}  # pixels, and shares, within which two boxes are the same
PERTURBED = 0.02  # share of a canvas's values that other kernels may round differently
SIZES = ((48, 64), (301, 203))
TRIES = 6  # images per size


@torch.inference_mode()
def check_agreement(file: Callable[[Tensor], tuple[Tensor, ...]], network: Any) -> None:
    """Compare a file and its network on images of two sizes. Raises: RuntimeError if they differ."""
    for size in SIZES:
        image, expected, alone = stable_image(network, size)
        share = different(file(image), expected)
        if not share <= MAX_DIFFERENT:  # a NaN does not agree
            raise RuntimeError(
                f"the ONNX file differs from the network: {share:.1%} of its outputs differ, and {alone:.1%} of the "
                "network's under changes of a gray level"
            )


def stable_image(network: Any, size: tuple[int, int]) -> tuple[Tensor, tuple[Tensor, ...], float]:
    """Find the image with outputs that change the least under changes of a gray level.

    Returns: the image, the network's outputs, and the share of them that changes.
    """
    tried: list[tuple[tuple[bool, bool, float], Tensor, tuple[Tensor, ...]]] = []
    for seed in range(TRIES):
        image = random_image(size, seed, network.canvas.channels)
        outputs, share = network(image), 0.0
        for noise in (seed, seed + TRIES):
            with perturbed(network.canvas, noise):
                share = max(share, different(network(image), outputs))
        tried.append(((share >= UNSTABLE, not len(outputs[0]), share), image, outputs))
        if share <= MAX_DIFFERENT and len(outputs[0]):
            break
    (_, _, share), image, outputs = min(tried, key=lambda each: each[0])
    return image, outputs, share


def random_image(size: tuple[int, int], seed: int, channels: int = 3) -> Tensor:
    """Return smooth random colors, [H, W, channels] uint8; smoother with every second seed."""
    generator = torch.Generator().manual_seed(size[0] * size[1] + seed)
    coarse = torch.rand(1, channels, 5 - seed // 2, 7 - seed // 2, generator=generator)
    smooth = F.interpolate(coarse, size=size, mode="bicubic")
    return (255 * smooth[0].clamp(0, 1)).permute(1, 2, 0).to(torch.uint8).contiguous()


@contextmanager
def perturbed(canvas: nn.Module, seed: int) -> Iterator[None]:
    """Change a few values of a canvas's output by a gray level while the context lasts."""

    def hook(module: Any, _: Any, output: Tensor) -> Tensor:
        uniform = torch.rand(output.shape, generator=torch.Generator().manual_seed(seed))
        step = (uniform < PERTURBED / 2).float() - (uniform > 1 - PERTURBED / 2).float()
        return output + step * module.scale

    handle = canvas.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def different(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the share of a segmenter's pixels, or of a detector's boxes, by which two outputs for an image differ."""
    if len(expected) == 1:
        return float((outputs[0] != expected[0]).float().mean())
    (boxes, scores, labels), (true_boxes, true_scores, true_labels) = outputs[:3], expected[:3]
    if not len(boxes) and not len(true_boxes):
        return 0.0
    same = (boxes[:, None] - true_boxes).abs().amax(2) <= CLOSE["boxes"]  # [n, m]
    same &= ((scores[:, None] - true_scores).abs() <= CLOSE["scores"]) & (labels[:, None] == true_labels)
    for masks, true in zip(outputs[3:], expected[3:], strict=True):
        area = true.flatten(1).sum(1)
        unlike = (masks[:, None] ^ true).flatten(2).sum(2)
        same &= unlike <= 1 + MAX_DIFFERENT * area
    alone = (~same.any(1)).sum() + (~same.any(0)).sum()
    return float(alone / (len(boxes) + len(true_boxes)))


MASK_THRESHOLD = 0.5


class Canvas(nn.Module):
    """The input of a detector or segmenter: [H, W, channels] uint8 -> [1, channels, S, S] normalized."""

    fill: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, data_spec: DataSpec, cache_size: int) -> None:
        super().__init__()
        self.size, self.cache_size, self.channels = data_spec.image_size, cache_size, data_spec.channels
        augment: Augment = evaluation_view(data_spec, WHOLE)
        assert isinstance(augment.crop, CanvasCrop)
        self.register_buffer("fill", torch.tensor(augment.crop.fill, dtype=torch.float32)[:, None, None])
        self.register_buffer("scale", augment.scale)
        self.register_buffer("shift", augment.shift)

    def extent(self, image: Tensor) -> tuple[int, int]:
        """Return height and width of an image on the canvas, pixels."""
        (H, W, _), (height, width) = image.shape, self.size
        assert height == width
        larger: Any = torch.sym_max  # of numbers that a trace leaves open
        longer = larger(H, W)
        return larger(H * height // longer, 1), larger(W * width // longer, 1)

    def forward(self, image: Tensor) -> Tensor:
        height, width = self.extent(image)
        pixels = image.permute(2, 0, 1)[None].float()  # [1, channels, H, W]
        cached = _resized(pixels, (self.cache_size, self.cache_size), "bicubic")
        placed = _resized(cached, (height, width), "bilinear") - self.fill
        filled = F.pad(placed, (0, self.size[1] - width, 0, self.size[0] - height)) + self.fill
        return filled * self.scale + self.shift


def _resized(pixels: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    return F.interpolate(pixels, size=size, mode=mode, antialias=True).add(0.5).floor().clamp(0, 255)


class ImageGraph(Graph):
    """A network for one image of any size."""

    dims: ClassVar = {0: ("height", 2), 1: ("width", 2)}
    hint = "network for images of any size"
    opset = 18
    prepares = True
    kind: str

    def __init__(self, data_spec: DataSpec, cache_size: int) -> None:
        super().__init__()
        self.canvas = Canvas(data_spec, cache_size)

    def example(self) -> Tensor:
        return random_image((48, 64), 0, self.canvas.channels)

    def check(self, run: Run) -> None:
        check_agreement(run, self)

    def metadata(self, levels: bool) -> dict[str, Any]:
        channels = self.canvas.channels
        colors = "RGB" if channels == 3 and not levels else "levels"
        text = f"[H, W, {channels}] uint8, {colors}, upright, of any height and width from 2 pixels"
        return {"kind": self.kind, "input": text, "outputs": self.outputs}


class DetectorGraph(ImageGraph):
    """[H, W, channels] uint8 -> boxes, scores, labels and, if any, masks."""

    kind = "detection"

    def __init__(self, detector: Detector, data_spec: DataSpec, cache_size: int) -> None:
        super().__init__(data_spec, cache_size)
        self.detections = Detections(detector, data_spec.image_size[0])
        masks: Any = detector.roi_heads
        self.outputs = ("boxes", "scores", "labels", *(() if masks.mask_predictor is None else ("masks",)))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        size, extent = (image.shape[0], image.shape[1]), self.canvas.extent(image)
        boxes, scores, labels, *masks = self.detections(self.canvas(image))
        boxes = to_image(boxes, extent, size)
        solid = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1).nonzero()[:, 0]  # drops boxes in the padding
        boxes, scores, labels = boxes[solid], scores[solid], labels[solid]
        return (boxes, scores, labels, *(paste(shares[solid], boxes, size) >= MASK_THRESHOLD for shares in masks))


class SegmenterGraph(ImageGraph):
    """[H, W, channels] uint8 -> classes [H, W] uint8."""

    outputs = ("classes",)
    kind = "segmentation"

    def __init__(self, segmenter: Segmenter, data_spec: DataSpec, cache_size: int) -> None:
        super().__init__(data_spec, cache_size)
        self.segmenter = segmenter

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        size, extent = (image.shape[0], image.shape[1]), self.canvas.extent(image)
        logits = self.segmenter(self.canvas(image))[0]  # [C, S, S]
        return (stretch(logits, extent, size).argmax(0).to(torch.uint8),)


def stretch(maps: Tensor, extent: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Resize the image's part of maps [..., h, w] of the canvas to the image's size, bilinear: [..., H, W]."""
    return _along(_along(maps, extent[0], size[0], -2), extent[1], size[1], -1)


def _along(maps: Tensor, count: int, out: int, dim: int) -> Tensor:
    """Resize one axis: `out` values from the first `count`, each between two neighbors (align_corners=False)."""
    old, new = (torch.scalar_tensor(side, dtype=torch.float32) for side in (count, out))
    place = ((torch.arange(out, dtype=torch.float32) + 0.5) * old / new - 0.5).clamp(min=0)
    low = place.floor().minimum(old - 1)
    high = (low + 1).minimum(old - 1)
    share = place.minimum(old - 1) - low
    share = share[:, None] if dim == -2 else share
    return maps.index_select(dim, low.long()) * (1 - share) + maps.index_select(dim, high.long()) * share


def to_image(boxes: Tensor, extent: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Convert boxes [n, 4] from the canvas to pixels of the image, inside it; arguments as for `stretch`."""
    (h, w), (H, W) = (tuple(torch.scalar_tensor(side, dtype=torch.float32) for side in two) for two in (extent, size))
    across, down = (boxes[:, 0::2] * W / w).minimum(W), (boxes[:, 1::2] * H / h).minimum(H)
    return torch.stack([across, down], 2).flatten(1)


def paste(shares: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Paste masks [n, M, M] of boxes [n, 4] into an image, [n, H, W], like torchvision.

    A mask is padded with zeros, its box grows with it, is cut to whole pixels, and the mask is resized to it.
    """
    side = shares.shape[-1]
    bordered = F.pad(shares, (1, 1, 1, 1))
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * ((side + 2) / side)
    low, high = (center - half).trunc(), (center + half).trunc()
    rows, columns = (_tents(low[:, axis], high[:, axis], size[1 - axis], side + 2) for axis in (1, 0))
    return rows @ bordered @ columns.mT  # [n, H, M + 2] @ [n, M + 2, M + 2] @ [n, M + 2, W]


def _tents(low: Tensor, high: Tensor, count: int, side: int) -> Tensor:
    """Return the weights of `side` values in `count` pixels, for stretches from `low` to `high` [n], both included:
    [n, count, side]; pixels outside have none."""
    pixel = torch.arange(count, dtype=torch.float32) - low[:, None]  # [n, count], 0 is the stretch's first
    length = (high - low + 1).clamp(min=1)[:, None]
    place = ((pixel + 0.5) * side / length - 0.5).clamp(0, side - 1)
    near = (1 - (place[..., None] - torch.arange(side)).abs()).clamp(min=0)
    return near * ((pixel >= 0) & (pixel < length))[..., None]
