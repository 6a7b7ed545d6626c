# SPDX-License-Identifier: Apache-2.0
"""A recipe's training step: its time, its share of the memory's bandwidth, and whether a resumed training is the same.

    python -m benchmarks.recipe_step dhvt/cifar100-tiny-patch4 --megabytes 59 --engine.compile true

Trains an epoch of some steps at the recipe's batch and image size, on random images of 32 px, teachers with random
weights; then again, interrupted and resumed. Prints a row of CSV (`COLUMNS`) as its last line, for `benchmarks/gpu.sh`.
"""

import argparse
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from viticulture.command import split_overrides
from viticulture.config.load import load_config
from viticulture.models.weights.files import state_digest
from viticulture.training.run import fit
from viticulture.training.session import Session, reopen

from .clock import at_least
from .memory import classes_of, random_teachers
from .step import Clock, noise, session_on_noise

COLUMNS = ("ms_a_step", "s_an_epoch", "share", "first_step_s", "resume")
"""Milliseconds after the warm-up; seconds for 50,000 images; the time in which the memory moves the bytes that a step
must move, over the step's; seconds from the start to the first step's end; "same" weights, "differs", or "not
deterministic", where those of two uninterrupted trainings differ."""
WARMUP, EPOCH, SIDE = 10, 50_000, 32


class Interrupt(Callback):
    """Stops a training at its last warm-up step, as by Ctrl-C."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
        if batch_idx == WARMUP - 1:
            raise KeyboardInterrupt


def trained(session: Session, *callbacks: Callback) -> str:
    """Train, compiled anew as in a process of its own, and return a digest of all weights."""
    torch.compiler.reset()
    fit(session, more=callbacks)
    session.run.unlock()
    return state_digest(session.method.state_dict())


def bandwidth() -> float:
    """Return the nominal bandwidth of the GPU's memory, bytes a second; 0 if it is unknown."""
    if not torch.cuda.is_available():
        return 0.0
    gpu: Any = torch.cuda.get_device_properties(0)
    return 2e3 * getattr(gpu, "memory_clock_rate", 0) * gpu.memory_bus_width / 8  # kHz, two transfers a cycle; bits


def main() -> None:
    """Print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--megabytes", type=float, default=0.0, help="that a step must move for each image, if known")
    parser.add_argument("--steps", type=at_least(WARMUP + 1), default=30)
    options, words = parser.parse_known_args()
    keys = {**split_overrides(words, ())[0], "images.cache_size": SIDE, "train.epochs": 1}
    if (batch := load_config(options.recipe, keys).train.batch_size) is None:
        parser.error(f"{options.recipe} leaves the batch size to the data; add --train.batch_size 64")
    images = noise(options.steps * batch, SIDE, classes_of(options.recipe))
    with tempfile.TemporaryDirectory() as folder, random_teachers(Path(folder)):

        def session(name: str, **more: Any) -> Session:
            return session_on_noise(images, batch, options.recipe, {**keys, **more}, f"{folder}/{name}")

        clock = Clock(WARMUP)
        whole = trained(session("whole"), clock)
        broken = session("broken", **{"engine.checkpoint_minutes": 1e-9})
        with suppress(KeyboardInterrupt):
            trained(broken, Interrupt())
        broken.run.unlock()
        resume = "same" if trained(reopen(f"{folder}/broken", images)) == whole else ""
        resume = resume or ("differs" if trained(session("again")) == whole else "not deterministic")
    seconds, moved = clock.seconds, 1e6 * options.megabytes * batch
    share = f"{moved / bandwidth() / seconds:.3f}" if moved and bandwidth() else ""
    start = clock.times[1] - clock.times[0]
    print(f"{1e3 * seconds:.2f},{seconds * EPOCH / batch:.2f},{share},{start:.1f},{resume}")


if __name__ == "__main__":
    main()
