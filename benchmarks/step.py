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
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Callback, Trainer

from viticulture.data.sources.arrays import from_arrays
from viticulture.training import run as engine
from viticulture.training import session as sessions
from viticulture.training.feed import training_loader

from .clock import at_least, begin

WARMUP = 3
OVERRIDES = {
    "student.name": "vit_tiny",
    "student.patch_size": 4,
    "images.image_size": 32,
    "augment.rand_augment": {"magnitude": 9, "std": 0.5},
    "augment.erase": {"probability": 0.25},
    "augment.mix": {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1},
    "data.val_fraction": 0,
    "data.test_fraction": 0,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.validate": "none",
    "schedule.warmup_epochs": 0,
    "engine.device": "cpu",
}


class Clock(Callback):
    """Time from the last warm-up step's end to the last one's."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
        if batch_idx == WARMUP - 1:
            self.began = time.perf_counter()
        self.ended = time.perf_counter()


def session_on_noise(steps: int, folder: str) -> sessions.Session:
    """A session on random images."""
    images = torch.randint(
        0, 256, (64 * steps, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    noise = from_arrays(
        "noise", [str(c) for c in range(100)], {"train": (images.numpy(), torch.arange(64 * steps).numpy() % 100)}
    )
    return sessions.begin(noise, "default/small-images", 0, folder, False, OVERRIDES, "benchmark")


def ours(session: sessions.Session, steps: int) -> float:
    """Seconds a step under the Trainer, loader, logging and the check for NaN included."""
    clock = Clock()

    class Timed(Trainer):
        def __init__(self, **words: Any) -> None:
            super().__init__(**{**words, "callbacks": [*words["callbacks"], clock]})

    with patch.object(engine, "Trainer", Timed):
        engine.fit(session)
    return (clock.ended - clock.began) / (steps - WARMUP)


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
            session = session_on_noise(steps, str(Path(folder) / "run"))
            loop, trainer = plain(session, steps), ours(session, steps)
        ratios.append(trainer / loop)
        seconds.append(loop)
    print(f"plain loop {median(seconds):.3f} s a step; ours / plain: median {median(ratios):.3f} of {sorted(ratios)}")
    starts = [first_step() for _ in range(5)]
    print(f"command to first step: median {median(starts):.1f} s of {[round(s, 1) for s in starts]}")


if __name__ == "__main__":
    main()
