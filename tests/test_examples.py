# SPDX-License-Identifier: Apache-2.0
"""The scripts in examples/ run."""

import csv
import importlib
import math
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script as its folder's users do."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


def test_every_example_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {"own_photos", "teacher", "plugin"}


def test_own_photos(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = example("own_photos")
    folder = script.write_digits(tmp_path / "digits")
    run = script.main(folder, epochs=1, out=str(tmp_path / "run"))
    assert run.report.is_file()
    assert "% of the test images are correct" in capsys.readouterr().out


def test_teacher(example: Any, tmp_path: Path) -> None:
    accuracies = example("teacher").main(epochs=1, out=str(tmp_path))
    assert list(accuracies) == ["teacher", "student", "labels alone"]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies.values())


def test_plugin(example: Any, tmp_path: Path) -> None:
    """The logged term is the weight times an entropy of ten classes. Fails if the guide is not used."""
    run = example("plugin").main(epochs=1, out=str(tmp_path / "run"))
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        values = [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "train/confident_entropy"]
    assert values
    assert all(0 < value <= 0.1 * math.log(10) + 1e-6 for value in values)
    assert run.accuracy is not None
