# SPDX-License-Identifier: Apache-2.0
"""Logged metrics are those of the run's history, and continue after resuming."""

import errno
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import viticulture
from viticulture.cli import main
from viticulture.training import loggers
from viticulture.training.metrics import read_history
from viticulture.training.run import fit
from viticulture.training.session import begin, reopen

FEW: dict[str, Any] = {"data.per_class": 4, "train.epochs": 2, "train.batch_size": 20, "schedule.warmup_epochs": 1}


def in_two_parts(out: Path, logger: str) -> viticulture.Run:
    """Interrupt a run after its first epoch and resume it."""
    session = begin("digits", "default/digits", 0, str(out), False, {**FEW, "engine.logger": logger}, "test")
    fit(session, until=1)
    session.run.unlock()
    session = reopen(str(out))
    fit(session)
    session.run.unlock()
    return viticulture.Run(out)


def measured(run: viticulture.Run) -> set[tuple[str, int, float]]:
    """Read name, step and value of every line of metrics.csv."""
    import csv

    with (run.path / "metrics.csv").open(newline="") as file:
        return {(row["name"], int(row["step"]), float(row["value"])) for row in csv.DictReader(file)}


def test_trackio_has_the_names_steps_and_values_of_metrics_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[str, int, float]] = []
    begun: list[dict[str, Any]] = []

    def init(**about: Any) -> SimpleNamespace:
        begun.append(about)

        def log(values: dict[str, float], step: int) -> None:
            got.extend((name, step, float(value)) for name, value in values.items() if name != "epoch")

        return SimpleNamespace(log=log, finish=lambda: None)

    fake = ModuleType("trackio")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", fake)
    monkeypatch.setattr(loggers, "find_spec", lambda name: object())
    run = in_two_parts(tmp_path / "run", "trackio")
    assert set(got) == measured(run)
    assert len(got) == len(measured(run)), "each once"
    assert len(read_history(run.path / "metrics.csv")) == 2
    first, second = begun
    assert first["name"] == second["name"]
    assert first["resume"] == "allow"
    assert first["config"]["train.epochs"] == 2


def test_mlflow_has_the_names_steps_and_values_of_metrics_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra `loggers`")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.chdir(tmp_path)
    run = in_two_parts(tmp_path / "run", "mlflow")
    client = MlflowClient()
    (experiment,) = client.search_experiments(filter_string=f"name = '{loggers.PROJECT}'")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.run_id == run.metadata["logged"]["mlflow"]
    assert kept.data.params["train.epochs"] == "2"
    got = {
        (name, point.step, point.value)
        for name in kept.data.metrics
        if name != "epoch"
        for point in client.get_metric_history(kept.info.run_id, name)
    }
    assert got == measured(run)


def test_tensorboard_has_the_names_of_metrics_csv(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = in_two_parts(tmp_path / "run", "none")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if name != "epoch"]
    got = {(name, event.step): event.value for name in names for event in events.Scalars(name)}
    assert got == pytest.approx({(name, step): value for name, step, value in measured(run)}, rel=1e-5), "float32"


def test_a_full_disk_under_tensorboard_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    heard = Mock()
    monkeypatch.setattr(RecordWriter, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(threading, "excepthook", heard)
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, FEW, "test")
    with pytest.raises(viticulture.UserError, match="No space left on device; free some space"):
        fit(session)
    assert not heard.called
    assert threading.excepthook is heard


@pytest.mark.parametrize("logger", ["mlflow", "wandb", "trackio"])
def test_a_missing_package_is_reported_before_a_folder_is_made(
    tmp_path: Path, logger: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    words = ["train", "digits", "--recipe", "default/digits", "--logger", logger, "--out", str(tmp_path / "run")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"pip install {logger}" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
