# SPDX-License-Identifier: Apache-2.0
"""One image, one corruption, one severity: a pure function of the image and of (seed, number of the image).

Source of all 19: Hendrycks and Dietterich, ICLR 2019, arXiv:1903.12261; strengths: strengths.py. Deviations from the
published sets: see blur.py, weather.py, digital.py; random numbers are ours.
"""

from collections.abc import Callable

import numpy as np

from . import blur, digital, noise, weather
from .strengths import CORRUPTIONS, level

_KINDS: dict[str, Callable[..., np.ndarray]] = {
    name: function
    for module in (noise, blur, weather, digital)
    for name, function in vars(module).items()
    if name in CORRUPTIONS
}


def corrupt(image: np.ndarray, corruption: str, severity: int, seed: int, number: int) -> np.ndarray:
    """Spoil an image, in the strength that the published set of the nearest size has.

    Args:
        image: [H, W, 3] uint8, at least 8 pixels a side.
        corruption: one of `strengths.CORRUPTIONS`.
        severity: 1 to 5.
        seed: of all random numbers.
        number: of the image in its split.

    Returns: [H, W, 3] uint8; cut off to [0, 255] and rounded down, as the published sets are.
    """
    numbers = level(corruption, severity, min(image.shape[:2]))
    draw = np.random.default_rng((seed, number, CORRUPTIONS.index(corruption), severity))
    corrupted = _KINDS[corruption](image / 255, draw, *numbers)
    return (255 * np.clip(corrupted, 0, 1) + 1e-6).astype(np.uint8)
