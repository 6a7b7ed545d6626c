# SPDX-License-Identifier: Apache-2.0
"""Small pictures with several labels each: red, green and blue squares on gray, any of them, also none."""

from pathlib import Path

import numpy as np
from PIL import Image

COLORS = ("red", "green", "blue")
SMALL = {
    "student.name": "vit_tiny",
    "student.options": {"depth": 1, "embed_dim": 24, "num_heads": 3},
    "student.patch_size": 4,
    "train.epochs": 2,
    "train.batch_size": 16,
}
"""Recipe keys of a training of a few seconds."""


def picture(shown: np.ndarray, generator: np.random.Generator, side: int = 24) -> Image.Image:
    """Draw a gray, noisy picture with a square of every color, each in its quarter."""
    pixels = generator.integers(90, 130, (side, side, 3))
    half = side // 2
    quarters = generator.permutation(4)[: len(shown)]
    for color, quarter in zip(np.flatnonzero(shown), quarters, strict=False):
        top, left = (quarter // 2) * half, (quarter % 2) * half
        pixels[top : top + half, left : left + half] = 40
        pixels[top : top + half, left : left + half, color] = 220
    return Image.fromarray(pixels.astype(np.uint8))


def drawn_labels(images: int, seed: int = 0) -> np.ndarray:
    """Draw [N, 3] 1 or 0: red is frequent, blue rare, and an image in eight has none."""
    shown = np.random.default_rng(seed).random((images, 3)) < (0.6, 0.4, 0.15)
    shown[::8] = False
    return shown.astype(np.int64)


def colored_csv(root: Path, images: int = 96, columns: bool = False, seed: int = 0) -> Path:
    """Write a folder of pictures and a CSV, whose labels are joined (`red|blue`), or a column each."""
    root.mkdir(parents=True, exist_ok=True)
    generator, shown = np.random.default_rng(seed), drawn_labels(images, seed)
    lines = [f"path,{','.join(COLORS)}" if columns else "path,label"]
    for i, row in enumerate(shown):
        picture(row, generator).save(root / f"{i:03d}.png")
        names = "|".join(COLORS[c] for c in np.flatnonzero(row))
        lines.append(f"{i:03d}.png,{','.join(map(str, row)) if columns else names}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root / "labels.csv"
