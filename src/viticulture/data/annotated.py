# SPDX-License-Identifier: Apache-2.0
"""Prepare images with objects, or with classes of pixels, for training and evaluation.

The images are split, decoded once and cached as all images are (dataset.py). Their targets are checked against the
images' sizes before training.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ..cache import cache_folder, digest, publish, refusals
from ..errors import UserError, counted, some
from ..parallel import Progress, in_parallel
from . import subsets
from .data_settings import DataSettings
from .dataset import Dataset, prepare, read_rows
from .decoded_cache import find_near_duplicates
from .image_set import Images
from .image_settings import ImageSettings
from .sources.files import file_fingerprint
from .sources.mask_folders import read_mask
from .sources.source import Source
from .splits import apply_test_on, fractions_to_hold_out, groups_of
from .target_checks import OUTSIDE, counts, gone, narrow_boxes, needed_of_mask, needed_of_split, unshown, warnings_of
from .targets.objects import NO_OBJECTS, Annotations, Boxed, Masked, Objects, digest_of
from .targets.outlines import check_outlines, fault


def prepare_annotated(
    source: Source,
    settings: DataSettings,
    image_settings: ImageSettings,
    seed: int = 0,
    progress: Progress | None = None,
    remembered: Mapping[str, Sequence[str]] | None = None,
    masks: bool = False,
) -> Dataset:
    """Prepare images and their targets for a run. Raises: UserError if the data cannot be trained on."""
    if settings.per_class is not None:
        raise UserError("data.per_class counts images of a class, and these hold several each; set data.fraction")
    if image_settings.fit != "crop":
        raise UserError(
            f"images.fit {image_settings.fit} would move boxes and masks; scale_jitter keeps images whole, too"
        )
    if isinstance(image_settings.image_size, list):
        size = image_settings.image_size
        raise UserError(f"detection and segmentation need square images, got images.image_size {size}")
    if settings.folds is not None:
        raise UserError("data.folds divides the images of each class, and these hold several each; leave it out")
    if masks and not any(objects.shapes for objects in source.objects):
        raise UserError(f"{source.name} has no masks of objects; train on boxes alone: --method.masks false")
    if masks:
        check_outlines()
    source = dataclasses.replace(source, pixel_format=image_settings.pixel_format)
    splits = source.splits if remembered else _splits(source, settings, image_settings, progress)
    images = dataclasses.replace(source.images_alone, splits=splits)
    chosen = dataclasses.replace(settings, train_on="train", test_on="test")  # both are done by _splits
    dataset = prepare(images, chosen, image_settings, seed, progress, remembered, labeled=False)
    position = {name: i for i, name in enumerate(source.names)}
    warnings = list(source.warnings)
    annotations: dict[str, Annotations] = {}
    needed: dict[str, np.ndarray] = {}
    parts = {split: dataset.splits[split] for split in ("train", "val", "test") if split in dataset.splits}
    for split, part in parts.items():
        rows = [position[name] for name in part.records.names]
        if isinstance(source.targets, list):
            annotations[split], left_out = _boxed(source, rows, part, settings.skip_unreadable, masks)
            warnings += [f"left out {left_out} of the {split} images"] if left_out else []
        else:
            annotations[split], needed[split] = _masked(source, rows, part, part.side, progress)
    image_size = min(dataset.image_settings.shape)
    warnings += warnings_of(source.classes, annotations, needed, image_size)
    for split, part in parts.items():
        if isinstance(boxed := annotations[split], Boxed):
            sizes = needed_of_split(boxed.objects, [part.extent(i) for i in range(len(part))])
            warnings += narrow_boxes(source.classes, split, boxed.objects, sizes, image_size)
    digests = {split: digest_of(each) for split, each in sorted(annotations.items())}
    marks = [*source.classes, *(f"{split}={mark}" for split, mark in digests.items())]
    return dataclasses.replace(
        dataset,
        classes=source.classes,
        annotations=annotations,
        warnings=(*dataset.warnings, *warnings),
        fingerprint=digest([dataset.fingerprint, *marks]),
        portable=digest([dataset.portable, *marks]),
        contents={split: digest([dataset.contents[split], mark]) for split, mark in digests.items()},
    )


def prepare_annotated_test(
    source: Source,
    classes: Sequence[str],
    image_settings: ImageSettings,
    skip: bool = False,
    progress: Progress | None = None,
    masks: bool = False,
) -> tuple[Images, Annotations, list[str]]:
    """Prepare other data to evaluate a trained detector or segmenter on: its test split, or all of it without one.

    Args:
        source: images with objects, or with classes of pixels.
        classes: of the network, in its order; the data may lack some, but have no others.
        skip: leave out images that cannot be read, and boxes that are empty or reach outside.

    Returns: the images; their targets, by the network's classes; warnings.
    Raises: UserError if the data has a class that the network was not trained on, or no targets.
    """
    name = source.name
    if others := [each for each in source.classes if each not in classes]:
        raise UserError(
            f"{name} has {counted(len(others), 'class')} that this network was not trained on: "
            f"{some(others, 5)}; it was trained on {some(list(classes), 10)}"
        )
    source = dataclasses.replace(source, pixel_format=image_settings.pixel_format)
    source = _renumbered(source, [list(classes).index(each) for each in source.classes], tuple(classes))
    rows = source.splits.get("test", np.arange(len(source)))
    images, skipped = read_rows(source.images_alone, rows, image_settings, skip, progress)
    read = [row for row in rows.tolist() if source.names[row] not in skipped]
    warnings = [*source.warnings]
    if skipped:
        warnings.append(f"skipped {counted(len(skipped), 'image')} that could not be read: {some(list(skipped), 5)}")
    annotations: Annotations
    needed, image_size = np.zeros((0, 256), np.float32), min(image_settings.shape)
    if isinstance(source.targets, list):
        have_masks = all(source.objects[row].shapes is not None for row in read if len(source.objects[row]))
        annotations, left_out = _boxed(source, read, images, skip, masks and have_masks)
        warnings += [f"left out {left_out} of {name}"] if left_out else []
        if masks and not have_masks:
            warnings.append(f"not every object of {name} has a mask, so boxes alone are evaluated")
        sizes = needed_of_split(annotations.objects, [images.extent(i) for i in range(len(images))])
        warnings += narrow_boxes(classes, name, annotations.objects, sizes, image_size)
    else:
        annotations, needed = _masked(source, read, images, images.side, progress)
        warnings += gone(classes, name, needed, counts(classes, annotations).tolist(), image_size)
    of_classes = counts(classes, annotations)
    there = of_classes.numpy() + (needed > 0).sum(0)[: len(classes)]
    number = counted(len(read), "image")
    if not of_classes.sum():
        what = "object" if isinstance(annotations, Boxed) else "labeled pixel"
        raise UserError(f"{name} has no {what} in any of its {number} to evaluate on")
    if absent := [each for each, count in zip(classes, there.tolist(), strict=True) if not count]:
        missing = f"none of its {number} shows {some(absent, 5)}, which this network was trained on"
        warnings.append(f"{missing}: {unshown(annotations)}")
    return images, annotations, warnings


def _renumbered(source: Source, numbers: list[int], classes: tuple[str, ...]) -> Source:
    """Return the source by the classes of a network; `numbers` are their positions, in the order of the source's."""
    if isinstance(source.targets, list):
        label = torch.tensor(numbers)
        moved = [dataclasses.replace(each, labels=label[each.labels]) if len(each) else each for each in source.targets]
        return dataclasses.replace(source, classes=classes, targets=moved)
    values = source.masks.values.copy()
    for old, new in enumerate(numbers):
        values[source.masks.values == old] = new
    return dataclasses.replace(source, classes=classes, targets=dataclasses.replace(source.masks, values=values))


def _splits(
    source: Source, settings: DataSettings, image_settings: ImageSettings, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Return the splits that the source declares, used as selected, and held-out ones where it declares none."""
    ignored = settings.near_duplicates == "ignore" or image_settings.stream
    near = None if ignored else find_near_duplicates(source.images_alone, progress)
    groups = groups_of(near, settings)
    splits = dict(source.splits)
    apply_test_on(splits, settings, source.name)
    if "train" not in splits:
        by_name = f", by the name of {some(source.lists, 3)}" if source.lists else ""
        raise UserError(f"{source.name} holds no training images, only {' and '.join(splits)}{by_name}")
    for kind, fraction in fractions_to_hold_out(splits, settings):
        rows = splits["train"]
        together = None if groups is None else groups[rows]
        stay, out = subsets.holdout(np.zeros(len(rows), dtype=np.int64), fraction, settings.split_seed, together)
        splits["train"] = rows[stay]
        splits |= {kind: rows[out]} if len(out) else {}
    return splits


def _boxed(source: Source, rows: list[int], images: Images, skip: bool, masks: bool) -> tuple[Boxed, str]:
    """Return the objects of a split, upright and inside their images, and in words what was left out for that."""
    outside, undrawable, usable = list[str](), list[str](), list[Objects]()
    for place, row in enumerate(rows):
        objects, name = source.objects[row], source.names[row]
        if not len(objects):
            usable.append(NO_OBJECTS)
            continue
        size = images.extent(place)
        if masks:
            if objects.shapes is None:
                fix = "draw them, or train on boxes alone: --method.masks false"
                raise UserError(f"{name} has objects without a mask; {fix}")
            faults = [fault(shape, *(objects.size or size)) for shape in objects.shapes]
            undrawable += [f"{name}, object {i}: {why}" for i, why in enumerate(faults, 1) if why]
            objects = objects.part(torch.tensor([not why for why in faults]))
        if objects.size is not None and objects.size != size:
            upright = objects if masks else dataclasses.replace(objects, shapes=None)  # some masks cannot be turned
            objects = upright.turned(size, source.orientation(row), name)
        height, width = size
        sides = torch.tensor([width, height, width, height], dtype=torch.float32)
        cut = objects.boxes.clamp(min=torch.zeros(4)).minimum(sides)
        beyond = ((cut - objects.boxes).abs() > OUTSIDE).any(1)
        bad = beyond | (cut[:, 2:] <= cut[:, :2]).any(1) | ~objects.boxes.isfinite().all(1)
        for box in objects.boxes[bad].tolist():
            outside.append(f"{name} {[round(side, 1) for side in box]} in {width}x{height}")
        usable.append(dataclasses.replace(objects, boxes=cut).part(~bad))
    if outside and not skip:
        raise UserError(
            f"{counted(len(outside), 'box')} empty or reaching outside the image (left, top, right, bottom): "
            f"{some(outside, 3)}; fix them, or go on without them: --skip-unreadable"
        )
    if undrawable and not skip:
        raise UserError(
            f"{counted(len(undrawable), 'mask')} cannot be drawn: {some(undrawable, 3)}; fix them, or go on without "
            "their objects: --skip-unreadable"
        )
    shaped = all(objects.shapes is not None for objects in usable if len(objects))
    left = [f"{counted(len(outside), 'empty or outlying box')}: {some(outside, 3)}"] if outside else []
    left += [f"{counted(len(undrawable), 'mask')} that cannot be drawn: {some(undrawable, 3)}"] if undrawable else []
    return Boxed(usable, shaped), f"{' and '.join(left)}," if left else ""


def _masked(
    source: Source, rows: list[int], images: Images, side: int, progress: Progress | None
) -> tuple[Masked, np.ndarray]:
    """Return the masks of a split, read and checked once, resized to the cache's square by the nearest pixel, and
    cached; and for every image and class the image size that it needs (`needed_of_mask`), [N, 256]."""
    paths = [source.masks.paths[row] for row in rows]
    original = partial(_original, source, rows, images)
    marks = [file_fingerprint(path.stat) for path in paths]
    parts = ["masks 3", str(side), *map(str, paths), *marks, source.masks.values.tobytes().hex(), *source.fingerprints]
    numbers = source.pixel_format.fingerprint  # their masks lie otherwise than pictures'
    parts += [numbers] if numbers else []
    key = digest(parts)

    def make(folder: Path) -> None:
        def square(i: int) -> tuple[np.ndarray, np.ndarray]:
            pixels = original(i)
            image = Image.fromarray(pixels)
            return np.asarray(image.resize((side, side), Image.Resampling.NEAREST)), needed_of_mask(pixels)

        shape, needed = (len(rows), side, side), list[np.ndarray]()
        with (folder / "pixels.npy").open("wb") as file:
            np.lib.format.write_array_header_2_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for pixels, sizes in in_parallel(square, range(len(rows)), progress):
                file.write(pixels.tobytes())
                needed.append(sizes)
        np.save(folder / "needed.npy", np.stack(needed))

    folder = cache_folder() / "decoded" / key
    with refusals(folder):
        publish(folder, make, holds=["pixels.npy", "needed.npy"])
        pixels = np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False)
        needed = np.load(folder / "needed.npy", allow_pickle=False)
    return Masked(torch.from_numpy(pixels), torch.arange(len(rows)), original), needed


def _original(source: Source, rows: list[int], images: Images, i: int) -> np.ndarray:
    return read_mask(source.masks.paths[rows[i]], source.masks.values, images.extent(i), source.orientation(rows[i]))
