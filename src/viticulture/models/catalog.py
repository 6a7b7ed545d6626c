# SPDX-License-Identifier: Apache-2.0
"""Cost and purpose of students. `python docs/reference.py` counts ours and writes costs.json."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path

import timm
import torch

from .data_spec import DataSpec
from .registering import student_info
from .students import count, create_student, fitting_patch, takes_patch_size

COSTS = Path(__file__).parent / "costs.json"
OPEN_SIDE = 32  # side in pixels of the images for which students that take any size are counted
CLASSES = 10


@dataclass(frozen=True)
class Entry:
    """One student."""

    name: str  # for `--student`
    purpose: str  # what it is, and is for
    side: int | None = None  # of the images that it is counted for, pixels; None where it was not counted
    parameters: int | None = None  # with a head for `CLASSES` classes
    macs: int | None = None  # for one image, see `students.count`


def entries(names: Sequence[str], most: int) -> list[Entry]:
    """Describe students; those of timm are counted if there are at most `most` of them."""
    costs = {name: tuple(numbers) for name, numbers in json.loads(COSTS.read_text(encoding="utf-8")).items()}
    uncounted = [name for name in names if name not in costs]
    if len(uncounted) <= most:
        costs |= {name: counted for name in uncounted if (counted := counted_or_none(name))}
    return [Entry(name, purpose(name), *costs.get(name, (None, None, None))) for name in names]


def purpose(name: str) -> str:
    """Return what a student is for; of timm's the first sentence of its function."""
    info = student_info(name)
    return (
        info.purpose if info else (getdoc(timm.model_entrypoint(name)) or "").strip().split("\n")[0].strip().rstrip(".")
    )


def measured(name: str) -> tuple[int, int, int]:
    """Return side of the images in pixels, parameters, and MACs. Nothing is computed or drawn."""
    usual = timm.get_pretrained_cfg(name, allow_unregistered=True)
    side = OPEN_SIDE if takes_patch_size(name) or usual is None else int(usual.input_size[-1])
    data_spec = DataSpec(tuple(map(str, range(CLASSES))), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    with torch.device("meta"):
        student = create_student(name, data_spec, fitting_patch(name, data_spec.image_size))
    return side, *count(student, data_spec.image_size)


def counted_or_none(name: str) -> tuple[int, int, int] | None:
    """Return the same; None for a network that cannot be counted, such as one whose graph depends on its values."""
    try:
        return measured(name)
    except Exception:  # any of timm's networks may fail in its own way
        return None
