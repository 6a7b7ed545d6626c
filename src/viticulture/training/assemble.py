# SPDX-License-Identifier: Apache-2.0
"""From a recipe and a data set to the method that is about to run: student, guides, optimizer settings."""

from dataclasses import replace
from math import lcm

import torch
from torch import nn

from ..config.checks import check_parts
from ..config.keys import VIEWS, flat
from ..config.references import keyword_of
from ..config.resolve import Config
from ..config.schema import guide_class, of_class, settings, transforms
from ..config.sections import Engine, Student, Train
from ..data.balance import class_weights, positive_weights
from ..data.batches.sampling import repeated
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
from ..models.weights.files import find_weights, initialize, read_config, start_digest

BATCHES, MUON_BATCHES = 40, 80
"""Batches in an epoch, at most twice as many, where a recipe leaves them open; LOG.md holds the evidence. By Muon small
batches learn more: of 3,000 images 32 at once are worth two points over 64."""


IMAGE_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
"""Layers whose means over images, or over a map, may be of a single value."""


def data_spec_of(dataset: Dataset) -> DataSpec:
    """What a student of this data set must agree with."""
    several = bool(dataset.classes) and dataset.train.records.labels.ndim == 2
    return DataSpec(dataset.classes, shape_of(dataset.image_size), dataset.mean, dataset.std, several)


def patch_size(wanted: Student, data_spec: DataSpec) -> int | None:
    """The patch to ask for: the recipe's, or the one that fits the images."""
    return fitting_patch(wanted.name, data_spec.image_size) if wanted.patch_size is None else wanted.patch_size


def student_of(config: Config, data_spec: DataSpec) -> nn.Module:
    """A recipe's student with random weights."""
    wanted: Student = config.student
    return create_student(wanted.name, data_spec, patch_size(wanted, data_spec), wanted.options)


def assemble(config: Config, dataset: Dataset, seed: int) -> tuple[Method, list[str]]:
    """The method with its student and guides, initialized from the seed, and warnings about the weights it is given."""
    check_parts(config)
    data_spec = data_spec_of(dataset)
    wanted: Student = config.student
    torch.manual_seed(seed)
    made = config.method_class
    shown = replace(data_spec, classes=()) if made.batch_spec.dense else data_spec  # detectors bring heads of their own
    student = student_of(config, shown)
    warnings = initialize(student, wanted.init, wanted.init_blocks, shown.classes) if wanted.init else []
    taken = {name: tensor.clone() for name, tensor in student.state_dict().items()} if wanted.init else {}
    guides = build_guides(config, student, data_spec)
    keywords = {key: value for key, value in made_parts(made, config.values["method"]).items() if key != "name"}
    optim, schedule, weights = config.optim, config.schedule, weights_of(config, dataset)
    method = made(Setup(student, data_spec, guides, optim, schedule, weights), **keywords)
    method.start = start_digest(student)
    count = method.batch_spec.local_crops
    if bool(count) != bool(config.values["augment_local_crops"]):
        mend = "say by augment_local_crops how they are made" if count else "take augment_local_crops out"
        raise UserError(f"method {config.values['method']['name']} looks at {count} local crops of an image; {mend}")
    started = student.state_dict()
    if lost := [name for name, tensor in taken.items() if not torch.equal(tensor, started[name])]:
        warnings.append(
            f"not kept: {', '.join(lost)}, which method {config.values['method']['name']} sets itself; "
            "method.positions learned keeps what was taken"
        )
    return method, [*warnings, *_other_ranges(config)]


def _other_ranges(config: Config) -> list[str]:
    """A warning for each teacher that learned from images with other values for black and white than it is shown."""
    own, warnings = config.images.range, []
    for key, value in flat(config.values).items():
        is_teacher = keyword_of(key) in ("teacher", "teachers") and isinstance(value, str)
        folder = find_weights(value) if is_teacher else None
        if folder is not None and (theirs := read_config(folder).get("range")) != own:
            warnings.append(
                f"{key}: {value} learned by images.range {theirs or 'null'} and is shown images by {own or 'null'}; "
                "the same images are darker or brighter so"
            )
    return warnings


def weights_of(config: Config, dataset: Dataset) -> torch.Tensor | None:
    """The factors of classes in the loss that a recipe asks for, [C]; None for none."""
    wanted = config.data.class_weights
    if wanted is None:
        return None
    labels = dataset.train.records.labels
    if labels.ndim == 2:
        return positive_weights(wanted, dataset.classes, labels)
    return class_weights(wanted, dataset.classes, torch.bincount(labels, minlength=len(dataset.classes)))


def build_guides(config: Config, student: nn.Module, data_spec: DataSpec) -> dict[str, Guide]:
    """The guides that a recipe names, for this student.

    Raises: UserError that names the recipe's entry.
    """
    guides = {}
    for name, entry in config.values["guides"].items():
        made = guide_class(name, entry)
        try:
            guides[name] = made(student, data_spec, **made_parts(made, settings(entry)))
            Taps(student, guides[name].needs)
        except UserError as error:
            raise UserError(f"guides.{name}: {error}") from error
    return guides


def augmentations(config: Config, dataset: Dataset, spec: BatchSpec) -> tuple[Augment, ...]:
    """One augmentation a view: one, or two where the recipe has a second view (`augment2`), then the local crops.

    Args:
        config: says which.
        dataset: sizes, normalization and classes.
        spec: local crops, and noise, which is drawn with the first view.
    """
    data_spec = data_spec_of(dataset)
    large = [config.values["augment"], *filter(None, [config.values["augment2"]])]
    local = config.values["augment_local_crops"], (spec.local_size, spec.local_size)
    sections = [*((section, data_spec.image_size) for section in large), *[local] * spec.local_crops]
    return tuple(
        Augment(
            transforms(section),
            image_size,
            data_spec.mean,
            data_spec.std,
            len(data_spec.classes),
            spec.noise if view == 0 else 0,
        )
        for view, (section, image_size) in enumerate(sections)
    )


def has_single_image_norms(method: Method, config: Config, size: int) -> bool:
    """Return whether norms over images see a single one at once, in batches of `size` images over all processes."""
    engine: Engine = config.engine
    processes = engine.devices * engine.nodes
    single = size == config.train.accumulate * processes
    shared = engine.sync_batchnorm and processes > 1
    return single and not shared and any(isinstance(layer, IMAGE_NORMS) for layer in method.modules())


def batch_size(config: Config, images: int) -> int:
    """Images per optimizer step over all processes: the recipe's, or a power of two from 16 to 512, the largest that
    leaves an epoch `BATCHES`, cut to what processes and micro-batches can share. Where images are mixed, each of
    several processes gets an even number: then every image's partner, half a batch away, is on the same process, as on
    one.

    Raises: UserError if the recipe asks for more than there are, or for what cannot be shared so.
    """
    train: Train = config.train
    engine: Engine = config.engine
    epoch = len(repeated(torch.arange(images), train.repeats, 1))
    processes = engine.devices * engine.nodes
    mixed = processes > 1 and any(of_class(config.values[view], "mix") for view in VIEWS)
    shares = lcm(train.accumulate, 2 if mixed else 1) * processes
    rule = f"a multiple of {shares}: train.accumulate is {train.accumulate}, there are {processes} process(es)"
    rule += ", and mixing pairs the images of each" if mixed else ""
    if shares > epoch:
        raise UserError(f"a batch must be {rule}, but an epoch has {epoch} training images; take fewer devices")
    if train.batch_size is None:
        batches = MUON_BATCHES if config.optim.name == "muon" else BATCHES
        size = 16
        while size < 512 and 2 * size * batches <= images:
            size *= 2
        size = min(size, epoch)
        return max(size - size % shares, shares)
    if train.batch_size > epoch:
        raise UserError(
            f"train.batch_size must not exceed the {epoch} training images of an epoch, got {train.batch_size}; "
            "null (--batch-size null) has it chosen"
        )
    if train.batch_size % shares:
        raise UserError(f"train.batch_size must be {rule}; got {train.batch_size}")
    return train.batch_size
