# SPDX-License-Identifier: Apache-2.0
"""Output files: refused before any work where they cannot be written, safe in a spreadsheet."""

import csv
import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from refusals import refused
from untrained import untrained
from viticulture.cli import main
from viticulture.errors import UserError
from viticulture.outputs import check_out, csv_text
from viticulture.table import Column, Table

FORMULAS = ["=cmd()", "+1", "-1", "@SUM(1)", " =1+1", "\uff1d1"]


def test_formulas_are_escaped() -> None:
    """Such a cell is led by ', in headings and in rows."""
    rows = list(csv.reader(io.StringIO(csv_text([FORMULAS, ["", None, "a-b", "1+1", "it's"]]))))
    assert rows == [[f"'{name}" for name in FORMULAS], ["", "", "a-b", "1+1", "it's"]]


def test_numbers_stay_numbers() -> None:
    numbers = [-0.5, 1e-07, -3, 0.1 + 0.2, 12]
    (row,) = csv.reader(io.StringIO(csv_text([numbers])))
    assert [float(cell) for cell in row] == numbers
    assert row[2] == "-3"


def test_control_characters_are_escaped() -> None:
    (row,) = csv.reader(io.StringIO(csv_text([["\x1b[31mred", "two\nlines", "q\udcff.png", "Ä, \u4e2d \u2028"]])))
    assert row == ["\\x1b[31mred", "two\\nlines", "q\\udcff.png", "Ä, \u4e2d \\u2028"]


def test_tables_of_reports_are_escaped_alike() -> None:
    table = Table("", [Column("name"), Column("=heading()", "decimal")], [["@a", -1.5], ["\x1b", None]])
    assert list(csv.reader(io.StringIO(table.csv()))) == [["name", "'=heading()"], ["'@a", "-1.5"], ["\\x1b", ""]]


def test_an_unwritable_file_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert check_out(tmp_path / "new" / "A.CSV", ".csv", ".json") == tmp_path / "new" / "A.CSV"
    for name, words in {
        ".": "is a folder; name a file",
        "x.xlsx": "must end in .csv or .json, got",
        "x": "must end in .csv or .json, got",
        "file/x.csv": "not a writable folder",
    }.items():
        with pytest.raises(UserError, match=words) as caught:
            check_out(tmp_path / name, ".csv", ".json")
        assert "free some space" not in str(caught.value)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    check_out(tmp_path / "x.csv", ".csv", size=10**6)
    with pytest.raises(UserError, match="needs 2,000,000 bytes and 1,000,000 are free; free some space"):
        check_out(tmp_path / "x.csv", ".csv", size=2 * 10**6)


def test_a_runs_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run" / "weights").mkdir(parents=True)
    for name in ("run.json", "weights/model.safetensors"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "run" / "run.json")
    for name in ("run/run.json", "run/evaluation.json", "run/metrics.CSV", "run/weights/config.json", "link.json"):
        refused("is a file of the run", check_out, tmp_path / name, ".csv", ".json")
    for name in ("run/predictions.json", "run/mine.csv", "evaluation.json"):
        check_out(tmp_path / name, ".csv", ".json")


@pytest.mark.parametrize(
    ("verb", "words", "folder"),
    [
        ("predict", ["absent.png"], "is a folder"),
        ("probe", ["absent"], "exists already"),  # a folder is for a run
        ("localise", ["absent", "--boxes", "absent"], "is a folder"),
        ("links", [], "is a folder"),
    ],
)
def test_commands_check_out_before_they_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, words: list[str], folder: str
) -> None:
    run = untrained(tmp_path / "run")
    for out, said in ((tmp_path / "x.xlsx", "x.xlsx"), (tmp_path, folder)):
        assert main([verb, str(run.path), *words, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "absent" not in error
