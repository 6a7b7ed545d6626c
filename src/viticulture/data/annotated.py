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
    selection: DataSettings,
    pictures: ImageSettings,
    seed: int = 0,
    progress: Progress | None = None,
    remembered: Mapping[str, Sequence[str]] | None = None,
    masks: bool = False,
) -> Dataset:
    """Prepare images and their targets for a run.

    Args:
        source: images with objects, or with classes of pixels.
        selection: which images to use. Where the source declares no test or validation images, some are held out.
        pictures: size and format of the images.
        seed: of the run.
        progress: called with the number of images decoded.
        remembered: as in `dataset.prepare`.
        masks: whether masks of objects are needed.

    Raises: UserError if the data cannot be trained on.
    """
    if selection.per_class is not None:
        raise UserError("data.per_class counts images of a class, and these hold several each; give data.fraction")
    if pictures.fit != "crop":
        raise UserError(f"images.fit {pictures.fit} would move boxes and masks; scale_jitter keeps images whole, too")
    if isinstance(pictures.image_size, list):
        raise UserError(f"detection and segmentation need square images, got images.image_size {pictures.image_size}")
    if selection.folds is not None:
        raise UserError("data.folds divides the images of each class, and these hold several each; leave it out")
    if masks and not any(objects.shapes for objects in source.objects):
        raise UserError(f"{source.name} has no masks of objects; train on boxes alone: --method.masks false")
    if masks:
        check_outlines()
    source = dataclasses.replace(source, pixel_format=pictures.pixel_format)
    splits = source.splits if remembered else _splits(source, selection, pictures, progress)
    images = dataclasses.replace(source.images_alone, splits=splits)
    held_out = dataclasses.replace(selection, train_on="train", test_on="test")  # both are done by _splits
    dataset = prepare(images, held_out, pictures, seed, progress, remembered, labeled=False)
    numbers = {name: i for i, name in enumerate(source.names)}
    warnings = list(source.warnings)
    held: dict[str, Annotations] = {}
    needed: dict[str, np.ndarray] = {}
    for split, seen in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if seen is not None:
            rows = [numbers[name] for name in dataset.split_names[split]]
            if isinstance(source.targets, list):
                held[split], cut = _boxed(source, rows, seen, selection.skip_unreadable, masks)
                warnings += [f"left out {cut} of the {split} images"] if cut else []
            else:
                side = dataset.image_settings.cache_size or 0
                held[split], needed[split] = _masked(source, rows, seen, side, progress)
    image_size = min(dataset.image_settings.shape)
    warnings += warnings_of(source.classes, held, needed, image_size)
    for split, seen in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if seen is not None and isinstance(boxed := held[split], Boxed):
            sizes = needed_of_split(boxed.objects, [seen.extent(i) for i in range(len(seen))])
            warnings += narrow_boxes(source.classes, split, boxed.objects, sizes, image_size)
    drawn = {split: digest_of(each) for split, each in sorted(held.items())}
    marks = [*source.classes, *(f"{split}={mark}" for split, mark in drawn.items())]
    return dataclasses.replace(
        dataset,
        classes=source.classes,
        annotations=held,
        warnings=(*dataset.warnings, *warnings),
        fingerprint=digest([dataset.fingerprint, *marks]),
        portable=digest([dataset.portable, *marks]),
        contents={split: digest([dataset.contents[split], mark]) for split, mark in drawn.items()},
    )


def prepare_annotated_test(
    source: Source,
    classes: Sequence[str],
    pictures: ImageSettings,
    skip: bool = False,
    progress: Progress | None = None,
    masks: bool = False,
) -> tuple[Images, Annotations, list[str]]:
    """Prepare other data to evaluate a trained detector or segmenter on: its test split, or all of it without one.

    Args:
        source: images with objects, or with classes of pixels.
        classes: of the network, in its order; the data may lack some, but have no others.
        pictures: the settings that the network was trained with.
        skip: leave out images that cannot be read, and boxes that are empty or reach outside.
        progress: called with the number of images decoded.
        masks: whether masks of objects are evaluated.

    Returns: the images; their targets, by the network's classes; warnings.
    Raises: UserError if the data has a class that the network was not trained on, or no targets.
    """
    name = source.name
    if strangers := [each for each in source.classes if each not in classes]:
        raise UserError(
            f"{name} has {counted(len(strangers), 'class')} that this network was not trained on: "
            f"{some(strangers, 5)}; it was trained on {some(list(classes), 10)}"
        )
    source = dataclasses.replace(source, pixel_format=pictures.pixel_format)
    source = _renumbered(source, [list(classes).index(each) for each in source.classes], tuple(classes))
    rows = source.splits.get("test", np.arange(len(source)))
    images, skipped = read_rows(source.images_alone, rows, pictures, skip, progress)
    kept = [row for row in rows.tolist() if source.names[row] not in skipped]
    warnings = [f"skipped {counted(len(skipped), 'image')} that could not be read: {some(list(skipped), 5)}"]
    warnings = [*source.warnings, *(warnings if skipped else [])]
    held: Annotations
    needed = np.zeros((0, 256), np.float32)
    if isinstance(source.targets, list):
        drawn = all(source.objects[row].shapes is not None for row in kept if len(source.objects[row]))
        held, cut = _boxed(source, kept, images, skip, masks and drawn)
        warnings += [f"left out {cut} of {name}"] if cut else []
        warnings += (
            [] if drawn or not masks else [f"not every object of {name} has a mask, so boxes alone are evaluated"]
        )
        sizes = needed_of_split(held.objects, [images.extent(i) for i in range(len(images))])
        warnings += narrow_boxes(classes, name, held.objects, sizes, min(pictures.shape))
    else:
        held, needed = _masked(source, kept, images, images.side, progress)
        warnings += gone(classes, name, needed, counts(classes, held).tolist(), min(pictures.shape))
    shown = counts(classes, held)
    there = shown.numpy() + (needed > 0).sum(0)[: len(classes)]
    if not shown.sum():
        what = "object" if isinstance(held, Boxed) else "labeled pixel"
        raise UserError(f"{name} has no {what} in any of its {counted(len(kept), 'image')} to evaluate on")
    if absent := [each for each, count in zip(classes, there.tolist(), strict=True) if not count]:
        missing = (
            f"none of its {counted(len(kept), 'image')} shows {some(absent, 5)}, which this network was trained on"
        )
        warnings.append(f"{missing}: {unshown(held)}")
    return images, held, warnings


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
    source: Source, selection: DataSettings, pictures: ImageSettings, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Return the splits that the source declares, used as selected, and held-out ones where it declares none."""
    ignored = selection.near_duplicates == "ignore" or pictures.stream
    copies = None if ignored else find_near_duplicates(source.images_alone, progress)
    groups = groups_of(copies, selection)
    splits = dict(source.splits)
    apply_test_on(splits, selection, source.name)
    if "train" not in splits:
        by_name = f", by the name of {some(source.lists, 3)}" if source.lists else ""
        raise UserError(f"{source.name} holds no training images, only {' and '.join(splits)}{by_name}")
    for kind, fraction in fractions_to_hold_out(splits, selection):
        rows = splits["train"]
        near = None if groups is None else groups[rows]
        stay, out = subsets.holdout(np.zeros(len(rows), dtype=np.int64), fraction, selection.split_seed, near)
        splits["train"] = rows[stay]
        splits |= {kind: rows[out]} if len(out) else {}
    return splits


def _boxed(source: Source, rows: list[int], images: Images, skip: bool, masks: bool) -> tuple[Boxed, str]:
    """Return the objects of a split, upright and inside their images, and in words what was left out for that."""
    wrong: list[str] = []
    torn: list[str] = []
    held: list[Objects] = []
    for place, row in enumerate(rows):
        objects, name = source.objects[row], source.names[row]
        if not len(objects):
            held.append(NO_OBJECTS)
            continue
        size = images.extent(place)
        if masks:
            faults = _faults(objects, objects.size or size, name)
            torn += [why for why in faults if why]
            objects = objects.part(torch.tensor([not why for why in faults]))
        if objects.size is not None and objects.size != size:
            upright = objects if masks else dataclasses.replace(objects, shapes=None)  # some masks cannot be turned
            objects = upright.turned(size, source.orientation(row), name)
        height, width = size
        sides = torch.tensor([width, height, width, height], dtype=torch.float32)
        cut = objects.boxes.clamp(min=torch.zeros(4)).minimum(sides)
        out = ((cut - objects.boxes).abs() > OUTSIDE).any(1)
        bad = out | (cut[:, 2:] <= cut[:, :2]).any(1) | ~objects.boxes.isfinite().all(1)
        for box in objects.boxes[bad].tolist():
            wrong.append(f"{name} {[round(side, 1) for side in box]} in {width}x{height}")
        held.append(dataclasses.replace(objects, boxes=cut).part(~bad))
    if wrong and not skip:
        raise UserError(
            f"{counted(len(wrong), 'box')} empty or reaching outside the image (left, top, right, bottom): "
            f"{some(wrong, 3)}; fix them, or go on without them: --skip-unreadable"
        )
    if torn and not skip:
        raise UserError(
            f"{counted(len(torn), 'mask')} cannot be drawn: {some(torn, 3)}; fix them, or go on without their "
            "objects: --skip-unreadable"
        )
    shaped = all(objects.shapes is not None for objects in held if len(objects))
    left = [f"{counted(len(wrong), 'empty or outlying box')}: {some(wrong, 3)}"] if wrong else []
    left += [f"{counted(len(torn), 'mask')} that cannot be drawn: {some(torn, 3)}"] if torn else []
    return Boxed(held, shaped), f"{' and '.join(left)}," if left else ""


def _faults(objects: Objects, size: tuple[int, int], name: str) -> list[str]:
    """Return for every object why its mask cannot be drawn, "" where it can. Raises: UserError for objects without."""
    if objects.shapes is None:
        raise UserError(f"{name} has objects without a mask; draw them, or train on boxes alone: --method.masks false")
    whys = [fault(shape, *size) for shape in objects.shapes]
    return [f"{name}, object {i}: {why}" if why else "" for i, why in enumerate(whys, 1)]


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
        def squeezed(i: int) -> tuple[np.ndarray, np.ndarray]:
            pixels = original(i)
            image = Image.fromarray(pixels)
            return np.asarray(image.resize((side, side), Image.Resampling.NEAREST)), needed_of_mask(pixels)

        shape, needed = (len(rows), side, side), list[np.ndarray]()
        with (folder / "pixels.npy").open("wb") as file:
            np.lib.format.write_array_header_2_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for pixels, sizes in in_parallel(squeezed, range(len(rows)), progress):
                file.write(pixels.tobytes())
                needed.append(sizes)
        np.save(folder / "needed.npy", np.stack(needed))

    folder = cache_folder() / "decoded" / key
    with refusals(folder):
        publish(folder, make, holds=["pixels.npy", "needed.npy"])
        kept = np.load(folder / "pixels.npy", mmap_mode="c", allow_pickle=False)
        needed = np.load(folder / "needed.npy", allow_pickle=False)
    return Masked(torch.from_numpy(kept), torch.arange(len(rows)), original), needed


def _original(source: Source, rows: list[int], images: Images, i: int) -> np.ndarray:
    """Return the mask of image i of a split, upright."""
    return read_mask(source.masks.paths[rows[i]], source.masks.values, images.extent(i), source.orientation(rows[i]))
