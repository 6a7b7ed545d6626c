# SPDX-License-Identifier: Apache-2.0
"""Deterministic noise: numbers, images, and folders of pictures for studies."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers in [0, 1), float64."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noise(count: int, height: int = 8, width: int = 8, seed: int = 0) -> np.ndarray:
    """Return images, [count, height, width, 3] uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def photographs(root: Path) -> Path:
    """Write three classes of 20 random pictures each."""
    draw = np.random.default_rng(0)
    for c in range(3):
        (root / f"class {c}").mkdir(parents=True)
        for i in range(20):
            pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8) // (c + 1)
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"class {c}" / f"{i}.png")
    return root


def pictures(count: int, height: int = 24, width: int = 32) -> Tensor:
    """Draw color waves with a little noise, different in every image, no channel using all levels."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.linspace(0, 5, height)[:, None], torch.linspace(0, 4, width)
    phase = 6 * torch.rand(count, 3, 1, 1, generator=generator)
    waves = 120 + 90 * torch.sin(y + phase) * torch.cos(x + 2 * phase)
    return (waves + 6 * torch.randn(count, 3, height, width, generator=generator)).clamp(5, 250).to(torch.uint8)
