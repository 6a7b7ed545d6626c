# SPDX-License-Identifier: Apache-2.0
"""What the engine costs: our training step against a ten-line loop over the same ViT, and the time to the first step.

    python -m benchmarks.step [STEPS]

ViT of width 192 and depth 12, 32 px, patch 4, batch 64, fp32, AdamW. Runs alternate; medians of five.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback

from viticulture.data.sources.arrays import from_arrays
from viticulture.data.sources.source import Source
from viticulture.training import session as sessions
from viticulture.training.feed import training_loader
from viticulture.training.run import fit

from .clock import at_least, begin

WARMUP = 3
VIT = {
    "student.name": "vit_tiny",
    "student.patch_size": 4,
    "images.image_size": 32,
    "augment.rand_augment": {"magnitude": 9, "std": 0.5},
    "augment.erase": {"probability": 0.25},
    "augment.mix": {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1},
    "engine.device": "cpu",
}


class Clock(Callback):
    """Times of a clock, in seconds: the start, the ends of the first step, of the last warm-up step and of the last."""

    def __init__(self, warmup: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.warmup, self.now, self.times = warmup, now, [now()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
        if batch_idx in (0, self.warmup - 1, trainer.num_training_batches - 1):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(self.now())
            self.steps = batch_idx + 1 - self.warmup

    @property
    def seconds(self) -> float:
        """Of a step after the warm-up."""
        return (self.times[-1] - self.times[-2]) / self.steps


def noise(count: int, side: int, classes: int = 100) -> Source:
    """Random images, always the same."""
    shape, generator = (count, side, side, 3), torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).numpy()
    labels = torch.arange(count).numpy() % classes
    return from_arrays("noise", [str(c) for c in range(classes)], {"train": (images, labels)})


def session_on_noise(
    images: Source, batch: int, recipe: str, overrides: dict[str, Any], folder: str
) -> sessions.Session:
    """A session on one epoch of random images."""
    keys = {"data.val_fraction": 0, "data.test_fraction": 0, "train.validate": "none", "schedule.warmup_epochs": 0}
    keys |= {"train.epochs": 1, "train.batch_size": batch}
    return sessions.begin(images, recipe, 0, folder, False, {**keys, **overrides}, "benchmark")


def vit_on_noise(steps: int, folder: str) -> sessions.Session:
    """The session of a ViT of width 192."""
    return session_on_noise(noise(64 * steps, 32), 64, "default/small-images", VIT, folder)


def ours(session: sessions.Session, clock: Clock) -> float:
    """Seconds a step under the Trainer, loader, logging and the check for NaN included."""
    fit(session, more=[clock])
    return clock.seconds


def plain(session: sessions.Session, steps: int) -> float:
    """Seconds a step of a bare loop over the same loader and student."""
    loader, student = training_loader(session), session.method.student.train()
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    for step in range(steps):
        batch = loader.batch(0, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(student(batch["image"]), batch["label"]).backward()
        optimizer.step()
        if step == WARMUP - 1:
            began = time.perf_counter()
    return (time.perf_counter() - began) / (steps - WARMUP)


def first_step() -> float:
    """Seconds from the command to the end of a one-step run's first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "viticulture", "train", "digits", "--out", f"{folder}/run", "--per-class", "5"]
        began = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1"):
                break
        spent = time.perf_counter() - began
        process.kill()
        process.wait()
    return spent


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=at_least(WARMUP + 1), default=13, help="of one run")
    steps = begin(parser).steps
    ratios, seconds = [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            session = vit_on_noise(steps, str(Path(folder) / "run"))
            loop, trainer = plain(session, steps), ours(session, Clock(WARMUP))
        ratios.append(trainer / loop)
        seconds.append(loop)
    print(f"plain loop {median(seconds):.3f} s a step; ours / plain: median {median(ratios):.3f} of {sorted(ratios)}")
    starts = [first_step() for _ in range(5)]
    print(f"command to first step: median {median(starts):.1f} s of {[round(s, 1) for s in starts]}")


if __name__ == "__main__":
    main()
