# SPDX-License-Identifier: Apache-2.0
"""Recipes whose teachers are replaced by networks of the same architecture with random weights."""

import copy
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch

from viticulture.config.load import load_config, shipped
from viticulture.config.resolve import Config
from viticulture.models.data_spec import DataSpec
from viticulture.models.weights.files import save
from viticulture.training.assemble import student_of

CLASSES = 2


def with_random_teachers(config: Config, folder: Path) -> Config:
    """Replace every teacher of a recipe by a file in `folder`, and a file of links by one with a link."""
    values = copy.deepcopy(config.values)
    _replace(values["guides"], folder)
    _replace(values["method"], folder)
    return Config(config.name, values)


def _replace(values: dict[str, Any], folder: Path) -> None:
    for key, value in values.items():
        if key == "teachers":
            values[key] = {name: _weights(teacher, folder) for name, teacher in value.items()}
        elif isinstance(value, dict):
            _replace(value, folder)
        elif key == "teacher" and isinstance(value, str):
            values[key] = _weights(value, folder)
        elif key == "links" and value.endswith(".yaml"):
            values[key] = str(folder / value)
            (folder / value).write_text("0: [0]\n")


def _weights(teacher: str, folder: Path) -> str:
    """Save random weights: a run's folder for runs/NAME, else a file of timm's architecture."""
    torch.manual_seed(0)
    if not teacher.startswith("runs/"):
        given = teacher.startswith("given:")  # the user names one
        architecture = "tf_efficientnet_lite0" if given else teacher.partition("=")[0].partition(".")[0]
        path = folder / f"{architecture}.safetensors"
        if not path.exists():
            safetensors.torch.save_file(timm.create_model(architecture, num_classes=CLASSES).state_dict(), path)
        return f"{architecture}={path}"
    run = teacher.removeprefix("runs/")
    name = max((name for name in shipped() if run.startswith(Path(name).name)), key=lambda name: len(Path(name).name))
    path = folder / name
    if not path.exists():
        config = load_config(name)
        side = config.images.shape[0] if config.images.image_size else 64
        classes = tuple(map(str, range(CLASSES))) if config.method_class.batch_spec.labels else ()
        data_spec = DataSpec(classes, (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        save(student_of(config, data_spec), path, data_spec)
    return str(path)
