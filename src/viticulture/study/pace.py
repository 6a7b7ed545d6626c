# SPDX-License-Identifier: Apache-2.0
"""How long a recipe takes on this machine and these images, measured by a few of its own steps."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..data.dataset import Dataset
from ..data.loader import evaluation_batches
from ..disk import replacing
from ..guides.guide import Guide
from ..methods.method import Method
from ..training.assemble import assemble
from ..training.recipe import Recipe
from ..training.run import training_loader
from ..training.rundir import RunDir
from ..training.session import Session
from ..training.settings import Engine

MOST_SECONDS = 1.5
MOST_STEPS = 8
EVALUATION_BATCH = 64
EPOCH = 0.03
"""Seconds that the engine takes for an epoch's beginning and end, two CPU cores."""
STATES = 3
"""Numbers in a checkpoint for each parameter: itself and AdamW's two averages."""


@dataclass(frozen=True)
class Pace:
    """Seconds that a training takes, apart from what it costs to start.

    Args:
        step: an optimiser step, guides included.
        steps: of an epoch.
        look: measuring an image, without gradients.
        watched: images measured after every epoch.
        judged: images measured at the end, for each kept set of weights.
        keep: writing a checkpoint.
    """

    step: float
    steps: int
    look: float
    watched: int
    judged: int
    keep: float = 0.0

    @property
    def epoch(self) -> float:
        """An epoch with its validation and its checkpoint."""
        return self.step * self.steps + self.look * self.watched + self.keep + EPOCH

    def training(self, epochs: float) -> float:
        """A whole cell: its epochs, then the best and the last weights on every held-out image."""
        return self.epoch * epochs + 2 * self.look * self.judged


def measure(recipe: Recipe, dataset: Dataset, folder: Path, seed: int = 0) -> Pace:
    """Take a few real steps, and forget what was learnt.

    Args:
        recipe: settled or not.
        dataset: the images of one cell.
        folder: on the disk that the study is on.
        seed: of weights and order.
    """
    recipe = recipe.settled("images", dataset.pictures)
    method, _ = assemble(recipe, dataset, seed)
    engine: Engine = recipe.section("engine")
    on_gpu = torch.cuda.is_available() and engine.device in ("auto", "cuda")
    device = torch.device("cuda" if on_gpu else "cpu")
    session = Session(RunDir("measured"), recipe, dataset, method, seed, [])  # never written
    loader = training_loader(session, device=device)
    method = method.to(device).train()
    steps = _timed_steps(method, loader, on_gpu)
    held = dataset.val if dataset.val is not None else dataset.test
    watch = {"val": dataset.val, "test": dataset.test}.get(recipe.section("train").watch)
    return Pace(
        step=median(steps),
        steps=len(loader),
        look=_timed_look(method, held, device, on_gpu) if held is not None else 0.0,
        watched=len(watch) if watch is not None else 0,
        judged=sum(len(split) for split in (dataset.val, dataset.test) if split is not None),
        keep=_timed_write(STATES * 4 * sum(parameter.numel() for parameter in method.parameters()), folder),
    )


def _timed_steps(method: Method, loader: Any, on_gpu: bool) -> list[float]:
    """Seconds of each step after the first, which pays for what happens once."""
    optimizer = method.optim.build(method.optim.groups(method.student, method.guides))
    guides = [guide for guide in method.guides.values() if isinstance(guide, Guide)]
    for guide in guides:
        guide.start_epoch(0, 1)
    mixed = torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()
    found: list[float] = []
    began = time.perf_counter()
    for number in range(MOST_STEPS):
        start = time.perf_counter()
        batch = loader.batch(0, number % len(loader))
        with mixed:
            loss = torch.stack(list(method.losses(batch).values())).sum()
        torch.autograd.backward(loss)
        for guide in guides:
            guide.settle()
        optimizer.step()
        optimizer.zero_grad()
        _wait(on_gpu)
        found.append(time.perf_counter() - start)
        if number and time.perf_counter() - began > MOST_SECONDS:
            break
    return found[1:]


def _timed_look(method: Method, images: Any, device: torch.device, on_gpu: bool) -> float:
    """Seconds of measuring one image."""
    some = images.part(torch.arange(min(len(images), EVALUATION_BATCH)))
    batch = next(iter(evaluation_batches(some, method.task, EVALUATION_BATCH, device)))
    method.eval()
    with torch.inference_mode():
        method.measures(batch)
        _wait(on_gpu)
        start = time.perf_counter()
        method.measures(batch)
        _wait(on_gpu)
    return (time.perf_counter() - start) / len(batch["image"])


def _timed_write(size: int, folder: Path) -> float:
    """Seconds of bringing so many bytes to the disk."""
    content = bytes(size)
    start = time.perf_counter()
    path = folder / "pace"
    with replacing(path) as part:
        part.write_bytes(content)
    spent = time.perf_counter() - start
    path.unlink()
    return spent


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
