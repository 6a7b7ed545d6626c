# SPDX-License-Identifier: Apache-2.0
"""Transforms of colors, per image: jitter as torchvision computes it, gray, solarize, blur.

`ColorJitter` works in floating point, as torchvision's does; RandAugment's operations on bytes are in pixels.py.
"""

import math
from functools import partial
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from . import pixels
from .transform import Transform, apply_to_rows, between, check_range, check_share, randint, rows_where, send

ORDERS = torch.tensor(list(permutations(range(4))))  # [24, 4]
GRAY = (0.2989, 0.587, 0.114)  # torchvision's


class Gray(Transform):
    """Replace every channel by the gray value.

    Args:
        probability: of graying an image.
    """

    columns = 1

    def __init__(self, probability: float = 0.2) -> None:
        check_share("gray", "probability", probability)
        self.probability = probability

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        rows = rows_where(u[:, 0] < self.probability)
        return apply_to_rows(images, rows, lambda some: pixels.to_bytes(pixels.luma(some))[:, None].expand_as(some))


class Solarize(Transform):
    """Invert bright pixels.

    Args:
        probability: of solarizing an image.
        threshold: pixel value, 0 to 255, from which on values are inverted.
    """

    columns = 1

    def __init__(self, probability: float = 0.2, threshold: int = 128) -> None:
        check_share("solarize", "probability", probability)
        if not 0 <= threshold <= 255:
            raise UserError(f"solarize.threshold must be a pixel value from 0 to 255, got {threshold}")
        self.probability, self.threshold = probability, threshold

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        change = partial(pixels.solarize, threshold=self.threshold)
        return apply_to_rows(images, rows_where(u[:, 0] < self.probability), change)


class Blur(Transform):
    """Convolve with a Gaussian of sigma ~ U(sigma), reflected at the edges (torchvision's GaussianBlur).

    The range is MoCo-v3's at 224 pixels. Deviation: MoCo-v3 blurs with Pillow, which puts three box filters in its
    place; ours is a Gaussian, cut off at three times the largest sigma.

    Args:
        probability: of blurring an image.
        sigma: smallest and largest standard deviation, pixels.
    """

    columns = 2

    def __init__(self, probability: float = 0.5, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        check_share("blur", "probability", probability)
        check_range("blur", "sigma", sigma)
        self.probability, self.sigma = probability, sigma

    def scaled(self, factor: float) -> "Blur":
        """Return the same blur of images that are `factor` times as large."""
        return Blur(self.probability, (factor * self.sigma[0], factor * self.sigma[1]))

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        mask = u[:, 0] < self.probability
        sigma = send(between(u[mask, 1], *self.sigma).float(), images.device)
        blur = partial(gaussian, sigma=sigma, radius=math.ceil(3 * self.sigma[1]))
        return apply_to_rows(images, rows_where(mask), blur)


def gaussian(images: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Blur each image by its own sigma.

    Args:
        images: [n, C, H, W] uint8.
        sigma: [n] standard deviations, pixels, on the images' device.
        radius: where the Gaussian is cut off, pixels; at most one less than the image's shorter side.
    """
    radius = min(radius, min(images.shape[-2:]) - 1)
    offset = torch.arange(-radius, radius + 1, device=images.device)
    kernel = torch.softmax(-0.5 * (offset / sigma[:, None]) ** 2, 1)  # [n, 2 radius + 1]
    channels = images.shape[1]
    kernel = kernel.repeat_interleave(channels, 0)[:, None, None]  # [C n, 1, 1, 2 radius + 1]
    planes = F.pad(images.float(), (radius,) * 4, mode="reflect").flatten(0, 1)[None]  # [1, C n, ...]
    planes = F.conv2d(planes, kernel, groups=planes.shape[1])
    planes = F.conv2d(planes, kernel.mT, groups=planes.shape[1])
    return torch.unflatten(planes[0].round_().to(torch.uint8), 0, (-1, channels))


class ColorJitter(Transform):
    """torchvision's ColorJitter, applied with a probability.

    Brightness, contrast and saturation blend an image x with black, with its mean gray and with its gray values:
    base + f (x - base), f ~ U(max(0, 1 - s), 1 + s). Hue turns the color circle by U(-hue, hue) of a turn. The order
    of the four is random too. Deviation: pixel values are rounded once at the end, not after each of the four.

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

        def change(some: Tensor) -> Tensor:
            return (255 * jitter(some.float() / 255, order, drawn, self.hue > 0)).round_().to(torch.uint8)

        return apply_to_rows(images, rows_where(mask), change)


def jitter(images: Tensor, order: Tensor, factors: Tensor, with_hue: bool) -> Tensor:
    """Apply the four changes in each image's own order.

    Args:
        images: [n, C, H, W] float in [0, 1], overwritten.
        order: [n, 4] permutations of brightness 0, contrast 1, saturation 2, hue 3, on the CPU.
        factors: [n, 4] of brightness, contrast, saturation and hue, on the CPU.
        with_hue: False leaves the hue.
    """
    changes = (brightness, contrast, saturation, hue)[: 4 if with_hue else 3]
    for position in order.T:
        for kind, change in enumerate(changes):
            mask = position == kind
            factor = send(factors[mask, kind], images.device)[:, None, None, None]
            images = apply_to_rows(images, rows_where(mask), partial(change, factor=factor))
    return images


def gray_values(images: Tensor) -> Tensor:
    """[n, C, H, W] in [0, 1] -> [n, 1, H, W]; the mean of other than three channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.chunk(3, 1)
    return GRAY[0] * red + GRAY[1] * green + GRAY[2] * blue


def blend(base: Tensor | float, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), clipped to [0, 1]; factor 1 changes nothing."""
    return (base + factor * (images - base)).clamp_(0, 1)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return blend(0.0, images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean gray."""
    return blend(gray_values(images).mean((1, 2, 3), keepdim=True), images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's gray."""
    return blend(gray_values(images), images, factor)


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
