# SPDX-License-Identifier: Apache-2.0
"""From a source of objects or of classes of pixels to the splits that a run learns from and is judged by.

Images go the way of all images (dataset.py): split, decoded once, kept. What is found in them is checked against the
images' true sizes before anything is learnt.
"""

import dataclasses
import hashlib
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
from .batches.annotated import side_of
from .dataset import Dataset, prepare, read_rows
from .decoded_cache import find_near_duplicates
from .image_set import Images
from .image_settings import ImageSettings
from .images.decode import DECODED, orientation_of
from .sources.annotated import DenseSource
from .sources.files import file_fingerprint
from .sources.mask_folders import read_mask
from .splits import Selection, groups_of, use_validation
from .target_checks import counts, gone, narrow_boxes, needed_of_mask, needed_of_split, unshown, warnings_of
from .targets.objects import NOTHING, Annotations, Boxed, Masked, Objects
from .targets.outlines import check_outlines, fault
from .targets.turn import turned

OUTSIDE = 1.0  # pixels by which a box may stick out of its image: lists are rounded


def prepare_dense(
    source: DenseSource,
    selection: Selection,
    pictures: ImageSettings,
    seed: int = 0,
    progress: Progress | None = None,
    remembered: Mapping[str, Sequence[str]] | None = None,
    masks: bool = False,
) -> Dataset:
    """Make images and what is in them ready for a run.

    Args:
        source: images with objects, or with classes of pixels.
        selection: which images to use. Where the source declares no test or validation images, some are held out.
        pictures: in what size.
        seed: the run's.
        progress: told how many images are decoded.
        remembered: as in `dataset.prepare`.
        masks: whether masks of objects are needed.

    Raises: UserError if nothing could be learnt from the data, or not rightly.
    """
    if selection.per_class is not None:
        raise UserError("data.per_class counts images of a class, and these hold several each; give data.fraction")
    if pictures.fit != "crop":
        raise UserError(f"images.fit {pictures.fit} would move boxes and masks; scale_jitter keeps images whole, too")
    if isinstance(pictures.image_size, list):
        raise UserError(f"objects and pixels are learnt from squares, got images.image_size {pictures.image_size}")
    if selection.folds is not None:
        raise UserError("data.folds deals out images of classes, and these hold several each; leave it out")
    if masks and not any(objects.shapes for objects in source.objects or []):
        raise UserError(f"{source.images.name} has no masks of objects; learn boxes alone: --method.masks false")
    if masks:
        check_outlines()
    source = _kept(source, pictures)
    splits = source.images.splits if remembered else _splits(source, selection, pictures, progress)
    images = dataclasses.replace(source.images, splits=splits)
    held_out = dataclasses.replace(selection, train_on="train", test_on="test")  # that is done
    dataset = prepare(images, held_out, pictures, seed, progress, remembered, labeled=False)
    numbers = {name: i for i, name in enumerate(images.names)}
    notes = list(source.notes)
    held: dict[str, Annotations] = {}
    needed: dict[str, np.ndarray] = {}
    for split, seen in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if seen is not None:
            rows = [numbers[name] for name in dataset.split_names[split]]
            if source.objects is not None:
                held[split], cut = _boxed(source, rows, seen, selection.skip_unreadable, masks)
                notes += [f"left out {cut} of the {split} images"] if cut else []
            else:
                side = dataset.image_settings.cache_size or 0
                held[split], needed[split] = _masked(source, rows, seen, side, progress)
    image_size = min(dataset.image_settings.shape)
    notes += warnings_of(source.classes, held, needed, image_size)
    for split, seen in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if seen is not None and isinstance(boxed := held[split], Boxed):
            sizes = needed_of_split(boxed.objects, [seen.extent(i) for i in range(len(seen))])
            notes += narrow_boxes(source.classes, split, boxed.objects, sizes, image_size)
    drawn = {split: _fingerprint(each) for split, each in sorted(held.items())}
    marks = [*source.classes, *(f"{split}={mark}" for split, mark in drawn.items())]
    return dataclasses.replace(
        dataset,
        classes=source.classes,
        annotations=held,
        warnings=(*dataset.warnings, *notes),
        fingerprint=digest([dataset.fingerprint, *marks]),
        portable=digest([dataset.portable, *marks]),
        contents={split: digest([dataset.contents[split], mark]) for split, mark in drawn.items()},
    )


def prepare_dense_test(
    source: DenseSource,
    classes: Sequence[str],
    pictures: ImageSettings,
    skip: bool = False,
    progress: Progress | None = None,
    masks: bool = False,
) -> tuple[Images, Annotations, list[str]]:
    """Other data to judge a trained detector or segmenter by: its test split, or all of it where it declares none.

    Args:
        source: images with objects, or with classes of pixels.
        classes: the network's, in their order; the data may lack some, but have no others.
        pictures: the sizes that the network was trained with.
        skip: go on without images that cannot be read, and without boxes that are empty or reach outside.
        progress: told how many images are decoded.
        masks: whether masks of objects are judged.

    Returns: the images; what is in them, by the network's classes; what a person should know.
    Raises: UserError if the data has a class that the network does not know, or nothing to judge by.
    """
    name = source.images.name
    if strangers := [each for each in source.classes if each not in classes]:
        raise UserError(
            f"{name} has {counted(len(strangers), 'class')} that this network did not learn: {some(strangers, 5)}; "
            f"it learnt {some(list(classes), 10)}"
        )
    source = _kept(source, pictures)
    source = _renumbered(source, [list(classes).index(each) for each in source.classes], tuple(classes))
    rows = source.images.splits.get("test", np.arange(len(source.images)))
    images, skipped = read_rows(source.images, rows, pictures, skip, progress)
    kept = [row for row in rows.tolist() if source.images.names[row] not in skipped]
    notes = [f"skipped {counted(len(skipped), 'image')} that could not be read: {some(list(skipped), 5)}"]
    notes = [*source.notes, *(notes if skipped else [])]
    held: Annotations
    needed = np.zeros((0, 256), np.float32)
    if source.objects is not None:
        drawn = all(source.objects[row].shapes is not None for row in kept if len(source.objects[row]))
        held, cut = _boxed(source, kept, images, skip, masks and drawn)
        notes += [f"left out {cut} of {name}"] if cut else []
        notes += [] if drawn or not masks else [f"not every object of {name} has a mask, so boxes alone are judged"]
        sizes = needed_of_split(held.objects, [images.extent(i) for i in range(len(images))])
        notes += narrow_boxes(classes, name, held.objects, sizes, min(pictures.shape))
    else:
        held, needed = _masked(source, kept, images, side_of(images), progress)
        notes += gone(classes, name, needed, counts(classes, held).tolist(), min(pictures.shape))
    shown = counts(classes, held)
    there = shown.numpy() + (needed > 0).sum(0)[: len(classes)]
    if not shown.sum():
        what = "object" if isinstance(held, Boxed) else "labeled pixel"
        raise UserError(f"{name} has no {what} in any of its {counted(len(kept), 'image')} to be judged by")
    if absent := [each for each, count in zip(classes, there.tolist(), strict=True) if not count]:
        missing = (
            f"none of its {counted(len(kept), 'image')} shows {some(absent, 5)}, which this network was trained on"
        )
        notes.append(f"{missing}: {unshown(held)}")
    return images, held, notes


def _kept(source: DenseSource, pictures: ImageSettings) -> DenseSource:
    """The same with images of which as much is kept as the settings say."""
    return dataclasses.replace(source, images=dataclasses.replace(source.images, pixel_format=pictures.pixel_format))


def _renumbered(source: DenseSource, numbers: list[int], classes: tuple[str, ...]) -> DenseSource:
    """The same by the classes of a network; `numbers` are theirs, in the order of the source's."""
    if source.objects is not None:
        label = torch.tensor(numbers)
        moved = [dataclasses.replace(each, labels=label[each.labels]) if len(each) else each for each in source.objects]
        return dataclasses.replace(source, classes=classes, objects=moved)
    assert source.values is not None
    values = source.values.copy()
    for old, new in enumerate(numbers):
        values[source.values == old] = new
    return dataclasses.replace(source, classes=classes, values=values)


def _splits(
    source: DenseSource, selection: Selection, pictures: ImageSettings, progress: Progress | None
) -> dict[str, np.ndarray]:
    """The source's own splits, used as is asked for, and what is held out where it declares none."""
    ignored = selection.near_duplicates == "ignore" or pictures.stream
    copies = None if ignored else find_near_duplicates(source.images, progress)
    groups = groups_of(copies, selection)
    splits = dict(source.images.splits)
    if selection.test_on == "none":
        splits.pop("test", None)
    use_validation(splits, selection, source.images.name)
    if "train" not in splits:
        by_name = f", by the name of {some(source.lists, 3)}" if source.lists else ""
        raise UserError(f"{source.images.name} holds no training images, only {' and '.join(splits)}{by_name}")
    for kind, fraction in (("test", selection.test_fraction), ("val", selection.val_fraction)):
        if kind not in splits and fraction > 0 and not (kind == "test" and selection.test_on == "none"):
            rows = splits["train"]
            near = None if groups is None else groups[rows]
            stay, out = subsets.holdout(np.zeros(len(rows), dtype=np.int64), fraction, selection.split_seed, near)
            splits["train"] = rows[stay]
            splits |= {kind: rows[out]} if len(out) else {}
    return splits


def _boxed(source: DenseSource, rows: list[int], images: Images, skip: bool, masks: bool) -> tuple[Boxed, str]:
    """Objects of a split, upright and inside their images, and what was left out for that."""
    assert source.objects is not None
    wrong: list[str] = []
    torn: list[str] = []
    held: list[Objects] = []
    for place, row in enumerate(rows):
        objects, name = source.objects[row], source.images.names[row]
        if not len(objects):
            held.append(NOTHING)
            continue
        size = images.extent(place)
        if masks:
            faults = _faults(objects, objects.size or size, name)
            torn += [why for why in faults if why]
            objects = objects.part(torch.tensor([not why for why in faults]))
        if objects.size is not None and objects.size != size:
            upright = objects if masks else dataclasses.replace(objects, shapes=None)  # some masks cannot be turned
            objects = turned(upright, size, orientation(source, row), name)
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
            f"{some(wrong, 3)}; mend them, or go on without them: --skip-unreadable"
        )
    if torn and not skip:
        raise UserError(
            f"{counted(len(torn), 'mask')} cannot be drawn: {some(torn, 3)}; mend them, or go on without their "
            "objects: --skip-unreadable"
        )
    shaped = all(objects.shapes is not None for objects in held if len(objects))
    left = [f"{counted(len(wrong), 'empty or outlying box')}: {some(wrong, 3)}"] if wrong else []
    left += [f"{counted(len(torn), 'mask')} that cannot be drawn: {some(torn, 3)}"] if torn else []
    return Boxed(held, shaped), f"{' and '.join(left)}," if left else ""


def _faults(objects: Objects, size: tuple[int, int], name: str) -> list[str]:
    """Of every object why its mask cannot be drawn, "" where it can. Raises: UserError where objects have none."""
    if objects.shapes is None:
        raise UserError(f"{name} has objects without a mask; draw them, or learn boxes alone: --method.masks false")
    whys = [fault(shape, *size) for shape in objects.shapes]
    return [f"{name}, object {i}: {why}" if why else "" for i, why in enumerate(whys, 1)]


def orientation(source: DenseSource, row: int) -> int:
    """EXIF orientation of an image."""
    opened = source.images.reader.open(row)
    if isinstance(opened, DECODED):
        return 1
    with opened as file:
        return orientation_of(file, source.images.names[row], source.images.pixel_format)


def _masked(
    source: DenseSource, rows: list[int], images: Images, side: int, progress: Progress | None
) -> tuple[Masked, np.ndarray]:
    """Masks of a split, read and checked once, squeezed to the store's square by the nearest pixel, and kept; and of
    every image and class the image size that it needs (`needed_of_mask`), [N, 256]."""
    assert source.masks is not None
    assert source.values is not None
    paths = [source.masks[row] for row in rows]
    original = partial(_original, source, rows, images)
    marks = [file_fingerprint(path.stat) for path in paths]
    parts = ["masks 3", str(side), *map(str, paths), *marks, source.values.tobytes().hex(), *source.images.fingerprints]
    numbers = source.images.pixel_format.fingerprint  # their masks lie otherwise than pictures'
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


def _original(source: DenseSource, rows: list[int], images: Images, i: int) -> np.ndarray:
    """The mask of image i of a split, upright."""
    assert source.masks is not None
    assert source.values is not None
    return read_mask(source.masks[rows[i]], source.values, images.extent(i), orientation(source, rows[i]))


def _fingerprint(held: Annotations) -> str:
    """Changes with anything that is learnt or judged by."""
    hashed = hashlib.blake2b(digest_size=16)
    if isinstance(held, Boxed):
        for objects in held.objects:
            for values in (objects.boxes, objects.labels, objects.crowd):
                hashed.update(values.numpy().tobytes())
            hashed.update(repr(objects.shapes).encode())
    else:
        for part in torch.split(held.rows, 64):
            hashed.update(held.pixels[part].numpy().tobytes())
    return hashed.hexdigest()
