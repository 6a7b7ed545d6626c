# SPDX-License-Identifier: Apache-2.0
"""The measured step time of a study's plan is that of a training step."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from slowly import slow_but
from viticulture.config.load import load_config
from viticulture.optim import SAM
from viticulture.study.step_times import MAX_SECONDS, MAX_STEPS, MIN_STEPS, measure_step_times
from viticulture.training.run import fit
from viticulture.training.session import begin

SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"depth": 1},
    "data.per_class": 4,
    "train.epochs": 1,
    "train.batch_size": 8,
    "schedule.warmup_epochs": 0,
    "engine.device": "cpu",
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("default/digits", {"engine.replay_gb": 1}),
    "sharpness-aware, clipped and averaged": (
        "default/digits",
        {"optim.sam_rho": 0.1, "train.clip_norm": 0.01, "train.ema_decay": 0.9},
    ),
    "in micro-batches": ("default/digits", {"train.accumulate": 2}),
    "with networks of the method's own": (
        "mae/cifar100",
        {"student.patch_size": 2, "images.image_size": 8, "images.cache_size": 8},
    ),
}


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count training passes through blocks, gradients clipped, backward passes, optimizer steps."""
    counts: Counter[str] = Counter()

    def passed(module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            counts[f"{type(module).__name__} passed"] += 1

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(optimizer, SAM):  # the optimizer inside it tells its step, too
            return
        counts["steps"] += 1
        moved = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        counts["numbers stepped"] += sum(weight.numel() for weight in moved)

    def counted(place: Any, name: str) -> None:
        plain = getattr(place, name)

        def call(*args: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return plain(*args, **keywords)

        monkeypatch.setattr(place, name, call)

    with monkeypatch.context() as monkeypatch:
        counted(torch.nn.utils, "clip_grad_norm_")
        counted(torch.Tensor, "backward")
        counted(ModelEmaV3, "update")
        hooks = [register_module_forward_pre_hook(passed), register_optimizer_step_post_hook(stepped)]
        yield counts
        for hook in hooks:
            hook.remove()


def a_step(counts: Counter[str]) -> dict[str, float]:
    return {name: count / counts["steps"] for name, count in counts.items() if name != "steps"}


@pytest.mark.parametrize("kind", slow_but(list(KINDS)[1:3], KINDS))
def test_a_measured_step_is_a_training_step(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls per step, of one epoch of training and of the measurement."""
    name, changes = KINDS[kind]
    with counting(monkeypatch) as trained:
        session = begin("digits", name, 0, str(tmp_path / "run"), False, {**SMALL, **changes}, "test")
        fit(session)
        session.run.unlock()
    with counting(monkeypatch) as measured:
        pace = measure_step_times(load_config(name, {**SMALL, **changes}), session.dataset, tmp_path / "pace")
    assert MIN_STEPS <= measured["steps"] <= MAX_STEPS
    assert a_step(measured) == a_step(trained)
    assert pace.steps == trained["steps"]
    assert not (tmp_path / "pace").exists()
    assert pace.step > 0
    assert pace.inference > 0
    assert pace.checkpoint > 0


def test_recipes_with_validation_are_measured_without(tmp_path: Path) -> None:
    watched = {**SMALL, "train.validate": "val", "train.best_by": "balanced_accuracy", "train.stop_when_perfect": 30}
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, watched, "test")
    session.run.unlock()
    config = load_config("default/digits", watched)
    assert measure_step_times(config, session.dataset, tmp_path / "pace").step > 0


def test_patience_buys_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped clock never says enough, so steps alone end it."""
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, SMALL, "test")
    session.run.unlock()
    config = load_config("default/digits", SMALL)
    for patience in (1.0, 2.5):
        with counting(monkeypatch) as measured:
            measure_step_times(config, session.dataset, tmp_path / "pace", 0, lambda: 0.0, patience)
        assert measured["steps"] == int(patience * MAX_STEPS)


def test_one_slow_step_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, SMALL, "test")
    session.run.unlock()
    made_begun_and_steps = [0, 0, 9 * MAX_SECONDS, 2 * MAX_SECONDS, 5 * MAX_SECONDS, 2 * MAX_SECONDS]
    readings = accumulate(chain(made_begun_and_steps, repeat(0)))
    config = load_config("default/digits", SMALL)
    with counting(monkeypatch) as measured:
        pace = measure_step_times(config, session.dataset, tmp_path / "pace", 0, partial(next, readings))
    assert measured["steps"] == MIN_STEPS
    assert pace.step == 2 * MAX_SECONDS
