# SPDX-License-Identifier: Apache-2.0
"""ImageNet's classes under different names, and ReaL's labels for its validation images.

ReaL's real.json is a list of lists of classes in the order of the images' numbers (ILSVRC2012_val_00000001 first): an
image has several true classes or none. Source: Beyer et al., "Are we done with ImageNet?", arXiv:2006.07159;
github.com/google-research/reassessed-imagenet.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.sources.source import Source
from ...data.sources.written import json_of, whole
from ...errors import UserError
from ...models.data_spec import DataSpec

IMAGENET_CLASSES = 1000
_WNID = re.compile(r"n\d{8}")
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def _info() -> tuple[list[str], list[str]]:
    """Return ImageNet's WordNet ids and the words for them."""
    from timm.data.imagenet_info import ImageNetInfo

    info: Any = ImageNetInfo("imagenet-1k")
    return info.label_names(), info.label_descriptions()


def are_imagenets(classes: Sequence[str]) -> bool:
    """Return whether a run's classes are ImageNet's 1,000, in order: by WordNet ids, or by the words for them, of which
    data may use only the first, or add the id."""
    return len(classes) == IMAGENET_CLASSES and all(
        name == wnid or name.startswith(words.split(",")[0])
        for name, wnid, words in zip(classes, *_info(), strict=True)
    )


def _by_wnid(source: Source) -> bool:
    return all(_WNID.fullmatch(name) for name in source.classes)


def is_part(source: Source, data_spec: DataSpec) -> bool:
    """Return whether data holds only some of ImageNet's classes, as ImageNet-A and -R do."""
    named = _by_wnid(source) or len(data_spec.classes) == IMAGENET_CLASSES
    return named and 0 < len(source.classes) < len(data_spec.classes)


def with_run_names(source: Source, data_spec: DataSpec) -> Source:
    """Rename classes from WordNet ids to the words of a run that was trained on torchvision's `imagenet`."""
    same_names = set(source.classes) <= set(data_spec.classes)
    if not source.classes or not _by_wnid(source) or same_names or len(data_spec.classes) != IMAGENET_CLASSES:
        return source
    index_of = {wnid: i for i, wnid in enumerate(_info()[0])}
    unknown = [name for name in source.classes if name not in index_of]
    if unknown:
        raise UserError(f"{unknown[0]} is not one of ImageNet's 1,000 classes; remove its folder from {source.name}")
    return dataclasses.replace(source, classes=tuple(data_spec.classes[index_of[name]] for name in source.classes))


def is_numbered(source: Source, data_spec: DataSpec) -> bool:
    """Return whether data names ImageNet's classes by their numbers, as ImageNet-V2 does."""
    numbers = [name.isascii() and name.isdigit() and int(name) < IMAGENET_CLASSES for name in source.classes]
    other_names = len(data_spec.classes) == IMAGENET_CLASSES and not set(source.classes) <= set(data_spec.classes)
    return other_names and bool(numbers) and all(numbers)


def by_number(source: Source, data_spec: DataSpec) -> Source:
    """Rename numbered classes to the run's names."""
    return dataclasses.replace(source, classes=tuple(data_spec.classes[int(name)] for name in source.classes))


def read_truth(path: Path) -> list[list[int]]:
    """Read ReaL's classes of every validation image. Raises: UserError for another file."""
    try:
        truth = [[whole(label) for label in labels] for labels in json_of(path)]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a list of true classes like ReaL's real.json: {error}") from error
    if any(not 0 <= label < IMAGENET_CLASSES for labels in truth for label in labels):
        raise UserError(f"{path} has classes beyond ImageNet's 1,000, which are numbered from 0")
    return truth


def relabeled(names: Sequence[str], truth: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the places of the images that have a true class, [n] int64, and all their classes, [n, 1000] bool.

    Raises: UserError for an image that is not in ImageNet's validation set, or if none has a class.
    """
    labels_of: dict[int, Sequence[int]] = {}
    for place, name in enumerate(names):
        match = _NUMBER.search(name)
        if match is None or not 1 <= int(match[1]) <= len(truth):
            raise UserError(f"{name} is not one of ImageNet's validation images; use a run that was tested on those")
        if labels := truth[int(match[1]) - 1]:
            labels_of[place] = labels
    if not labels_of:
        raise UserError("none of the run's test images has a true class there")
    classes = torch.zeros(len(labels_of), IMAGENET_CLASSES, dtype=torch.bool)
    for row, labels in enumerate(labels_of.values()):
        classes[row, labels] = True
    return torch.tensor(list(labels_of)), classes
