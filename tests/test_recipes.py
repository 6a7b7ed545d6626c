# SPDX-License-Identifier: Apache-2.0
"""Every shipped recipe and every row of every table is complete, valid, and names a student that can be built."""

import json
import warnings
from contextlib import nullcontext
from functools import cache
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
from viticulture.training.table import Row, Table, read_table, tables

TABLES = {name: read_table(name) for name in tables()}
ROWS = [(name, row.name) for name, table in TABLES.items() for row in table.rows]


def row_overrides(table: Table, row: Row) -> dict[str, Any]:
    """A row's overrides, with the run of another row named by that row's recipe."""
    runs = {one.name: f"runs/{Path(one.recipe).name}" for one in table.rows}
    return {**row.overrides, **replaced(row.overrides, runs)}


def without_rates(values: Any) -> Any:
    """Keywords that choose what is computed, without those that only scale it."""
    if isinstance(values, dict):
        return {key: without_rates(value) for key, value in values.items() if not isinstance(value, float) or not value}
    return values


@cache
def step_of(recipe: str) -> str:
    """What a recipe's step depends on, as text: student, method, guides and optimiser but for rates, image size."""
    raw = read(recipe)
    parts = without_rates({part: raw.get(part) for part in ("method", "guides", "optim")})
    return json.dumps([raw.get("student"), parts, (raw.get("images") or {}).get("image_size")])


def steps() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every step that a shipped recipe or a row of a table takes, once: name -> recipe, overrides.

    Recipes that differ only in data, start, schedule, length, or in a rate or weight of method, guides or optimiser
    take the same step, so the first of them stands for all.
    """
    asked = [(name, name, {}) for name in shipped()]
    for table in TABLES.values():
        asked += [(f"{table.name}: {row.name}", row.recipe, row_overrides(table, row)) for row in table.rows]
    first: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {}
    for name, recipe, overrides in asked:
        student = {k: v for k, v in overrides.items() if k.startswith("student") and not k.startswith("student.init")}
        rest = {k: v for k, v in overrides.items() if k.startswith(("method", "guides", "optim"))}
        size = overrides.get("images.image_size")
        key = (step_of(recipe), json.dumps([student, without_rates(rest), size], sort_keys=True))
        first.setdefault(key, (name, recipe, overrides))
    return {name: (recipe, overrides) for name, recipe, overrides in first.values()}


STEPS = steps()


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where random teachers are kept."""
    return tmp_path_factory.mktemp("teachers")


def take_step(recipe: Recipe, device: str) -> None:
    """One step of the recipe's student, guides, method and optimiser on two random images of the recipe's size.

    The batch holds what the method asks for: labels, a second view, noise. Fails if name, size or options do not fit,
    or a parameter that is trained gets no gradient or no rate. Teachers are as they start.
    """
    wanted, side = recipe.section("student"), recipe.section("images").image_size or 64
    made = method_class(recipe)
    task = Task(("a", "b") if made.labelled else (), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    still = {"drop_path_rate": 0.0} if "drop_path_rate" in wanted.options else {}
    optim, schedule = recipe.section("optim"), recipe.section("schedule")
    keywords = {key: value for key, value in recipe.values["method"].items() if key != "name"}
    with torch.device(device):
        student = create_student(wanted.name, task, patch_size(wanted, task), wanted.options | still)
        guides = build_guides(recipe, student, task)
        method = made(student, task, guides, optim, schedule, **keywords).train().to(device)
        batch = {"image": torch.randn(2, 3, side, side), "noise": torch.rand(2, method.noise)}
        if made.labelled:
            batch["label"] = torch.arange(2)
        if made.views == 2:
            batch["image2"] = torch.randn(2, 3, side, side)
        count, small = method.small
        batch |= {f"image{3 + k}": torch.randn(2, 3, small, small) for k in range(count)}
        loss = torch.stack(list(method.losses(batch).values())).sum()
        loss.backward()
    learnt = {name: parameter for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert [name for name, parameter in learnt.items() if parameter.grad is None] == []
    optimizer = optim.build(optim.groups(student, nn.ModuleDict({**method.guides, **method.aids})))
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert [name for name, parameter in learnt.items() if id(parameter) not in stepped] == []
    if device != "meta":
        assert loss.isfinite()
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in student.parameters())


@pytest.mark.parametrize("name", STEPS)
def test_every_step_fits_together(name: str, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's meta device, which computes shapes and gradients' paths and nothing else, at the recipe's full size.

    Fails if a name, a size or an option does not fit, a tensor is made on another device than its network's, or a
    parameter that is trained gets no gradient or stands in no group of the optimiser.
    """
    real = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **more: nullcontext() if kind == "meta" else real(kind, **more))
    recipe, overrides = STEPS[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # of teachers, as intended
        take_step(with_random_teachers(resolve(recipe, read(recipe), overrides), weights), "meta")


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_finite(name: str, weights: Path) -> None:
    """The same with numbers. Fails if a loss or a weight is NaN or infinite after one step."""
    recipe, overrides = STEPS[name]
    take_step(with_random_teachers(resolve(recipe, read(recipe), overrides), weights), "cpu")


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    """It resolves, its header holds command and result, and it survives a round trip as YAML."""
    recipe = resolve(name, read(name))
    head = about(name)
    assert head["What"]
    assert f"--recipe {name}" in head["Command"] or name.startswith("default/")
    assert head["Result"]
    assert len(shipped()[name].read_text().splitlines()) <= 40
    again = resolve(name, parse(recipe.to_yaml(), name))
    assert again.values == recipe.values


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_of_a_table_is_a_recipe(table: str, row: str) -> None:
    """Its recipe exists and its overrides are recipe keys with values that fit; `STEPS` holds the step it takes."""
    one = TABLES[table].row(row)
    resolve(one.recipe, read(one.recipe), row_overrides(TABLES[table], one))


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
