# SPDX-License-Identifier: Apache-2.0
"""Files that a person asks for: refused before any work where they cannot be written, safe in a spreadsheet."""

import csv
import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from untrained import untrained
from viticulture.cli import main
from viticulture.errors import UserError
from viticulture.outputs import check_out, csv_text
from viticulture.table import Column, Table

FORMULAS = ["=cmd()", "+1", "-1", "@SUM(1)", " =1+1", "\uff1d1"]


def test_no_spreadsheet_computes_a_name() -> None:
    """Such a cell is led by ', in headings and in rows. Catches: a cell forgotten, a leading space, a wide `=`."""
    rows = list(csv.reader(io.StringIO(csv_text([FORMULAS, ["", None, "a-b", "1+1", "it's"]]))))
    assert rows == [[f"'{name}" for name in FORMULAS], ["", "", "a-b", "1+1", "it's"]]


def test_numbers_stay_numbers() -> None:
    """Catches: a negative number taken for a formula, digits lost on the way."""
    numbers = [-0.5, 1e-07, -3, 0.1 + 0.2, 12]
    (row,) = csv.reader(io.StringIO(csv_text([numbers])))
    assert [float(cell) for cell in row] == numbers
    assert row[2] == "-3"


def test_what_steers_a_terminal_is_written_out() -> None:
    """Names hold any bytes. Catches: ESC or a line break in a cell, a name that is not UTF-8 and stops the file."""
    (row,) = csv.reader(io.StringIO(csv_text([["\x1b[31mred", "two\nlines", "q\udcff.png", "Ä, \u4e2d \u2028"]])))
    assert row == ["\\x1b[31mred", "two\\nlines", "q\\udcff.png", "Ä, \u4e2d \\u2028"]


def test_tables_of_reports_are_written_by_the_same_rule() -> None:
    """Catches: a study's summary.csv with a candidate called like a formula."""
    table = Table("", [Column("name"), Column("=heading()", "decimal")], [["@a", -1.5], ["\x1b", None]])
    assert list(csv.reader(io.StringIO(table.csv()))) == [["name", "'=heading()"], ["'@a", "-1.5"], ["\\x1b", ""]]


def test_a_file_that_cannot_be_written_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a folder, another format, a file in the way of a folder, a disk without room; and advice to free space
    where space is not the reason."""
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


def test_a_file_of_a_runs_own_is_not_written_over(tmp_path: Path) -> None:
    """Catches: `predict --out RUN/run.json`, after which there is no run; a file that would be taken for the run's; a
    link to one; another file in the folder that may not be written any more."""
    (tmp_path / "run" / "weights").mkdir(parents=True)
    for name in ("run.json", "weights/model.safetensors"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "run" / "run.json")
    for name in ("run/run.json", "run/evaluation.json", "run/metrics.CSV", "run/weights/config.json", "link.json"):
        with pytest.raises(UserError, match="is a file of the run"):
            check_out(tmp_path / name, ".csv", ".json")
    for name in ("run/predictions.json", "run/mine.csv", "evaluation.json"):
        check_out(tmp_path / name, ".csv", ".json")


@pytest.mark.parametrize(
    ("verb", "words"),
    [("predict", ["absent.png"]), ("probe", ["absent"]), ("localise", ["absent", "--boxes", "absent"]), ("links", [])],
)
def test_verbs_look_at_out_before_they_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, words: list[str]
) -> None:
    """The other words are wrong, too, and would be told first. Catches: minutes of work whose result has no place."""
    run = untrained(tmp_path / "run")
    for out, said in ((tmp_path / "x.xlsx", "x.xlsx"), (tmp_path, "is a folder")):
        assert main([verb, str(run.path), *words, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "absent" not in error
