# SPDX-License-Identifier: Apache-2.0
"""ImageNet's validation images with several true classes each, or none: ReaL's real.json, a list of lists of classes in
the order of the images' numbers (ILSVRC2012_val_00000001 first). Images without a class are left out.

Source: Beyer et al., "Are we done with ImageNet?", arXiv:2006.07159; github.com/google-research/reassessed-imagenet.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...data.sources.written import json_of, whole
from ...errors import UserError
from .imagenet import IMAGENET_CLASSES

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def read_truth(path: Path) -> list[list[int]]:
    """Classes of every validation image. Raises: UserError for what is no such file."""
    try:
        truth = [[whole(label) for label in labels] for labels in json_of(path)]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no list of true classes, as ReaL's real.json is: {error}") from error
    if any(not 0 <= label < IMAGENET_CLASSES for labels in truth for label in labels):
        raise UserError(f"{path} names classes beyond ImageNet's 1,000, which are numbered from 0")
    return truth


def relabeled(names: Sequence[str], truth: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Which of some images have a true class, [n] int64, and all their true classes, [n, 1000] bool.

    Args:
        names: of the images, as their files are called.
        truth: by the images' numbers, from 1.

    Raises: UserError if an image is none of ImageNet's validation set, or none has a class.
    """
    answers: dict[int, Sequence[int]] = {}
    for place, name in enumerate(names):
        match = _NUMBER.search(name)
        if match is None or not 1 <= int(match[1]) <= len(truth):
            raise UserError(f"{name} is none of ImageNet's validation images; a run that was tested on those is needed")
        if labels := truth[int(match[1]) - 1]:
            answers[place] = labels
    if not answers:
        raise UserError("none of the run's test images has a true class there")
    classes = torch.zeros(len(answers), IMAGENET_CLASSES, dtype=torch.bool)
    for row, labels in enumerate(answers.values()):
        classes[row, labels] = True
    return torch.tensor(list(answers)), classes
