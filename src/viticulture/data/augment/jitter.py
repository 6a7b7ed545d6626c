# SPDX-License-Identifier: Apache-2.0
"""Random brightness, contrast, saturation and hue, in a random order, each image by itself."""

from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from ...errors import UserError
from ..transfer import send
from .transform import Transform, apply_to_rows, between, check_share, randint, rows_where

ORDERS = torch.tensor(list(permutations(range(4))))  # [24, 4]
GRAY = (0.2989, 0.587, 0.114)  # torchvision's


class ColorJitter(Transform):
    """torchvision's ColorJitter, applied with a probability.

    Brightness, contrast and saturation blend an image x with black, with its mean gray and with its gray values:
    base + f (x - base), f ~ U(max(0, 1 - s), 1 + s). Hue turns the color circle by U(-hue, hue) of a turn. The order
    of the four is drawn too. Deviation: levels are rounded once at the end, not after each of the four.

    Args:
        brightness: s of brightness, whose factor is drawn between 1 - s and 1 + s; 0 leaves it.
        contrast: s of contrast, likewise.
        saturation: s of saturation, likewise.
        hue: largest part of a turn, at most one half; 0 for images of other than three channels.
        probability: of changing an image at all.
    """

    columns = 6

    def __init__(
        self,
        brightness: float = 0.4,
        contrast: float = 0.4,
        saturation: float = 0.4,
        hue: float = 0.0,
        probability: float = 1.0,
    ) -> None:
        for name, value in {"brightness": brightness, "contrast": contrast, "saturation": saturation}.items():
            if value < 0:
                raise UserError(f"color_jitter.{name} must not be negative, got {value}")
        if not 0 <= hue <= 0.5:
            raise UserError(f"color_jitter.hue must lie between 0 and 0.5, got {hue}")
        check_share("color_jitter", "probability", probability)
        self.strength, self.hue, self.probability = (brightness, contrast, saturation), hue, probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        mask = u[:, 0] < self.probability
        order = ORDERS[randint(u[mask, 1], len(ORDERS)).long()]  # [n, 4]
        factors = [between(u[mask, 2 + k], max(0.0, 1 - s), 1 + s) for k, s in enumerate(self.strength)]
        factors.append(between(u[mask, 5], -self.hue, self.hue))
        drawn = torch.stack(factors, 1).float()
        return apply_to_rows(images, rows_where(mask), lambda some: on_levels(some, order, drawn, self.hue > 0))


def on_levels(images: Tensor, order: Tensor, factors: Tensor, turn: bool) -> Tensor:
    """`jitter` of gray levels, uint8."""
    return (255 * jitter(images.float() / 255, order, factors, turn)).round_().to(torch.uint8)


def jitter(images: Tensor, order: Tensor, factors: Tensor, turn: bool) -> Tensor:
    """The four changes in each image's own order.

    Args:
        images: [n, C, H, W] float in [0, 1], overwritten.
        order: [n, 4] permutations of brightness 0, contrast 1, saturation 2, hue 3, on the CPU.
        factors: [n, 4] of brightness, contrast, saturation and hue, on the CPU.
        turn: whether there is any hue to turn.
    """
    changes = (brightness, contrast, saturation, hue)[: 4 if turn else 3]
    for position in order.T:
        for kind, change in enumerate(changes):
            mask = position == kind
            factor = send(factors[mask, kind], images.device)[:, None, None, None]
            images = apply_to_rows(images, rows_where(mask), partial(change, factor=factor))
    return images


def to_gray(images: Tensor) -> Tensor:
    """The gray value of each pixel, [n, C, H, W] -> [n, 1, H, W]; the mean of other than three channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.chunk(3, 1)
    return GRAY[0] * red + GRAY[1] * green + GRAY[2] * blue


def blend(base: Tensor | float, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), kept in [0, 1]; factor 1 changes nothing."""
    return (base + factor * (images - base)).clamp_(0, 1)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards black."""
    return blend(0.0, images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards the image's mean gray."""
    return blend(to_gray(images).mean((1, 2, 3), keepdim=True), images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards each pixel's gray."""
    return blend(to_gray(images), images, factor)


def hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn by `factor` turns in the hue-saturation-value cone, sixths of a turn being h."""
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)  # [n, H, W]
    red, green, blue = images.unbind(1)
    divisor = torch.where(chroma == 0, 1.0, chroma)
    h = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    h = h + 6 * factor[:, 0]
    channels = [value - chroma * (torch.minimum(k, 4 - k)).clamp(0, 1) for k in ((h + n) % 6 for n in (5, 3, 1))]
    return torch.stack(channels, 1)
