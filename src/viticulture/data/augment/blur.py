# SPDX-License-Identifier: Apache-2.0
"""Gaussian blur with a width of its own for each image."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..transfer import send
from .transform import Transform, apply_to_rows, between, check_range, check_share, rows_where


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

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        mask = u[:, 0] < self.probability
        sigma = send(between(u[mask, 1], *self.sigma).float(), images.device)
        return apply_to_rows(
            images, rows_where(mask), lambda some: gaussian(some, sigma, radius=math.ceil(3 * self.sigma[1]))
        )


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
