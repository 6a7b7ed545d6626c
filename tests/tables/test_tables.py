# SPDX-License-Identifier: Apache-2.0
"""Shipped tables, as far as no test of recipes or studies covers them; docs/papers.md agrees with the table files, item
by item.
"""

import re
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from doc_scripts import DOCS, doc_script
from made_results import classified
from refusals import refused
from viticulture.config.load import about as header
from viticulture.data.sources.torchvision_sets import TORCHVISION
from viticulture.evaluation.outputs import Predictions
from viticulture.evaluation.probe.evaluate import Finding, Probe
from viticulture.study.grid import Grid
from viticulture.study.outcomes import other_measure
from viticulture.study.paper_tables import read_table, tables
from viticulture.tasks.classification_metrics import evaluate_predictions
from viticulture.training.run_folder import RunFolder

TABLES = {name: read_table(name) for name in tables()}


def test_the_metrics_of_a_row_share_a_training(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "{title: t, recipe: default/digits, data: digits, rows: [{name: a, published: 1, overrides: {optim.lr: 2},"
        " also: {top5: 2, divergence/x/y: 3}}, {name: b}]}"
    )
    rows = read_table(str(file)).rows
    assert [(row.name, row.measure, row.published) for row in rows] == [
        ("a", "accuracy", 1),
        ("a, top5", "top5", 2),
        ("a, divergence/x/y", "divergence/x/y", 3),
        ("b", "accuracy", None),
    ]
    grid = Grid("digits", read_table(str(file)).rows)
    assert len({cell.name for cell in grid.cells()}) == 2 * len(grid.seeds)
    file.write_text("{title: t, recipe: default/digits, data: digits, rows: [{name: a, also: {top5: many}}]}")
    refused("published", read_table, str(file))


def test_a_probe_row_names_its_classifier_and_validated_features(tmp_path: Path) -> None:
    findings = [
        Finding(features, classifier, {1.0: val}, 1.0, top1, (0.0, 1.0))
        for features, classifier, val, top1 in (
            ("class", "linear probe", 0.9, 0.5), ("mean", "linear probe", 0.8, 0.7), ("mean", "k-NN", 0.95, 0.6),
        )
    ]  # fmt: skip
    probe = Probe("r", "best", "digits", 10, {"train": 9, "val": 1, "test": 5}, tuple(findings))
    run = RunFolder(tmp_path)
    assert other_measure(run, "probe/k-NN") == {}
    run.write("probe.json", {"best/digits/10": asdict(probe)})
    shares = [other_measure(run, f"probe/{name}") for name in ("linear probe", "k-NN", "SVM")]
    assert shares == [{"test": 0.5}, {"test": 0.6}, {}]


@pytest.mark.parametrize(
    ("measure", "meant"), [("localisation/0.3,0.5", "localization"), ("acuracy", "accuracy"), ("prob/k-NN", "probe")]
)
def test_an_unknown_metric_is_refused(tmp_path: Path, measure: str, meant: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"{{title: t, recipe: default/digits, data: digits, rows: [{{name: a, measure: '{measure}'}}]}}")
    refused(f"unknown measure of candidate a .*did you mean {meant}", read_table, str(file))
    file.write_text(file.read_text().replace(measure, "mine_accuracy"))  # what a guide of that name measures
    assert read_table(str(file)).rows[0].measure == "mine_accuracy"


def test_top5_needs_five_classes(tmp_path: Path) -> None:
    def kept(classes: int) -> dict[str, float]:
        folder = tmp_path / str(classes)
        folder.mkdir()
        shares = torch.arange(classes, 0, -1.0).repeat(2, 1)
        found = evaluate_predictions(
            Predictions(shares / shares.sum(1, keepdim=True), torch.tensor([1, classes - 1]), ["a", "b"]),
            list("abcdef"[:classes]),
        )
        best = evaluate_predictions(
            Predictions(torch.eye(classes)[:2], torch.tensor([0, 1]), ["a", "b"]), list("abcdef"[:classes])
        )
        results = classified("best/val", {"best/val": best, "best/test": found})
        return other_measure(RunFolder(folder), "top5", results)

    assert kept(6) == {"test": 0.5, "val": 1.0}
    assert kept(4) == {}


def test_every_top5_of_aal_is_a_row() -> None:
    """48 numbers in Tables 2, 3, 5, 6, B, E (three seeds, as their mean) and of the decay."""
    counts = {name: sum(row.measure == "top5" for row in table.rows) for name, table in TABLES.items()}
    wanted = {"table2": 15, "table3": 10, "table5": 10, "table6": 2, "tableB": 6, "tableE": 1, "lambda": 2}
    assert {name.partition("/")[2]: count for name, count in counts.items() if count} == wanted
    for name, table in TABLES.items():
        known = {row.name: row.published for row in table.rows}
        for row in table.rows:
            if row.measure == "top5" and row.published is not None:
                assert row.published > (known[row.name.removesuffix(", top5")] or 0), (name, row.name)


def test_rows_hold_out_validation_images_only_where_a_set_has_enough() -> None:
    asked = 0
    for name in tables():
        for row in read_table(name).rows:
            if row.overrides.get("data.train_on") == "train+val" and row.data in TORCHVISION:
                assert "val" in TORCHVISION[row.data].parts, (name, row.name)
                asked += 1
    assert asked


PAPERS = yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """docs/papers.py."""
    return doc_script("papers")


def test_the_page_is_generated_from_the_tables(script: ModuleType) -> None:
    """After changing a table: python docs/papers.py."""
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == script.render()


def test_every_item_has_a_table_a_place_or_a_reason() -> None:
    named = set()
    for paper, about in PAPERS.items():
        for name, item in about["items"].items():
            assert item.get("tables") or item.get("place"), (paper, name)
            assert "tables" in item or item["state"] in ("built", "shown", "drawing", "measured", "missing"), name
            assert item.get("state") != "missing" or item["why"]
            named |= {f"{paper}/{file}" for file in item.get("tables", ())}
    assert named <= set(tables())
    ours = ("default/", "combinations/", "detection/", "segmentation/", "multilabel/", "regression/")
    rest = {name for name in tables() if name not in named and not name.startswith(ours)}
    assert all(name.endswith(("/cpu", "/public")) for name in rest), rest


def test_every_row_and_number_belongs_to_one_item(script: ModuleType) -> None:
    text = script.render()
    for about, part in zip(PAPERS.values(), text.split("\n## ")[1:], strict=False):
        rows, numbers = map(int, re.search(rf"\| {about['name']} \| \d+ \| \d+ \| (\d+) \| (\d+) \|", text).groups())  # type: ignore[union-attr]
        cells = [
            line.split(" | ") for line in part.splitlines() if line.startswith("| ") and not line.startswith("| item")
        ]
        assert sum(int(cell[3].split(";")[0]) for cell in cells if cell[3][:1].isdigit()) == rows
        assert sum(int(cell[4]) for cell in cells if cell[4].strip()) == numbers


def test_rivals_left_out_are_counted_and_named(script: ModuleType) -> None:
    """Counts by hand of DHVT's Tables 1, 8, 9 and 10. Fails if rivals are missing from the count or unnamed."""
    text = script.render()
    assert [len(PAPERS["dhvt"]["items"][name]["rivals"]) for name in ("Table 1", "Table 8", "Table 9", "Table 10")] == [
        11, 3, 33, 4,
    ]  # fmt: skip
    for about in PAPERS.values():
        rivals = [name for item in about["items"].values() for name in item.get("rivals", ())]
        counts = text.split(f"\n| {about['name']} |", 1)[1].split("\n", 1)[0].split(" | ")
        assert counts[-1].strip(" |") == str(len(rivals))
        assert all(name in text.split(f"\n## {about['name']}\n", 1)[1] for name in rivals)


def test_our_results_are_those_of_the_recipes_headers(script: ModuleType) -> None:
    """Fails if a result is made up, lost, or an untested recipe's table has one."""
    lines = {line.split(" | ")[0]: line for line in script.render().splitlines()}
    assert header("default/digits")["Result"] in lines["| `default/digits`"]
    assert "| untested |" in lines["| `default/tiny-images`"]
    for name, table in ((name, script.read_table(name)) for name in tables()):
        tested = [r for r in {row.recipe for row in table.rows} if not header(r)["Result"].startswith("untested")]
        assert all(f"`{recipe}`: " in script._ours([table]) for recipe in tested), name
        assert tested or script._ours([table]) == "untested"
