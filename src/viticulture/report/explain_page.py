# SPDX-License-Identifier: Apache-2.0
"""A run's student seen from inside, as a page: explain.html."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..analysis.inside import look_inside, similarity
from ..data.augment.crop import CentreCrop
from ..data.dataset import Dataset
from ..data.images import Images
from ..data.loader import evaluation_batches
from ..errors import UserError
from ..models.task import Task
from ..models.weights import load
from ..training.rundir import RunDir
from ..training.session import recipe_of
from .inside import inside_sections, likeness_section
from .marks import text
from .page import document

BATCH = 128
FEWEST = 4  # images; CKA cannot be estimated from fewer


def write_explanation(run: RunDir, dataset: Dataset, most: int, beside: RunDir | None = None) -> Path:
    """Look at a run's student with test images (validation or training ones, where there are none) and draw the page.

    Args:
        run: whose weights that count are looked at.
        dataset: the run's.
        most: images to look at; which ones is drawn once and for all.
        beside: another run, whose layers are compared with this one's on the same images.

    Raises: UserError for too few images, or a student without attention.
    """
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    if min(most, len(images)) < FEWEST:
        raise UserError(f"an explanation needs at least {FEWEST} images, got {min(most, len(images))} of {split}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    some = images.part(order[:most])
    student, batches = _opened(run, some)
    found = look_inside(student, batches)
    sections = inside_sections(found)
    if beside is not None:
        (first, some_batches), (second, others) = _opened(run, some), _opened(beside, some)
        cka = similarity(first, second, zip(some_batches, others, strict=True))
        sections.append(likeness_section(cka, run.path.name, beside.path.name))
    title = f"Inside {run.read('run.json')['student']['name']}: {run.path.name}"
    words = f"Means over {found.images:,} {split} images, {run.which()[0]} weights."
    return run.write("explain.html", document(title, f"<p>{text(words)}</p>", sections))


def _opened(run: RunDir, images: Images) -> tuple[nn.Module, Iterator[Tensor]]:
    """A run's student and the images as it takes them, on the device that it was trained for."""
    student, task, _ = load(run.weights(run.which()[0]))
    recipe = recipe_of(run)
    use_gpu = torch.cuda.is_available() and recipe.section("engine").device != "cpu"
    device, pictures = torch.device("cuda" if use_gpu else "cpu"), recipe.section("images")
    crop = CentreCrop(pictures.eval_crop, pictures.eval_interpolation)
    return student.to(device).eval(), _pixels(images, task, device, crop)


def _pixels(images: Images, task: Task, device: torch.device, crop: CentreCrop) -> Iterator[Tensor]:
    return (batch["image"] for batch in evaluation_batches(images, task, BATCH, device, crop))
