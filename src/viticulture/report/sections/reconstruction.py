# SPDX-License-Identifier: Apache-2.0
"""A section of the page: images, what a student was shown of them, and what it painted in the rest."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...analysis.reconstruction import Reconstruction, paints, reconstruct_some
from ...data.dataset import Dataset
from ...training.rundir import RunDir
from ...training.session import recipe_of
from ..charts.figures import image_grid
from ..charts.marks import text
from ..document import Section

TITLE = "What it paints"
MEASURED = 32  # images
SHOWN = 8
HIDDEN = 0.5  # grey of what is masked


def reconstruction_section(run: RunDir, dataset: Dataset) -> list[Section]:
    """Images that did not teach, where there are any, under the same masks every time; nothing for other methods."""
    if not paints(recipe_of(run)):
        return []
    if not run.checkpoint.exists():
        lost = "What paints is kept in checkpoints/last.ckpt alone, and that file is gone."
        return [Section(TITLE, f"<p>{text(lost)}</p>")]
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    some = images.part(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MEASURED])
    names = [f"{split}: {name.rsplit('/', 1)[-1]}" for name in some.records.names]
    return [Section(TITLE, painted(reconstruct_some(run, dataset, some), names))]


def painted(found: Reconstruction, names: list[str]) -> str:
    """The first images as triples, and the mean errors of all."""
    masked = found.masked[:SHOWN].unsqueeze(1)
    shown = [found.images[:SHOWN], found.images[:SHOWN].masked_fill(masked, HIDDEN), found.painted[:SHOWN]]
    triples = zip(*map(levels, shown), names, found.error.tolist(), strict=False)
    groups = [(parts, [name, f"mean squared error {error:.4f}"]) for *parts, name, error in triples]
    error, flat = found.error.mean().item(), found.flat_error.mean().item()
    note = (
        f"Mean squared error of masked pixels over {len(found.error)} images, grey levels from 0 to 1: {error:.4f}; "
        f"masked patches in their own mean colour would have {flat:.4f}. "
        f"{100 * found.masked.float().mean():.0f} % of pixels are masked. With patch_norm, painted patches have the "
        "mean and the spread of the true ones."
    )
    return image_grid("Image, what is shown of it, what is painted", groups, note)


def levels(images: Tensor) -> list[NDArray[np.uint8]]:
    """Images [B, 3, H, W] in [0, 1] as pictures."""
    bytes_ = (255 * images).round().clamp(0, 255).to(torch.uint8)
    return list(bytes_.permute(0, 2, 3, 1).cpu().numpy())
