# SPDX-License-Identifier: Apache-2.0
"""Trainings within a budget, end to end: real stages on digits, with preset step times and a manual clock."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import viticulture
from children import die_at, start
from colored import colored_csv
from dense_scenes import coco_folder, mask_folder
from photographs import pictures
from refusals import refused
from resumed import check_same_bits
from trained import weights
from untrained import untrained
from viticulture.api.training import _planned
from viticulture.budget import choices, lengths, recipes
from viticulture.budget import follow as follow_module
from viticulture.budget.budget import TimeBudget
from viticulture.budget.follow import Calibration, corrected, follow
from viticulture.budget.lengths import MARGIN, epochs_within
from viticulture.budget.measure import Measurements
from viticulture.budget.plan import BudgetPlan, Stage, read_plan
from viticulture.budget.prepare import BudgetRequest, make_folder, make_plan
from viticulture.cli import main
from viticulture.config.checks import check_parts
from viticulture.config.load import load_config, read
from viticulture.config.resolve import Config, resolve
from viticulture.data.dataset import Dataset
from viticulture.data.open import open_source
from viticulture.disk import file_lock
from viticulture.errors import UserError
from viticulture.evaluation.agreement import read_agreement
from viticulture.methods.method import Method
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.report.run_page import page_of
from viticulture.report.runs import find_runs
from viticulture.report.stages import plan_table, stages_table
from viticulture.report.terminal import introduce_budget, long_training
from viticulture.study.step_times import EPOCH, StepTimes, held_out_images, measure_step_times
from viticulture.tasks.results import read_headline
from viticulture.tasks.segmentation import Segmentation
from viticulture.text import shell_word
from viticulture.training import loggers, progress
from viticulture.training.data import load_dataset, open_for
from viticulture.training.half_precision import Comparison
from viticulture.training.length import may_change, set_length
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of
from viticulture.training.session import Session, begin
from viticulture.waiting import silence

TINY: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"depth": 1, "proj_drop_rate": 0.1},
    "data.per_class": 6,
    "train.batch_size": 20,
    "engine.device": "cpu",
}
STEP = 2.0  # seconds a step, as they are told: nothing takes as long


class PresetTimes(Measurements):
    """Preset step times; what is assembled to be measured is assembled."""

    def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
        assert len(dataset.train)
        return StepTimes(STEP, max(1, len(dataset.train) // 20), 0.001, 0, 0)


class SetClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def eager(place: Any = None) -> None:
    """Lower thresholds to values reached on digits."""
    place = place or type("Place", (), {"setattr": staticmethod(setattr)})
    place.setattr(choices, "TEACHER_FROM", 1)
    place.setattr(choices, "MAE_FROM", 1)
    place.setattr(choices, "MAE_FROM_IMAGES", 1)
    place.setattr(lengths, "MIN_STAGE_EPOCHS", {"mae": 1, "teacher": 1, "student": 1})


def planned(
    out: Path, budget: str = "60s", overrides: dict[str, Any] | None = None, search: bool = True, **wish: Any
) -> BudgetPlan:
    """Plan a run on digits in its folder."""
    given = {"data": "digits", "recipe": "default", **wish}
    asked = BudgetRequest(
        seed=0, out=out, overrides={**TINY, **(overrides or {})}, budget=TimeBudget(budget, search), **given
    )
    plan = make_plan(asked, "test", SetClock(), 0.0, PresetTimes)
    make_folder(asked, plan)
    return plan


class Slow(Callback):
    """Makes epochs take so many `seconds` by a manual `clock`."""

    def __init__(self, clock: SetClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.clock.seconds += self.seconds / int(trainer.num_training_batches)


def trained(run: Path, most: int = 99, slowness: float = 1.0, data: str = "") -> list[str]:
    """Train what is missing without measuring or drawing, at most `most` stages; return what was printed."""
    clock, left, told = SetClock(), most, list[str]()

    def grow(session: Session, trial: Calibration | None) -> None:
        nonlocal left
        began = clock.seconds
        if trial is not None:
            fit(
                session,
                until=trial.epochs,
                more=[trial.stopwatch, Slow(clock, slowness * under_way().step_times.epoch)],
            )
            session = trial.fix(session)
        fit(session)
        session.run.update(status="finished")
        session.run.unlock()
        clock.seconds = began + under_way().seconds
        left -= 1
        if not left:
            raise KeyboardInterrupt

    def under_way() -> Stage:
        return next(stage for stage in read_plan(run).stages if stage.spent is None)

    follow(run, grow, told.append, data, clock)
    return told


def stopped(session: Session, trial: Calibration | None) -> None:
    """Press Ctrl-C as a stage begins."""
    session.run.unlock()
    raise KeyboardInterrupt


def assert_same(one: Path, other: Path) -> None:
    """Compare stage by stage, bit for bit."""
    for stage in ("stages/1-mae", "stages/2-teacher", "."):
        check_same_bits(weights(one / stage), weights(other / stage))


class TwoPrecisions(PresetTimes):
    """A processor on which mixed precision is fast for the student and slow for its teacher."""

    bfloat16_is_fast = True

    def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
        told = super().step_times(config, dataset)
        mixed = config.engine.precision == "bf16-mixed"
        slow = config.student.name.startswith("resnet")
        return told.scaled((3 if slow else 0.25) if mixed else 1)


@pytest.mark.parametrize(
    ("overrides", "student"), [({}, "bf16-mixed"), ({"engine.precision": "32"}, "32"), ({"engine.device": "mps"}, "")]
)
def test_every_stage_takes_its_faster_precision(
    overrides: dict[str, Any], student: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if student == "":
        monkeypatch.setattr("viticulture.budget.recipes.check_devices", lambda engine: None)
    else:
        eager(monkeypatch)
    stages = []
    for number, clock in enumerate((PresetTimes, TwoPrecisions)):
        asked = BudgetRequest("digits", "default", 0, tmp_path / str(number), {**TINY, **overrides}, TimeBudget("60s"))
        stages.append(make_plan(asked, "test", SetClock(), 0.0, clock).stages)
    precisions = {stage.kind: stage.values["engine"]["precision"] for stage in stages[1]}
    if student == "bf16-mixed":
        assert precisions == {"mae": "bf16-mixed", "teacher": "auto", "student": "bf16-mixed"}
        assert stages[1][-1].epochs > 3 * stages[0][-1].epochs
    else:
        assert set(precisions.values()) == {student or "auto"}
        assert [stage.epochs for stage in stages[1]] == [stage.epochs for stage in stages[0]]


def test_a_budget_of_a_named_cnn_leaves_out_the_default_patch_size(tmp_path: Path) -> None:
    overrides = {"student.name": "resnet10t", "student.options": {}}
    (stage,) = planned(tmp_path / "run", overrides=overrides, search=False).stages
    assert stage.values["student"]["patch_size"] is None
    assert any("patch_size 2 of default/digits is left out" in warning for warning in stage.warnings)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Comparison(("layer4.0.conv1.weight",), float("nan")), "the gradient of layer4.0.conv1.weight is not finite"),
        (Comparison((), 0.8), "gradients are 80% away from those in float32"),
    ],
)
def test_a_stage_with_wrong_bfloat16_gradients_trains_in_float32(
    found: Comparison, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    compared = []

    def compare(config: Config, dataset: Dataset, seed: int) -> Comparison:
        compared.append(config.values["method"]["name"])
        return found if compared[-1] == "supervised" else Comparison((), 0.1)

    monkeypatch.setattr("viticulture.budget.measure.compare_gradients", compare)
    request = BudgetRequest("digits", "default", 0, tmp_path / "run", TINY, TimeBudget("60s"))
    slow, plan = (make_plan(request, "test", SetClock(), 0.0, clock) for clock in (PresetTimes, TwoPrecisions))
    precisions = {stage.kind: stage.values["engine"]["precision"] for stage in plan.stages}
    assert precisions == {"mae": "bf16-mixed", "teacher": "auto", "student": "auto"}
    assert plan.stages[-1].epochs == slow.stages[-1].epochs
    assert [words in " ".join(stage.warnings) for stage in plan.stages] == [False, False, True]
    assert set(compared) == {"mae", "supervised"}


@pytest.mark.parametrize(
    ("images", "overrides", "every"),
    [(10, {}, 1), (100, {}, 2), (1000, {}, 20), (1000, {"train.validate_every": 3}, 3), (0, {}, 1)],
)
def test_validation_takes_a_twentieth_of_the_time(images: int, overrides: dict[str, Any], every: int) -> None:
    config = load_config("default/digits", overrides)
    pace = StepTimes(step=0.1, steps=10, inference=0.001, val_images=images, held_out_images=0)
    pace = replace(pace, validate_every=config.train.validate_every)
    seldom, paced = recipes.with_sparse_validation(overrides, config, pace)
    assert (seldom.train.validate_every, paced.validate_every) == (every, every)
    assert paced.epoch == pytest.approx(pace.learning + pace.validation / every + EPOCH)


@pytest.mark.parametrize("quick", [torch.float32, torch.bfloat16])
def test_bfloat16_is_fast_where_its_products_are(
    quick: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()

    def multiply(matrix: torch.Tensor, other: torch.Tensor) -> None:
        clock.seconds += matrix.dtype != quick

    monkeypatch.setattr(torch, "mm", multiply)
    tried = Measurements(open_source("digits"), 0, tmp_path, clock)
    assert tried.bfloat16_is_fast is (quick is torch.bfloat16)


def test_a_budget_of_centuries_is_not_spent_on_measuring(tmp_path: Path) -> None:
    config = load_config("default/digits", TINY)
    source = open_source("digits")
    tried = Measurements(source, 0, tmp_path, time.process_time, TimeBudget("36500d").seconds)
    assert tried.step_times(config, load_dataset(source, config, 0)).step > 0


def test_stages_build_on_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, then every command on the run."""
    eager(monkeypatch)
    monkeypatch.setattr(Measurements, "step_times", PresetTimes.step_times)
    monkeypatch.setattr(TimeBudget, "clock", property(lambda self: SetClock()))
    monkeypatch.setattr("viticulture.budget.lengths.MAX_SLOWDOWN", 1.0)  # or a clock that stands promises many epochs
    out = tmp_path / "run"
    run = viticulture.train("digits", out=str(out), overrides=TINY, budget="60s")
    shown = capsys.readouterr().err
    assert re.search(r"0\.[89] min of the\s+60s are planned", shown)
    assert "stage    3 of 3: student" in shown
    plan = read_plan(out)
    assert [stage.name for stage in plan.stages] == ["1-mae", "2-teacher", "3-student"]
    facts = []
    for number, stage in enumerate(plan.stages):
        folder = viticulture.Run(plan.place(out, number)).folder
        config = stage.config
        assert folder.read("run.json")["settings"] == json.loads(json.dumps(config.values)) | {
            "images": folder.read("run.json")["settings"]["images"]
        }
        assert config.train.epochs == stage.epochs
        assert (folder.path / "report.html").exists()
        facts.append(folder.read("run.json"))
    assert [fact["status"] for fact in facts] == ["finished"] * 3
    assert len({fact["data"]["fingerprint"] for fact in facts[1:]}) == 1
    settings = run.metadata["settings"]
    assert settings["student"]["init"] == str(out / "stages/1-mae")
    assert settings["guides"]["logits"]["teacher"] == str(out / "stages/2-teacher")
    assert facts[1]["student"]["name"] == "resnet10t"
    page = (out / "report.html").read_text()
    assert all(f'href="stages/{name}/report.html"' in page for name in ("1-mae", "2-teacher"))
    assert "Stages" not in (out / "stages/2-teacher/report.html").read_text()
    before = weights(out)
    viticulture.resume(str(out))
    check_same_bits(weights(out), before)
    assert viticulture.evaluate(str(out))
    assert main(["report", str(out)]) == 0
    refused("exists already", viticulture.train, "digits", out=str(out), overrides=TINY, budget="60s")


class TaughtTimes(PresetTimes):
    """A teacher that takes half as long as its student."""

    def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
        preset = super().step_times(config, dataset)
        return replace(preset, step=preset.step * (1.5 if config.guides else 1.0))


def test_a_trained_network_teaches_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a classifier of the data's classes first, by a stage that can be resumed; its passes over fixed views
    are planned once. A run of these classes teaches at once."""
    spec = DataSpec(("x", "y", "z"), (16, 16), (0.5,) * 3, (0.25,) * 3)
    torch.manual_seed(0)
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    out, overrides = (
        tmp_path / "run",
        {**TINY, "data.per_class": 10, "train.fixed_views": 2, "images.eval_views": "one"},
    )
    budget = TimeBudget("200s")
    request = BudgetRequest("digits", "default", 0, out, overrides, budget, teacher=str(tmp_path / "net"))
    plan = make_plan(request, "test", SetClock(), 0.0, TaughtTimes)
    make_folder(request, plan)
    first, last = plan.stages
    assert (first.name, first.kind, first.recipe, first.image_size) == ("1-teacher", "teacher", "probe/photos", 16)
    assert last.config.guides["logits"]["teacher"] == "stages/1-teacher"
    assert last.config.images.teacher_size == 16
    times = last.step_times
    assert times.once == pytest.approx(2 * times.steps * STEP / 2)
    assert times.step == pytest.approx(STEP * 1.05)
    assert last.epochs == epochs_within(times, budget.seconds * (1 - MARGIN) - first.seconds) > 2
    with pytest.raises(KeyboardInterrupt):
        trained(out, most=1)
    probed = RunFolder.open(out / "stages/1-teacher")
    assert probed.read("run.json")["status"] == "finished"
    trained(out)
    metadata = RunFolder.open(out).read("run.json")
    assert metadata["teacher_logits"]["computed"] == 2 * times.steps
    assert read_plan(out).stages[1].epochs == last.epochs, "slow first epochs, with the teacher, shorten nothing"
    again = replace(request, out=tmp_path / "again", teacher=str(out / "stages/1-teacher"))
    (only,) = make_plan(again, "test", SetClock(), 0.0, TaughtTimes).stages
    assert only.config.guides["logits"]["teacher"] == str(out / "stages/1-teacher")
    two = replace(again, teacher=f"{tmp_path / 'net'},{tmp_path / 'net'}")
    plan = make_plan(two, "test", SetClock(), 0.0, TaughtTimes)
    plan = corrected(plan.with_stage(0, replace(plan.stages[0], spent=5.0)), 1)
    assert [(stage.name, stage.epochs) for stage in plan.stages[:2]] == [("1-teacher", 1), ("2-teacher", 1)]
    both = replace(again, teacher=f"{out / 'stages/1-teacher'}, {tmp_path / 'net'}")
    first, last = make_plan(both, "test", SetClock(), 0.0, TaughtTimes).stages
    assert (first.name, first.config.student.init) == ("1-teacher", str(tmp_path / "net"))
    teachers = [(entry["teacher"], entry["weight"]) for entry in last.config.guides.values()]
    assert teachers == [(str(out / "stages/1-teacher"), 0.5), ("stages/1-teacher", 0.5)]
    smaller = replace(request, out=tmp_path / "again", overrides={**overrides, "images.teacher_size": 8})
    first, last = make_plan(smaller, "test", SetClock(), 0.0, TaughtTimes).stages
    assert (first.image_size, last.config.images.teacher_size) == (8, 8)
    replaced = replace(again, out=out, overwrite=True)
    refused(f"student.init.*{out}", make_plan, replaced, "test", SetClock(), 0.0, TaughtTimes)
    for key in ("train.fixed_views", "engine.replay_gb"):  # every step takes the teacher's pass
        passes = replace(again, overrides={**overrides, key: None})
        (only,) = make_plan(passes, "test", SetClock(), 0.0, TaughtTimes).stages
        assert only.step_times.step == pytest.approx(STEP * 1.5)
        assert only.step_times.once == 0
    monkeypatch.chdir(tmp_path)
    relative = replace(again, teacher="net")
    first, _ = make_plan(relative, "test", SetClock(), 0.0, TaughtTimes).stages
    assert first.config.student.init == str(tmp_path / "net")
    many = replace(again, overrides={**overrides, "guides.logits.teacher": str(tmp_path / "net")})
    refused("no guides", make_plan, many, "test", SetClock(), 0.0, TaughtTimes)


@pytest.mark.parametrize(
    ("overrides", "wish", "kinds"),
    [
        ({}, {"search": False}, ["student"]),
        ({"student.init": "x"}, {}, ["teacher", "student"]),
        ({"student.name": "dhvt_nano"}, {}, ["student"]),
        ({"student.name": "hybrid_nano"}, {}, ["student"]),
        ({}, {}, ["mae", "teacher", "student"]),
    ],
    ids=["no search", "a start of one's own", "a DHVT", "a hybrid", "all"],
)
def test_user_settings_are_left_alone(
    overrides: dict[str, Any], wish: dict[str, Any], kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    keys = {"optim.lr": 3e-3, "method.smoothing": 0.2, **overrides}
    if "student.init" in keys:
        first = viticulture.train(
            "digits", "default/digits", out=str(tmp_path / "first"), overrides={**TINY, "train.epochs": 1}
        )
        keys["student.init"] = str(first.path)
    if "student.name" in keys:
        keys["student.options"] = {"depth": 1}
    plan = planned(tmp_path / "run", overrides=keys, **wish)
    assert [stage.kind for stage in plan.stages] == kinds
    values = plan.stages[-1].config.values
    assert values["optim"]["lr"] == 3e-3
    assert values["method"]["smoothing"] == 0.2
    assert values["student"]["name"] == keys.get("student.name", TINY["student.name"])
    for stage in plan.stages:
        assert stage.values["data"] == values["data"]
        assert stage.values["images"] == values["images"]
        assert stage.values["engine"] == values["engine"]


@pytest.mark.parametrize(
    ("fewer", "overrides", "mixed"),
    [
        ((0, 0, 0), {}, True),
        ((1, 0, 0), {}, False),
        ((0, 1, 0), {}, False),
        ((0, 0, 1), {}, False),
        ((0, 0, 0), {"augment.mix": None}, False),
        ((0, 0, 0), {"augment.mix.mixup": 0.3}, False),
        ((0, 0, 0), {"student.name": "resnet10t"}, False),
        ((0, 0, 0), {"method.name": "multilabel"}, False),
    ],
    ids=["long", "few epochs", "few steps", "few of a class", "none wanted", "a person's", "a CNN", "several labels"],
)
def test_images_of_hybrids_are_mixed_in_long_trainings(
    fewer: tuple[int, int, int], overrides: dict[str, Any], mixed: bool
) -> None:
    config = load_config("default/photos", overrides)
    least = (choices.MIX_FROM, choices.MIX_STEPS, choices.MIX_PER_CLASS)
    epochs, steps, per_class = (bound - less for bound, less in zip(least, fewer, strict=True))
    found = config.changed(recipes.mix_keys(config, overrides, epochs, steps, per_class), by="budget").values
    augment = found["augment"]
    assert augment == config.values["augment"] | ({"mix": augment.get("mix")} if mixed else {})
    assert found["optim"] == config.values["optim"] | ({"weight_decay": 0.35} if mixed else {})
    if mixed:
        assert augment["mix"] == {**choices.MIX, "switch": 0.5, "smoothing": 0.1}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mixed_labels_are_smoothed_as_in_the_recipe(smoothing: float) -> None:
    keys = {"method.smoothing": smoothing}
    config = load_config("default/photos", keys)
    found = config.changed(
        recipes.mix_keys(config, keys, choices.MIX_FROM, choices.MIX_STEPS, choices.MIX_PER_CLASS), by="budget"
    )
    assert found.values["augment"]["mix"]["smoothing"] == smoothing


@pytest.mark.parametrize(
    ("steps", "keys", "decay"),
    [(7, {}, 0.5), (31, {}, 0.5), (93, {}, 0.18), (156, {}, 0.11), (156, {"optim.kernel_lr": 1e-2}, 0.21)],
    ids=["500 images", "500 in sixteens", "3,000", "10,000", "half the rate"],
)
def test_decay_acts_over_the_same_epochs_for_any_batch_size(steps: int, keys: dict[str, Any], decay: float) -> None:
    config = load_config("default/photos", keys)
    epochs = max(choices.MIX_FROM, 1 + choices.MIX_STEPS // steps)
    found = config.changed(recipes.mix_keys(config, keys, epochs, epochs * steps, choices.MIX_PER_CLASS), by="budget")
    assert found.values["optim"] == config.values["optim"] | {"weight_decay": decay}


@pytest.mark.parametrize(
    ("own", "overrides"),
    [({}, {"optim.weight_decay": 0.05}), ({"optim.weight_decay": 0.1}, {}), ({"optim.name": "adamw"}, {})],
    ids=["a person's", "the recipe's", "another optimizer"],
)
def test_decay_is_set_with_mixing_by_muon_alone(own: dict[str, Any], overrides: dict[str, Any]) -> None:
    config = load_config("default/photos", {**own, **overrides})
    found = config.changed(
        recipes.mix_keys(config, overrides, choices.MIX_FROM, choices.MIX_STEPS, choices.MIX_PER_CLASS), by="budget"
    )
    assert "mix" in found.values["augment"]
    assert found.values["optim"] == config.values["optim"]


@pytest.mark.parametrize(
    ("recipe", "student", "muon"),
    [
        ("default/photos", "hybrid_nano", True),
        ("default/photos", "vit_nano", False),
        ("default/digits", "hybrid_nano", False),
    ],
    ids=["a hybrid", "a plain ViT", "a recipe that names its optimizer"],
)
def test_the_plan_names_the_optimizer(recipe: str, student: str, muon: bool, tmp_path: Path) -> None:
    keys = {"student.name": student, "student.options": {"depth": 1}, "data.per_class": 8, "images.image_size": 8}
    plan = planned(tmp_path / "run", "4h", {**keys, "student.patch_size": 2}, recipe=recipe)
    assert plan.stages[-1].values["optim"]["name"] == ("muon" if muon else "adamw")
    assert ("Muon" in str(plan_table(plan).note)) is muon


def test_a_bare_number_is_reported_in_minutes(tmp_path: Path) -> None:
    keys = {"student.name": "vit_nano", "student.options": {"depth": 1}, "data.per_class": 8}
    assert " of the 240 min are planned" in str(plan_table(planned(tmp_path / "run", "240", keys)).note)


@pytest.mark.parametrize(("search", "mixed"), [(True, True), (False, False)])
def test_the_plan_mixes_and_says_so(search: bool, mixed: bool, tmp_path: Path) -> None:
    keys = {"student.name": "hybrid_nano", "student.options": {"depth": 1}, "data.per_class": choices.MIX_PER_CLASS}
    plan = planned(tmp_path / "run", "4h", keys, search)
    assert ("mix" in plan.stages[-1].config.values["augment"]) is mixed
    assert ("mixed" in str(plan_table(plan).note)) is mixed


def test_methods_without_labels_have_a_budget_too(tmp_path: Path) -> None:
    keys = {"images.image_size": 8, "student.patch_size": 2, "student.options": {"embed_dim": 48, "depth": 1}}
    plan = planned(tmp_path / "run", "30m", keys, recipe="mae/photos")
    assert [stage.kind for stage in plan.stages] == ["student"]
    masks = mask_folder(tmp_path / "masks", {"train": 20, "test": 2})
    plan = planned(tmp_path / "of-masks", "30m", {**keys, "data.per_class": None}, recipe="mae/photos", data=str(masks))
    assert [stage.kind for stage in plan.stages] == ["student"]


def test_views_of_a_users_recipe_stay(tmp_path: Path) -> None:
    data = str(colored_csv(tmp_path / "photos", 24))
    recipe = tmp_path / "views.yaml"
    recipe.write_text(load_config("multilabel/photos", {"images.eval_views": "best"}).to_yaml())
    keys = {"data.per_class": None, "train.batch_size": 8}
    plan = planned(tmp_path / "run", "30m", keys, recipe=str(recipe), data=data)
    assert plan.stages[-1].config.images.eval_views == "best"


@pytest.mark.parametrize("keys", [{"data.class_weights": "balanced"}, {"data.sampling": "balanced"}])
def test_unbalanced_classes_concern_stages_with_labels_alone(keys: dict[str, Any]) -> None:
    config = load_config("default/photos", keys)
    check_parts(recipes.mae_stage(config))
    assert recipes.teacher_stage(config, "default/photos", "resnet10t").values["data"] == config.values["data"]


def test_a_stages_cnn_sees_images_as_the_student_does() -> None:
    """Catches: classes that are each other's mirror images, learned from flipped ones."""
    config = load_config("default/photos", {"augment.flip": None, "augment.mix": {"cutmix": 1.0}})
    assert recipes.teacher_stage(config, "default/photos", "resnet10t").values["augment"].keys() == {"resized_crop"}


@pytest.mark.parametrize("keys", [{"data.fraction": 0.5}, {"data.folds": 4}, {"data.per_class": 5}, {}])
def test_numbers_are_measured_in_the_splits_that_train(keys: dict[str, Any], tmp_path: Path) -> None:
    pictures(tmp_path, {"photos": 40})
    files = sorted((tmp_path / "photos").iterdir())
    lines = [f"photos/{file.name},{k / 7:.3f}" for k, file in enumerate(files)]
    (tmp_path / "numbers.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    config = load_config("regression/photos", {"images.image_size": 8, "engine.device": "cpu", **keys})
    source = open_for(config, str(tmp_path / "numbers.csv"))
    sizes = [
        {split: len(images) for split, images in dataset.splits.items()}
        for dataset in (Measurements(source, 0, tmp_path, SetClock())._noise(config), load_dataset(source, config, 0))
    ]
    assert sizes[0] == sizes[1]


def test_defaults_of_a_users_recipe_are_reported_within_a_budget(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("student: vit_nano\n", encoding="utf-8")
    planned(tmp_path / "run", "30s", search=False, recipe=str(mine))
    trained(tmp_path / "run")
    (told,) = (
        warning for warning in RunFolder(tmp_path / "run").read("run.json")["warnings"] if "leaves out" in warning
    )
    assert told.startswith(f"{mine} leaves out ")


def test_the_teacher_of_joined_labels_is_trained_on_joined_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    data = pictures(tmp_path / "photos", {"cat": 12, "cat|dog": 12, "dog": 12})
    asked = BudgetRequest(
        str(data), "default/photos", 0, tmp_path / "run", {**TINY, "student.name": "vit_nano"}, TimeBudget("60s")
    )
    stages = make_plan(asked, "test", SetClock(), 0.0, PresetTimes).stages
    assert {stage.kind: stage.values["method"]["name"] for stage in stages if stage.kind != "mae"} == {
        "teacher": "supervised",
        "student": "supervised",
    }


@pytest.mark.parametrize(
    ("overrides", "more", "views"),
    [
        ({}, {}, "best"),
        ({"images.eval_views": "mirrored"}, {}, "mirrored"),
        ({}, {"data.val_fraction": 0.0}, "one"),
        ({}, {"seconds": 10.0}, "one"),
        ({}, {"method.name": "multilabel"}, "one"),
    ],
    ids=["a budget's choice", "a person's", "nothing to choose by", "too dear", "several labels"],
)
def test_validation_images_choose_the_views(overrides: dict[str, Any], more: dict[str, Any], views: str) -> None:
    seconds = more.get("seconds", 1000.0)
    fraction = {"data.val_fraction": more.get("data.val_fraction", 0.2)}
    method = {"method": {"name": more["method.name"]}} if "method.name" in more else {}
    config = load_config("default/digits", {**TINY, **fraction, **overrides})
    dataset = load_dataset(open_source("digits"), config, 0)
    config = resolve(config.name, {**config.values, **method})
    once = held_out_images(config, dataset)
    pace = StepTimes(0.01, 10, 0.001, 0, once)
    asked, dearer = recipes.with_affordable_views(overrides, config, pace, dataset, seconds)
    assert asked.values == {**config.values, "images": {**config.values["images"], "eval_views": views}}
    assert dearer == replace(pace, held_out_images=held_out_images(asked, dataset))
    if views == "best":
        assert dataset.val is not None
        assert dataset.test is not None
        val, test = len(dataset.val), len(dataset.test)
        saved = min(len(dataset.train), 1000) + val  # whose features are saved
        assert (once, dearer.held_out_images) == (val + test + saved, 6 * (2 * val + test) + saved)
        validated = config.changed({"train.validate": "val"}, by="command")  # the best weights, and the last
        assert held_out_images(validated, dataset) == 2 * val + test + 2 * saved


def test_views_are_counted_in_step_times(tmp_path: Path) -> None:
    config = load_config("default/digits", {**TINY, "data.val_fraction": 0.2})
    dataset = load_dataset(open_source("digits"), config, 0)
    four = resolve(config.name, config.values, {"images.eval_views": "four"})
    counts = [measure_step_times(one, dataset, tmp_path / "pace").held_out_images for one in (config, four)]
    assert dataset.val is not None
    assert dataset.test is not None
    assert counts[1] - counts[0] == 3 * (len(dataset.val) + len(dataset.test)) > 0


@pytest.mark.parametrize(("said", "views"), [({}, "best"), ({"images.eval_views": "one"}, "one")])
def test_the_plan_names_the_views(said: dict[str, Any], views: str, tmp_path: Path) -> None:
    keys = {"student.name": "hybrid_nano", "student.options": {"depth": 1}, "data.val_fraction": 0.2, **said}
    plan = planned(tmp_path / "run", "4h", keys)
    assert ("eval_views" in str(plan_table(plan).note)) is (views == "best")
    assert plan.stages[-1].values["images"]["eval_views"] == views


@pytest.mark.parametrize(("said", "views"), [({}, "one"), ({"images.eval_views": "best"}, "best")])
def test_open_views_are_one_at_first(said: dict[str, Any], views: str) -> None:
    base = load_config("default/photos", said)
    base = base.changed(recipes.one_view_keys(base, said), by="budget")
    assert base.images.eval_views == views
    assert recipes.teacher_stage(base, "default/photos", "resnet10t").images.eval_views == views


@pytest.mark.parametrize("name", ["default/photos", "default/small-images", "default/tiny-images", "multilabel/photos"])
def test_every_candidate_trains_by_the_optimizer_of_its_student(name: str) -> None:
    side = 16 if "tiny" in name else 64
    base = load_config(name)
    for rung in recipes.candidates_for(base, {}, named=False, side=side):
        anew = load_config(name, {"student.name": rung.student})
        sized = base.changed(recipes.candidate_keys(base, rung, {}), by="budget")
        assert sized.values["optim"] == anew.values["optim"]


@pytest.mark.parametrize(
    ("recipe", "budget", "student"),
    [
        ("default", "60s", "dhvt_nano"),
        pytest.param("default", "1night", "dhvt_mini", marks=pytest.mark.slow),
        ("default/digits", "1night", "vit_nano"),
    ],
)
def test_time_chooses_the_student_unless_a_recipe_is_named(
    recipe: str, budget: str, student: str, tmp_path: Path
) -> None:
    keys = {key: value for key, value in TINY.items() if not key.startswith("student")}
    wish = BudgetRequest("digits", recipe, 0, tmp_path / "run", keys, TimeBudget(budget, search=False))
    (stage,) = make_plan(wish, "test", SetClock(), 0.0, PresetTimes).stages
    assert (stage.student, stage.image_size) == (student, 8)
    assert stage.config.values["student"]["patch_size"] in (None, 2)


def test_images_without_labels_are_measured_too(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "bare", {"": 12}, 40)
    config = load_config("mae/photos", {"images.image_size": 32, "student.patch_size": 4})
    told = PresetTimes(open_source(str(folder)), 0, tmp_path, SetClock())
    assert told.estimated(config).step == STEP
    refused("no labels", lambda: told.estimated(load_config("default/photos", {"images.image_size": 32})))


def test_a_long_training_is_measured_by_its_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step takes 90 s, the others one each."""
    heard: list[float] = []
    clock = SetClock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    bar = progress.ProgressBar(8, forecast=lambda seconds: heard.append(seconds) or "")  # type: ignore[func-returns-value]
    bar.total, bar.began_step, bar.warm_at = 5400, 0, 0.0
    for step in range(1, 60):
        clock.seconds = 89.0 + step
        bar._estimate(step)
    assert heard == [5400.0]
    words = long_training(100, 224, 5400)
    assert "100 epochs at 224 px take about 1 h 30 min" in words
    assert "`--budget 30m`" in words
    assert "`--budget 1night`" in long_training(100, 224, 90000)
    assert long_training(100, 224, 600) == ""


def test_a_warm_up_keeps_its_share_and_a_users_its_epochs(tmp_path: Path) -> None:
    """default/digits warms up 5 of 100 epochs."""
    plan = planned(tmp_path / "a", "200s", search=False)
    epochs = plan.stages[0].epochs
    assert plan.stages[0].config.values["schedule"]["warmup_epochs"] == pytest.approx(5 * epochs / 100)
    plan = planned(tmp_path / "b", "200s", {"schedule.warmup_epochs": 2}, search=False)
    assert plan.stages[0].config.values["schedule"]["warmup_epochs"] == 2


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no time": (["--budget", "soon"], "a budget is a time such as 90s"),
    "epochs besides": (["--budget", "5m", "--epochs", "3"], "give --budget or --epochs"),
    "two processes": (["--budget", "5m", "--devices", "2"], "leave out --devices"),
    "too short": (["--budget", "10s"], "is too short: preparing, and one epoch of"),
    "a word": (["--budget", "5m", "--method-search", "maybe"], "valid: off, on"),
    "no such student": (["--budget", "5m", "--student", "vit_nan"], "did you mean vit_nano"),
    "a size that no patch divides": (
        ["--budget", "5m", "--student", "vit_nano", "--image-size", "9"],
        "multiple of the patch size",
    ),
    "a seed": (["--budget", "5m", "--seed", "-1"], "negative"),
    "no such recipe": (["--budget", "5m", "--recipe", "default/digit"], "default/digits"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_impossible_budget_is_refused_before_a_folder_is_made(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Measurements, "step_times", PresetTimes.step_times)
    monkeypatch.setattr(TimeBudget, "clock", property(lambda self: SetClock()))
    words, message = MISTAKES[mistake]
    assert main(["train", "digits", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") <= 2
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "sets"}


@pytest.mark.parametrize("key", ["student.init", "guides.logits.teacher"])
def test_weights_trained_on_test_images_are_refused_with_the_plan(key: str, tmp_path: Path) -> None:
    photos = str(pictures(tmp_path / "photos", {"a": 40, "b": 40}))
    divided = {"images.image_size": 16, "images.cache_size": 16, "data.test_fraction": 0.1}
    known = begin(photos, "default/digits", 0, str(tmp_path / "known"), False, divided, "test")
    save(known.method.student, known.run.weights("last"), known.method.data_spec)
    known.run.unlock()
    more = {"data.per_class": None, "data.test_fraction": 0.4, key: str(tmp_path / "known")}
    with pytest.raises(UserError, match=rf"{key}: .*known was trained on \d+ of the \d+ test images"):
        planned(tmp_path / "run", data=photos, overrides=more)
    assert not (tmp_path / "run").exists()


def test_reading_images_counts_towards_the_budget(tmp_path: Path) -> None:
    class Fleeting(SetClock):
        def __call__(self) -> float:
            self.seconds += 40
            return self.seconds

    photos = str(pictures(tmp_path / "photos", {"a": 40, "b": 40}))
    wish = BudgetRequest(photos, "default", 0, tmp_path / "run", {"student.name": "vit_nano"}, TimeBudget("60s"))
    with pytest.raises(
        UserError, match=r"a budget of 60s is too short: to read 80 images takes about \d+ s; give more"
    ):
        make_plan(wish, "test", Fleeting(), 0.0, PresetTimes)


def test_a_run_before_its_last_stage_says_how_to_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    planned(run)
    for verb in (viticulture.evaluate, viticulture.report):
        refused("not come to its last stage yet: viticulture resume", verb, str(run))
    refused("exists already", viticulture.train, "digits", "default/digits", out=str(run), overrides=TINY)
    planned(run, overwrite=True)
    (run / "budget.json").write_text(json.dumps({"format": 3, "stages": []}))
    refused(r"budget.json is damaged", viticulture.resume, str(run))


def test_a_run_interrupted_in_a_stage_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    run = tmp_path / "runs/x"
    planned(run)

    def stopped(session: Session, trial: Calibration | None) -> None:
        row = find_runs(tmp_path).table.rows[0]
        assert row[:5] == ["runs/x", "digits", "vit_nano", "default/digits", "running (stage 1 of 3)"]
        session.run.unlock()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(run, stopped, lambda words: None, now=SetClock())
    table = find_runs(tmp_path).table
    assert [(row[0], row[4]) for row in table.rows] == [("runs/x", "interrupted (stage 1 of 3)")]
    assert page_of(RunFolder(run / "stages/1-mae")).state.startswith("Interrupted: 0 of")
    assert f"`viticulture resume {shell_word(run)}` goes on" in page_of(RunFolder(run / "stages/1-mae")).state
    refused(f"viticulture resume {re.escape(shell_word(run))} ", lambda: RunFolder(run / "stages/1-mae").which())


def test_a_plan_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    plan = planned(tmp_path / "run")
    back = read_plan(tmp_path / "run")
    assert json.dumps(asdict(back)) == json.dumps(asdict(plan))
    assert [stage.config for stage in back.stages] == [stage.config for stage in plan.stages]
    known = json.loads((tmp_path / "run/budget.json").read_text())
    known["version"] = "0.0.0"
    (tmp_path / "run/budget.json").write_text(json.dumps(known))
    refused(r"was planned by viticulture 0\.0\.0", trained, tmp_path / "run")
    (tmp_path / "run/budget.json").write_text(json.dumps({**known, "format": 1}))
    refused("another version of viticulture \\(layout 1", read_plan, tmp_path / "run")


def test_progress_false_prints_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train(..., budget="30m", progress=False)`."""
    plan = planned(tmp_path / "run")
    with silence():
        introduce_budget(tmp_path / "run", plan)
    assert capsys.readouterr().err == ""
    introduce_budget(tmp_path / "run", plan)
    assert "of the 60s are planned" in " ".join(capsys.readouterr().err.split())


def test_loggers_get_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    refused("needs mlflow, not installed", planned, tmp_path / "run", overrides={"engine.logger": "mlflow"})
    config = load_config("default/digits", {**TINY, "engine.logger": "mlflow"})
    dataset = load_dataset(open_source("digits"), config, 0)
    assert measure_step_times(config, dataset, tmp_path / "pace").step > 0
    assert not list(tmp_path.glob("**/mlruns")) + list(tmp_path.glob("*.db"))


def test_evaluation_is_measured_in_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("default/digits", {**TINY, "engine.precision": "bf16-mixed"})
    dataset = load_dataset(open_source("digits"), config, 0)
    mixed = list[bool]()
    measured = Method.all_metrics

    def watched(self: Method, batch: Any) -> Any:
        mixed.append(torch.is_autocast_enabled("cpu"))
        return measured(self, batch)

    monkeypatch.setattr(Method, "all_metrics", watched)
    pace = measure_step_times(config, dataset, tmp_path / "pace")
    assert mixed == [False, False, True, True], "each once to warm up"
    assert pace.evaluation is not None
    assert pace.evaluation > 0


def test_ctrl_c_in_any_stage_says_how_the_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    run = tmp_path / "run"
    planned(run)

    def stopped(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("viticulture.training.run._trainer", stopped)
    with pytest.raises(KeyboardInterrupt, match=f"^viticulture resume {re.escape(shell_word(run))}$"):
        viticulture.resume(str(run))


def test_a_run_is_resumed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    planned(Path("run"))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", most=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    trained(tmp_path / "run")
    assert (tmp_path / "run/weights/last").exists()
    (left := tmp_path / "run/.budget.json.77.part").write_text("half")
    os.utime(left, (0, 0))
    trained(tmp_path / "run")
    assert not left.exists(), "of a kill"


def test_later_stages_find_moved_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    run, old, new = tmp_path / "run", tmp_path / "old", tmp_path / "new"
    photos = pictures(old, {"a": 40, "b": 40}, side=8)
    plan = planned(run, data=str(photos), overrides={"data.per_class": None})
    assert len(plan.stages) == 3

    with pytest.raises(KeyboardInterrupt):
        follow(run, stopped, lambda words: None, now=SetClock())
    old.rename(new)
    with pytest.raises(KeyboardInterrupt):
        follow(run, stopped, lambda words: None, str(new), now=SetClock())
    trained(run)
    assert (run / "weights/last").exists()


def test_a_stage_trains_on_the_images_of_the_earlier_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    run = tmp_path / "run"
    photos = pictures(tmp_path / "photos", {"a": 40, "b": 40}, side=8)
    others = pictures(tmp_path / "others", {"b": 40, "a": 40}, side=8)
    planned(run, data=str(photos), overrides={"data.per_class": None})
    with pytest.raises(KeyboardInterrupt):
        trained(run, most=1)
    refused("are not those", trained, run, data=str(others))
    assert not (run / "stages/2-teacher").exists()
    moved = photos.rename(tmp_path / "moved")
    with pytest.raises(KeyboardInterrupt):
        trained(run, most=1, data=str(moved))
    trained(run)
    assert (run / "weights/last").exists()


def test_a_users_start_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    untrained(Path("start"))
    plan = planned(Path("run"), overrides={"student.init": "start"}, search=False)
    assert plan.stages[-1].values["student"]["init"] == str(tmp_path / "start")


def test_a_run_may_be_renamed_between_and_within_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    runs = [tmp_path / name for name in "abcde"]
    planned(runs[0])
    for old, new in pairwise(runs[:3]):
        with pytest.raises(KeyboardInterrupt):
            trained(old, most=1)
        old.rename(new)
        for name in ("1-mae", "2-teacher"):
            (old / "stages" / name).mkdir(parents=True)

    with pytest.raises(KeyboardInterrupt):
        follow(runs[2], stopped, lambda words: None, now=SetClock())
    runs[2].rename(runs[3])
    trained(runs[3])
    runs[3].rename(runs[4])
    viticulture.evaluate(str(runs[4]))
    agreement = read_agreement(RunFolder(runs[4]))
    assert agreement is not None
    assert not agreement.missing
    assert "2-teacher" in (runs[4] / "report.html").read_text()
    begin("digits", str(runs[4] / "recipe.yaml"), 0, str(tmp_path / "again"), False, {}, "test").run.unlock()


def test_a_stage_trains_on_the_images_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    plan = planned(run)
    images = tmp_path / "images/photos"
    replace(plan, data="photos", folder=str(images)).write(run)
    refused(f"images.*viticulture resume {re.escape(shell_word(run))} DATA", trained, run)
    images.mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = list[str]()

    def begun(data: str, *given: Any) -> Session:
        asked.append(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(follow_module, "begin", begun)
    for data in ("", "other"):
        with pytest.raises(KeyboardInterrupt):
            follow(run, lambda session, trial: None, lambda words: None, data, SetClock())
    assert asked == [str(images), "other"]


def test_a_run_is_not_replaced_while_a_stage_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    run = tmp_path / "run"
    planned(run)

    def under_way(session: Session, trial: Calibration | None) -> None:
        refused("in use by another process", RunFolder.create, run, overwrite=True)
        session.run.unlock()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(run, under_way, lambda words: None, now=SetClock())
    assert (run / "budget.json").exists()
    RunFolder.create(run, overwrite=True).unlock()
    assert not (run / "stages").exists()


def test_an_empty_folder_is_used_where_its_parent_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's mounted folder."""
    out = tmp_path / "out"
    out.mkdir()
    seen = list[Path]()

    class Looking(PresetTimes):
        def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
            seen.append(self.folder)
            return super().step_times(config, dataset)

    monkeypatch.setattr("os.access", lambda place, mode: Path(place) == out)
    left = out / ".viticulture-of-a-kill.part"
    left.mkdir()
    asked = BudgetRequest("digits", "default", 0, out, TINY, TimeBudget("60s"))
    make_folder(asked, make_plan(asked, "test", SetClock(), 0.0, Looking))
    assert {folder.parent for folder in seen} == {out}
    assert not list(out.glob(".viticulture-*"))


def test_leftovers_of_a_killed_measurement_alone_are_removed(tmp_path: Path) -> None:
    names = (".viticulture-a.part", "runs/.viticulture-b.part", "runs/.viticulture-c.part", "runs/.album.part")
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "lock").touch()
    with file_lock(folders[2] / "lock"):
        planned(tmp_path / "runs" / "run")
    assert [folder.exists() for folder in folders] == [False, False, True, True]


def test_a_default_folder_is_made_after_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TimeBudget, "clock", property(lambda self: SetClock()))
    first = tmp_path / "runs" / "digits"

    def pace(self: Measurements, config: Config, dataset: Dataset) -> StepTimes:
        assert not (tmp_path / "runs" / "digits-2").exists()
        (first / "stages" / "1-mae").mkdir(parents=True, exist_ok=True)
        return PresetTimes.step_times(self, config, dataset)  # type: ignore[arg-type]

    monkeypatch.setattr(Measurements, "step_times", pace)
    run = _planned("digits", "default", 0, "", False, TINY, TimeBudget("60s"))
    assert run == Path("runs", "digits-2")
    trained(run)
    assert RunFolder(run).read("run.json")["settings"]["student"]["init"] == str(run.absolute() / "stages" / "1-mae")
    assert [path.name for path in first.rglob("*")] == ["stages", "1-mae"]


def test_every_stage_validates_as_rarely_as_the_budget_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)

    class Dear(PresetTimes):
        def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
            told = super().step_times(config, dataset)
            return replace(told, val_images=10, inference=told.learning / 10)

    asked = BudgetRequest("digits", "default", 0, tmp_path / "run", TINY, TimeBudget("20m"))
    stages = make_plan(asked, "test", SetClock(), 0.0, Dear).stages
    every = {stage.kind: stage.values["train"]["validate_every"] for stage in stages}
    assert every["teacher"] == every["student"] == 20


@pytest.mark.parametrize(
    ("recipe", "keys", "same"),
    [
        ("default/digits", {}, True),
        ("mae/cifar100", {"images.image_size": 16}, True),
        ("mae/moco-cifar100", {"images.image_size": 16}, False),
        ("bootstrap/digits", {}, False),
        ("default/digits", {"optim.weight_decay_end": 0.4}, False),
        ("default/digits", {"schedule.rule": "mmcv", "schedule.interval": "epoch"}, False),
    ],
)
def test_methods_with_schedules_keep_their_length(
    recipe: str, keys: dict[str, Any], same: bool, tmp_path: Path
) -> None:
    """A momentum or weight decay that rises, or a weight or rate that falls, over the whole training."""
    small = {"data.per_class": 6, "train.batch_size": 20, "engine.device": "cpu", **keys}
    session = begin("digits", load_config(recipe, small), 0, str(tmp_path / "run"), False, {}, "test")
    session.run.unlock()
    assert may_change(session) is same


@pytest.mark.slow
def test_a_run_stopped_between_stages_resumes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    planned(whole)
    trained(whole)
    planned(broken)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            trained(broken, most=1)
    trained(broken)
    assert [stage.epochs for stage in read_plan(whole).stages] == [stage.epochs for stage in read_plan(broken).stages]
    same_but_for_names(broken, whole)


SETTLED: dict[str, Any] = {"budget": "300s", "search": False, "overrides": {"train.validate_every": 3}}
"""A stage of some forty epochs, which is long enough to be settled."""


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
def test_a_calibrated_stage_equals_a_training_of_that_length(slowness: float, tmp_path: Path) -> None:
    """Bit for bit."""
    run, straight = tmp_path / "run", tmp_path / "straight"
    first = planned(run, **SETTLED).stages[0].epochs
    told = trained(run, slowness=slowness)
    plan = read_plan(run)
    stage, facts = plan.stages[0], json.loads((run / "run.json").read_text())
    assert 300 * 0.95 - slowness * stage.step_times.epoch < plan.spent <= 300 * 0.95
    assert (stage.epochs > first, stage.epochs < first) == (slowness < 1, slowness > 1)
    assert any(f"{stage.epochs} epochs in place of {first}" in words for words in told) is (slowness != 1)
    settings = facts["settings"]
    assert settings["train"]["epochs"] == stage.epochs
    assert settings["schedule"]["warmup_epochs"] == pytest.approx(0.05 * first)
    assert facts["steps"] == stage.epochs * stage.step_times.steps
    config = config_of(RunFolder(run))
    fit(begin("digits", config, 0, str(straight), False, {}, "test"))
    check_same_bits(weights(run), weights(straight))
    assert (run / "metrics.csv").read_text() == (straight / "metrics.csv").read_text()


@pytest.mark.parametrize("slowness", [0.5, 1.5])
def test_the_first_of_a_few_epochs_calibrates_the_length(slowness: float, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = {"schedule.warmup_epochs": None, "train.validate_every": 3}
    first = planned(run, "100s", overrides, search=False).stages[0].epochs
    assert 3 <= first < 20
    trained(run, slowness=slowness)
    plan = read_plan(run)
    assert (plan.stages[0].epochs > first, plan.stages[0].epochs < first) == (slowness < 1, slowness > 1)
    assert 100 * 0.95 - slowness * plan.stages[0].step_times.epoch < plan.spent <= 100 * 0.95
    assert config_of(RunFolder(run)).schedule.warmup_epochs == 1.0


@pytest.mark.parametrize(
    ("own", "epochs", "warmup"), [(None, 3, 1.0), (None, 19, 1.0), (None, 2, None), (None, 20, None), (5.0, 10, 5.0)]
)
def test_an_open_warm_up_is_one_epoch(own: float | None, epochs: int, warmup: float | None) -> None:
    config = load_config("default/photos", {"schedule.warmup_epochs": own})
    changed = config.changed(recipes.warmup_keys(config, epochs), by="budget")
    assert changed.schedule.warmup_epochs == warmup


def dies_while_its_length_is_set(out: str, moment: int) -> None:
    """In a child: die while the length is set."""

    def dying(run: RunFolder, epochs: int, warning: str = "") -> None:
        die_at(run.path, moment)
        set_length(run, epochs, warning)

    follow_module.set_length = dying  # type: ignore[attr-defined]
    trained(Path(out), slowness=2.0)


@pytest.mark.slow
def test_a_run_killed_while_its_length_is_set_resumes_with_that_length(tmp_path: Path) -> None:
    """kill -9 at every moment of it, after the plan has the new length."""
    whole = tmp_path / "whole"
    planned(whole, **SETTLED)
    trained(whole, slowness=2.0)
    for moment in range(7):
        broken = tmp_path / str(moment)
        planned(broken, **SETTLED)
        child = start(dies_while_its_length_is_set, str(broken), moment)
        child.join()
        assert child.exitcode == -signal.SIGKILL
        trained(broken)
        assert read_plan(broken).stages[0].epochs == read_plan(whole).stages[0].epochs
        check_same_bits(weights(broken), weights(whole))


def test_a_run_of_other_images_keeps_its_length(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "other")]
    for seed, run in enumerate(runs):
        config = load_config("default/digits", {**TINY, "train.epochs": 3})
        fit(begin("digits", config, seed, str(run), False, {}, "test"), until=1)
    (runs[0] / "checkpoints/last.ckpt").write_bytes((runs[1] / "checkpoints/last.ckpt").read_bytes())
    refused("not of this run", lambda: set_length(RunFolder(runs[0]), 5))
    set_length(RunFolder(runs[1]), 5)
    assert config_of(RunFolder(runs[1])).train.epochs == 5


@pytest.mark.parametrize("killed", [False, True])
def test_a_budget_can_be_ended_early(killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    before = planned(run, **SETTLED).stages[0]
    refused("not come to its last stage", follow_module.change_length, run, 3)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def stopped(session: Session, trial: Calibration | None) -> None:
        fit(session, until=4)
        session.run.unlock()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        follow_module.follow(run, stopped, print)
    refused("has come to epoch 4", follow_module.change_length, run, 3)
    assert read_plan(run).stages[0].epochs == before.epochs
    if killed:

        def dying(run: RunFolder, epochs: int, warning: str = "") -> None:
            if epochs == 6:
                interrupt()
            set_length(run, epochs, warning)

        for other in (before.epochs, None):  # what was half set gives way, also to the old length
            with monkeypatch.context() as patched:
                patched.setattr(follow_module, "set_length", dying)
                with pytest.raises(KeyboardInterrupt):
                    follow_module.change_length(run, 6)
            if other:
                follow_module.change_length(run, other)
                assert read_plan(run).stages[0].epochs == other
    else:
        follow_module.change_length(run, 6)
        assert config_of(RunFolder(run)).train.epochs == 6
    stage = read_plan(run).stages[0]
    assert stage.epochs == 6
    assert stage.seconds == pytest.approx(before.seconds * 6 / before.epochs)
    trained(run)
    facts = json.loads((run / "run.json").read_text())
    assert facts["steps"] == 6 * stage.step_times.steps
    assert any(f"6 epochs in place of {before.epochs}" in warning for warning in facts["warnings"]) is not killed


def same_but_for_names(broken: Path, whole: Path) -> None:
    assert_same(whole, broken)


def in_a_process(out: str, dies: int | None, after: str = "") -> None:
    """In a child: plan or resume until a moment."""
    eager()
    run = Path(out)
    if dies is not None:
        die_at(run, dies, after)
    if not (run / "budget.json").exists():
        planned(run, "90s", {"engine.checkpoint_minutes": 1e-9})
    trained(run)


@pytest.mark.slow
def test_a_killed_budget_resumes_exactly(tmp_path: Path) -> None:
    """kill -9 before, within and between stages, at different moments of writing."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    child = start(in_a_process, str(whole), None)
    moments = [(2, ""), (9, ""), (1, "last.ckpt"), (7, "last.ckpt"), (30, ""), (60, ""), (1, "last.ckpt"), (45, "")]
    moments += [(3, "last.ckpt"), (90, ""), (1, "last.ckpt"), (5, "last.ckpt")]
    killed = 0
    for moment, after in moments:
        other = start(in_a_process, str(broken), moment, after)
        other.join()
        assert other.exitcode in (0, -signal.SIGKILL)
        killed += other.exitcode != 0
    assert killed >= 8
    last = start(in_a_process, str(broken), None)
    for process in (child, last):
        process.join()
        assert process.exitcode == 0
    assert_same(whole, broken)


@pytest.mark.parametrize(
    ("recipe", "folder", "number"),
    [("detection/photos", coco_folder, "AP"), ("segmentation/photos", mask_folder, "mIoU")],
)
def test_a_detectors_budget_chooses_its_epochs(
    tmp_path: Path, recipe: str, folder: Callable[..., Path], number: str
) -> None:
    data = folder(tmp_path / "data", {"train": 4, "val": 2, "test": 2})
    keys = {"images.image_size": 64, "train.batch_size": 2, "engine.device": "cpu", "schedule.warmup_epochs": 0.0}
    wish = BudgetRequest(str(data), recipe, 0, tmp_path / "run", keys, TimeBudget("40s"))
    plan = make_plan(wish, "test", SetClock(), 0.0, PresetTimes)
    (stage,) = plan.stages
    assert (stage.kind, stage.student, stage.image_size) == ("student", "dhvt_nano", 64)
    assert stage.epochs == epochs_within(stage.step_times, 40 * (1 - MARGIN))
    assert "chooses only the epochs" in str(plan_table(plan).note)
    plan = plan.with_stage(0, replace(stage, epochs=1))
    make_folder(wish, plan)
    headline = read_headline(viticulture.resume(str(wish.out)).folder)
    assert headline is not None
    table = stages_table(read_plan(wish.out), [headline])
    assert (headline.name, table.columns[-1].name, table.rows[-1][-1]) == (number, number, headline.value)


def test_evaluation_is_part_of_a_detectors_step_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mask_folder(tmp_path / "data", {"train": 4, "val": 3, "test": 2})
    config = resolve(
        "segmentation/photos", read("segmentation/photos"), {"images.image_size": 32, "train.batch_size": 2}
    )
    dataset = load_dataset(open_for(config, str(data)), config, 0)
    judged = list[tuple[int, ...]]()

    evaluate = Segmentation.evaluate_images

    def watched(model: Any, images: Any, true: Any) -> Any:
        judged.append((len(images), len(true.rows), *true.original(0).shape))
        return evaluate(model, images, true)

    monkeypatch.setattr(Segmentation, "evaluate_images", watched)
    assert (measure_step_times(config, dataset, tmp_path / "pace").evaluation or 0) > 0
    assert judged == [(3, 3, 64, 80)] * 2, "once to warm up"
