# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments of trainings of every kind, each resumed and held against one that was left alone."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from .child import kill, run, start, wait

SECONDS = 600
TINY = ("--student.options", "{embed_dim: 32, depth: 2, num_heads: 2}")
ALL = ("--per-class", "10", "--batch-size", "20", "--epochs", "6", "--schedule.warmup_epochs", "1")
OFTEN = ("--engine.checkpoint_minutes", "0.001")


@dataclass(frozen=True)
class Training:
    """One kind of training.

    Args:
        words: its command, but for --out.
        before: a command whose run, in the folder `teacher`, it needs.
    """

    words: tuple[str, ...]
    before: tuple[str, ...] = field(default=())

    @property
    def study(self) -> bool:
        """Whether it makes a study, no run."""
        return self.words[0] == "compare"


DIGITS = ("train", "digits", "--recipe", "default/digits", *TINY, *ALL, *OFTEN)
KINDS = {
    "train": Training((*DIGITS, "--train.ema_decay", "0.9", "--augment.mix.mixup", "0.8", "--data.val_fraction", "0.1",
                       "--train.validate", "val")),
    "compare, two workers": Training(("compare", "digits", "--recipes", "default/digits,dhvt/digits", "--per-class",
                                      "10", "--seeds", "2", "--epochs", "4", "--workers", "2")),
    "mae": Training(("train", "digits", "--recipe", "mae/cifar100", "--image-size", "8", "--images.cache_size", "8",
                     "--images.normalize", "half", "--patch-size", "2", *TINY, *ALL, *OFTEN)),
    "shared agent": Training(("train", "digits", "--recipe", "bootstrap/digits", *ALL, *OFTEN,
                              "--guides.bootstrap.weights", "aligned")),
    "replay": Training((*DIGITS, "--guides.logits.teacher", "teacher", "--engine.replay_gb", "0.1"), before=DIGITS),
    "streaming": Training((*DIGITS, "--images.max_cache_gb", "0.0000001")),
    "sam": Training((*DIGITS, "--optim.sam_rho", "0.05", "--student.options.proj_drop_rate", "0.1")),
}  # fmt: skip


def weights(folder: Path) -> dict[str, bytes]:
    """Every file of weights under a folder, and the results beside them."""
    kept = [*folder.rglob("model.safetensors"), *folder.rglob("evaluation.json")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(kept)}


def resumed(kind: Training, folder: Path, out: str) -> list[str]:
    """The command that goes on with what a kill has left under a name in the folder."""
    if kind.study and (folder / out / "study.json").exists():
        return ["compare", "resume", out]
    if not kind.study and (folder / out / "run.json").exists():
        return ["resume", out]
    return [*kind.words, "--out", out]


def kills(draw: random.Random, kind: Training, folder: Path, times: int) -> list[str]:
    """Kill a training once at each of so many random moments, resume it each time, and compare.

    Args:
        draw: the dice.
        kind: what trains.
        folder: an empty one to work in.
        times: how many kills, each of a training of its own.

    Returns: for each kill, what went wrong, or nothing.
    """
    log = folder / "log"
    if kind.before:
        assert run([*kind.before, "--out", "teacher"], folder, log, SECONDS).code == 0, log.read_text()
    begun = time.monotonic()
    whole = run([*kind.words, "--out", "whole"], folder, log, SECONDS)
    length = time.monotonic() - begun
    if whole.code:
        return [f"fails when left alone: {whole.output.decode(errors='replace')[-500:]}"] * times
    expected = weights(folder / "whole")
    faults = []
    for number in range(times):
        out = folder / f"killed{number}"
        pid = start([*kind.words, "--out", out.name], folder, log, SECONDS)
        time.sleep(draw.uniform(0, length))
        kill(pid)
        wait(pid, log)
        again = run(resumed(kind, folder, out.name), folder, log, SECONDS)
        if again.code:
            faults.append(f"not resumed: {again.output.decode(errors='replace').strip().splitlines()[-1:]}")
        else:
            other = weights(out)
            unlike = sorted(name for name in expected if other.get(name) != expected[name])
            faults.append(f"differs: {unlike}" if unlike else "")
        left = [str(path.relative_to(out)) for path in out.rglob(".*.part")]
        if left and not faults[-1]:
            faults[-1] = f"left behind: {left}"
    return faults
