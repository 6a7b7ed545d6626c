# SPDX-License-Identifier: Apache-2.0
"""Noise of sensors and transmission. Images are [H, W, 3] float64 in [0, 1]; values beyond are cut off later."""

import numpy as np
from numpy.random import Generator

ImageArray = np.ndarray
"""[H, W, 3] float64 in [0, 1]."""


def gaussian_noise(image: ImageArray, draw: Generator, sd: float) -> ImageArray:
    """image + sd n, n ~ N(0, 1): little light."""
    return image + sd * draw.standard_normal(image.shape)


def shot_noise(image: ImageArray, draw: Generator, photons: float) -> ImageArray:
    """Poisson(photons image) / photons: light comes in portions."""
    return draw.poisson(photons * image) / photons


def impulse_noise(image: ImageArray, draw: Generator, share: float) -> ImageArray:
    """This share of all values becomes 0 or 1, half each: bits that flip."""
    u = draw.random(image.shape)
    return np.where(u < share, u < share / 2, image)


def speckle_noise(image: ImageArray, draw: Generator, sd: float) -> ImageArray:
    """image + sd image n, n ~ N(0, 1)."""
    return image * (1 + sd * draw.standard_normal(image.shape))
