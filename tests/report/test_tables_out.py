# SPDX-License-Identifier: Apache-2.0
"""Tables are complete in a terminal, a pipe, Markdown and CSV; all runs below a folder in one table and page."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import viticulture
from made_results import classified
from made_study import study
from refusals import refused
from viticulture.data.inspect import inspect
from viticulture.data.sources.arrays import from_arrays
from viticulture.evaluation.outputs import Predictions
from viticulture.report.inspection import inspected
from viticulture.report.runs import find_runs
from viticulture.table import Column, Spread, Table, print_table
from viticulture.tasks.classification_metrics import ClassificationResult, evaluate_predictions
from viticulture.tasks.classification_page import confused, per_class, summary
from viticulture.text import clean
from viticulture.training.run_folder import RunFolder

ODD = [
    "[bold]red[/bold]",
    "日本語の名前" * 9,
    "👩‍🔬 scientist",
    "many words " * 12,
    "a" * 140,
    "x\x1b[31mred\nline",
    "<b>|pipe|",
]


def evaluation(classes: list[str], N: int = 60) -> ClassificationResult:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(len(classes), (N,), generator=generator)
    logits = torch.randn(N, len(classes), generator=generator)
    return evaluate_predictions(Predictions(logits.softmax(-1), labels, [""] * N), classes)


def drawn(table: Table, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(table)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 60])
def test_long_names_are_cut_and_numbers_are_not(width: int) -> None:
    found = evaluation(ODD)
    lines = drawn(per_class(found), width)
    assert max(map(cell_len, lines)) <= width
    body = lines[-len(ODD) :]
    for line, score in zip(body, found.per_class, strict=True):
        assert score.recall is not None
        assert f"{100 * score.recall:.1f} %" in line
    assert body[0].startswith("[bold]red[/bold]")
    assert "…" in body[1]
    assert "…" in body[3]
    assert "…" in body[4]


def test_a_long_heading_is_wrapped() -> None:
    table = Table("", [Column("class"), Column("images of all splits together", "count")], [["a", 1]])
    assert max(map(len, drawn(table, 80))) <= 20


def test_four_evaluations_fit_eighty_columns() -> None:
    pairs = [("last", "test"), ("best", "test"), ("ema", "test"), ("best", "val")]
    every = {f"{w}/{s}": evaluation(list("abcdefgh"), 50 + i) for i, (w, s) in enumerate(pairs)}
    text = "\n".join(drawn(summary(classified("last/test", every)), 80))
    assert "…" not in text
    assert all(f"{100 * each.top1:.1f} %" in text for each in every.values())
    assert text.count("images") == 1


def test_titles_and_notes_take_the_width_of_the_terminal() -> None:
    title, note = (
        "Frozen features of a run on some data: top-1",
        "Ten classes; ninety images to learn from, nine to test.",
    )
    lines = drawn(Table(title, [Column("a"), Column("b", "count")], [["x", 1]], note), 80)
    assert lines[0].rstrip() == title
    assert lines[-1].rstrip() == note


@pytest.mark.parametrize("width", [80, 120])
def test_columns_that_do_not_fit_are_wrapped_in_blocks(width: int) -> None:
    columns = [Column("CNN block"), *(Column(f"layer {k}", "decimal") for k in range(20))]
    rows = [[f"block {r}", *(r + k / 1000 for k in range(20))] for r in range(3)]
    lines = drawn(Table("t", columns, rows), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert all(f"{r + k / 1000:.3f}" in text for r in range(3) for k in range(20))
    assert text.count("block 2") == text.count("CNN") > 1
    whole = io.StringIO()
    print_table(Table("t", columns, rows), file=whole)
    assert whole.getvalue().count("block 2") == 1


def test_equal_evaluations_share_a_column() -> None:
    found, other = evaluation(list("abcdefgh")), evaluation(list("abcdefgh"), 50)
    pairs = [("best", "test", found), ("last", "test", found), ("best", "val", other), ("last", "val", found)]
    results = classified("best/test", {f"{weights}/{split}": result for weights, split, result in pairs})
    heads = [column.name for column in summary(results).columns]
    assert heads == ["", "test", "validation, best weights", "validation, last weights"]


def test_top_k_of_all_classes_is_left_out() -> None:
    names = [str(row[0]) for row in summary(classified("best/test", {"best/test": evaluation(list("abcde"))})).rows]
    assert not any("top-5" in name for name in names)
    names = [str(row[0]) for row in summary(classified("best/test", {"best/test": evaluation(list("abcdef"))})).rows]
    assert "top-5 accuracy" in names


def test_control_characters_are_replaced() -> None:
    assert clean("x\x1b[31m\u202e\n\udcff") == "x�[31m���"
    kept = "日本語　名 👩‍🔬 Ünï cödé עברית"
    assert clean(kept) == kept


def test_control_characters_of_headings_titles_and_notes_are_replaced() -> None:
    table = Table("t\x1b[31m", [Column("a\x1b[32m"), Column("b\x1b[33m", "decimal")], [["c\x1b[34m", 1.0]], "n\x1b[35m")
    file = io.StringIO()
    print_table(table, file=file)
    assert "\x1b" not in file.getvalue() + table.markdown() + table.csv()


def test_a_pipe_gets_whole_names_and_no_color() -> None:
    file = io.StringIO()
    print_table(per_class(evaluation(ODD)), file=file)
    assert "a" * 140 in file.getvalue()
    assert "日本語の名前" * 9 in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_a_terminal_of_another_encoding_gets_marks() -> None:
    bytes_ = io.BytesIO()
    file = io.TextIOWrapper(bytes_, encoding="latin-1")
    print_table(per_class(evaluation(["日本", "ok"])), file=file)
    file.flush()
    assert b"ok" in bytes_.getvalue()
    assert b"??" in bytes_.getvalue()


def test_csv_has_the_unrounded_numbers() -> None:
    found = evaluate_predictions(
        Predictions(torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([0]), ["x"]), ['a,"b"', "c", "d"]
    )
    rows = list(csv.reader(io.StringIO(per_class(found).csv())))
    assert rows[0] == ["class", "images", "precision", "recall", "F1"]
    assert rows[1] == ['a,"b"', "1", "1.0", "1.0", "1.0"]
    assert rows[2] == ["c", "0", "", "", ""]
    assert "n/a" in per_class(found).markdown()


def test_markdown_escapes_cells() -> None:
    line = Table("", [Column("name"), Column("n", "count")], [["<b>|pipe|", 12345]]).markdown().splitlines()[-1]
    assert line == "| &lt;b&gt;\\|pipe\\| | 12,345 |"


def test_a_spread_is_mean_and_sample_deviation() -> None:
    """Seeds 73.4, 75.1, 71.7: mean 73.4, deviation over n - 1 is 1.7 (over n it would be 1.4)."""
    columns = [Column(""), Column("ours", "spread"), Column("published", "spread")]
    rows = [["scratch", Spread((73.4, 75.1, 71.7)), Spread((74.0,))], ["dhvt", Spread((97.5,)), None]]
    table = Table("digits", columns, rows)
    assert table.texts() == [["scratch", "73.4 ± 1.7", "74.0"], ["dhvt", "97.5", ""]]
    written = list(csv.reader(io.StringIO(table.csv())))
    assert written[0][1:4] == ["ours mean", "ours sd", "ours seeds"]
    assert float(written[1][2]) == pytest.approx(np.std([73.4, 75.1, 71.7], ddof=1))
    assert written[2][1:4] == ["97.5", "", "1"]
    assert Spread((2.0,)).sd is None


def test_confused_pairs_are_sorted_and_leave_the_diagonal_out() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    said = torch.tensor([1, 1, 0, 0, 1, 2])
    table = confused(evaluate_predictions(Predictions(torch.eye(3)[said], labels, [""] * 6), ["a", "b", "c"]))
    assert [tuple(row) for row in table.rows] == [("a", "b", 2, 2 / 3), ("b", "a", 1, 1 / 2)]


def test_a_long_list_of_classes_is_cut_and_counted() -> None:
    found = inspect(from_arrays("x", ["a"], {"train": (np.zeros((1, 4, 4), np.uint8), np.zeros(1))}))
    counts = {"train": (3,) * 2000, "test": (1,) * 2000}
    many = replace(found, classes=tuple(f"class {i}" for i in range(2000)), counts=counts, warnings=("look",))
    sheets = inspected(many)
    assert len(sheets[1].rows) < 100
    assert sheets[1].note.startswith("2,000 classes; 6,000 train, 2,000 test")
    assert "look" in "\n".join(drawn(sheets[2], 80))


def test_explanations_are_wrapped() -> None:
    words = "word " * 60 + "end"
    text = "\n".join(drawn(Table("", [Column("recipe"), Column("what", "prose")], [["default", words]]), 80))
    assert "end" in text
    assert max(map(len, text.splitlines())) <= 80


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
