# SPDX-License-Identifier: Apache-2.0
"""Data for a config's method: opened or refused, split and decoded; and the default recipe for them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

from ..config.keys import FINE_TUNE
from ..config.resolve import Config
from ..config.schema import transform_class
from ..config.start import load_started
from ..data.annotated import prepare_annotated
from ..data.dataset import Dataset, prepare
from ..data.image_settings import normalization
from ..data.images.decode import Unreadable
from ..data.open import ANNOTATED, open_source, open_unlabeled
from ..data.sources.several import are_numbers, as_numbers, is_joined, separated
from ..data.sources.source import RECIPES, Source
from ..data.target_checks import check_wide_enough, needed_of_split
from ..data.targets.objects import Boxed
from ..data.transforms.crop import ScaleJitter
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..parallel import Progress
from .assemble import student_of
from .progress import showing

CHOSEN = {
    RECIPES["labels"]: "images have several labels, which {} predicts one by one; --recipe default/photos predicts "
    "combinations",
    RECIPES["numbers"]: "labels are numbers, so {} is the recipe; --recipe default/photos trains each as a class",
}
"""Default recipe -> why it was chosen."""


def open_for(config: Config, data: Any, unlabeled: bool = True) -> Source:
    """Open data with the targets that a recipe's method is trained on. A method that uses no labels takes images with
    objects or masks as well, in the splits of those. `unlabeled`: with the images of data.unlabeled, if any."""
    spec = config.method_class.batch_spec
    source = open_source(data, spec.contents if spec.labels else None, annotations_first=not spec.labels)
    if source.targets is not None:
        return source
    return for_method(config, source) if unlabeled else labeled_for(config, source)


def for_method(config: Config, source: Source) -> Source:
    """Return `labeled_for`, with the images of data.unlabeled."""
    labeled = labeled_for(config, source)
    return labeled if config.data.unlabeled is None else labeled.with_unlabeled(open_unlabeled(config.data.unlabeled))


def labeled_for(config: Config, source: Source) -> Source:
    """Return a source with the labels that a config's method uses, as numbers, or joined ones (`cat|dog`) separated or
    not, with a warning where the other way may be meant. For a method without labels they are separated as well: it
    holds out the same images as a student of several labels."""
    spec, joined = config.method_class.batch_spec, is_joined(source)
    if spec.labels and spec.contents == "numbers":
        return as_numbers(source)
    if spec.contents == "labels" and source.labels.ndim == 1:
        single = () if joined else (f"no label of {source.name} is joined to another (cat|dog): it has one an image",)
        return replace(separated(source), warnings=(*source.warnings, *single))
    if source.labels.ndim == 2 and spec.labels and spec.contents == "classes":
        raise UserError(
            f"{source.name} has several labels an image; train on them by viticulture train DATA --recipe "
            f"{RECIPES['labels']}"
        )
    if not spec.labels:
        return separated(source) if joined else source
    if joined:
        example = next(name for name in source.classes if "|" in name)
        warning = (
            f"images have several labels, such as {example}, and each combination is trained as a class; to train on "
            f"several labels per image: --recipe {RECIPES['labels']}"
        )
    elif are_numbers(source):
        warning = (
            f"labels are numbers, such as {source.classes[0]}, and each is trained as a class; to train on numbers: "
            f"--recipe {RECIPES['numbers']}"
        )
    else:
        return source
    return replace(source, warnings=(*source.warnings, warning))


def open_by_default(data: Any) -> tuple[Source, str, tuple[str, ...]]:
    """Open data for which no recipe is named.

    Returns: it, the shipped recipe for such data, and a warning where that is not one of a class per image.
    """
    source = open_source(data)
    if source.targets is None:
        recipe = default_recipe(source)
        return source, recipe, (CHOSEN[recipe].format(recipe),) if recipe in CHOSEN else ()
    recipe = RECIPES[source.contents]
    held = ANNOTATED[source.contents].held
    return source, recipe, (f"images come with {held} in place of classes, so {recipe} is the recipe",)


def load_dataset(
    source: Source,
    config: Config,
    seed: int,
    remembered: dict[str, list[str]] | None = None,
    watch: Progress | None = None,
) -> Dataset:
    """Split, select and decode, with a progress bar. Without labels there are no classes and no annotations. `watch`:
    called with the numbers of decoded images and of all; may raise.
    """
    spec = config.method_class.batch_spec
    with showing("reading images") as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            if watch is not None:
                watch(done, total)

        sections = config.data, config.images
        if source.targets is not None:
            masks = config.values["method"].get("masks", False)
            dataset = prepare_annotated(source, *sections, seed, progress, remembered, masks)
            if isinstance(train := dataset.annotations.get("train"), Boxed) and spec.labels:
                needed = needed_of_split(train.objects, [dataset.train.extent(i) for i in range(len(dataset.train))])
                check_wide_enough(needed, min(dataset.image_settings.shape), _enlarged(config))
        else:
            dataset = prepare(source, *sections, seed, progress, remembered, spec.labels)
    return dataset if spec.labels else replace(dataset, classes=(), annotations={})


def _enlarged(config: Config) -> float:
    """Return the largest factor by which a recipe enlarges an image."""
    entries: dict[str, dict[str, Any]] = config.values["augment"]
    scales = [entry["scale"][1] for name, entry in entries.items() if transform_class(name, entry) is ScaleJitter]
    return float(max(scales, default=1))


def default_recipe(source: Source) -> str:
    """Return the shipped recipe for images like these; benchmarks/log holds the evidence for the choice."""
    if source.name == "digits":
        return "default/digits"
    if source.contents in RECIPES:
        return RECIPES[source.contents]
    if is_joined(source):
        return RECIPES["labels"]
    if are_numbers(source):
        return RECIPES["numbers"]
    some = range(0, len(source), -(-len(source) // 32))
    sides = []
    for i in some:
        with suppress(Unreadable):
            sides.append(min(source.size_of(i)))
    if not sides or median(sides) > 64:
        return "default/photos"
    return "default/small-images" if median(sides) >= 32 else "default/tiny-images"


def resolve_default(name: str, overrides: Mapping[str, Any] | None) -> Config:
    """Return a default recipe with the user's keys, without its patch size where it does not fit the user's student.

    That of a class an image is the one for fine-tuning where the user names a trained network.
    """
    if (overrides or {}).get("student.init") is not None and name.startswith("default/") and "digits" not in name:
        name = FINE_TUNE
    config = load_started(name, overrides)
    given, student, images = overrides or {}, config.student, config.images
    chosen = student.patch_size is not None and "student.patch_size" not in given and images.image_size is not None
    if not chosen or not given.keys() & {"student", "student.name"}:
        return config
    try:
        student_of(config, DataSpec(("one", "other"), images.shape, *normalization("half", images.channels)))
    except UserError:
        warning = f"student.patch_size {student.patch_size} of {name} is left out, as it does not fit {student.name}"
        fitted = config.changed({"student.patch_size": None}, by="default")
        return replace(fitted, warnings=(*fitted.warnings, warning))
    return config
