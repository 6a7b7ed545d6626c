# SPDX-License-Identifier: Apache-2.0
"""Data as a recipe's method learns from them: opened or refused, split and decoded; and which recipe suits them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ..config.load import load_config
from ..config.resolve import Config
from ..config.schema import transform_class
from ..data.annotated import prepare_dense
from ..data.dataset import Dataset, prepare
from ..data.image_settings import normalization
from ..data.images.decode import Unreadable
from ..data.open import open_source
from ..data.open_dense import open_any, open_dense, recognized
from ..data.sources.annotated import DenseSource
from ..data.sources.several import is_joined, separated
from ..data.sources.source import Source
from ..data.subsets import count_by_class
from ..data.target_checks import check_wide_enough, needed_of_split
from ..data.targets.objects import Boxed
from ..data.transforms.crop import ScaleJitter
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..parallel import Progress
from .assemble import student_of
from .progress import showing

SEVERAL = "multilabel/photos"
CHOSEN = f"images have several labels, so {SEVERAL} tells each by itself; --recipe default/photos learns combinations"


def open_for(config: Config, data: Any) -> Source | DenseSource:
    """Data as a recipe's method learns from it: images with classes, objects or classes of pixels. A method that reads
    no labels takes images with objects or masks as well, in the splits of those."""
    spec = config.method_class.batch_spec
    if spec.dense:
        if not isinstance(data, str):
            raise UserError(
                f"method {config.values['method']['name']} learns from files with {spec.contents}; name a folder"
            )
        return open_dense(data, spec.contents)
    source = open_labeled(data) if spec.labels else open_any(data)
    return source if isinstance(source, DenseSource) else for_method(config, source)


def for_method(config: Config, source: Source) -> Source:
    """A source's labels as a recipe's method learns from them, joined ones (`cat|dog`) taken apart or not; with a note
    that says so where the other way may have been meant. A method that reads no labels takes them apart as well: it
    holds out the images that a student of several labels is tested on."""
    spec, joined = config.method_class.batch_spec, is_joined(source)
    if spec.contents == "labels" and source.labels.ndim == 1:
        note = () if joined else (f"no label of {source.name} is joined to another (cat|dog): it has one an image",)
        return replace(separated(source), notes=(*source.notes, *note))
    if source.labels.ndim == 2 and spec.labels and spec.contents == "classes":
        raise UserError(f"{source.name} has several labels an image; learn them by --recipe {SEVERAL}")
    if not spec.labels:
        return separated(source) if joined else source
    if not joined:
        return source
    example = next(name for name in source.classes if "|" in name)
    note = (
        f"images have several labels, such as {example}, and each combination is learnt as a class; to learn several "
        f"labels an image: --recipe {SEVERAL}",
    )
    return replace(source, notes=(*source.notes, *note))


ANNOTATED = {"objects": ("boxes of objects", "detection"), "pixels": ("masks of classes", "segmentation")}
"""What a path holds besides images -> it in words, and the folder of recipes that learn it."""
IMAGE_FOLDERS = {"images", "masks", "jpegimages", "segmentationclass", "segmentationobject"}
"""Folders of images in such data, which are no classes."""


def open_labeled(data: Any) -> Source:
    """Images with classes. Raises: UserError, naming the recipe, for images that come with objects or masks instead."""
    source = _opened(data)
    if isinstance(source, Source):
        return source
    annotated, task = ANNOTATED[source]
    raise UserError(f"{data} holds {annotated} and no classes of images; learn by --recipe {task}/photos")


def open_by_default(data: Any) -> tuple[Source | DenseSource, str, tuple[str, ...]]:
    """Data for which no recipe is named.

    Returns: it, the shipped recipe for such data, and a warning where that is not one of a class per image.
    """
    source = _opened(data)
    if isinstance(source, Source):
        recipe = default_recipe(source)
        return source, recipe, (CHOSEN,) if recipe == SEVERAL else ()
    annotated, task = ANNOTATED[source]
    warning = f"images come with {annotated} in place of classes, so {task}/photos is the recipe"
    return open_dense(data, source), f"{task}/photos", (warning,)


def _opened(data: Any) -> Source | str:
    """Images with classes, or the kind of annotation that they have instead: "objects" or "pixels"."""
    kind = recognized(data) if isinstance(data, str) else ""
    if kind and Path(data).is_file() and Path(data).suffix.lower() != ".json":
        return kind  # a table of boxes, whose rows are no images
    try:
        source = open_source(data)
    except UserError:
        if not kind:
            raise
        return kind  # a list that is no list of classes
    counts = count_by_class(source.labels, len(source.classes))
    names = {name.lower() for name, count in zip(source.classes, counts, strict=True) if count}
    return kind if kind and names <= IMAGE_FOLDERS else source


def load_dataset(
    source: Source | DenseSource,
    config: Config,
    seed: int,
    remembered: dict[str, list[str]] | None = None,
    watch: Progress | None = None,
) -> Dataset:
    """Split, choose and decode, with a progress bar. Where the method ignores labels, there are no classes, and nothing
    is in the images. `watch`, too, is told how many are decoded, and may raise."""
    spec = config.method_class.batch_spec
    with showing("reading images") as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            if watch is not None:
                watch(done, total)

        sections = config.data, config.images
        if isinstance(source, DenseSource):
            masks = config.values["method"].get("masks", False)
            dataset = prepare_dense(source, *sections, seed, progress, remembered, masks)
            if isinstance(train := dataset.annotations.get("train"), Boxed) and spec.labels:
                needed = needed_of_split(train.objects, [dataset.train.extent(i) for i in range(len(dataset.train))])
                check_wide_enough(needed, min(dataset.image_settings.shape), _enlarged(config))
        else:
            dataset = prepare(source, *sections, seed, progress, remembered, spec.labels)
    return dataset if spec.labels else replace(dataset, classes=(), annotations={})


def _enlarged(config: Config) -> float:
    """Times by which a recipe shows an image larger than whole, at most."""
    entries: dict[str, dict[str, Any]] = config.values["augment"]
    scales = [entry["scale"][1] for name, entry in entries.items() if transform_class(name, entry) is ScaleJitter]
    return float(max(scales, default=1))


def default_recipe(source: Source) -> str:
    """The shipped recipe for images like these; LOG.md holds the evidence for the choice."""
    if source.name == "digits":
        return "default/digits"
    if is_joined(source) or source.labels.ndim == 2:
        return SEVERAL
    some = range(0, len(source), -(-len(source) // 32))
    sides = []
    for i in some:
        with suppress(Unreadable):
            sides.append(min(source.size_of(i)))
    if not sides or median(sides) > 64:
        return "default/photos"
    return "default/small-images" if median(sides) >= 32 else "default/tiny-images"


def resolve_default(name: str, overrides: Mapping[str, Any] | None) -> Config:
    """Return a default recipe with a user's keys. Its own student's patch size gives way, which a warning says, where
    they name a student that cannot be built with it."""
    config = load_config(name, overrides)
    given, student, images = overrides or {}, config.student, config.images
    own = student.patch_size is not None and "student.patch_size" not in given and images.image_size is not None
    if not own or not given.keys() & {"student", "student.name"}:
        return config
    try:
        student_of(config, DataSpec(("one", "other"), images.shape, *normalization("half", images.channels)))
    except UserError:
        warning = f"student.patch_size {student.patch_size} of {name} is left out, as it does not fit {student.name}"
        fitted = config.changed({"student.patch_size": None}, by="default")
        return replace(fitted, warnings=(*fitted.warnings, warning))
    return config
