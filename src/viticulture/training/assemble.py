# SPDX-License-Identifier: Apache-2.0
"""From a config and a data set to the method: student, guides, optimizer settings."""

from dataclasses import replace

import torch
from torch import nn

from ..config.checks import check_parts
from ..config.keys import flat
from ..config.references import keyword_of
from ..config.resolve import Config
from ..config.schema import guide_class, settings, transforms
from ..config.sections import Student
from ..data.balance import class_weights, positive_weights
from ..data.dataset import Dataset
from ..data.image_settings import shape_of
from ..data.transforms.view import Augment
from ..errors import UserError
from ..guides.guide import Guide
from ..keywords import made_parts
from ..methods.method import BatchSpec, Method, Setup
from ..models.data_spec import DataSpec
from ..models.students import create_student, fitting_patch
from ..models.taps import Taps
from ..models.teachers.outputs import Opened, shared_teachers
from ..models.weights.files import read_config
from ..models.weights.sources import find_weights, initialize, start_digest
from ..optim.optim import freeze_layers
from .linear_head import first_device, probe_head


def data_spec_of(dataset: Dataset) -> DataSpec:
    """Return the classes, size and normalization of a data set, which its student must fit."""
    labels, scale = dataset.train.records.labels, None
    several = bool(dataset.classes) and labels.ndim == 2
    if dataset.classes and labels.ndim == 1 and labels.is_floating_point():
        if labels.min() == labels.max():
            raise UserError(f"all training images have the number {labels[0]:g}, so there is nothing to predict")
        scale = (float(labels.double().mean()), float(labels.double().std(correction=0)))
    side = dataset.image_settings.teacher_size
    teacher_size = None if side is None else (side, side)
    size = shape_of(dataset.image_size)
    return DataSpec(dataset.classes, size, dataset.mean, dataset.std, several, scale, teacher_size)


def patch_size(requested: Student, data_spec: DataSpec) -> int | None:
    """Return the recipe's patch size, or the one that fits the images."""
    return fitting_patch(requested.name, data_spec.image_size) if requested.patch_size is None else requested.patch_size


def student_of(config: Config, data_spec: DataSpec) -> nn.Module:
    """Return a config's student with random weights."""
    requested: Student = config.student
    return create_student(requested.name, data_spec, patch_size(requested, data_spec), requested.options)


def assemble(config: Config, dataset: Dataset, seed: int) -> tuple[Method, list[str]]:
    """Return the method with its student and guides, initialized from the seed, and warnings about its weights; what
    was loaded is in its attribute `loaded`."""
    check_parts(config)
    data_spec = data_spec_of(dataset)
    requested: Student = config.student
    torch.manual_seed(seed)
    made = config.method_class
    task_spec = replace(data_spec, classes=()) if made.batch_spec.dense else data_spec  # detectors bring their heads
    student = student_of(config, task_spec)
    loaded = initialize(student, requested.init, requested.init_blocks, task_spec.classes) if requested.init else []
    if requested.frozen_layers:
        freeze_layers(student, requested.frozen_layers)
    if requested.head is not None:
        loaded.append(_with_probed_head(student, config, dataset))
    taken = {name: tensor.clone() for name, tensor in student.state_dict().items()} if requested.init else {}
    guides = build_guides(config, student, data_spec)
    keywords = {key: value for key, value in made_parts(made, config.values["method"]).items() if key != "name"}
    optim, schedule, weights = config.optim, config.schedule, weights_of(config, dataset)
    share = len(dataset.train) / len(dataset.trained_on)
    method = made(Setup(student, data_spec, guides, optim, schedule, weights, share), **keywords)
    method.start, method.loaded = start_digest(student), loaded
    count = method.batch_spec.local_crops
    if bool(count) != bool(config.values["augment_local_crops"]):
        fix = "say by augment_local_crops how they are made" if count else "take augment_local_crops out"
        raise UserError(f"method {config.values['method']['name']} needs {count} local crops of an image; {fix}")
    started, warnings = student.state_dict(), _other_ranges(config)
    if lost := [name for name, tensor in taken.items() if not torch.equal(tensor, started[name])]:
        warnings.append(
            f"not loaded: {', '.join(lost)}, which method {config.values['method']['name']} sets itself; "
            "method.positions learned keeps the loaded ones"
        )
    return method, warnings


def _with_probed_head(student: nn.Module, config: Config, dataset: Dataset) -> str:
    """Train a student's head on its features of the training images, in place; return a sentence about it."""
    head = probe_head(student, data_spec_of(dataset), dataset, config.images.crop, first_device(config.engine))
    student.cpu().train()
    correct = ", ".join(f"{100 * share:.1f} % correct in {name}" for name, share in head.accuracy.items())
    return f"the head is fitted to features by logistic regression: weight decay {head.decay:g}, {correct}"


def _other_ranges(config: Config) -> list[str]:
    """Return a warning for each teacher that was trained on another value range than its input has here."""
    value_range, warnings = config.images.range, []
    for key, value in flat(config.values).items():
        is_teacher = keyword_of(key) in ("teacher", "teachers") and isinstance(value, str)
        folder = find_weights(value) if is_teacher else None
        if folder is not None and (theirs := read_config(folder).get("range")) != value_range:
            warnings.append(
                f"{key}: {value} was trained with images.range {theirs or 'null'} and gets images of "
                f"{value_range or 'null'}; the same images are darker or brighter so"
            )
    return warnings


def weights_of(config: Config, dataset: Dataset) -> torch.Tensor | None:
    """Return the class weights of the loss, [C]; None for none."""
    requested = config.data.class_weights
    if requested is None:
        return None
    labels = dataset.train.records.labels
    if labels.ndim == 2:
        return positive_weights(requested, dataset.classes, labels)
    return class_weights(requested, dataset.classes, torch.bincount(labels, minlength=len(dataset.classes)))


def build_guides(config: Config, student: nn.Module, data_spec: DataSpec) -> dict[str, Guide]:
    """Build the guides of a config for this student. Raises: UserError that names the recipe's entry."""
    guides: dict[str, Guide] = {}
    opened: Opened = {}
    for name, entry in config.values["guides"].items():
        made = guide_class(name, entry)
        try:
            with shared_teachers(opened):
                guides[name] = made(student, data_spec, **made_parts(made, settings(entry)))
            Taps(student, guides[name].needs)
        except UserError as error:
            raise UserError(f"guides.{name}: {error}") from error
    return guides


def augmentations(config: Config, dataset: Dataset, spec: BatchSpec) -> tuple[Augment, ...]:
    """Return one augmentation a view: one, or two with a second view (`augment2`), then the local crops."""
    data_spec = data_spec_of(dataset)
    large = [config.values["augment"], *filter(None, [config.values["augment2"]])]
    local = config.values["augment_local_crops"], (spec.local_size, spec.local_size)
    sections = [*((section, data_spec.image_size) for section in large), *[local] * spec.local_crops]
    shared = data_spec.mean, data_spec.std, len(data_spec.classes)
    return tuple(
        Augment(transforms(section), image_size, *shared, 0 if view else spec.noise)
        for view, (section, image_size) in enumerate(sections)
    )
