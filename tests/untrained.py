# SPDX-License-Identifier: Apache-2.0
"""A run's folder whose student has random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from viticulture.config.load import load_config
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.training.run_folder import FORMAT, RunFolder
from viticulture.version import VERSION

SIDE = 16


def untrained(folder: Path, classes: tuple[str, ...] = ("a", "b"), **overrides: object) -> RunFolder:
    """Create a plain ViT for images of 16 x 16 pixels, cached at 20, center-cropped by 0.75."""
    run = RunFolder(folder)
    sizes = {"images.image_size": SIDE, "images.cache_size": 20, "images.eval_crop": 0.75}
    keys = {**sizes, "student.name": "vit_nano", "student.patch_size": 4, **overrides}
    name = "default/small-images" if classes else "mae/photos"
    run.write("recipe.yaml", load_config(name, keys).to_yaml())
    data: dict[str, Any] = {
        "source": "photos",
        "folder": None,
        "name": "photos",
        "fingerprint": "",
        "classes": classes,
        "images": {},
    }
    facts = {"seed": 0, "command": "", "commit": None, "started": "", "warnings": []}
    student = {"name": "vit_nano", "parameters": 0, "macs": None}
    known = {"format": FORMAT, "recipe": name, "status": "finished", "hardware": {}, "data": data}
    run.write("run.json", {**known, **facts, "student": student, "versions": {"viticulture": VERSION}})
    data_spec = DataSpec(classes, (SIDE, SIDE), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    torch.manual_seed(0)
    save(create_student("vit_nano", data_spec, 4), run.weights("last"), data_spec)
    return run


def photo(path: Path, seed: int, size: tuple[int, int] = (24, 40)) -> Path:
    """Draw an oblong image (H x W) of noise in one color."""
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = draw.integers(0, 200, (*size, 3)) + draw.integers(0, 55, 3)
    Image.fromarray(pixels.astype(np.uint8)).save(path, "PNG")
    return path
