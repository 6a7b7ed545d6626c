# SPDX-License-Identifier: Apache-2.0
"""The configs of the stages, derived from the student's: the same images, the same machine.

Each choice is a function that returns the recipe keys to change; `Config.changed(keys, by="budget")` checks and records
them. Keys that the user sets (`overrides`) are never replaced.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..config.checks import check_parts, check_rates
from ..config.keys import PROBE
from ..config.load import load_config, read
from ..config.references import check_alone
from ..config.resolve import Config, resolve
from ..config.schema import of_class
from ..config.start import LARGEST_SIDE, TAUGHT, load_started, taught_by
from ..data.dataset import Dataset
from ..errors import UserError
from ..models.students import is_hybrid_student
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
    SizedStudent,
    candidates,
    fine_tuned_candidates,
)

SHARED = ("data", "images", "engine")  # sections that all stages have in common
WITHOUT_LABELS = "mae/photos"  # recipe of the stage without labels; it gets the images as the student does later
Keys = dict[str, Any]


def check(config: Config, overrides: Mapping[str, Any]) -> None:
    """Raises: UserError for what no budget can do, or what any training refuses."""
    if "train.epochs" in overrides:
        raise UserError(
            f"a budget chooses the epochs; give --budget or --epochs, not both, got epochs {overrides['train.epochs']}"
        )
    if config.engine.processes > 1:
        raise UserError(
            f"a budget runs in one process on one device, got {config.engine.processes}; leave out --devices, or give "
            "--epochs in place of --budget"
        )
    check_alone(config.values)
    check_parts(config)
    check_rates(config)
    check_devices(config.engine)
    check_logger(config.engine)


def candidates_for(config: Config, overrides: Mapping[str, Any], named: bool, side: int) -> tuple[SizedStudent, ...]:
    """Return the students and sizes to choose from, from cheap to expensive.

    Args:
        overrides: the user's keys; those of the student, except for its patch, fix the student.
        named: whether the user named the recipe, which fixes the student, too.
    """
    fixed = any(key.partition(".")[0] == "student" and key != "student.patch_size" for key in overrides)
    size = config.images.image_size
    if isinstance(size, list):
        raise UserError(f"a budget chooses among square inputs, got images.image_size {size}; name a side, or --epochs")
    if config.student.init is not None and "images.image_size" not in overrides and size is not None:
        return fine_tuned_candidates(side, config.student.name, size)
    return candidates(side, config.student.name if named or fixed else "", size)


def candidate_keys(config: Config, candidate: SizedStudent, overrides: Mapping[str, Any]) -> Keys:
    """Choose a candidate's student and image size; a patch size of the user's stays."""
    patch = config.student.patch_size if candidate.student == config.student.name else None
    keys = {"student.patch_size": patch, **candidate.overrides}
    return keys | {key: overrides[key] for key in ("student.patch_size",) if key in overrides}


def with_sparse_validation(overrides: Mapping[str, Any], config: Config, times: StepTimes) -> tuple[Config, StepTimes]:
    """Return the config with validation as rare as `VALIDATION_SHARE` needs, and its step times then."""
    every = math.ceil(times.validation / (VALIDATION_SHARE * times.learning))
    if every <= times.validate_every or "train.validate_every" in overrides:
        return config, times
    return config.changed({"train.validate_every": every}, by="budget"), replace(times, validate_every=every)


def in_bfloat16(config: Config) -> Config | None:
    """Return the config in mixed precision; None where it names a precision itself, or does not train on a CPU."""
    if config.engine.precision != "auto" or not config.engine.on_cpu:
        return None
    return config.changed({"engine.precision": "bf16-mixed"}, by="budget")


def mae_stage(config: Config) -> Config:
    """Return the stage in which the student trains on all images without labels: augmented as later, but not mixed, and
    with no class weighted or balanced."""
    values = {key: config.values[key] for key in (*SHARED, "student", "augment")}
    values["data"] = {key: entry for key, entry in values["data"].items() if key not in ("class_weights", "sampling")}
    values["augment"] = _unmixed(values["augment"])
    return resolve(WITHOUT_LABELS, {**read(WITHOUT_LABELS), **values})


def teacher_stage(config: Config, default: str, name: str) -> Config:
    """Return the stage in which a CNN trains by the default recipe, on images augmented as the student's, but not
    mixed; by the student's recipe, where the default is for several labels an image and the student learns their
    combinations as classes."""
    if not learns_classes(load_config(default)) and learns_classes(config):
        default = config.name
    values = {**read(default), **{key: config.values[key] for key in SHARED}, "student": {"name": name}}
    return resolve(default, {**values, "augment": _unmixed(config.values["augment"])})


def _unmixed(augment: Mapping[str, Any]) -> Keys:
    mixed = of_class(augment, "mix")
    return {key: entry for key, entry in augment.items() if key not in mixed}


def probe_stage(config: Config, source: str, size: int | None = None) -> Config:
    """Return the stage in which a trained network gets a classifier of the student's classes, on images of `size`, or
    of its own up to `LARGEST_SIDE`."""
    started = load_started(PROBE, {"student.init": source})
    values = {**started.values, **{key: config.values[key] for key in SHARED}}
    own = {key: started.values["images"][key] for key in ("normalize", "eval_views", "image_size")}
    if size is not None or isinstance(own["image_size"], int):
        own["image_size"] = size or min(own["image_size"], LARGEST_SIDE)
    values["images"] = {**values["images"], **own}
    return resolve(PROBE, values)


def taught_keys(
    config: Config,
    overrides: Mapping[str, Any],
    teachers: Sequence[str],
    size: int,
    views: int | None = TAUGHT["train.fixed_views"],
) -> Keys:
    """Let trained networks of the student's classes teach it, on images of their size, by so many views of each."""
    keys = {**taught_by(teachers), "images.teacher_size": size, "train.fixed_views": views}
    return {key: value for key, value in keys.items() if key not in overrides}


def student_keys(config: Config, overrides: Mapping[str, Any], start: str, teacher: str) -> Keys:
    """Start the student from a run, and let a run teach it; "" for none."""
    keys: Keys = {}
    if start:
        keys |= {**AFTER_MAE, "student.init": start}
    if teacher:
        keys |= {**UNDER_TEACHER, "guides.logits": {**UNDER_TEACHER["guides.logits"], "teacher": teacher}}
    if config.optim.layer_decay is not None:
        keys.pop("optim.layer_decay", None)
    return {key: value for key, value in keys.items() if key not in overrides}


def mix_keys(config: Config, overrides: Mapping[str, Any], epochs: int, steps: int, per_class: float) -> Keys:
    """Set `MIX` and its decay where a hybrid trains long enough; a recipe's mixing, decay and smoothing stay."""
    chosen = any(key in ("augment", "augment.mix") or key.startswith("augment.mix.") for key in overrides)
    if chosen or of_class(config.values["augment"], "mix"):
        return {}
    if not is_hybrid_student(config.student.name) or not learns_classes(config):
        return {}
    if epochs < MIX_FROM or steps < MIX_STEPS or per_class < MIX_PER_CLASS:
        return {}
    smoothing = config.values["method"].get("smoothing", 0.0)  # the method leaves mixed labels alone
    keys: Keys = {"augment.mix": {**MIX, "smoothing": smoothing}}
    optim = config.optim
    if optim.name == "muon" and "optim.weight_decay" not in overrides and optim.weight_decay == Optim.weight_decay:
        decay = epochs / (DECAY_EPOCHS * steps * (optim.kernel_lr or optim.lr))
        keys["optim.weight_decay"] = float(f"{min(decay, MIX_DECAY):.2g}")
    return keys


def warmup_keys(config: Config, epochs: int) -> Keys:
    """Let a stage of so many epochs warm up for at least one of them, where the recipe leaves that open."""
    schedule = config.schedule
    if schedule.warmup_epochs is not None or epochs < WHOLE_WARMUP_FROM or schedule.warmup(epochs) >= 1:
        return {}
    return {"train.epochs": epochs, "schedule.warmup_epochs": 1.0}


def length_keys(config: Config, epochs: int, warmup_epochs_of: int) -> Keys:
    """Set the epochs; a warm-up keeps its share of the epochs that it was meant for."""
    keys: Keys = {"train.epochs": epochs}
    if (warmup := config.schedule.warmup_epochs) is not None and epochs != warmup_epochs_of:
        keys["schedule.warmup_epochs"] = shortened_warmup(warmup, warmup_epochs_of, epochs)
    return keys


def one_view_keys(config: Config, overrides: Mapping[str, Any]) -> Keys:
    """Evaluate one view of an image for now, where validation images would choose: `with_affordable_views` decides."""
    open_yet = "images.eval_views" not in overrides and config.images.eval_views == "best"
    return {"images.eval_views": "one"} if open_yet else {}


def with_affordable_views(
    overrides: Mapping[str, Any], config: Config, times: StepTimes, dataset: Dataset, seconds: float
) -> tuple[Config, StepTimes]:
    """Return the config of a classifier with the test-time augmentation that validation images choose, and its step
    times then; unchanged without such images, where that takes more than `VIEWS_SHARE` of the seconds that are left, or
    where several views are set already."""
    chosen = "images.eval_views" in overrides or config.images.eval_views != "one"
    if chosen or dataset.val is None or not learns_classes(config):
        return config, times
    by_views = config.changed({"images.eval_views": "best"}, by="budget")
    slower = replace(times, held_out_images=held_out_images(by_views, dataset))
    affordable = slower.training(0) - times.training(0) <= VIEWS_SHARE * seconds
    return (by_views, slower) if affordable else (config, times)


def may_be_taught(config: Config) -> bool:
    """True if a teacher may be added: the student learns classes from labels, not fine-tuned, and without guides of the
    user's."""
    return learns_classes(config) and not config.guides and config.student.head is None


def may_be_started(config: Config) -> bool:
    """True if the student may start from an earlier stage: it learns from labels, and has no other start."""
    return config.method_class.batch_spec.labels and config.student.init is None


def is_dense(config: Config) -> bool:
    """True for detection and segmentation: the student and its images stay, and only epochs are chosen."""
    return config.method_class.batch_spec.dense


def learns_classes(config: Config) -> bool:
    """True for classification: one label an image."""
    spec = config.method_class.batch_spec
    return spec.labels and spec.contents == "classes"
