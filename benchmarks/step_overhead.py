# SPDX-License-Identifier: Apache-2.0
"""What a training step costs beside its student: processor time of the engine, and calls to the device.

    python -m benchmarks.step_overhead [STEPS]

Time: a ViT of one narrow block on 8 images of 8 px, on the CPU in one thread. A bare loop over the same batches (loss,
backward pass, AdamW) and a training alternate; their difference is the engine's. Medians of five.

Calls: one step of DHVT-T (one narrow block stands for its twelve) on 512 images of 32 px with its recipe's
augmentation, on the simulated GPU of the tests: kernels and copies to the device outside the student's passes, which
are compiled.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from viticulture.training import session as sessions
from viticulture.training.feed import training_loader
from viticulture.training.run import fit

from .clock import at_least, begin
from .step import Clock, noise, ours, session_on_noise

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
WARMUP = 10
SMALL = {
    "student.name": "vit_nano", "student.patch_size": 4,
    "student.options": {"embed_dim": 8, "depth": 1, "num_heads": 1},
    "images.image_size": 8, "optim.name": "adamw", "engine.device": "cpu",
}  # fmt: skip
DHVT = {
    "student.options": {"embed_dim": 16, "depth": 1},
    "train.epochs": 2,
    "train.repeats": 1,
    "engine.precision": "32",
}


def bare(session: sessions.Session, steps: int) -> float:
    """Core-seconds a step of a bare loop over the same loader and student."""
    student = session.method.student.train()
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    for step, batch in enumerate(training_loader(session)):
        loss = torch.nn.functional.cross_entropy(student(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == WARMUP - 1:
            began = time.process_time()
    return (time.process_time() - began) / (steps - WARMUP)


class Launches(TorchDispatchMode):
    """Counts what a GPU would launch: operations of the simulated GPU that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.found = "", Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import simulated_gpu

        returns = func._schema.returns
        views = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if self.phase and simulated_gpu.computing and not views and "empty" not in func._schema.name:
            self.found[self.phase] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count as of this phase; "" counts nothing."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before


def launches(folder: str, steps: int = 64) -> Counter[str]:
    """Calls of a step of DHVT-T, by what makes them: means over `steps` steps."""
    import pytest

    from simulated_gpu import simulated_gpu
    from viticulture.data.batches.loader import Loader
    from viticulture.models.taps import Taps

    counted = Launches()

    def around(kind: Any, name: str, phase: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(kind, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            with counted.during(phase and counted.phase and phase):
                return original(*arguments, **keywords)

        patch.setattr(kind, name, call)

    class Switch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
            if batch_idx == steps - 1:
                counted.phase = "loop" if trainer.current_epoch == 0 else ""

    session = session_on_noise(noise(steps * 512, 32), 512, "dhvt/cifar100-tiny-patch4", DHVT, f"{folder}/run")
    with simulated_gpu(), pytest.MonkeyPatch.context() as patch, counted:
        around(Taps, "__call__", "", patch)
        around(torch.Tensor, "backward", "", patch)
        around(torch.optim.Optimizer, "step", "optimizer", patch)
        around(type(session.method), "losses", "losses", patch)
        for name in ("_staged", "_finished"):
            around(Loader, name, "batch", patch)
        fit(session, more=[Switch()])
    return Counter({name: round(count / steps) for name, count in counted.found.items()})


def main() -> None:
    """Print milliseconds and calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=at_least(WARMUP + 10), default=210, help="of one run")
    parser.add_argument("--threads", type=at_least(1), default=1)
    steps, pairs = begin(parser).steps, []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            session = session_on_noise(noise(steps * 8, 8), 8, "default/digits", SMALL, f"{folder}/run")
            loop, whole = bare(session, steps), ours(session, Clock(WARMUP, time.process_time))
        pairs.append((1e3 * loop, 1e3 * whole, 1e3 * (whole - loop), whole / loop))
    words = ("bare loop", "training", "engine", "ratio")
    print(
        "core-ms a step: "
        + ", ".join(f"{w} {median(c):.2f}" for w, c in zip(words, zip(*pairs, strict=True), strict=True))
    )
    with tempfile.TemporaryDirectory() as folder:
        found = launches(folder)
    print(f"calls to the device a step of DHVT-T outside its passes: {found.total()} {dict(found)}")


if __name__ == "__main__":
    main()
