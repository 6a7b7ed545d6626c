# SPDX-License-Identifier: Apache-2.0
"""Every shipped recipe and every row of every table is complete, valid, and names a student that can be built."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from random_teachers import with_random_teachers
from refusals import refused
from viticulture.config.keys import NAMED, fixed_keys, flat
from viticulture.config.load import about, load_config, parse, read, shipped
from viticulture.config.references import replaced
from viticulture.config.resolve import Config, resolve
from viticulture.config.schema import SECTIONS
from viticulture.config.sections import Engine, Student, Train
from viticulture.errors import UserError
from viticulture.guides.bootstrap import Features, Mutual
from viticulture.keywords import check_keywords, made_parts
from viticulture.methods.method import Method, Setup
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.optim import Optim, Schedule, shortened_warmup
from viticulture.study.grid import Candidate
from viticulture.study.paper_tables import PaperTable, read_table, tables
from viticulture.training.assemble import build_guides, patch_size

REFUSED = {
    "images.image_size": ("big", "must be a whole number, a list in brackets or null, got 'big'"),
    "images.range": ("0,4095", "must be a list in brackets or null, got '0,4095'"),
    "images.fit": ("padd", "must be crop, pad or stretch, got 'padd'; did you mean pad?"),
    "train.best_by": ("accuracy", "must be balanced_accuracy or null, got 'accuracy'; did you mean balanced_accuracy?"),
    "train.epochs": (1.5, "must be a whole number, got 1.5"),
    "optim.betas": ([0.9], "must be a list of 2 elements, got [0.9]"),
    "data.class_weights": ("even", "must be balanced, a group of keys or null, got 'even'"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_of_another_type_is_refused_plainly(key: str) -> None:
    value, words = REFUSED[key]
    with pytest.raises(UserError, match="must be") as error:
        load_config("default/photos", {key: value})
    assert str(error.value) == f"{key} {words}"


def test_defaults_for_missing_sections_are_reported(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("student: vit_nano\naugment:\n", encoding="utf-8")
    (told,) = load_config(str(mine), {"optim.lr": 1e-3}).warnings
    assert told.startswith(f"{mine} leaves out schedule, train: ")
    assert "--print-config" in told
    longer = load_config(str(mine), {"schedule.warmup_epochs": 10})
    shorter = longer.changed({"train.epochs": 5}, by="command")
    assert [warning.partition(" ")[0] for warning in shorter.warnings] == [str(mine), "the"]
    assert shorter.changed({"train.epochs": 4}, by="command").warnings[:2] == shorter.warnings
    assert not resolve("dhvt/digits", {"student": "vit_nano"}).warnings
    mine.write_text(load_config("dhvt/digits").to_yaml(), encoding="utf-8")
    assert not load_config(str(mine)).warnings


ADAMW = {"name": "adamw", "lr": 1e-3, "kernel_lr": None, "momentum": 0.9}
OPEN = {
    "the default student": ({}, {"name": "muon", "lr": 2e-3, "kernel_lr": 2e-2, "momentum": 0.95}),
    "another hybrid": ({"student.name": "hybrid_nano"}, {"name": "muon", "lr": 2e-3, "kernel_lr": 2e-2}),
    "a CNN": ({"student.name": "resnet10t"}, ADAMW),
    "a plain ViT": ({"student.name": "vit_nano"}, ADAMW),
    "several labels": ({"method.name": "multilabel"}, ADAMW),
    "a person's optimizer": ({"optim.name": "adamw"}, ADAMW),
    "a person's rate": ({"optim.lr": 1e-3}, {"name": "muon", "lr": 1e-3, "kernel_lr": 1e-2, "momentum": 0.95}),
    "a rate as text": ({"optim.lr": "1e-3"}, {"name": "muon", "lr": 1e-3, "kernel_lr": 1e-2}),
    "a person's rates": ({"optim.lr": 1e-3, "optim.kernel_lr": 3e-3}, {"lr": 1e-3, "kernel_lr": 3e-3}),
    "one rate for all": ({"optim.kernel_lr": None}, {"name": "muon", "lr": 2e-3, "kernel_lr": None}),
    "a CNN's rate": ({"student.name": "resnet10t", "optim.lr": 3e-4}, {**ADAMW, "lr": 3e-4}),
}


@pytest.mark.parametrize(("overrides", "optim"), OPEN.values(), ids=OPEN)
def test_an_open_optimizer_follows_the_student(overrides: dict[str, Any], optim: dict[str, Any]) -> None:
    config = load_config("default/photos", overrides)
    assert config.values["optim"].items() >= optim.items()
    assert resolve(config.name, config.values).values == config.values


def test_an_open_optimizer_needs_a_recipe() -> None:
    refused("auto follows the student of a recipe", Optim, name="auto")
    refused(r"optim.lr must be a number, got 'fast'", load_config, "default/photos", {"optim.lr": "fast"})


TABLES = {name: read_table(name) for name in tables()}


def row_overrides(table: PaperTable, row: Candidate) -> dict[str, Any]:
    """Return a row's overrides, with the run of another row named by its weights, or by its recipe."""
    runs = {one.name: one.overrides.get("student.init", f"runs/{Path(one.recipe).name}") for one in table.rows}
    return {**row.overrides, **replaced(row.overrides, runs)}


def without_rates(values: Any) -> Any:
    """Return keywords that choose what is computed, without those that only scale it."""
    if isinstance(values, dict):
        return {key: without_rates(value) for key, value in values.items() if not isinstance(value, float) or not value}
    return values


Step = tuple[str, dict[str, Any]]  # recipe, overrides
LARGE = 64  # pixels; a step on real images of more is left to the slow part
read_once = cache(read)


@cache
def flat_once(recipe: str) -> dict[str, Any]:
    """Flatten a recipe to dotted key -> value."""
    return flat(resolve(recipe, read_once(recipe)).values)


@cache
def step_of(recipe: str) -> str:
    """Return what a recipe's step depends on as text: student, method, guides, optimizer but for rates, image size."""
    raw = read_once(recipe)
    parts = without_rates({part: raw.get(part) for part in ("method", "guides", "optim")})
    return json.dumps([raw.get("student"), parts, (raw.get("images") or {}).get("image_size")])


def steps() -> dict[str, Step]:
    """Return every step of shipped recipes and tables once, name -> recipe, overrides; rates and data do not count."""
    asked: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in shipped()]
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


def kind(recipe: str, overrides: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return family of the network, method and guides, then the images' side."""
    raw = read_once(recipe)
    network, method = (
        overrides.get(f"{part}.name") or overrides.get(part) or raw[part] for part in ("student", "method")
    )
    network, method = (part["name"] if isinstance(part, dict) else part for part in (network, method))
    guides = set(raw.get("guides") or {}) | {key.split(".")[1] for key in overrides if key.startswith("guides.")}
    guides -= {key.split(".")[1] for key, value in overrides.items() if value is None and key.startswith("guides.")}
    side = overrides.get("images.image_size") or (raw.get("images") or {}).get("image_size") or 64
    return (re.sub("[^a-z].*", "", network), method, *sorted(guides)), side


def quick(of: dict[str, Step]) -> set[str]:
    """Return the names of the steps that are the first of their kind, small images first."""
    kinds = {name: kind(*step) for name, step in of.items()}
    first: dict[tuple[str, ...], str] = {}
    for name in sorted(of, key=lambda name: kinds[name][1]):
        first.setdefault(kinds[name][0], name)
    return {name for name in first.values() if kinds[name][1] <= LARGE}


def parts_of(recipe: str, overrides: dict[str, Any]) -> str:
    """Return what the parts of a step without a teacher depend on, as text: student, agent, image size."""
    raw = read_once(recipe)
    student = raw["student"] if isinstance(raw["student"], dict) else {"name": raw["student"]}
    given = {f"student.{key}": value for key, value in student.items()} | overrides
    agent = (raw.get("guides") or {}).get("bootstrap")
    given |= {
        "guides.bootstrap": agent,
        "size": given.get("images.image_size", (raw.get("images") or {}).get("image_size")),
    }
    parts = ("student", "guides.bootstrap", "size")
    return json.dumps(
        without_rates({k: v for k, v in given.items() if k.startswith(parts) and not k.startswith("student.init")}),
        sort_keys=True,
    )


def kind_of_parts(recipe: str, overrides: dict[str, Any]) -> tuple[object, ...]:
    """Return student, image size and which options of student and agent are set."""
    parts: dict[str, Any] = json.loads(parts_of(recipe, overrides))
    name, side, agent = parts.pop("student.name"), parts.pop("size"), parts.pop("guides.bootstrap")
    keys = [key for key, value in parts.items() if value]
    return (name, side, *keys, agent is None) if keys or agent else (timm.is_model(name),)


def teachers_of(recipe: str, overrides: dict[str, Any]) -> set[str]:
    """Return the names of the teachers of a recipe's guides and method."""

    def named(values: dict[str, Any]) -> set[str]:
        found = set()
        for key, value in values.items():
            if key.endswith("teachers"):
                found |= set(value.values())
            elif isinstance(value, dict):
                found |= named(value)
            elif key.endswith("teacher") and value:
                found.add(value)
        return {name for name in found if not name.startswith("given:")}

    raw = read_once(recipe)
    return named({**(raw.get("guides") or {}), **raw["method"], **overrides})


def rows() -> dict[str, Step]:
    """Return every row of a table whose step and parts are not tested elsewhere."""
    known = {json.dumps(STEPS[name]) for name in (*QUICK, *KINDS)}
    found = {}
    for table in TABLES.values():
        for row in table.rows:
            step = (row.recipe, row_overrides(table, row))
            if (text := json.dumps(step)) not in known:
                found[f"{table.name}: {row.name}"] = step
                known.add(text)
    return found


STEPS = steps()
QUICK = quick(STEPS)
PARTS = list({parts_of(*step): name for name, step in reversed(STEPS.items()) if name not in QUICK}.values())[::-1]
KINDS = list({kind_of_parts(*STEPS[name]): name for name in reversed(PARTS)}.values())[::-1]
ROWS = rows()


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of random teachers."""
    return tmp_path_factory.mktemp("teachers")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip drawing weights: nine tenths of the time that it takes to build a network."""
    for name in ("trunc_normal_", "normal_", "uniform_", "zeros_", "ones_", "constant_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    for name in ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    monkeypatch.setattr(timm.layers.weight_init, "_trunc_normal_", lambda tensor, *_, **__: tensor)


def assembled(config: Config, device: str) -> Method:
    """Assemble the method of a recipe with its student and guides, on a device, before any weights are loaded."""
    wanted, side = config.student, config.images.image_size or 64
    made = config.method_class
    data_spec = DataSpec(("a", "b") if made.batch_spec.labels else (), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    shown = data_spec if made.batch_spec.contents in ("classes", "labels") else replace(data_spec, classes=())
    still = {"drop_path_rate": 0.0} if "drop_path_rate" in wanted.options else {}
    keywords = {key: value for key, value in config.values["method"].items() if key != "name"}
    with torch.device(device):
        student = create_student(wanted.name, shown, patch_size(wanted, data_spec), wanted.options | still)
        guides = build_guides(config, student, data_spec)
        setup = Setup(student, data_spec, guides, config.optim, config.schedule)
        return made(setup, **made_parts(made, keywords)).train()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("empty")
def test_the_parts_of_a_step_fit_together(name: str) -> None:
    """On torch's meta device; a method that needs a teacher is replaced by one without labels."""
    recipe, overrides = STEPS[name]
    values = resolve(recipe, read_once(recipe), overrides).values
    values |= {"method": {"name": "moco_v3"}} if "teacher" in values["method"] else {}
    alone = {**values, "guides": {key: entry for key, entry in values["guides"].items() if key == "bootstrap"}}
    method = assembled(Config(name, alone), "meta")
    assert all(parameter.is_meta for parameter in method.student.parameters())


@pytest.mark.parametrize("name", sorted({name for step in STEPS for name in teachers_of(*STEPS[step])}))
def test_a_teacher_of_a_step_is_available(name: str) -> None:
    architecture, equals, _ = name.partition("=")
    if name.startswith("runs/"):
        assert any(name.removeprefix("runs/").startswith(Path(recipe).name) for recipe in shipped())
    else:
        assert timm.is_model(architecture) if equals else timm.models.is_model_pretrained(name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in STEPS])
def test_a_step_is_taken(name: str, weights: Path) -> None:
    """Of student, guides, method and optimizer on two random images of the recipe's size."""
    torch.manual_seed(0)
    recipe, overrides = STEPS[name]
    method = assembled(with_random_teachers(resolve(recipe, read_once(recipe), overrides), weights), "cpu")
    side, student, optim = method.data_spec.image_size[0], method.student, method.optim
    spec = method.batch_spec
    batch = {"image": torch.randn(2, 3, side, side), "noise": torch.rand(2, spec.noise)}
    if spec.labels:
        batch["label"] = torch.tensor([0, 1])
    if spec.contents == "labels":
        batch["label"] = torch.eye(2, len(method.data_spec.classes))
    if spec.views == 2:
        batch["image2"] = torch.randn(2, 3, side, side)
    batch |= {f"image{3 + k}": torch.randn(2, 3, spec.local_size, spec.local_size) for k in range(spec.local_crops)}
    if spec.contents == "objects":
        batch |= {"boxes": torch.tensor([[[4.0, 4, 40, 36]]] * 2), "labels": torch.tensor([[0], [1]])}
        batch["masks"] = torch.ones(2, 1, side, side, dtype=torch.uint8)
    if spec.contents == "pixels":
        batch |= {"classes": torch.randint(0, 2, (2, side, side)), "labeled": torch.full((2,), float(side * side))}
    loss = torch.stack(list(method.losses(batch).values())).sum()
    loss.backward()
    assert loss.isfinite()
    learnt = [(name, parameter) for name, parameter in student.named_parameters() if parameter.requires_grad]
    assert [name for name, parameter in learnt if parameter.grad is None] == []
    optim.build(optim.groups(student, nn.ModuleDict({**method.guides, **method.auxiliary}))).step()
    assert all(parameter.isfinite().all() for parameter in student.parameters())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_valid_and_documented(name: str) -> None:
    config = load_config(name)
    head = about(name)
    assert head["What"]
    assert f"--recipe {name}" in head["Command"] or name.startswith("default/")
    assert head["Result"]
    assert len(shipped()[name].read_text().splitlines()) <= 40
    again = resolve(name, parse(config.to_yaml(), name))
    assert again.values == config.values


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_table_is_a_recipe(name: str) -> None:
    recipe, overrides = ROWS[name]
    own, row = flat_once(recipe), flat(resolve(recipe, read_once(recipe), overrides).values)
    assert all(holds(row, key, value) for key, value in overrides.items())
    touched = ["schedule.warmup_epochs"]
    if read_once(recipe).get("optim") == {"name": "auto"} and "student.name" in overrides:
        touched.append("optim.")
    for key in overrides:
        section, *rest = key.split(".")
        other = key in ("method", "method.name")  # another method has other keywords
        touched.append("method." if other else f"{section}.{rest[0]}" if section in NAMED else key)
    differs = [key for key in own | row if own.get(key, {}) != row.get(key, {})]  # a section may be empty
    assert not [key for key in differs if not key.startswith(tuple(touched))]


def holds(row: dict[str, Any], key: str, value: Any) -> bool:
    """Return True if a checked recipe has an override's values; null removes an entry."""
    section, *rest = key.split(".")
    below = [place for place in row if f"{place}.".startswith(f"{key}.")]
    if section in NAMED and len(rest) == 1 and value is None:
        return not below
    if isinstance(value, dict):
        return bool(below) and all(holds(row, f"{key}.{name}", inner) for name, inner in value.items())
    return bool(row[f"{key}.name" if key in ("student", "method") else key] == value)


def test_unknown_keys_and_values_are_refused_with_the_nearest_valid_ones() -> None:
    good = read("default/digits")
    for overrides, words in (
        ({"optim.learning_rate": 1}, "unknown recipe key 'optim.learning_rate'"),
        ({"optim.lr": "fast"}, "optim.lr"),
        ({"epochs": 1}, r"unknown recipe key epochs; did you mean train\.epochs\?"),
        ({"batch-size": 1}, r"did you mean train\.batch_size\?"),
        ({"trian.epochs": 1}, "unknown recipe section 'trian'; did you mean train"),
        ({"train.validate": "train"}, "validate"),
        ({"train": 3}, "whole section"),
        ({"augment.flip": 3}, "keywords"),
        ({"student.options.nothing.deep": 1, "student.name": "vit_nano"}, None),
        ({"method.name": "supervise"}, "supervised"),
        ({"guides.teacher.name": 1}, "guide"),
    ):
        if words is None:
            resolve("x", good, overrides)
        else:
            refused(words, resolve, "x", good, overrides)
    refused("not valid YAML", parse, "a: [", "x")
    refused("sections", parse, "- 1", "x")


def test_keys_read_from_source_are_those_of_the_sections() -> None:
    of_classes = {f"{section}.{field.name}" for section, made in SECTIONS.items() for field in fields(made)}
    assert set(fixed_keys()) == of_classes


def test_numbers_of_other_libraries_are_converted() -> None:
    given = {"train.epochs": np.int64(3), "optim.lr": torch.tensor(0.5), "data.val_fraction": np.float32(0.25)}
    values = resolve("x", read("default/digits"), given).values
    assert (values["train"]["epochs"], values["optim"]["lr"], values["data"]["val_fraction"]) == (3, 0.5, 0.25)
    with pytest.raises(UserError, match="must be a whole number") as caught:
        resolve("x", read("default/digits"), {"train.epochs": torch.zeros(2)})
    assert "tensor" not in str(caught.value)


@pytest.mark.parametrize("section", ["guides", "augment", "augment2"])
@pytest.mark.parametrize("entry", [[None], [1], 3, "x", True])
def test_an_entry_without_keywords_is_refused_by_name(section: str, entry: Any) -> None:
    """`flip: [null]`."""
    with pytest.raises(UserError, match=rf"recipe key {section}.flip must hold keywords, got {re.escape(repr(entry))}"):
        resolve("x", {**read("default/digits"), section: {"flip": entry}})


def test_a_key_below_a_null_can_be_set() -> None:
    whole = resolve("whole", read("default/digits")).values
    assert whole["data"]["class_weights"] is None
    assert resolve("again", whole, {"data.class_weights.3": 5.0}).data.class_weights == {"3": 5.0}


def test_an_override_removes_or_adds_an_entry() -> None:
    """`--augment.mix null` and `--augment.flip.probability 0.2`."""
    values = resolve("x", read("dhvt/cifar100-cpu"), {"augment.mix": None, "augment.blur.probability": 0.2}).values
    assert "mix" not in values["augment"]
    assert values["augment"]["blur"]["probability"] == 0.2


def test_overrides_never_modify_their_source() -> None:
    teachers = {"conv": "row:A", "inv": "row:B"}
    raw = {"student": "vit_nano", "guides": {"co_advise": {"teachers": teachers}}, "augment": {"flip": None}}
    kept = deepcopy(raw)
    first = resolve("x", raw, {"student.options.drop_path_rate": 0.1})
    before = deepcopy(first.values)
    mine = {"conv": "runs/a"}
    second = first.changed({"guides.co_advise.teachers": mine, "student.options.depth": 2}, by="command")
    third = second.changed({"guides.co_advise.teachers.inv": "runs/b"}, by="command")
    first.student.options["depth"] = 7
    assert (raw, first.values, mine) == (kept, before, {"conv": "runs/a"})
    assert second.values["guides"]["co_advise"]["teachers"] == {"conv": "runs/a"}
    assert third.values["guides"]["co_advise"]["teachers"] == {"conv": "runs/a", "inv": "runs/b"}

    shared = parse("student: vit_nano\naugment: &view {flip: {probability: 0.5}}\naugment2: *view\n", "x")
    twice = resolve("x", shared, {"method.name": "moco_v3", "augment.flip.probability": 0.2}).values
    assert (twice["augment"]["flip"]["probability"], twice["augment2"]["flip"]["probability"]) == (0.2, 0.5)


def test_a_shorter_training_has_a_shorter_warm_up() -> None:
    raw = {"train": {"epochs": 100}, "schedule": {"warmup_epochs": 10}}
    short = resolve("x", raw, {"train.epochs": 5})
    assert short.schedule.warmup_epochs == shortened_warmup(10, 100, 5) == 0.5
    assert any("0.5 of 5 epochs" in warning for warning in short.warnings)
    assert resolve("x", short.values).warnings == ()
    fits = resolve("x", raw, {"train.epochs": 11})
    assert (fits.schedule.warmup_epochs, fits.warnings) == (10, ())
    refused("fewer", resolve, "x", raw, {"train.epochs": 5, "schedule.warmup_epochs": 10})


def test_a_config_records_what_changed_it() -> None:
    init = "a long text\n\n  epochs: 3 " * 9
    config = load_config("default/digits", {"train.epochs": 50, "student": "vit_tiny", "student.init": init})
    by_budget = config.changed({"train.epochs": 40, "student.name": "vit_tiny", "optim.lr": 0.5}, by="budget")
    assert by_budget.changes == {
        "student.name": "command", "student.init": "command", "train.epochs": "budget", "optim.lr": "budget",
    }  # fmt: skip
    lines = by_budget.to_yaml().splitlines()
    assert {"  epochs: 40  # set by budget", "  lr: 0.5  # set by budget", "  name: vit_tiny  # set by command"} < {
        *lines
    }
    assert sum("# set by" in line for line in lines) == 3
    assert resolve("x", parse(by_budget.to_yaml(), "x")).values == by_budget.values


def test_a_precision_may_be_a_number() -> None:
    raw = read("default/digits")
    for recipe in (resolve("x", raw, {"engine.precision": 32}), resolve("x", {**raw, "engine": {"precision": 32}})):
        assert recipe.engine.precision == "32"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Features(adapt="grids"), "features.adapt must be sequence or grid, got 'grids'"),  # type: ignore[arg-type]
        (lambda: Train(validate="tset"), "train.validate must be val, test or none, got 'tset'"),  # type: ignore[arg-type]
        (lambda: Train(epochs=2.5), "train.epochs must be a whole number"),  # type: ignore[arg-type]
        (lambda: Train(epochs=True), "train.epochs must be a whole number"),
        (lambda: Train(clip_norm=float("nan")), "train.clip_norm must be a finite number"),
        (lambda: Optim(lr=None), "optim.lr needs a value"),  # type: ignore[arg-type]
        (lambda: Optim(betas=(0.9, float("inf"))), "optim.betas[1] must be a finite number"),
        (lambda: Schedule(rule="cosin"), "schedule.rule"),  # type: ignore[arg-type]
        (lambda: Engine(precision="8"), "engine.precision"),  # type: ignore[arg-type]
        (lambda: Student(options=None), "student.options needs a value"),  # type: ignore[arg-type]
    ],
)
def test_a_section_made_in_python_is_checked_as_a_recipe(made: Callable[[], Any], words: str) -> None:
    refused(re.escape(words), made)


def test_a_dataclass_among_keywords_is_built_from_its_section() -> None:
    class Learner:
        def __init__(self, mutual: Mutual, features: Features | None = None, weight: float = 1.0) -> None:
            """Nothing."""

    made = made_parts(Learner, {"features": {"weight": 2.0}, "mutual": {"temperature": 1.0}, "weight": 3.0})
    assert made == {"features": Features(weight=2.0), "mutual": Mutual(temperature=1.0), "weight": 3.0}
    assert made_parts(Learner, {"features": None}) == {"features": None}
    with pytest.raises(UserError, match=r"x\.features\.adapt must be sequence or grid"):
        check_keywords("x", Learner, {"features": {"adapt": "grids"}})
    with pytest.raises(UserError, match=r"x\.features must be a group of keys or null, got \[1, 2\]"):
        check_keywords("x", Learner, {"features": [1, 2]})
    check_keywords("x", Learner, {"features": Features(), "mutual": {}})
