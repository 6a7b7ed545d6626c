# SPDX-License-Identifier: Apache-2.0
"""The recipe of every stage, made from the student's own: the same images, the same machine."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config.checks import check_parts, check_rates
from ..config.load import load_config, read
from ..config.references import check_alone
from ..config.resolve import Config, resolve
from ..config.schema import of_class
from ..data.dataset import Dataset
from ..errors import UserError
from ..models.students import HYBRIDS
from ..optim import Optim, shortened_warmup
from ..study.step_times import StepTimes, held_out_images
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


def check(config: Config, overrides: Mapping[str, Any]) -> None:
    """Raises: UserError for what no budget can keep, or what any training refuses."""
    if "train.epochs" in overrides:
        raise UserError(
            f"a budget chooses the epochs; give --budget or --epochs, not both, got epochs {overrides['train.epochs']}"
        )
    engine = config.engine
    if engine.devices * engine.nodes > 1:
        raise UserError(
            f"a budget is kept by one process on one device, got {engine.devices * engine.nodes}; leave out --devices, "
            "or give --epochs in place of --budget"
        )
    check_alone(config.values)
    check_parts(config)
    check_rates(config)
    check_devices(engine)
    check_logger(engine)


def ladder(config: Config, overrides: Mapping[str, Any], named: bool, side: int) -> tuple[Rung, ...]:
    """What is left to choose of student and size, from cheap to large.

    Args:
        config: as far as it is known, a person's keys included.
        overrides: a person's keys; those of the student, but for its patch, make it theirs.
        named: whether the person named the recipe, whose student then stays.
        side: of the images, pixels.
    """
    own = any(key.partition(".")[0] == "student" and key != "student.patch_size" for key in overrides)
    student = config.values["student"]["name"] if named or own else ""
    wanted = config.images.image_size
    if isinstance(wanted, list):
        raise UserError(
            f"a budget chooses among square inputs, got images.image_size {wanted}; name a side, or --epochs"
        )
    return rungs(side, student, wanted)


def of_rung(config: Config, rung: Rung, overrides: Mapping[str, Any]) -> Config:
    """The recipe with a rung's student and images; what a person says of the patch holds."""
    student = config.values["student"]
    patch = student["patch_size"] if rung.student == student["name"] else None  # another student's is another's
    keys = {"student.patch_size": patch, **rung.overrides}
    if "student.patch_size" in overrides:
        keys["student.patch_size"] = overrides["student.patch_size"]
    return config.changed(keys, by="budget")


def watched(overrides: Mapping[str, Any], config: Config, pace: StepTimes) -> tuple[Config, StepTimes]:
    """The recipe with validation images measured as seldom as `VALIDATION_SHARE` asks, and its pace then.

    Args:
        overrides: a person's keys, which nothing replaces.
        config: of any stage.
        pace: its own.
    """
    every = math.ceil(pace.validation / (VALIDATION_SHARE * pace.learning))
    if every <= pace.validate_every or "train.validate_every" in overrides:
        return config, pace
    return config.changed({"train.validate_every": every}, by="budget"), replace(pace, validate_every=every)


def in_bfloat16(config: Config) -> Config | None:
    """The recipe in mixed precision; None where it names a precision itself, or does not train on a CPU."""
    engine = config.engine
    if engine.precision != "auto" or not engine.on_cpu:
        return None
    return config.changed({"engine.precision": "bf16-mixed"}, by="budget")


def of_mae(config: Config) -> Config:
    """The student learns from all images without labels; they are varied as later, but not mixed, and no class counts
    more or comes more often than its images do."""
    values = {key: config.values[key] for key in (*SHARED, "student", "augment")}
    values["data"] = {key: entry for key, entry in values["data"].items() if key not in ("class_weights", "sampling")}
    mixed = of_class(values["augment"], "mix")
    values["augment"] = {key: made for key, made in values["augment"].items() if key not in mixed}
    return resolve(WITHOUT_LABELS, {**read(WITHOUT_LABELS), **values})


def of_teacher(config: Config, default: str, name: str) -> Config:
    """A CNN learns from the images as the default recipe teaches; as the student's own does, where the default is for
    several labels an image and the student learns their combinations as classes."""
    if not learns_classes(load_config(default)) and learns_classes(config):
        default = config.name
    values = {**read(default), **{key: config.values[key] for key in SHARED}, "student": {"name": name}}
    return resolve(default, values)


def of_student(config: Config, overrides: Mapping[str, Any], start: str, teacher: str) -> Config:
    """The student's own stage.

    Args:
        config: its recipe alone.
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
    if config.values["optim"]["layer_decay"] is not None:
        keys.pop("optim.layer_decay", None)
    kept = {key: value for key, value in keys.items() if key not in overrides}
    return config.changed(kept, by="budget") if kept else config


def mixed(config: Config, overrides: Mapping[str, Any], epochs: int, steps: int, per_class: float) -> Config:
    """The recipe with `MIX` and its decay, where a hybrid learns classes of so many images for so long; what says of
    mixing itself, or of decay, stays, and so does what labels are smoothed by.

    Args:
        config: of the student.
        overrides: a person's keys.
        epochs: that it is to train.
        steps: that these are.
        per_class: training images a class, on average.
    """
    chosen = any(key in ("augment", "augment.mix") or key.startswith("augment.mix.") for key in overrides)
    if chosen or of_class(config.values["augment"], "mix") or not (is_hybrid(config) and learns_classes(config)):
        return config
    worth = epochs >= MIX_FROM and steps >= MIX_STEPS and per_class >= MIX_PER_CLASS
    if not worth:
        return config
    mix = {**MIX, "smoothing": config.values["method"].get("smoothing", 0.0)}  # the method leaves mixed labels alone
    optim = config.optim
    own = "optim.weight_decay" in overrides or optim.weight_decay != Optim.weight_decay
    if own or optim.name != "muon":
        return config.changed({"augment.mix": mix}, by="budget")
    decay = epochs / (DECAY_EPOCHS * steps * (optim.kernel_lr or optim.lr))
    keys = {"augment.mix": mix, "optim.weight_decay": float(f"{min(decay, MIX_DECAY):.2g}")}
    return config.changed(keys, by="budget")


def warmed(config: Config, epochs: int) -> Config:
    """The recipe of a stage of so many epochs, which warm up for one of them at least; one that says how long stays."""
    schedule = config.schedule
    if schedule.warmup_epochs is not None or epochs < WHOLE_WARMUP_FROM or schedule.warmup(epochs) >= 1:
        return config
    return config.changed({"train.epochs": epochs, "schedule.warmup_epochs": 1.0}, by="budget")


def asked_once(config: Config, overrides: Mapping[str, Any]) -> Config:
    """The recipe asked by one view, where it leaves that to validation images, until `asked_well` knows what time there
    is; what a person says stays."""
    if "images.eval_views" in overrides or config.images.eval_views != "best":
        return config
    return config.changed({"images.eval_views": "one"}, by="budget")


def asked_well(
    overrides: Mapping[str, Any], config: Config, pace: StepTimes, dataset: Dataset, seconds: float
) -> tuple[Config, StepTimes]:
    """The recipe of a classifier that is asked by those views which validation images find best, and its pace then.

    The same where there are no such images, asking takes more than `VIEWS_SHARE` of the time, or the recipe asks by
    several views already.

    Args:
        overrides: a person's keys, which nothing replaces.
        config: of the student.
        pace: its own.
        dataset: the images.
        seconds: of the budget that are left.
    """
    chosen = "images.eval_views" in overrides or config.images.eval_views != "one"
    if chosen or dataset.val is None or not learns_classes(config):
        return config, pace
    by_views = config.changed({"images.eval_views": "best"}, by="budget")
    dearer = replace(pace, held_out_images=held_out_images(by_views, dataset))
    worth = dearer.training(0) - pace.training(0) <= VIEWS_SHARE * seconds
    return (by_views, dearer) if worth else (config, pace)


def may_be_taught(config: Config) -> bool:
    """Whether a teacher may be put beside the student: it learns classes from labels, from no guide that a person
    chose."""
    return learns_classes(config) and not config.values["guides"]


def is_dense(config: Config) -> bool:
    """Whether it learns objects, or classes of pixels: its student and its images stay, and epochs are chosen."""
    return config.method_class.batch_spec.dense


def learns_classes(config: Config) -> bool:
    """Whether it learns from labels, one an image."""
    spec = config.method_class.batch_spec
    return spec.labels and spec.contents == "classes"


def is_hybrid(config: Config) -> bool:
    """Whether its student is a hybrid ViT of ours."""
    return config.values["student"]["name"] in HYBRIDS


def may_be_started(config: Config) -> bool:
    """Whether the student may start from an earlier stage: it learns from labels, and nobody named its start."""
    return config.method_class.batch_spec.labels and config.values["student"]["init"] is None


def of_length(config: Config, epochs: int, own: int) -> Config:
    """The recipe with other epochs; a warm-up keeps its share of them.

    Args:
        config: of a stage.
        epochs: that it is to train.
        own: epochs that its warm-up was meant for.
    """
    keys: dict[str, Any] = {"train.epochs": epochs}
    warmup = config.values["schedule"]["warmup_epochs"]
    if warmup is not None and epochs != own:
        keys["schedule.warmup_epochs"] = shortened_warmup(warmup, own, epochs)
    return config.changed(keys, by="budget")
