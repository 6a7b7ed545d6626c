# SPDX-License-Identifier: Apache-2.0
"""Rows that start from weights of the user: `given:WHAT` is refused in one line until they are named."""

import json
from pathlib import Path

import pytest

import viticulture
from refusals import refused
from viticulture.command import parse_command
from viticulture.study.declare import grid_of_table
from viticulture.study.paper_tables import read_table
from viticulture.study.terms import ALL_IMAGES, OWN_LENGTHS, Where

SMALL = {
    "train.batch_size": 4,
    "train.epochs": 1,
    "student.options": {"embed_dim": 16, "depth": 1, "num_heads": 2},
    "data.per_class": 4,
    "schedule.warmup_epochs": 0,
}
GIVEN = "given:a ViT that knows much"


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Create two rows that need weights, the first with a second metric, and one that needs none."""
    rows = [
        {"name": "taught", "overrides": {**SMALL, "student.init": GIVEN}, "also": {"top5": 90.0}, "published": 80.0},
        {"name": "taught less", "overrides": {**SMALL, "student.init": GIVEN, "data.per_class": 3}, "published": 70.0},
        {"name": "alone", "overrides": SMALL, "published": 60.0},
    ]
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"title": "t", "recipe": "default/digits", "data": "digits", "rows": rows}))
    return str(file)


def test_a_row_without_its_weights_is_refused_until_they_are_named(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = viticulture.compare_table(table, where=Where(str(tmp_path / "s"), workers=1))
    assert [row["status"] for row in study.rows] == ["failed", "failed", "failed", "finished"]
    errors = {row["error"] for row in study.rows[:3]}
    assert len(errors) == 1
    assert "student.init needs weights that you name, a ViT that knows much" in (line := errors.pop())
    assert '--init "ROW=WEIGHTS"' in line
    assert "\n" not in line
    assert "could not be measured on all images: student.init needs" in capsys.readouterr().err
    start = str(tmp_path / "s" / study.rows[3]["folder"])
    declared = tmp_path / "s" / "study.yaml"
    assert declared.read_text().count(GIVEN) == 3
    declared.write_text(declared.read_text().replace(GIVEN, start))
    study = viticulture.compare_resume(str(tmp_path / "s"))
    assert [row["status"] for row in study.rows] == ["finished"] * 4
    loaded = json.loads((tmp_path / "s" / study.rows[0]["folder"] / "run.json").read_text())["loaded"]
    assert f"started from {start}" in loaded


def test_weights_are_given_by_row_or_by_pattern(table: str) -> None:
    def starts(**weights: str) -> list[str | None]:
        grid = grid_of_table(
            table,
            "",
            ALL_IMAGES,
            1,
            OWN_LENGTHS,
            {"student.init": {k.replace("_", " "): v for k, v in weights.items()}},
        )
        return [one.overrides.get("student.init") for one in grid.candidates]

    assert starts(taught="a") == ["a", "a", GIVEN, None]
    assert starts(taught="a", taught_less="b") == ["a", "a", "b", None]
    assert starts(**{"taught*": "a"}) == ["a", "a", "a", None]
    refused("unknown row to start from weights", starts, tough="a")
    asked = parse_command(
        ["compare", "--table", "t", "--init", "ViT-S, pre-trained=runs/a", "--init", "b=c=d", "--lr", "1"]
    )
    assert asked.keywords["overrides"] == {"student.init": {"ViT-S, pre-trained": "runs/a", "b": "c=d"}, "optim.lr": 1}
    refused("--init", parse_command, ["compare", "--table", "t", "--init", "runs/a"])


@pytest.mark.parametrize("recipe", ["bootstrap/cifar-finetune", "dhvt/finetune-tiny", "mae/transfer"])
def test_a_recipe_for_fine_tuning_requires_weights(recipe: str, tmp_path: Path) -> None:
    refused(r"--student\.init WEIGHTS", viticulture.train, "digits", recipe, out=str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_no_pretrained_row_of_a_paper_starts_from_scratch() -> None:
    """Bootstrapping, Table 1; DHVT, Tables 1 and 8."""
    for name in ("bootstrap/table1-cifar10", "bootstrap/table1-cifar100", "dhvt/table1", "dhvt/table8"):
        rows = [row for row in read_table(name).rows if "pre-trained" in row.name or name.startswith("dhvt")]
        assert rows
        for row in rows:
            assert row.recipe.rpartition("/")[2] in ("cifar-finetune", "finetune-tiny")
