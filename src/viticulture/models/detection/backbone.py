# SPDX-License-Identifier: Apache-2.0
"""A student as a backbone: the patch tokens of some of its blocks, as maps.

Any student with timm's `forward_intermediates` will do: plain ViTs, DHVT, CiT, timm's networks. It has no head, and is
built for one image size, so that its positions are resampled once, when it starts from other weights.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..layout import layout


class MapBackbone(nn.Module):
    """[B, channels, H, W] -> one [B, D, rows, columns] for each block that is read.

    What the maps do not depend on (a last class token's path, a norm behind them) is frozen: it would get no gradient,
    which distributed training takes for a mistake.

    Args:
        student: without classes; it is not copied.
        image_size: H, W, pixels.
        blocks: numbers of the blocks that are read, from 0; if empty, the last one.
        channels: of an image.

    Attributes:
        widths: D of each map.
        strides: pixels between neighbors of each map.

    Raises: UserError if the student has no such maps.
    """

    def __init__(
        self, student: nn.Module, image_size: tuple[int, int], blocks: Sequence[int] = (), channels: int = 3
    ) -> None:
        super().__init__()
        if not hasattr(student, "forward_intermediates"):
            raise UserError(
                f"a backbone needs timm's forward_intermediates, which {type(student).__name__} lacks; "
                "take a ViT, such as vit_tiny or dhvt_nano"
            )
        depth = len(layout(student).blocks)
        if wrong := [number for number in blocks if not 0 <= number < depth]:
            raise UserError(f"method.blocks must name blocks of the student, 0 to {depth - 1}, got {wrong[0]}")
        if sorted(set(blocks)) != list(blocks):
            raise UserError(f"method.blocks must rise, got {list(blocks)}")
        self.student = student
        self.blocks = list(blocks) or [depth - 1]
        copied = copy.deepcopy(self).to("meta").eval()
        parameters = {name: p for name, p in copied.named_parameters() if p.requires_grad}
        images = torch.zeros(1, channels, *image_size, device="meta")
        with torch.enable_grad():
            maps = copied(images)
            total = torch.stack([each.sum() for each in maps]).sum()
            gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        unused = {name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None}
        for name, parameter in self.named_parameters():
            if name in unused:
                parameter.requires_grad_(False)
        self.widths = [each.shape[1] for each in maps]
        self.strides = [_stride(image_size, (each.shape[-2], each.shape[-1])) for each in maps]

    def forward(self, images: Tensor) -> list[Tensor]:
        student: Any = self.student
        maps: list[Tensor] = student.forward_intermediates(
            images, indices=self.blocks, norm=False, intermediates_only=True
        )
        return maps

    def no_weight_decay(self) -> set[str]:
        """Names of parameters of a network around this backbone: the student's list."""
        listed: set[str] = getattr(self.student, "no_weight_decay", set)()
        return {f"backbone.student.{name}" for name in listed}


def _stride(image_size: tuple[int, int], grid: tuple[int, int]) -> int:
    """Return the pixels between neighbors of a map. Raises: UserError where they differ by axis or are not whole."""
    stride = image_size[0] // grid[0]
    if (grid[0] * stride, grid[1] * stride) != image_size:
        height, width = image_size
        raise UserError(f"a map of {grid[0]}x{grid[1]} tokens does not tile an image of {height}x{width} pixels")
    return stride
