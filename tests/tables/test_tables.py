# SPDX-License-Identifier: Apache-2.0
"""Shipped tables, as far as no test of recipes or studies covers them."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from made_results import classified
from refusals import refused
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
