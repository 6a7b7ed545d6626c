# SPDX-License-Identifier: Apache-2.0
"""The recipe of every stage, made from the student's own: the same images, the same machine."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config.checks import check_parts, check_rates
from ..config.load import read
from ..config.references import check_alone
from ..config.resolve import Config, method_class, resolve
from ..config.schema import of_class
from ..data.dataset import Dataset
from ..errors import UserError
from ..models.students import HYBRIDS
from ..optim import Optim, shortened_warmup
from ..study.plan.pace import Pace, held_out_images
from ..training.loggers import check_logger
from ..training.processes import check_devices
from .choices import (
    AFTER_MAE,
    DECAY_EPOCHS,
    MIX,
    MIX_DECAY,
    MIX_FROM,
    MIX_PER_CLASS,
    MIX_STEPS,
    UNDER_TEACHER,
    VALIDATION_SHARE,
    VIEWS_SHARE,
    WHOLE_WARMUP_FROM,
    Rung,
    rungs,
)

SHARED = ("data", "images", "engine")
"""Sections that all stages have in common."""
WITHOUT_LABELS = "mae/photos"
"""Says how the stage without labels learns; it sees the images as the student does later."""


def check(recipe: Config, overrides: Mapping[str, Any]) -> None:
    """Raises: UserError for what no budget can keep, or what any training refuses."""
    if "train.epochs" in overrides:
        raise UserError(
            f"a budget chooses the epochs; give --budget or --epochs, not both, got epochs {overrides['train.epochs']}"
        )
    engine = recipe.section("engine")
    if engine.devices * engine.nodes > 1:
        raise UserError(
            f"a budget is kept by one process on one device, got {engine.devices * engine.nodes}; leave out --devices, "
            "or give --epochs in place of --budget"
        )
    check_alone(recipe.values)
    check_parts(recipe)
    check_rates(recipe)
    check_devices(engine)
    check_logger(engine)


def ladder(recipe: Config, overrides: Mapping[str, Any], named: bool, side: int) -> tuple[Rung, ...]:
    """What is left to choose of student and size, from cheap to large.

    Args:
        recipe: as far as it is known, a person's keys included.
        overrides: a person's keys; those of the student, but for its patch, make it theirs.
        named: whether the person named the recipe, whose student then stays.
        side: of the images, pixels.
    """
    own = any(key.partition(".")[0] == "student" and key != "student.patch_size" for key in overrides)
    student = recipe.values["student"]["name"] if named or own else ""
    wanted = recipe.section("images").image_size
    if isinstance(wanted, list):
        raise UserError(
            f"a budget chooses among square inputs, got images.image_size {wanted}; name a side, or --epochs"
        )
    return rungs(side, student, wanted)


def of_rung(recipe: Config, rung: Rung, overrides: Mapping[str, Any]) -> Config:
    """The recipe with a rung's student and images; what a person says of the patch holds."""
    student = recipe.values["student"]
    patch = student["patch_size"] if rung.student == student["name"] else None  # another student's is another's
    keys = {"student.patch_size": patch, **rung.overrides}
    if "student.patch_size" in overrides:
        keys["student.patch_size"] = overrides["student.patch_size"]
    return recipe.with_keys(keys)


def watched(overrides: Mapping[str, Any], recipe: Config, pace: Pace) -> tuple[Config, Pace]:
    """The recipe with validation images measured as seldom as `VALIDATION_SHARE` asks, and its pace then.

    Args:
        overrides: a person's keys, which nothing replaces.
        recipe: of any stage.
        pace: its own.
    """
    every = math.ceil(pace.validation / (VALIDATION_SHARE * pace.learning))
    if every <= pace.validate_every or "train.validate_every" in overrides:
        return recipe, pace
    return recipe.with_keys({"train.validate_every": every}), replace(pace, validate_every=every)


def in_bfloat16(recipe: Config) -> Config | None:
    """The recipe in mixed precision; None where it names a precision itself, or does not train on a CPU."""
    engine = recipe.section("engine")
    if engine.precision != "auto" or not engine.on_cpu:
        return None
    return recipe.with_keys({"engine.precision": "bf16-mixed"})


def of_mae(recipe: Config) -> Config:
    """The student learns from all images without labels; they are varied as later, but not mixed, and no class counts
    more or comes more often than its images do."""
    values = {key: recipe.values[key] for key in (*SHARED, "student", "augment")}
    values["data"] = {key: entry for key, entry in values["data"].items() if key not in ("class_weights", "sampling")}
    mixed = of_class(values["augment"], "mix")
    values["augment"] = {key: made for key, made in values["augment"].items() if key not in mixed}
    return resolve(WITHOUT_LABELS, {**read(WITHOUT_LABELS), **values})


def of_teacher(recipe: Config, default: str, name: str) -> Config:
    """A CNN learns from the images as the default recipe teaches; as the student's own does, where the default is for
    several labels an image and the student learns their combinations as classes."""
    if not learns_classes(resolve(default, read(default))) and learns_classes(recipe):
        default = recipe.name
    values = {**read(default), **{key: recipe.values[key] for key in SHARED}, "student": {"name": name}}
    return resolve(default, values)


def of_student(recipe: Config, overrides: Mapping[str, Any], start: str, teacher: str) -> Config:
    """The student's own stage.

    Args:
        recipe: its recipe alone.
        overrides: a person's keys, which nothing replaces.
        start: a run to start from; "" for random numbers.
        teacher: a run to learn from; "" for none.
    """
    keys: dict[str, Any] = {}
    if start:
        keys |= {**AFTER_MAE, "student.init": start}
    if teacher:
        keys |= UNDER_TEACHER
        keys["guides.logits"] = {**UNDER_TEACHER["guides.logits"], "teacher": teacher}
    if recipe.values["optim"]["layer_decay"] is not None:
        keys.pop("optim.layer_decay", None)
    kept = {key: value for key, value in keys.items() if key not in overrides}
    return recipe.with_keys(kept) if kept else recipe


def mixed(recipe: Config, overrides: Mapping[str, Any], epochs: int, steps: int, per_class: float) -> Config:
    """The recipe with `MIX` and its decay, where a hybrid learns classes of so many images for so long; what says of
    mixing itself, or of decay, stays, and so does what labels are smoothed by.

    Args:
        recipe: of the student.
        overrides: a person's keys.
        epochs: that it is to train.
        steps: that these are.
        per_class: training images a class, on average.
    """
    chosen = any(key in ("augment", "augment.mix") or key.startswith("augment.mix.") for key in overrides)
    if chosen or of_class(recipe.values["augment"], "mix") or not (is_hybrid(recipe) and learns_classes(recipe)):
        return recipe
    worth = epochs >= MIX_FROM and steps >= MIX_STEPS and per_class >= MIX_PER_CLASS
    if not worth:
        return recipe
    mix = {**MIX, "smoothing": recipe.values["method"].get("smoothing", 0.0)}  # the method leaves mixed labels alone
    optim = recipe.section("optim")
    own = "optim.weight_decay" in overrides or optim.weight_decay != Optim.weight_decay
    if own or optim.name != "muon":
        return recipe.with_keys({"augment.mix": mix})
    decay = epochs / (DECAY_EPOCHS * steps * (optim.kernel_lr or optim.lr))
    keys = {"augment.mix": mix, "optim.weight_decay": float(f"{min(decay, MIX_DECAY):.2g}")}
    return recipe.with_keys(keys)


def warmed(recipe: Config, epochs: int) -> Config:
    """The recipe of a stage of so many epochs, which warm up for one of them at least; one that says how long stays."""
    schedule = recipe.section("schedule")
    if schedule.warmup_epochs is not None or epochs < WHOLE_WARMUP_FROM or schedule.warmup(epochs) >= 1:
        return recipe
    return recipe.with_keys({"train.epochs": epochs, "schedule.warmup_epochs": 1.0})


def asked_once(recipe: Config, overrides: Mapping[str, Any]) -> Config:
    """The recipe asked by one view, where it leaves that to validation images, until `asked_well` knows what time there
    is; what a person says stays."""
    if "images.eval_views" in overrides or recipe.section("images").eval_views != "best":
        return recipe
    return recipe.with_keys({"images.eval_views": "one"})


def asked_well(
    overrides: Mapping[str, Any], recipe: Config, pace: Pace, dataset: Dataset, seconds: float
) -> tuple[Config, Pace]:
    """The recipe of a classifier that is asked by those views which validation images find best, and its pace then.

    The same where there are no such images, asking takes more than `VIEWS_SHARE` of the time, or the recipe asks by
    several views already.

    Args:
        overrides: a person's keys, which nothing replaces.
        recipe: of the student.
        pace: its own.
        dataset: the images.
        seconds: of the budget that are left.
    """
    chosen = "images.eval_views" in overrides or recipe.section("images").eval_views != "one"
    if chosen or dataset.val is None or not learns_classes(recipe):
        return recipe, pace
    by_views = recipe.with_keys({"images.eval_views": "best"})
    dearer = replace(pace, held_out_images=held_out_images(by_views, dataset))
    worth = dearer.training(0) - pace.training(0) <= VIEWS_SHARE * seconds
    return (by_views, dearer) if worth else (recipe, pace)


def may_be_taught(recipe: Config) -> bool:
    """Whether a teacher may be put beside the student: it learns classes from labels, from no guide that a person
    chose."""
    return learns_classes(recipe) and not recipe.values["guides"]


def is_dense(recipe: Config) -> bool:
    """Whether it learns objects, or classes of pixels: its student and its images stay, and epochs are chosen."""
    return method_class(recipe).batch_spec.dense


def learns_classes(recipe: Config) -> bool:
    """Whether it learns from labels, one an image."""
    spec = method_class(recipe).batch_spec
    return spec.labels and spec.contents == "classes"


def is_hybrid(recipe: Config) -> bool:
    """Whether its student is a hybrid ViT of ours."""
    return recipe.values["student"]["name"] in HYBRIDS


def may_be_started(recipe: Config) -> bool:
    """Whether the student may start from an earlier stage: it learns from labels, and nobody named its start."""
    return method_class(recipe).batch_spec.labels and recipe.values["student"]["init"] is None


def of_length(recipe: Config, epochs: int, own: int) -> Config:
    """The recipe with other epochs; a warm-up keeps its share of them.

    Args:
        recipe: of a stage.
        epochs: that it is to train.
        own: epochs that its warm-up was meant for.
    """
    keys: dict[str, Any] = {"train.epochs": epochs}
    warmup = recipe.values["schedule"]["warmup_epochs"]
    if warmup is not None and epochs != own:
        keys["schedule.warmup_epochs"] = shortened_warmup(warmup, own, epochs)
    return recipe.with_keys(keys)
