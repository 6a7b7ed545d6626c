# SPDX-License-Identifier: Apache-2.0
"""Progress of a training: means over epochs, printed lines, a page that refreshes itself."""

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from rich.console import Console

from viticulture.report.run_page import write_page
from viticulture.training.metrics import read_curves
from viticulture.training.module import TrainingModule
from viticulture.training.progress import EachEpoch, ProgressBar, showing
from viticulture.training.run import fit
from viticulture.training.session import begin

EPOCHS, STEPS = 2, 3


@dataclass
class Recorded:
    """Logged values of each batch, printed lines, and pages of a training."""

    run: Path
    losses: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


class Listener(ProgressBar):
    """Records every batch's loss as a progress bar."""

    def __init__(self, console: Console, every: float, losses: list[float]) -> None:
        super().__init__(10, console, every)
        self.losses = losses

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.losses.append(float(pl_module.method.logs["loss"]))
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)


def trained(path: Path, every: float) -> Recorded:
    """Train a few steps whose lines are this many seconds apart."""
    small = {"train.epochs": EPOCHS, "train.batch_size": 10, "data.per_class": 3, "student.name": "vit_nano"}
    small |= {"data.val_fraction": 0.1, "train.validate": "val"}
    session = begin("digits", "default/digits", 0, str(path), False, small, "a test")
    told, file = Recorded(path), io.StringIO()
    watcher = Listener(Console(file=file, force_terminal=False, width=80), every, told.losses)
    fit(session, watcher, after_epoch=lambda: told.pages.append(write_page(session.run).read_text()))
    session.run.unlock()
    told.lines = file.getvalue().splitlines()
    return told


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return trained(tmp_path_factory.mktemp("told") / "run", every=0)


def test_metrics_hold_the_mean_over_each_epoch(talkative: Recorded) -> None:
    curves = read_curves(talkative.run / "metrics.csv")
    assert len(talkative.losses) == EPOCHS * STEPS
    by_epoch = [talkative.losses[STEPS * k : STEPS * (k + 1)] for k in range(EPOCHS)]
    expected = [(k + 1.0, pytest.approx(sum(losses) / STEPS, rel=1e-5)) for k, losses in enumerate(by_epoch)]
    assert curves["train/loss_epoch"] == expected
    assert [x for x, _ in curves["train/accuracy_epoch"]] == [1, 2]


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_a_terminal_line_fits_its_width_and_has_the_loss(width: int, tmp_path: Path) -> None:
    small = {"train.epochs": 2, "train.batch_size": 10, "data.per_class": 3, "student.name": "vit_nano"}
    session = begin(
        "digits", "default/digits", 0, str(tmp_path / "run"), False, {**small, "data.val_fraction": 0.1}, "a test"
    )
    file = io.StringIO()
    watcher = ProgressBar(10, Console(file=file, force_terminal=True, width=width))
    facts: list[str] = []
    say = watcher._text
    watcher._text = lambda *given: facts.append(say(*given)) or facts[-1]  # type: ignore[method-assign,func-returns-value]
    fit(session, watcher)
    session.run.unlock()
    assert facts
    assert all(words.startswith("loss ") for words in facts)
    assert "…" not in file.getvalue()
    if width >= 80:
        assert facts[-1].endswith(" left")
    assert any("images/s" in words for words in facts) == (width >= 110)


def test_a_pipe_gets_a_line_at_intervals(talkative: Recorded, tmp_path: Path) -> None:
    assert [line.split("  ")[0] for line in talkative.lines] == [
        *("epoch 1/2, step 1 of 6", "epoch 1/2, step 2 of 6", "epoch 1/2"),
        *("epoch 2/2, step 4 of 6", "epoch 2/2, step 5 of 6", "epoch 2/2"),
    ]
    assert f"loss {sum(talkative.losses[STEPS:]) / STEPS:.3f}" in talkative.lines[-1]
    assert "label" not in talkative.lines[-1]
    seldom = trained(tmp_path / "run", every=math.inf).lines
    assert [line.split("  ")[0] for line in seldom] == ["epoch 1/2, step 1 of 6", "epoch 2/2"]


def test_the_page_refreshes_while_the_run_trains(talkative: Recorded) -> None:
    page = talkative.pages[0]
    assert '<meta http-equiv="refresh"' in page
    assert "In training: 1 of 2 epochs are done." in page
    assert "viticulture evaluate" not in page
    assert "Learning curves" in page


def test_work_between_epochs_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of one second every two seconds, at most a tenth of the time."""
    now, calls = [0.0], list[float]()

    def work() -> None:
        calls.append(now[0])
        now[0] += 1

    monkeypatch.setattr("viticulture.training.progress.time.monotonic", lambda: now[0])
    each = EachEpoch(work, share=0.1)
    leader = Trainer(logger=False, enable_checkpointing=False, barebones=True)
    for _ in range(30):
        each.on_train_epoch_end(leader, LightningModule())
        now[0] += 2
    assert calls == [0, 11, 22, 33, 44, 55]


def test_counted_work_reports_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with showing("reading images", every=0) as progress:
        progress(1, 1000)
        progress(2, 1000)
    assert capsys.readouterr().err.splitlines() == ["reading images: 1 of 1,000", "reading images: 2 of 1,000"]
    with showing("reading images", every=math.inf) as progress:
        progress(1, 1000)
    assert capsys.readouterr().err == ""
