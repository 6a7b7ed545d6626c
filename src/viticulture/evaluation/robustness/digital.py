# SPDX-License-Identifier: Apache-2.0
"""Corruptions of light, color, geometry and storage. Images are [H, W, 3] float64 in [0, 1]; values outside are clipped
later.

Deviation: `elastic_transform` resamples once, where ImageNet-C resamples after each of its two maps.
"""

import io
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from PIL import Image
from scipy.fft import dctn, idctn
from scipy.ndimage import map_coordinates

from .blur import ImageArray


def brightness(image: ImageArray, draw: Generator, more: float) -> ImageArray:
    """Raise the value of HSV (the largest channel) by `more`, at most to 1; hue and saturation stay."""
    value = image.max(-1, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, image * (raised / np.maximum(value, 1e-12)), raised)


def saturate(image: ImageArray, draw: Generator, factor: float, more: float) -> ImageArray:
    """Replace the saturation s of HSV by factor s + more, clipped to [0, 1]; gray counts as red."""
    value, least = image.max(-1, keepdims=True), image.min(-1, keepdims=True)
    chroma = value - least
    saturation = np.where(value > 0, chroma / np.maximum(value, 1e-12), 0)
    away = np.where(chroma > 0, (value - image) / np.maximum(chroma, 1e-12), np.array([0.0, 1.0, 1.0]))
    return value * (1 - np.clip(factor * saturation + more, 0, 1) * away)


def contrast(image: ImageArray, draw: Generator, factor: float) -> ImageArray:
    """Compute (image - mean) factor + mean, with the mean of each channel."""
    mean = image.mean((0, 1), keepdims=True)
    return (image - mean) * factor + mean


def pixelate(image: ImageArray, draw: Generator, share: float) -> ImageArray:
    """Shrink both sides to this share and enlarge again, by box filters."""

    def change(picture: Image.Image) -> Image.Image:
        width, height = picture.size
        small = picture.resize((max(1, int(width * share)), max(1, int(height * share))), Image.Resampling.BOX)
        return small.resize((width, height), Image.Resampling.BOX)

    return _through_pillow(image, change)


def jpeg_compression(image: ImageArray, draw: Generator, quality: float) -> ImageArray:
    """Write and read as JPEG of this quality, in percent."""

    def change(picture: Image.Image) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=int(quality))
        return Image.open(file)

    return _through_pillow(image, change)


def elastic_transform(image: ImageArray, draw: Generator, strength: float, smooth: float, tilt: float) -> ImageArray:
    """Move every pixel by an affine map and by smoothed noise.

    The affine map takes three points of a square around the center to places within `tilt` of them. The noise is
    U(-1, 1), smoothed by a Gaussian of sd `smooth` and multiplied by `strength`. All three are shares of the side.
    """
    H, W, side = *image.shape[:2], image.shape[0]
    center, arm = np.array([W, H]) // 2, min(H, W) // 3
    before = center + arm * np.array([[1, 1], [1, -1], [-1, -1]])  # x, y
    after = before + draw.uniform(-tilt * side, tilt * side, before.shape)
    back = np.linalg.solve(np.c_[after, np.ones(3)], before)  # [3, 2], from places in the result to places in the image
    x, y = np.meshgrid(np.arange(W), np.arange(H))
    moves = [strength * side * _smoothed(draw.uniform(-1, 1, (H, W)), smooth * side) for _ in range(2)]
    sampled = np.stack([x + moves[0], y + moves[1], np.ones((H, W))], -1) @ back  # [H, W, 2]
    places = sampled[..., 1], sampled[..., 0]
    return np.stack([map_coordinates(image[..., c], places, order=1, mode="mirror") for c in range(3)], -1)


def _smoothed(noise: np.ndarray, sigma: float) -> np.ndarray:
    """Apply a Gaussian filter with mirrored edges by cosine transform, whose time does not grow with sigma."""
    gains = [np.exp(-0.5 * (np.pi * np.arange(side) / side * sigma) ** 2) for side in noise.shape]
    return idctn(dctn(noise) * gains[0][:, None] * gains[1])


def _through_pillow(image: ImageArray, change: Callable[[Image.Image], Image.Image]) -> ImageArray:
    changed = change(Image.fromarray((255 * image + 0.5).astype(np.uint8)))
    return np.asarray(changed, dtype=np.float64) / 255
