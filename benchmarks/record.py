# SPDX-License-Identifier: Apache-2.0
"""A speed record: core-minutes of one thread until a ViT is right about half of CIFAR-100's test images.

    python -m benchmarks.record CIFAR100 RUN --epochs 3 --trial      asks 2,000 training images that are held out
    python -m benchmarks.record CIFAR100 RUN --epochs 3              learns from all of them, and asks the test images

The length is fixed beforehand, by the trial. Cost is user and system time of the whole command `viticulture train`,
from before the first image is decoded until the last weights are stored; answers, by two views, are not counted.
Beside it stands the time of a step of timm's ViT-Ti (`benchmarks.step`), by which machines can be compared.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder

from .clock import begin, count
from .step import plain, vit_on_noise

RECIPE: dict[str, Any] = {
    "student.name": "botnet14t",
    "train.batch_size": 128,
    "engine.precision": "bf16-mixed",
    "method.smoothing": 0.0,
    "augment.resized_crop": "null",
    "schedule.min_lr": 0.0,
    "images.eval_views": "mirrored",
    "data.test_on": "none",
}
"""An image that is seen a few times is not learned by heart: nothing of it is cut away, nor of its label taken."""
WARMUP = 0.2
"""Of the epochs."""
HELD_OUT = 0.04


def train(data: str, run: Path, epochs: int, seed: int, trial: bool) -> float:
    """Core-seconds of the training, a command of its own on one thread."""
    lengths = {"train.epochs": epochs, "train.validate_every": epochs, "schedule.warmup_epochs": WARMUP * epochs}
    held_out = {"data.val_fraction": HELD_OUT if trial else 0.0}
    keys = [f"--{key}={value}" for key, value in {**RECIPE, **lengths, **held_out}.items()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "viticulture", "train", data, *keys, "--seed", str(seed), "--out", str(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def vit_step() -> float:
    """Seconds a step of timm's ViT-Ti on one thread, median of five."""
    seconds = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(plain(vit_on_noise(13, str(Path(folder) / "run")), 13))
    return median(seconds)


def main() -> None:
    """Train, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("run", type=Path)
    parser.add_argument("--epochs", type=count, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--threads", type=count, default=1)
    options = begin(parser)
    spent = train(options.data, options.run, options.epochs, options.seed, options.trial)
    if options.trial:
        held_out = task_of(RunFolder(options.run)).read_results()
        assert held_out is not None
        assert held_out.counting is not None
        print(f"{100 * held_out.counting.top1:.2f} % of held-out images, {spent:.0f} core-s with their answers")
        return
    tested = task_of(RunFolder(options.run)).evaluate_other(options.data).evaluated.results[f"last/{options.data}"]
    step = vit_step()
    print(f"{100 * tested.top1:.2f} % of test images after {spent:.0f} core-s, {spent / step:.0f} steps of ViT-Ti")


if __name__ == "__main__":
    main()
