# SPDX-License-Identifier: Apache-2.0
"""Folders of random images."""

from pathlib import Path

import numpy as np
from PIL import Image


def pictures(root: Path, counts: dict[str, int], side: int = 16) -> Path:
    """Write a folder CLASS/number.png of random images."""
    draw = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root
