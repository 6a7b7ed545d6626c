# SPDX-License-Identifier: Apache-2.0
"""What students are and what they cost.

Those of ours are counted beforehand: `python docs/reference.py` writes costs.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path

import timm
import torch

from .data_spec import DataSpec
from .students import count, create_student, fitting_patch, takes_patch_size

COSTS = Path(__file__).parent / "costs.json"
OPEN_SIDE = 32
"""Pixels of the images for which students are counted that take any."""
CLASSES = 10
FAMILIES = {
    "plain_vit": "plain ViT",
    "mae_vit": "plain ViT to be pre-trained without labels",
    "hybrid_vit": "convolutions, then a few blocks; learns fast",
    "botnet": "convolutions, then attention in bottlenecks; learns fastest",
    "dhvt": "hybrid ViT for small sets",
    "cit": "ViT taught through tokens of its own",
    "many_heads": "no ViT, taught through heads of its own",
    "rednet": "involutions, no ViT; a teacher",
    "agent": "CNN, no ViT; a guide",
    "cvt": "hybrid ViT, for comparison",
}
"""File or room of a student -> what it is for, in words."""


@dataclass(frozen=True)
class Entry:
    """One student.

    Args:
        name: of it.
        purpose: what it is, and is for.
        side: of the images that it is counted for, pixels; None where it was not counted.
        parameters: with a head for `CLASSES` classes.
        macs: multiply-adds for one image, as `students.count` has them.
    """

    name: str
    purpose: str
    side: int | None = None
    parameters: int | None = None
    macs: int | None = None


def entries(names: Sequence[str], most: int) -> list[Entry]:
    """What is known of students; those that are not ours are counted now, if there are no more than `most` of them."""
    costs = {name: tuple(numbers) for name, numbers in json.loads(COSTS.read_text(encoding="utf-8")).items()}
    left = [name for name in names if name not in costs]
    if len(left) <= most:
        costs |= {name: counted for name in left if (counted := counted_or_none(name))}
    return [Entry(name, purpose(name), *costs.get(name, (None, None, None))) for name in names]


def purpose(name: str) -> str:
    """What a student is for, and what is said where it is made."""
    function = timm.model_entrypoint(name)
    own = next((FAMILIES[part] for part in reversed(function.__module__.split(".")) if part in FAMILIES), "")
    sentence = (getdoc(function) or "").strip().split("\n")[0].strip().rstrip(".")
    if own and "parameters" in sentence:  # those of the paper's head
        sentence = ""
    return ": ".join(words for words in (own, sentence) if words)


def measured(name: str) -> tuple[int, int, int]:
    """Side of the images, pixels; parameters; multiply-adds. Nothing is computed or drawn."""
    usual = timm.get_pretrained_cfg(name, allow_unregistered=True)
    side = OPEN_SIDE if takes_patch_size(name) or usual is None else int(usual.input_size[-1])
    data_spec = DataSpec(tuple(map(str, range(CLASSES))), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    with torch.device("meta"):
        student = create_student(name, data_spec, fitting_patch(name, data_spec.image_size))
    return side, *count(student, data_spec.image_size)


def counted_or_none(name: str) -> tuple[int, int, int] | None:
    """The same; None for what cannot be counted so, such as a network whose graph depends on its numbers."""
    try:
        return measured(name)
    except Exception:  # any of timm's networks may fail in its own way
        return None
