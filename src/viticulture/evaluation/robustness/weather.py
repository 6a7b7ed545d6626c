# SPDX-License-Identifier: Apache-2.0
"""Corruptions by weather. Images are [H, W, 3] float64 in [0, 1]; values outside are clipped later.

Deviations: `frost` draws its ice, where ImageNet-C pasted six photographs; water of `spatter` finds the rims of drops
without Canny's edge detector.
"""

import numpy as np
from numpy.random import Generator
from scipy.ndimage import binary_erosion, convolve, distance_transform_edt, gaussian_filter, uniform_filter

from .blur import ImageArray, smear, zoomed

_LUMA = np.array([0.299, 0.587, 0.114])
_ICE = np.array([0.52, 0.61, 0.65])  # mean color of the photographs of ImageNet-C
_ICE_SD = 0.15  # and their standard deviation
_WATER, _MUD = np.array([175, 238, 238]) / 255, np.array([63, 42, 20]) / 255
_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def snow(image: ImageArray, draw: Generator, *strength: float) -> ImageArray:
    """Add flakes that fall at an angle ~ U(-135, -45) degrees to an image with less color.

    clear image + (1 - clear) max(image, 1.5 gray + 0.5) + flakes + the flakes turned by 180 degrees

    Args:
        strength: mean and sd of the flakes' noise, its enlargement, the threshold above which it is a flake, reach and
            sigma of the smear (pixels), and clear.
    """
    mean, sd, zoom, threshold, reach, sigma, clear = strength
    flakes = zoomed(draw.normal(mean, sd, image.shape[:2]), zoom)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = smear(flakes, reach, sigma, draw.uniform(-135, -45))[..., None]
    pale = np.maximum(image, (image @ _LUMA)[..., None] * 1.5 + 0.5)
    return clear * image + (1 - clear) * pale + flakes + flakes[::-1, ::-1]


def frost(image: ImageArray, draw: Generator, clear: float, ice: float) -> ImageArray:
    """Compute clear image + ice texture, a bluish texture with bright ridges."""
    H, W = image.shape[:2]
    veins = [1 - abs(2 * plasma(max(H, W), 1.4, draw)[:H, :W] - 1) for _ in range(3)]
    relief = np.max(veins, 0) ** 6
    relief = (relief - relief.mean()) / max(relief.std(), 1e-6)
    return clear * image + ice * np.clip(_ICE + _ICE_SD * relief[..., None], 0, 1)


def fog(image: ImageArray, draw: Generator, thickness: float, decay: float) -> ImageArray:
    """Compute (image + thickness plasma) m / (m + thickness), where m is the brightest value of the image."""
    H, W = image.shape[:2]
    brightest = image.max()
    return (image + thickness * plasma(max(H, W), decay, draw)[:H, :W, None]) * brightest / (brightest + thickness)


def plasma(side: int, decay: float, draw: Generator) -> np.ndarray:
    """Return a cloudy height map in [0, 1] by the diamond-square algorithm on a torus.

    Halfway points get the mean of their four neighbors plus U(-a, a); a falls by decay^2 with each halving.
    """
    size = 1 << (side - 1).bit_length()
    heights, step, amplitude = np.zeros((size, size)), size, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        neighbors = corners + np.roll(corners, -1, 1)
        middles = (neighbors + np.roll(neighbors, -1, 0)) / 4 + draw.uniform(-amplitude, amplitude, corners.shape)
        heights[half::step, half::step] = middles
        for row, column, other in ((0, half, 1), (half, 0, 0)):
            ends = corners + np.roll(corners, -1, other)  # the corners on both sides of the point
            near = middles + np.roll(middles, 1, 1 - other)  # and the middles
            heights[row::step, column::step] = (ends + near) / 4 + draw.uniform(-amplitude, amplitude, corners.shape)
        step, amplitude = half, amplitude / decay**2
    heights -= heights.min()
    return heights / heights.max()


def spatter(image: ImageArray, draw: Generator, *strength: float) -> ImageArray:
    """Add drops where smoothed noise exceeds a threshold: of water, which brightens, or of mud, which covers.
    `strength`: mean and sd of the noise, sigma of its smoothing (pixels), the threshold above which there is liquid,
    the brightness of water, or for mud the sd in pixels that smooths its rim, and 1 for mud or 0 for water.
    """
    mean, sd, sigma, threshold, weight, mud = strength
    liquid = gaussian_filter(draw.normal(mean, sd, image.shape[:2]), sigma, mode="nearest")
    wet = liquid > threshold
    if mud:
        cover = gaussian_filter(wet.astype(np.float64), weight, mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return image * (1 - cover) + _MUD * cover
    if not wet.any():
        return image
    rim = wet & ~binary_erosion(wet, border_value=1)
    depth = uniform_filter(np.minimum(distance_transform_edt(~rim), 20) if rim.any() else np.full(wet.shape, 20.0), 3)
    depth = np.floor(depth).astype(np.int64)
    ranks = np.cumsum(np.bincount(depth.ravel()))  # histogram equalization
    first = ranks[ranks > 0][0]
    levels = 255 * (ranks - first) / max(1, ranks[-1] - first)
    shine = np.clip(convolve(levels[depth], _RELIEF[::-1, ::-1], mode="mirror"), 0, 255)
    drops = np.where(wet, liquid, 0) * uniform_filter(shine, 3, mode="mirror")
    return image + weight * (drops / max(drops.max(), 1e-6))[..., None] * _WATER
