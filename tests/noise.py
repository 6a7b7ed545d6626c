# SPDX-License-Identifier: Apache-2.0
"""Pictures of noise that a study learns from."""

from pathlib import Path

import numpy as np
from PIL import Image


def photographs(root: Path) -> Path:
    """Three classes of 20 random pictures each."""
    draw = np.random.default_rng(0)
    for c in range(3):
        (root / f"class {c}").mkdir(parents=True)
        for i in range(20):
            pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8) // (c + 1)
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"class {c}" / f"{i}.png")
    return root
