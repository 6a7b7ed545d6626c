# SPDX-License-Identifier: Apache-2.0
"""The contest of small detectors and segmenters: one command, all contenders, finished ones are not trained again."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from dense_scenes import coco_folder, mask_folder
from refusals import refused

ROOT = Path(__file__).parents[1]
TINY = {"images.image_size": 32, "images.cache_size": 32, "student.patch_size": 8, "train.batch_size": 3}


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.dense_contest")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["objects", "pixels"])
def test_every_contender_is_trained_and_evaluated_once(tmp_path: Path, contest: Any, kind: str) -> None:
    data = (coco_folder if kind == "objects" else mask_folder)(tmp_path / "data", {"train": 4, "val": 1, "test": 2})
    terms = contest.Contest(kind, str(data), tmp_path / "out", 1e-3, TINY)
    names = list(contest.contenders(terms))
    first = contest.compete(terms, 1, [])
    assert [score.contender for score in first] == names
    assert all(set(contest.MEASURES[kind]) <= set(score.measures) for score in first)
    assert all(score.parameters > 10_000 for score in first)
    assert [score.epochs for score in first if "MAE" in score.contender] == ["1 + 1"]
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("model.safetensors")}
    assert contest.compete(terms, 1, []) == first
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())) == len(names)
    page = (tmp_path / "out" / "table.md").read_text()
    assert all(f"| {name} |" in page for name in names)
    refused("no contender is called 'YOLO'", contest.compete, terms, 1, ["YOLO"])


def test_a_table_has_a_row_per_contender_with_its_spread(tmp_path: Path, contest: Any) -> None:
    terms = contest.Contest("objects", "bccd", tmp_path, 60.0, {})
    scores = [contest.Score("DHVT", seed, "9", 1.0, 1_500_000, {"ap": 0.1 * seed, "ap50": 0.5}) for seed in range(3)]
    lines = contest.table(scores, terms).splitlines()
    assert lines[-1] == "| DHVT | 10.0 ± 10.0 | 50.0 ± 0.0 | 3 | 9 | 1.0 | 1.50 |"
    assert "1 core-minutes" in lines[0]
