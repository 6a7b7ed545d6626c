# SPDX-License-Identifier: Apache-2.0
"""Recipes whose teachers, which a test cannot fetch or train, are networks of the same architecture as they start."""

import copy
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch

from viticulture.training.recipe import Recipe, read, resolve, shipped

CLASSES = 2


def with_random_teachers(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with every teacher replaced by a file of random weights, and a file of links by one with a link.

    Args:
        recipe: left as it is. A teacher is a timm tag, or runs/NAME..., which the shipped recipe of that name trains.
        folder: where the files are kept; one an architecture.
    """
    values = copy.deepcopy(recipe.values)
    _replace(values["guides"], folder)
    return Recipe(recipe.name, values)


def _replace(values: dict[str, Any], folder: Path) -> None:
    for key, value in values.items():
        if key == "teachers":
            values[key] = {name: _file(_architecture(teacher), folder) for name, teacher in value.items()}
        elif isinstance(value, dict):
            _replace(value, folder)
        elif key == "teacher" and isinstance(value, str):
            values[key] = _file(_architecture(value), folder)
        elif key == "links" and value.endswith(".yaml"):
            values[key] = str(folder / value)
            (folder / value).write_text("1: 1\n")


def _architecture(teacher: str) -> str:
    if not teacher.startswith("runs/"):
        return teacher.partition(".")[0]
    run = teacher.removeprefix("runs/")
    name = max((name for name in shipped() if run.startswith(Path(name).name)), key=len)
    student: str = resolve(name, read(name)).values["student"]["name"]
    return student


def _file(architecture: str, folder: Path) -> str:
    path = folder / f"{architecture}.safetensors"
    if not path.exists():
        torch.manual_seed(0)
        safetensors.torch.save_file(timm.create_model(architecture, num_classes=CLASSES).state_dict(), path)
    return f"{architecture}={path}"
