# SPDX-License-Identifier: Apache-2.0
"""A study's page: conclusion, escaped names, and its behavior in a real browser."""

import csv
import io
import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import CHROMIUM, Browser
from made_results import classified
from made_study import CLASSES, EVIL, study
from viticulture.report.html import Head, Section, document, html_table
from viticulture.report.study_charts import class_section, teaching_section
from viticulture.report.study_page import render_study, write_study
from viticulture.report.study_tables import all_results_table, results_table
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.statistics import estimate
from viticulture.study.study import Study
from viticulture.table import Column, Spread, Table, escaped, latex
from viticulture.tasks.classification import Classification


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create three candidates with awkward names on two training subsets."""
    made = study(tmp_path_factory.mktemp("page") / "s", ["plain ViT", EVIL, "DHVT, 50 % & _x_"], (5, 50), 3)
    return write_study(made)


class Tags(HTMLParser):
    """Collects every tag with its attributes, and the texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def test_names_are_escaped(page: Path) -> None:
    read = Tags(page.read_text(encoding="utf-8"))
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert not [a for tag, a in read.tags if tag == "img" and not (a["src"] or "").startswith("data:")]
    assert not [tag for tag, _ in read.tags if tag in ("link", "iframe", "object", "base")]
    assert read.words.count("<script>document.title") >= 6
    for name in CLASSES[1:]:
        assert name in read.words


def test_the_answer_comes_first_and_is_the_studys(page: Path) -> None:
    found = Study(page.parent)
    words = Tags(page.read_text(encoding="utf-8")).words
    assert found.conclusion in " ".join(words.split())
    titles = re.findall(r"<h2[^>]*>([^<]*)", page.read_text(encoding="utf-8"))
    assert titles[:4] == ["Accuracy", "Cost", "Learning curves", "Classes"]
    assert titles[-3:] == ["All results", "Conditions", "How to reproduce each row"]
    assert "viticulture train digits --recipe default/digits" in words


def test_names_are_escaped_in_every_table_format(page: Path, tmp_path: Path) -> None:
    found = Study(page.parent)
    rows = list(csv.reader(io.StringIO((page.parent / "summary.csv").read_text(encoding="utf-8"))))
    assert rows[0] == ["candidate", *(f"{n} a class{e}" for n in (5, 50) for e in (" mean", " sd", " seeds"))]
    assert [row[0] for row in rows[1:]] == [one.name for one in found.folder.grid.candidates]
    assert float(rows[1][1]) == pytest.approx(100 * found.comparisons[0].ranking[2].test.mean)
    markdown = (page.parent / "summary.md").read_text(encoding="utf-8")
    assert "<script" not in markdown
    assert len({line.count("|") for line in markdown.splitlines() if line.startswith("| ")}) == 2
    tex = (page.parent / "summary.tex").read_text(encoding="utf-8")
    assert r"DHVT, 50 \% \& \_x\_ &" in tex
    assert r"$\pm$" in tex
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 2


def test_latex_escapes_every_special_letter() -> None:
    assert escaped("a&b%c$d#e_f{g}h~i^j\\k") == (
        r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k"
    )
    table = Table("T_1", [Column("a"), Column("b", "spread")], [["x & y", Spread((1.0, 2.0))]], "100 % sure")
    text = latex(table)
    assert r"\caption{T\_1. 100 \% sure}" in text
    assert r"x \& y & 1.5 $\pm$ 0.7 \\" in text
    assert r"\begin{tabular}{lr}" in text


def test_a_large_study_reads_each_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 candidates x 4 subsets x 5 seeds."""
    made = study(tmp_path / "s", [f"method {i}" for i in range(10)], (5, 10, 20, 50), 5)
    assert made.counts == (200, 200)
    opened, real = Counter[str](), open

    def counted(file: Any, *args: Any, **keywords: Any) -> Any:
        opened[str(file)] += 1
        return real(file, *args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", counted)
        patch.setattr("io.open", counted)
        path = write_study(made)
    assert max(times for file, times in opened.items() if "/cells/" in file) <= 3
    assert path.stat().st_size < 2_000_000
    assert len(set(re.findall(r'class="line (s\d[^"]*)"', path.read_text()))) == 10, "none looks like another"


def test_winners_need_a_clear_difference(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["worse", "b", "best"], (10,), 5, step=0.2)
    assert made.winner == "best"
    assert "b, which is not a ViT, is worse" in made.conclusion
    assert set(made.comparisons[-1].rivals) == {"worse"}
    assert made.conclusion.startswith("best trains the best ViT on digits, 10 a class: it classifies 7")
    close = study(tmp_path / "close", ["worse", "b", "best"], (10,), 5, step=0.0)
    assert close.winner is None
    assert close.conclusion.startswith("No winner on digits")
    table = results_table(made)
    assert table.texts()[0][0] == "worse"
    assert "±" in table.texts()[0][1]
    assert [row[0] for row in all_results_table(made).texts()] == ["best", "b", "worse"]
    assert made.table.shape == (15, len(made.rows[0]))
    assert made.table.groupby("candidate").test_accuracy.mean()["best"] == pytest.approx(made.leader.test.mean)


def test_every_rival_is_tested_at_the_level_of_the_analysis(tmp_path: Path) -> None:
    """Two rivals at 96.25 %; after twenty more trainings, at 99.06 %."""
    made = study(tmp_path / "s", ["worse", "cnn", "b", "best"], (10,), 4)
    for _ in range(2):
        write_study(made)
        comparison = Study(made.path).comparisons[-1]
        assert set(comparison.rivals) == {"worse", "b"}
        for found in comparison.rivals.values():
            assert found.over_seeds.low is not None
            assert found.over_seeds.low <= (estimate(found.over_seeds.values, 0.9625).low or 0.0)
        assert comparison.level == pytest.approx(1 - 0.05 * 3 / 4)
    assert "96.25 %" in (made.path / "report.html").read_text()
    (first,) = made.folder.metadata["interim_analyses"]["digits, 10 a class"]
    made.folder.update(interim_analyses={"digits, 10 a class": ["of twelve", first, "of forty"]})
    assert Study(made.path).comparisons[-1].level == pytest.approx(1 - 0.05 * 3 / 4**2)
    yaml = (made.path / "study.yaml").read_text()
    (made.path / "study.yaml").write_text(yaml.replace("seeds:\n- 0\n", "seeds:\n"))
    assert Study(made.path).comparisons[-1].level == pytest.approx(
        1 - 0.05 * 3 / 4**4
    )  # other trainings, also if fewer


def study_without_split(made: Study, split: str) -> Study:
    """Create the same study with held-out images of one split alone."""
    for cell in made.folder.grid.cells():
        run = made.folder.run(cell)
        kept = Classification(run).read_results()
        assert kept is not None
        key = f"best/{split}"
        run.write("evaluation.json", classified(key, {key: kept.results[key]}).to_dict())
    return Study(made.path)


def test_validation_images_are_not_called_test_images(tmp_path: Path) -> None:
    made = study_without_split(study(tmp_path / "s", ["worse", "b", "best"], (10,), 4, step=0.2), "val")
    assert "of the validation images correctly" in made.conclusion
    words = Tags(write_study(made).read_text(encoding="utf-8")).words
    assert "Validation images" in words
    assert "All held-out images are validation images" in words
    assert "on validation, %" in words
    assert "test images" not in words.lower()
    names = [column.name for column in all_results_table(made).columns]
    assert (names.count("validation, %"), names.count("test, %")) == (1, 0)
    assert all(len(row) == len(names) for row in all_results_table(made).texts())


def test_a_table_names_the_images_that_rank_it(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["worse", "best"], (10,), 2)
    assert "ordered by validation accuracy" in all_results_table(made).note
    assert "ordered by test accuracy" in all_results_table(study_without_split(made, "test")).note


def test_no_winner_is_named_over_unfinished_rows(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["worse", "b", "best"], (10,), 5, step=0.2)
    assert made.winner == "best"
    cells = {(cell.candidate.name, cell.seed): cell for cell in made.folder.grid.cells()}
    (made.folder.run(cells["b", 0]).path / "run.json").unlink()
    half = Study(made.path)
    assert half.winner is None
    assert "there is no winner while trainings of b are not finished" in half.conclusion
    write_study(half)
    assert "interim_analyses" not in half.folder.metadata  # nobody could have been named
    for seed in range(5):
        (made.folder.run(cells["worse", seed]).path / "run.json").unlink(missing_ok=True)
        made.folder.record_failure(cells["worse", seed], "out of memory")
    failed = Study(made.path)
    assert failed.winner is None
    assert "there is no winner while trainings of worse have failed" in failed.conclusion
    page = Tags(write_study(failed).read_text(encoding="utf-8")).words
    assert "5 trainings failed, so that there is no winner; the errors are listed under Failed." in page


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", '{"status": "finished", "student": [], "data": {"images": 3}, "seconds": "long"}'),
        ("run.json", "[]"),
        ("run.json", "{"),
        ("evaluation.json", '{"best/test": {}}'),
        ("evaluation.json", "[1]"),
    ],
)
def test_a_damaged_cell_spoils_no_page(file: str, content: str, tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["worse", "b", "best"], (10,), 3, step=0.2)
    (made.folder.run(made.folder.grid.cells()[0]).path / file).write_text(content)
    damaged = Study(made.path)
    words = Tags(write_study(damaged).read_text(encoding="utf-8")).words
    assert damaged.winner is None
    assert "is damaged" in damaged.rows[0]["error"]
    assert f"{file} is damaged" in words or "1 training failed" in words


@pytest.mark.parametrize(("file", "content"), [("run.json", '{"status": "finished"}'), ("predictions.npz", "PK")])
def test_an_incomplete_cell_is_shown(file: str, content: str, tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["worse", "b", "best"], (10,), 3, step=0.2)
    (made.folder.run(made.folder.grid.cells()[0]).path / file).write_text(content)
    little = Study(made.path)
    write_study(little)
    assert little.rows[0]["status"] == "finished"
    assert little.rows[0]["test_accuracy"] == made.rows[0]["test_accuracy"]


def test_published_numbers_are_listed_with_ours(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["row 1", "row 2"], (10,), 2)
    yaml = (tmp_path / "s" / "study.yaml").read_text()
    yaml = yaml.replace("- name: row 1\n", "- name: row 1\n  published: 80.98\n") + "table: dhvt/table4\n"
    (tmp_path / "s" / "study.yaml").write_text(yaml)
    made = Study(tmp_path / "s")
    head = [column.name for column in results_table(made).columns]
    assert head == ["candidate", "10 a class", "published", "ours − published"]
    first = results_table(made).texts()[0]
    assert first[2] == "80.98"
    assert float(first[3]) == pytest.approx(100 * made.comparisons[0].ranking[-1].test.mean - 80.98, abs=0.06)
    assert made.winner is None
    assert made.conclusion.startswith("dhvt/table4: ours minus published is -")
    assert "published and ours" in render_study(made)


def test_rows_of_an_unpublished_table_are_ranked(tmp_path: Path) -> None:
    study(tmp_path / "s", ["worse", "b", "best"], (10,), 5, step=0.2)
    file = tmp_path / "s" / "study.yaml"
    file.write_text(file.read_text() + "table: co_advise/cpu\n")
    made = Study(tmp_path / "s")
    assert made.winner == "best"
    assert made.conclusion.startswith("best trains the best ViT on digits")
    assert "co_advise/cpu on digits" in render_study(made)


def test_a_study_without_results_has_a_page(tmp_path: Path) -> None:
    grid = Grid("digits", (Candidate("a", "default/digits"),))
    StudyFolder.create(tmp_path / "s", grid, "x")
    text = write_study(Study(tmp_path / "s")).read_text(encoding="utf-8")
    assert "Nothing is finished yet" in text
    assert not {"None", "nan"} & set(Tags(text).words.split())


def test_shares_of_rare_classes_are_means_over_folds(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["a", "b"], (10,), 3)
    for cell in made.folder.grid.cells():
        run, right = made.folder.run(cell), cell.candidate.name == "a"
        content = run.read("evaluation.json")
        rare = [[1, 1 if right else 2, 1]] if cell.seed == 0 else []
        for result in content["results"].values():
            result["confusion"] = [[0, 0, 8], *rare, [2, 2, 4]]
        run.write("evaluation.json", content)
    section = class_section(Study(made.path))
    chosen = re.search('data-compare="([^"]*)"', section)
    assert chosen is not None
    content = json.loads(unescape(chosen[1]))
    assert content["classes"] == [CLASSES[0], CLASSES[1], CLASSES[2]]
    assert content["images"] == ["8", "0.3", "4"]
    assert dict(zip(content["names"], content["recall"], strict=True)) == {"a": [100, 100, 100], "b": [100, 0, 100]}
    words = Tags(section).words
    assert re.search("0.3 +100.0 +0.0 +[+]100.0", " ".join(words.split()))
    assert re.search("predicted class.*0.0 % 100.0 %", " ".join(words.split())), "b takes all of them for another"


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_errors_in_a_table_stay_readable_on_a_phone(tmp_path: Path) -> None:
    """Catches: a column of one word a line, which makes each row of a search's failures as high as the screen."""
    names = [f"student.options.depth{i}" for i in range(4)]
    table = Table("", [*map(Column, names), Column("status", "prose")], [[*names, "the image size " * 12]])
    (tmp_path / "page.html").write_text(document(Head("A page", "One.", ""), [Section("Search", html_table(table))]))
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html", 420)
        assert browser.run("document.querySelector('tbody tr').getBoundingClientRect().height") < 200
        assert browser.run("document.documentElement.scrollWidth") <= 420


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_runs_the_page_and_loads_nothing(page: Path, tmp_path: Path) -> None:
    """Wide and narrow, light and dark."""
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1400, False), (1400, True), (400, False), (400, True)):
            browser.open(page, width, dark=dark)
            assert browser.complaints() == []
            assert browser.requests() == []
            assert browser.run("document.title").startswith("Which method trains the best ViT")
            assert browser.run("document.documentElement.scrollWidth") <= width
            background = browser.run("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(17, 20, 23)") == dark
        browser.open(page)
        check_sorting(browser)
        check_choice(browser)
        tip = "(() => { const t = document.querySelector('.rows [data-tip]'); const b = t.getBoundingClientRect(); "
        tip += "t.dispatchEvent(new PointerEvent('pointermove', {clientX: b.x, clientY: b.y, bubbles: true})); "
        tip += "const s = document.querySelector('#tip'); return s.style.visibility + s.textContent })()"
        assert browser.run(tip).startswith("visible")
        assert "95 % interval" in browser.run(tip)
        assert browser.complaints() == []


def check_sorting(browser: Browser) -> None:
    """Sort all results by accuracy, downwards and upwards."""
    table = "[...document.querySelectorAll('table[data-sortable]')].at(-1)"
    heads: list[str] = browser.run(f"[...{table}.tHead.rows[0].cells].map(c => c.textContent)")
    column = next(i for i, head in enumerate(heads) if head.startswith("test"))
    values = f"[...{table}.tBodies[0].rows].map(r => Number(r.cells[{column}].dataset.v))"
    browser.run(f"{table}.tHead.rows[0].cells[{column}].firstChild.click()")
    down: list[float] = browser.run(values)
    assert down == sorted(down, reverse=True)
    assert len(down) == 6
    browser.run(f"{table}.tHead.rows[0].cells[{column}].firstChild.click()")
    assert browser.run(values) == sorted(down)


def check_choice(browser: Browser) -> None:
    """Swap the two methods: every difference changes its sign, the headings their names."""
    read = (
        "Object.fromEntries([...document.querySelector('table.compare').tBodies[0].rows]"
        ".map(r => [r.cells[0].textContent, Number(r.cells[4].textContent)]))"
    )
    before: dict[str, Any] = browser.run(read)
    assert set(before) == set(CLASSES)
    browser.run(
        "(() => { const [a, b] = document.querySelectorAll('.choose select'); [a.value, b.value] = [b.value, a.value]; "
        "a.dispatchEvent(new Event('change')) })()"
    )
    after: dict[str, Any] = browser.run(read)
    assert after == {name: pytest.approx(-gap) for name, gap in before.items()}
    heads = browser.run("[...document.querySelector('table.compare').tHead.rows[0].cells].map(c => c.textContent)")
    assert heads[2] == "plain ViT"
    assert json.dumps(heads).count("owned") <= 2
    assert np.isfinite(list(before.values())).all()


def test_sums_are_compared_with_their_parts(tmp_path: Path) -> None:
    names = ["labels", "a", "b", "a + b"]
    made = study(tmp_path / "s", names, (4,), 2)
    page = render_study(made)
    assert "Sums and their parts" in page
    assert "gains of its parts" in page
    assert "Sums and their parts" in render_study(study_without_split(made, "val"))
    assert "Sums and their parts" not in render_study(study(tmp_path / "t", names[:3], (4,), 1))


def test_students_are_drawn_against_their_teachers(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["t", "u", "a", "b", "c", "d"], (4,), 2)
    assert teaching_section(made) == []
    declared = tmp_path / "s" / "study.yaml"
    text = declared.read_text()
    for name, teacher in (("a", "t"), ("b", "t"), ("c", "u"), ("d", "u")):
        text = text.replace(f"- name: {name}\n", f"- name: {name}\n  measure: accuracy\n")
        lines = text.split(f"- name: {name}\n")
        text = f"- name: {name}\n".join(
            [lines[0], lines[1].replace("overrides:\n", f"overrides:\n    guides.logits.teacher: row:{teacher}\n", 1)]
        )
    declared.write_text(text)
    (section,) = teaching_section(Study(tmp_path / "s"))
    assert section.html.count("its teacher") == 4
    assert "accuracy of the teacher" in section.html
    declared.write_text(text.replace("row:u", "row:t"))
    assert teaching_section(Study(tmp_path / "s")) == []
