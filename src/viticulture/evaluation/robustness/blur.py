# SPDX-License-Identifier: Apache-2.0
"""Corruptions by blur. Images are [H, W, 3] float64 in [0, 1]; values outside are clipped later.

Deviation: `motion_blur` moves by whole pixels, where ImageNet-C had ImageMagick do it (as `imagecorruptions` does).
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from scipy.ndimage import convolve1d, gaussian_filter
from scipy.signal import fftconvolve

ImageArray = np.ndarray  # [H, W, 3] float64 in [0, 1]


def gaussian_blur(image: ImageArray, draw: Generator, sigma: float) -> ImageArray:
    """Convolve with a Gaussian, edges repeated."""
    return gaussian_filter(image, (sigma, sigma, 0), mode="nearest")


def defocus_blur(image: ImageArray, draw: Generator, radius: float, softness: float) -> ImageArray:
    """Convolve with a disk whose edge is softened by a Gaussian of sd `softness`, edges mirrored."""
    kernel = _disk(radius, softness)
    reach = len(kernel) // 2
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")  # may exceed the image's size
    return fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


def glass_blur(image: ImageArray, draw: Generator, sigma: float, reach: float, rounds: float) -> ImageArray:
    """Blur, replace each pixel by a nearby one, `rounds` times, blur.

    From the last row and column on, a pixel takes the value of the one d ~ U{-reach, .., reach - 1} away in each
    direction. The authors meant to swap both, but their code copies.
    """
    H, W, span = *image.shape[:2], int(reach)
    blurred = np.floor(255 * gaussian_blur(image, draw, sigma)) / 255
    rows, columns = np.arange(H - span, span, -1), np.arange(W - span, span, -1)
    places = (rows[:, None] * W + columns).ravel()
    order = list(range(H * W))
    for _ in range(int(rounds)):
        across, down = draw.integers(-span, span, (2, len(places)))
        for place, other in zip(places.tolist(), (places + down * W + across).tolist(), strict=True):
            order[place] = order[other]
    return gaussian_blur(blurred.reshape(-1, 3)[order].reshape(image.shape), draw, sigma)


def motion_blur(image: ImageArray, draw: Generator, reach: float, sigma: float) -> ImageArray:
    """Smear along a line at an angle ~ U(-45, 45) degrees; see `smear`."""
    return smear(image, reach, sigma, draw.uniform(-45, 45))


def smear(image: ImageArray, reach: float, sigma: float, angle: float) -> ImageArray:
    """Average the image and its moves by 1 .. 2 reach pixels along a line, with weights of half a Gaussian.

    Moves beyond the image are left out. Edges are repeated.

    Args:
        reach: pixels.
        sigma: of the Gaussian, pixels.
        angle: degrees; 0 is to the right, 90 down.
    """
    H, W = image.shape[:2]
    down, across = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    total, weights = np.zeros_like(image), 0.0
    for step in range(2 * int(reach) + 1):
        dy, dx = math.ceil(step * down - 0.5), math.ceil(step * across - 0.5)
        if abs(dy) >= H or abs(dx) >= W:
            break
        weight = math.exp(-0.5 * (step / sigma) ** 2)
        rows, columns = np.clip(np.arange(H) + dy, 0, H - 1), np.clip(np.arange(W) + dx, 0, W - 1)
        total += weight * image[rows][:, columns]
        weights += weight
    return total / weights


def zoom_blur(image: ImageArray, draw: Generator, limit: float, step: float) -> ImageArray:
    """Average the image and its enlargements by 1, 1 + step, ... below `limit`."""
    factors = np.arange(1, limit, step)
    return (image + sum(zoomed(image, factor) for factor in factors)) / (len(factors) + 1)


def zoomed(image: ImageArray, factor: float) -> ImageArray:
    """Enlarge the middle of an image bilinearly by a factor of at least 1: [H, W, C], or [H, W], same size."""
    H, W = image.shape[:2]
    (top, height), (left, width) = (
        ((side - math.ceil(side / factor)) // 2, math.ceil(side / factor)) for side in (H, W)
    )
    middle = torch.from_numpy(np.atleast_3d(image)[top : top + height, left : left + width]).permute(2, 0, 1)
    size = round(height * factor), round(width * factor)
    large = F.interpolate(middle[None], size, mode="bilinear", align_corners=True)[0].permute(1, 2, 0).numpy()
    top, left = (size[0] - H) // 2, (size[1] - W) // 2
    return large[top : top + H, left : left + W].reshape(image.shape)


def _disk(radius: float, softness: float) -> np.ndarray:
    """Return a disk, [K, K], that sums to 1; softened by 3 taps, for large disks 5."""
    half = max(8, int(radius))
    offset = np.arange(-half, half + 1)
    disk = (offset[:, None] ** 2 + offset**2 <= radius**2).astype(np.float64)
    taps = np.exp(-0.5 * (np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)) ** 2 / softness**2)
    for axis in (0, 1):
        disk = convolve1d(disk, taps / taps.sum(), axis, mode="mirror")
    return disk / disk.sum()
