# SPDX-License-Identifier: Apache-2.0
"""The four equalities: processes, interruptions, the Trainer and the export change no weights."""

import signal
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models._registry import _model_entrypoints

import viticulture
from children import die_at, start
from exact import CLOSE, in_double
from plain_loop import EXACT, check_plain_loop
from resumed import check_same_bits
from trained import train_apart, weights
from viticulture.models.students import matching
from viticulture.training.run import fit
from viticulture.training.session import begin

TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
# The smallest run that has everything in it: dropout, averaged weights, clipping, mixing, several epochs.
SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {**TINY, "drop_path_rate": 0.1, "proj_drop_rate": 0.1},
    "data.per_class": 10,
    "augment.padded_crop.padding": 1,
    "augment.mix.mixup": 0.8,
    "train.epochs": 3,
    "train.batch_size": 20,
    "train.ema_decay": 0.9,
    "train.validate": "val",
    "data.val_fraction": 0.1,
    "train.clip_norm": 1.0,
    "schedule.warmup_epochs": 1,
}


def train_until(out: str, overrides: dict[str, Any], resume: bool = False, dies: int | None = None) -> None:
    """In a child: train until the moment after the first checkpoint."""
    if dies is not None:
        die_at(Path(out), dies, "last.ckpt")
    if resume:
        viticulture.resume(out)
    else:
        viticulture.train("digits", "default/digits", out=out, overrides=overrides)


@pytest.mark.children
def test_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    """kill -9 eight times, at different moments of writing."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    patience = {**SMALL, "train.epochs": 12, "engine.checkpoint_minutes": 1e-9}  # a checkpoint after every step
    children = [start(train_until, str(whole), patience)]
    for moment in range(8):
        child = start(train_until, str(broken), patience, moment > 0, moment)
        child.join()
        assert child.exitcode == -signal.SIGKILL
    children.append(start(train_until, str(broken), patience, True))
    for child in children:
        child.join()
        assert child.exitcode == 0
    for which in ("last", "best", "ema"):
        check_same_bits(weights(whole, which), weights(broken, which))
    ours, theirs = ((run / "metrics.csv").read_text().splitlines() for run in (whole, broken))
    kept = [[line for line in lines if "val/" in line or "_epoch," in line] for lines in (ours, theirs)]
    assert kept[0] == kept[1]
    assert any("train/loss_epoch," in line for line in kept[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "uneven", [{}, {"data.sampling": "balanced"}, {"data.class_weights": "{'3': 7, '8': 0.5}"}], ids=str
)
def test_two_processes_are_one(uneven: dict[str, Any], tmp_path: Path) -> None:
    """With SGD, since Adam makes whole steps of gradients that are rounding alone (the keys' biases)."""
    found = []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        settings = {**SMALL, "train.epochs": 1, "train.batch_size": 32, "student.options": TINY, "engine.device": "cpu"}
        settings |= {
            **uneven,
            "schedule.warmup_epochs": 0,
            "engine.devices": devices,
            "optim.name": "sgd",
            "optim.lr": 0.1,
        }
        train_apart(out, settings)
        found.append(weights(out))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer_is_a_plain_loop(tmp_path: Path, accumulate: int) -> None:
    """With and without gradient accumulation."""
    overrides = {**SMALL, "student.options": TINY, "train.accumulate": accumulate}
    if accumulate > 1:  # sums in another order; Adam makes whole steps of such rounding
        overrides |= {"optim.name": "sgd", "optim.lr": 0.1}
    session, twin = (
        begin("digits", "default/digits", 0, str(tmp_path / name), False, overrides, "test")
        for name in ("run", "other")
    )
    if accumulate > 1:
        session, twin = in_double(session), in_double(twin)
    check_plain_loop(session, twin, EXACT if accumulate == 1 else CLOSE)


def test_exported_weights_equal_timms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, {**SMALL, "train.epochs": 2}, "test")
    fit(session)
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = session.method.student.eval()(images)
    for name in matching():
        monkeypatch.delitem(_model_entrypoints, name)
    again = timm.create_model(f"local-dir:{session.run.weights('last')}", pretrained=True).eval()
    with torch.inference_mode():
        assert torch.equal(again(images), expected)
