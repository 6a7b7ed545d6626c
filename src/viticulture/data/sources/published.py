# SPDX-License-Identifier: Apache-2.0
"""Published data sets as they are unpacked, in their published formats.

CUB-200-2011 (Wah et al., CNS-TR-2011-001), a folder:

    images.txt                ID PATH          relative to images/
    image_class_labels.txt    ID CLASS         classes are numbered from 1
    train_test_split.txt      ID IS_TRAIN      1 or 0
    classes.txt               CLASS NAME       optional: without it classes are called by their numbers

Tiny-ImageNet (tiny-imagenet-200 of Stanford's course CS231N), a folder:

    train/CLASS/images/FILE
    val/images/FILE
    val/val_annotations.txt    FILE CLASS LEFT TOP RIGHT BOTTOM, between tabs
    test/images/FILE           not read: their classes are not published

iNaturalist (Van Horn et al., CVPR 2018): `viticulture train inat2018/train2018.json` reads val2018.json next to it as
the test, as papers do, since the labels of the published test images are secret. A list is COCO's: images with id and
file_name, annotations with image_id and category_id; paths are relative to the lists' folder.

ImageNet-100: a hundred of ImageNet's classes, drawn at random once and used since (imagenet100.txt). Co-advise cites
Wang and Isola, arXiv:2005.10242, who take these classes from Tian et al., arXiv:1906.05849.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from ...errors import UserError, counted
from .files import FileReader, is_image
from .folders import scan
from .listed import Listed, from_list
from .source import Source
from .written import json_of, lines_of

_CUB = ("images.txt", "image_class_labels.txt", "train_test_split.txt")
_TINY = Path("val", "val_annotations.txt")
IMAGENET100 = "imagenet100"


def format_of(folder: Path) -> Callable[[Path], Source] | None:
    """Return how to open a folder that holds one of these sets; None for any other."""
    if (folder / _TINY).is_file():  # many sort its validation images into folders, so the first one is looked for
        first = [line.split("\t")[0] for _, line in lines_of(folder / _TINY)[:1]]
        if all((folder / "val" / "images" / name).is_file() for name in first):
            return open_tiny_imagenet
    return open_cub if all((folder / name).is_file() for name in _CUB) else None


def open_cub(folder: Path) -> Source:
    """Open CUB-200-2011. Raises: UserError where the lists do not name the same images."""
    paths, labels, trains = (by_number(folder / name) for name in _CUB)
    for name, column in zip(_CUB[1:], (labels, trains), strict=True):
        if other := sorted(paths.keys() ^ column.keys(), key=len):
            raise UserError(f"{folder / name} and {_CUB[0]} do not list the same images: {other[0]} is in one alone")
    names = by_number(folder / "classes.txt") if (folder / "classes.txt").is_file() else {}
    for number, word in trains.items():
        if word not in ("0", "1"):
            raise UserError(f"{folder / _CUB[2]} must say 1 (train) or 0 (test) of image {number}, got {word!r}")
    images = [
        Listed(f"images/{path}", names.get(labels[i], labels[i]), "train" if trains[i] == "1" else "test")
        for i, path in paths.items()
    ]
    return from_list(folder.name or "CUB-200-2011", folder, images)


def by_number(path: Path) -> dict[str, str]:
    """Read a list of an ID and a value per line."""
    column: dict[str, str] = {}
    for number, line in lines_of(path):
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise UserError(f"{path}, line {number}: expected a number and a value, got {line!r}")
        if words[0] in column:
            raise UserError(f"{path}, line {number}: {words[0]} appears twice")
        column[words[0]] = words[1]
    return column


def open_tiny_imagenet(folder: Path) -> Source:
    """Open Tiny-ImageNet. Raises: UserError for a line of the list without a class, or a missing image."""
    paths = sorted(file.path for file in scan(folder)[0] if is_image(file.path))
    images = [
        Listed(path, path.split("/")[1], "train") for path in paths if path.startswith("train/") and path.count("/") > 1
    ]
    for number, line in lines_of(folder / _TINY):
        name, _, rest = line.partition("\t")
        if not (label := rest.partition("\t")[0].strip()):
            raise UserError(f"{folder / _TINY}, line {number}: expected FILE and CLASS between tabs, got {line!r}")
        images.append(Listed(f"val/images/{name}", label, "val", where=f"line {number}"))
    unread = len(paths) - len({image.path for image in images} & {*paths})
    warning = f"not read: {counted(unread, 'image')} without a class, such as those of test"
    return from_list(str(folder / _TINY), folder, images, (warning,) if unread else (), folder.resolve().name)


def open_inaturalist(path: Path) -> Source:
    """Open train....json and val....json by the name of either. Raises: UserError for other JSON, or where the list of
    training images is missing."""
    rest = re.sub("^(train|val)", "", path.stem)
    lists = {kind: path.with_name(f"{word}{rest}{path.suffix}") for kind, word in (("train", "train"), ("test", "val"))}
    if not lists["train"].is_file():
        raise UserError(f"{path} needs {lists['train'].name} next to it, which lists the training images")
    images = [image for kind, file in lists.items() if file.is_file() for image in _inaturalist(file, kind)]
    missing = [] if lists["test"].is_file() else [f"{lists['test'].name} is not there: a part is held out as the test"]
    return from_list(f"iNaturalist {rest}".strip(), path.parent, images, missing)


def _inaturalist(file: Path, kind: str) -> list[Listed]:
    content = json_of(file)
    try:
        paths = {image["id"]: str(image["file_name"]) for image in content["images"]}
        return [
            Listed(paths[annotation["image_id"]], str(annotation["category_id"]), kind, where=f"annotation {number}")
            for number, annotation in enumerate(content["annotations"])
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} is none of iNaturalist's lists ({type(error).__name__}: {error}): images with id and file_name, "
            "and annotations with image_id and category_id, are needed"
        ) from error


def hundred_classes(imagenet: Source) -> Source:
    """Select the images of ImageNet-100's classes. `imagenet`: files in folders that are called by WordNet ids. Raises:
    UserError if a class has no images.
    """
    assert isinstance(imagenet.reader, FileReader)
    listed = resources.files(__package__).joinpath(f"{IMAGENET100}.txt").read_text("utf-8")
    ids = {*listed.partition("\n")[2].split()}
    folders = [path.rsplit("/", 2)[-2] for path in imagenet.reader.paths]
    if missing := sorted(ids - {*folders}):
        raise UserError(f"{imagenet.name} lacks {len(missing)} of ImageNet-100's classes, such as {missing[0]}")
    rows = np.flatnonzero([folder in ids for folder in folders])
    used, labels = np.unique(imagenet.labels[rows], return_inverse=True)
    return replace(
        imagenet,
        name=IMAGENET100,
        classes=tuple(imagenet.classes[label] for label in used),
        labels=labels,
        names=[imagenet.names[row] for row in rows],
        splits={kind: np.flatnonzero(np.isin(rows, part)) for kind, part in imagenet.splits.items()},
        fingerprints=[imagenet.fingerprints[row] for row in rows],
        reader=FileReader(Path(imagenet.reader.root), [imagenet.reader.paths[row] for row in rows.tolist()]),
    )
