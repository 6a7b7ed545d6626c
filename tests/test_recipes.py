# SPDX-License-Identifier: Apache-2.0
"""Every shipped recipe and every row of every table is complete, valid, and names a student that can be built."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from random_teachers import with_random_teachers
from viticulture.errors import UserError
from viticulture.models.students import create_student
from viticulture.models.task import Task
from viticulture.training.assemble import build_guides, patch_size
from viticulture.training.recipe import Recipe, about, method_class, parse, read, resolve, shipped
from viticulture.training.references import replaced
from viticulture.training.table import read_table, tables

STEPPED: set[str] = set()
ROWS = [(name, row.name) for name in tables() for row in read_table(name).rows]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where random teachers are kept."""
    return tmp_path_factory.mktemp("teachers")


def check_step(recipe: Recipe, weights: Path) -> None:
    """One step of the recipe's student, guides, method and optimiser on two random images of the recipe's size.

    The batch holds what the method asks for: labels, a second view, noise. Fails if name, size or options do not fit,
    or a parameter that is trained gets no gradient. Recipes that differ only in data, start, schedule, length, or in a
    rate or weight of method, guides or optimiser take the same step, so one of them stands for all. Teachers are as
    they start.
    """
    parts = [without_rates(recipe.values[part]) for part in ("method", "guides", "optim")]
    grown = recipe.values["student"] | {"init": None, "init_blocks": None}
    what = json.dumps([grown, *parts, recipe.values["images"]["image_size"]])
    if what in STEPPED:
        return
    STEPPED.add(what)
    wanted, side = recipe.section("student"), recipe.section("images").image_size or 64
    made = method_class(recipe)
    task = Task(("a", "b") if made.labelled else (), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    still = {"drop_path_rate": 0.0} if "drop_path_rate" in wanted.options else {}
    student = create_student(wanted.name, task, patch_size(wanted, task), wanted.options | still)
    optim, schedule = recipe.section("optim"), recipe.section("schedule")
    keywords = {key: value for key, value in recipe.values["method"].items() if key != "name"}
    guides = build_guides(with_random_teachers(recipe, weights), student, task)
    method = made(student, task, guides, optim, schedule, **keywords).train()
    batch = {"image": torch.randn(2, 3, side, side), "noise": torch.rand(2, method.noise)}
    if made.labelled:
        batch["label"] = torch.tensor([0, 1])
    if made.views == 2:
        batch["image2"] = torch.randn(2, 3, side, side)
    count, small = method.small
    batch |= {f"image{3 + k}": torch.randn(2, 3, small, small) for k in range(count)}
    loss = torch.stack(list(method.losses(batch).values())).sum()
    loss.backward()
    assert loss.isfinite()
    learnt = [(name, parameter) for name, parameter in student.named_parameters() if parameter.requires_grad]
    assert [name for name, parameter in learnt if parameter.grad is None] == []
    optim.build(optim.groups(student, nn.ModuleDict({**method.guides, **method.aids}))).step()
    assert all(parameter.isfinite().all() for parameter in student.parameters())


def without_rates(values: Any) -> Any:
    """Keywords that choose what is computed, without those that only scale it."""
    if isinstance(values, dict):
        return {key: without_rates(value) for key, value in values.items() if not isinstance(value, float) or not value}
    return values


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_valid_and_says_what_it_is(name: str, weights: Path) -> None:
    """It resolves, its student exists, its header holds command and result, and it survives a round trip as YAML."""
    recipe = resolve(name, read(name))
    check_step(recipe, weights)
    head = about(name)
    assert head["What"]
    assert f"--recipe {name}" in head["Command"] or name.startswith("default/")
    assert head["Result"]
    assert len(shipped()[name].read_text().splitlines()) <= 40
    again = resolve(name, parse(recipe.to_yaml(), name))
    assert again.values == recipe.values


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_of_a_table_can_be_trained(table: str, row: str, weights: Path) -> None:
    """Its recipe exists, its overrides are recipe keys, and what they describe takes a finite step."""
    found, rows = read_table(table).row(row), read_table(table).rows
    runs = {one.name: f"runs/{Path(one.recipe).name}" for one in rows}
    overrides = {**found.overrides, **replaced(found.overrides, runs)}
    check_step(resolve(found.recipe, read(found.recipe), overrides), weights)


def test_unknown_keys_and_values_are_refused_with_the_nearest_valid_ones() -> None:
    """A recipe that is not understood must not train something else in silence."""
    good = read("default/digits")
    for overrides, words in (
        ({"optim.learning_rate": 1}, "unknown recipe key 'optim.learning_rate'"),
        ({"optim.lr": "fast"}, "optim.lr"),
        ({"train.watch": "train"}, "watch"),
        ({"train": 3}, "whole section"),
        ({"augment.flip": 3}, "keywords"),
        ({"student.options.nothing.deep": 1, "student.name": "vit_nano"}, None),
        ({"method.name": "supervise"}, "supervised"),
        ({"guides.teacher.name": 1}, "guide"),
    ):
        if words is None:
            resolve("x", good, overrides)
        else:
            with pytest.raises(UserError, match=words):
                resolve("x", good, overrides)
    with pytest.raises(UserError, match="not valid YAML"):
        parse("a: [", "x")
    with pytest.raises(UserError, match="sections"):
        parse("- 1", "x")


def test_an_override_takes_an_entry_out_or_puts_one_in() -> None:
    """`--augment.mix null` and `--augment.flip.probability 0.2`."""
    values = resolve("x", read("dhvt/cifar100-cpu"), {"augment.mix": None, "augment.blur.probability": 0.2}).values
    assert "mix" not in values["augment"]
    assert values["augment"]["blur"]["probability"] == 0.2
