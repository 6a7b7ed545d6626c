# SPDX-License-Identifier: Apache-2.0
"""Each saved set of weights is evaluated, and of equal ones only the first."""

import shutil
from pathlib import Path

import pytest

from viticulture.evaluation.saved import of_each
from viticulture.training.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Train a run whose best weights are the last, with different EMA weights."""
    for weights, content in (("best", b"1"), ("last", b"1"), ("ema", b"2")):
        folder = tmp_path / "weights" / weights
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(content)
        (folder / "config.json").write_text("{}")
    return RunFolder(tmp_path)


def test_equal_weights_are_measured_once(run: RunFolder) -> None:
    asked = list[str]()

    def measure(weights: str) -> bytes:
        asked.append(weights)
        return (run.weights(weights) / "model.safetensors").read_bytes()

    assert of_each(run, measure) == {"best": b"1", "last": b"1", "ema": b"2"}
    assert asked == ["best", "ema"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_any_other_byte_makes_them_two(run: RunFolder, name: str) -> None:
    (run.weights("last") / name).write_text("3")
    assert list(of_each(run, lambda weights: weights).values()) == ["best", "last", "ema"]


@pytest.mark.parametrize("weights", ["best", "last"])
def test_a_missing_file_is_reported(weights: str, run: RunFolder) -> None:
    (run.weights(weights) / "model.safetensors").unlink()
    assert list(of_each(run, lambda weights: weights).values()) == ["best", "last", "ema"]


def test_a_run_without_validation_has_one(run: RunFolder) -> None:
    for weights in ("best", "ema"):
        shutil.rmtree(run.weights(weights))
    assert of_each(run, str.upper) == {"last": "LAST"}
