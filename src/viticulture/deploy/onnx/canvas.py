# SPDX-License-Identifier: Apache-2.0
"""From an image of any size to what a detector or a segmenter is shown, and back, as a graph of fixed operations.

The same two steps as a run takes (data/transforms/resample.py, data/transforms/crop.py): the image is squeezed to the
square of the store, then made as large as the canvas allows in its own shape, the rest padded with the mean color. Gray
levels are rounded after each step; a run's kernels round within a step too, and may differ by a gray level.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.batches.annotated import WHOLE
from ...data.batches.evaluation import as_seen
from ...data.transforms.crop import CanvasCrop
from ...data.transforms.view import Augment
from ...models.data_spec import DataSpec


class Canvas(nn.Module):
    """[H, W, channels] gray levels -> [1, channels, S, S] normalized.

    Args:
        data_spec: size of the canvas, and colors.
        store: side of the square that images are squeezed to first, pixels.
    """

    fill: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, data_spec: DataSpec, store: int) -> None:
        super().__init__()
        self.size, self.store, self.channels = data_spec.image_size, store, data_spec.channels
        seen: Augment = as_seen(data_spec, WHOLE)
        assert isinstance(seen.crop, CanvasCrop)
        self.register_buffer("fill", torch.tensor(seen.crop.fill, dtype=torch.float32)[:, None, None])
        self.register_buffer("scale", seen.scale)
        self.register_buffer("shift", seen.shift)

    def extent(self, image: Tensor) -> tuple[int, int]:
        """Height and width of an image on the canvas, pixels."""
        (H, W, _), (height, width) = image.shape, self.size
        assert height == width
        larger: Any = torch.sym_max  # of numbers that a trace leaves open
        longer = larger(H, W)
        return larger(H * height // longer, 1), larger(W * width // longer, 1)

    def forward(self, image: Tensor) -> Tensor:
        height, width = self.extent(image)
        pixels = image.permute(2, 0, 1)[None].float()  # [1, channels, H, W]
        stored = _resized(pixels, (self.store, self.store), "bicubic")
        shown = _resized(stored, (height, width), "bilinear") - self.fill
        filled = F.pad(shown, (0, self.size[1] - width, 0, self.size[0] - height)) + self.fill
        return filled * self.scale + self.shift


def _resized(pixels: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    return F.interpolate(pixels, size=size, mode=mode, antialias=True).add(0.5).floor().clamp(0, 255)


def stretched(maps: Tensor, extent: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The part of maps [..., h, w] that shows the image, as large as the image, bilinear: [..., H, W].

    Args:
        maps: of the whole canvas.
        extent: height and width of the part, pixels.
        size: H and W, pixels.
    """
    return _along(_along(maps, extent[0], size[0], -2), extent[1], size[1], -1)


def _along(maps: Tensor, count: int, out: int, dim: int) -> Tensor:
    """One axis: `out` values from the first `count`, each between its two neighbors (align_corners=False)."""
    extent, wanted = (torch.scalar_tensor(side, dtype=torch.float32) for side in (count, out))
    place = ((torch.arange(out, dtype=torch.float32) + 0.5) * extent / wanted - 0.5).clamp(min=0)
    low = place.floor().minimum(extent - 1)
    high = (low + 1).minimum(extent - 1)
    share = place.minimum(extent - 1) - low
    share = share[:, None] if dim == -2 else share
    return maps.index_select(dim, low.long()) * (1 - share) + maps.index_select(dim, high.long()) * share


def back(boxes: Tensor, extent: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Boxes [n, 4] of the canvas in pixels of the image, inside it; arguments as for `stretched`."""
    (h, w), (H, W) = (tuple(torch.scalar_tensor(side, dtype=torch.float32) for side in two) for two in (extent, size))
    across, down = (boxes[:, 0::2] * W / w).minimum(W), (boxes[:, 1::2] * H / h).minimum(H)
    return torch.stack([across, down], 2).flatten(1)


def pasted(shares: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks [n, M, M] of boxes [n, 4] as shares of an image's pixels, [n, H, W], as torchvision pastes them.

    A mask gets a border of zeros, its box grows with it, is cut to whole pixels, and the mask stretched over it.
    """
    side = shares.shape[-1]
    bordered = F.pad(shares, (1, 1, 1, 1))
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * ((side + 2) / side)
    low, high = (center - half).trunc(), (center + half).trunc()
    rows, columns = (_tents(low[:, axis], high[:, axis], size[1 - axis], side + 2) for axis in (1, 0))
    return rows @ bordered @ columns.mT  # [n, H, M + 2] @ [n, M + 2, M + 2] @ [n, M + 2, W]


def _tents(low: Tensor, high: Tensor, count: int, side: int) -> Tensor:
    """How much of each of `side` values each of `count` pixels takes, for stretches from `low` to `high` [n], which
    both belong: [n, count, side]; pixels outside take nothing."""
    pixel = torch.arange(count, dtype=torch.float32) - low[:, None]  # [n, count], 0 is the stretch's first
    length = (high - low + 1).clamp(min=1)[:, None]
    place = ((pixel + 0.5) * side / length - 0.5).clamp(0, side - 1)
    near = (1 - (place[..., None] - torch.arange(side)).abs()).clamp(min=0)
    return near * ((pixel >= 0) & (pixel < length))[..., None]
