# SPDX-License-Identifier: Apache-2.0
"""Every run below a folder in one table and on one page."""

import re
from pathlib import Path
from typing import Any

import pytest

import viticulture
from made_study import study
from refusals import refused
from viticulture.report.runs import find_runs
from viticulture.training.run_folder import RunFolder

EVIL = "javascript:alert(1) <b> \" 'q' &"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create two runs of a study, one with a page, in folders of awkward names; and one with a damaged run.json."""
    made = study(tmp_path / "made", ["a", "b"], (5,), 1)
    cells = [made.folder.run(cell) for cell in made.folder.grid.cells()]
    whole: dict[str, Any] = {"command": "c", "commit": None, "settings": {}, "hardware": {}}
    for cell, name, day in zip(cells, (EVIL, "deep/er/plain"), (1, 2), strict=True):
        facts = cell.read("run.json")
        facts["data"] |= {"name": "digits", "fingerprint": "f"}
        cell.write("run.json", {**facts, **whole, "started": f"2026-01-0{day}T00:00:00+00:00"})
        place = tmp_path / "runs" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        cell.path.rename(place)
    (tmp_path / "runs" / EVIL / "report.html").write_text("a page")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    return tmp_path / "runs"


def test_runs_are_found_at_any_depth_and_damage_is_named(folder: Path) -> None:
    table = find_runs(folder).table
    assert [row[0] for row in table.rows] == ["deep/er/plain", EVIL, "broken"]
    first = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert first["data"] == "digits"
    assert first["state"] == "finished"
    assert 0 < float(str(first["top-1"])) < 1
    assert first["images"] == "400 test"  # else one run's validation stands beside another's test unsaid
    assert first["begun"] == "2026-01-02 00:00"
    assert table.rows[2][4] == "unreadable"
    assert "1 cannot be read" in table.note
    assert "damaged" in table.note
    refused("no folder", find_runs, folder / "nowhere")


def test_an_interrupted_run_is_distinct_from_a_training_one(folder: Path) -> None:
    run = RunFolder(folder / "deep/er/plain")
    run.update(status="running")
    for trained, state in ((True, "running"), (False, "interrupted"), (True, "running")):
        if trained:
            run.lock()
        assert find_runs(folder).table.rows[0][4] == state
        assert ("resume" in find_runs(folder).table.note) is (state == "interrupted")
        run.unlock()


def test_links_of_the_page_are_to_pages_of_runs_alone(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "index.html"
    out.parent.mkdir()
    table = viticulture.runs(str(folder), out=str(out))
    assert len(table.rows) == 3
    page = out.read_text(encoding="utf-8")
    (link,) = re.findall(r'<a href="([^#"][^"]*)"', page)
    assert link.startswith("./../runs/javascript%3A")
    assert "<b>" not in page
    assert page.count("deep/er/plain") == 1
