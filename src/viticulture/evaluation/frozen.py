# SPDX-License-Identifier: Apache-2.0
"""Features of a network that learns no more, computed once for every image and kept on disk.

    features/KEY/SPLIT-NAME.npy     [N, D] float32      KEY: weights, architecture, images and how they were looked at

`viticulture cache --clear` removes them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.augment.crop import CentreCrop
from ..data.cache import cache_folder, publish
from ..data.dataset import Dataset, Pictures
from ..data.images import Images
from ..data.loader import evaluation_batches
from ..data.sources import digest
from ..errors import UserError
from ..models.features import features
from ..models.task import Task
from ..models.teachers import open_teacher
from ..models.weights import find, load
from ..training.progress import showing
from ..training.rundir import RunDir
from ..training.session import recipe_of

BATCH = 256
VERSION = "1"  # of the features that equal weights make of equal images

Features = dict[str, dict[str, Tensor]]
"""Split -> name of the features -> [N, D]."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A network to be judged by its features.

    Args:
        net: in inference mode.
        task: its input.
        pictures: how images are kept and shown to it.
        device: where it is.
        mark: its architecture, of which its weights do not say all.
    """

    net: nn.Module
    task: Task
    pictures: Pictures
    device: torch.device
    mark: str


def of_run(run: RunDir, weights: str) -> Subject:
    """A run's student, shown images as in the run's evaluation; weights: best, last or ema."""
    net, task, config = load(run.weights(weights))
    recipe = recipe_of(run)
    device = torch.device("cuda" if torch.cuda.is_available() and recipe.section("engine").device != "cpu" else "cpu")
    pictures = replace(recipe.section("images"), normalize="imagenet")  # not looked at: the task has the run's own
    return Subject(net.to(device), task, pictures, device, _mark(config))


def of_source(source: str) -> Subject:
    """Any other network: a folder of weights, a timm name with pretrained weights, or ARCHITECTURE=FILE.

    Raises: UserError if it cannot be had.
    """
    folder = find(source)
    if folder is not None:
        net, task, config = load(folder)
        mark, described = _mark(config), config["pretrained_cfg"]
    else:
        net, task = open_teacher(source)
        mark, described = source.partition("=")[0], getattr(net, "pretrained_cfg", {})
    pictures = Pictures(
        image_size=max(task.image_size),
        eval_crop=described.get("crop_pct") or 1.0,
        eval_interpolation="bilinear" if described.get("interpolation") == "bilinear" else "bicubic",
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Subject(net.eval().to(device), task, pictures, device, mark)


def _mark(config: Mapping[str, Any]) -> str:
    return json.dumps([config.get(key) for key in ("student", "architecture", "model_args")], sort_keys=True)


def frozen_features(subject: Subject, dataset: Dataset) -> Features:
    """Every image's features, from the disk where they were computed before.

    Args:
        subject: whose.
        dataset: prepared with the subject's `pictures`.
    """
    splits = {name: images for name in ("train", "val", "test") if (images := getattr(dataset, name)) is not None}
    pictures, task = dataset.pictures, subject.task
    crop = CentreCrop(pictures.eval_crop, pictures.eval_interpolation)
    how = [task.image_size, task.mean, task.std, pictures.store_size, crop.crop_pct, crop.interpolation]
    key = digest([VERSION, subject.mark, _content(subject.net), repr(how), dataset.fingerprint])

    def make(folder: Path) -> None:
        done, total = 0, sum(map(len, splits.values()))
        with showing("computing features") as progress, torch.inference_mode():
            for split, images in splits.items():
                found: list[dict[str, Tensor]] = []
                for batch in evaluation_batches(images, task, BATCH, subject.device, crop):
                    vectors = features(subject.net, batch["image"])
                    found.append({name: vector.float().cpu() for name, vector in vectors.items()})
                    done += len(batch["image"])
                    progress(done, total)
                for name in found[0]:
                    np.save(folder / f"{split}-{name}.npy", torch.cat([vectors[name] for vectors in found]).numpy())

    folder = publish(cache_folder() / "features" / key, make)
    return {split: _read(folder, split, images) for split, images in splits.items()}


def _content(net: nn.Module) -> str:
    """32 hexadecimal digits that change with any weight."""
    hashed = hashlib.blake2b(digest_size=16)
    for name, tensor in net.state_dict().items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _read(folder: Path, split: str, images: Images) -> dict[str, Tensor]:
    try:
        files = sorted(folder.glob(f"{split}-*.npy"))
        found = {file.stem.removeprefix(f"{split}-"): np.load(file, allow_pickle=False) for file in files}
        if not found or any(len(vectors) != len(images) for vectors in found.values()):
            raise ValueError("it does not hold a vector an image")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it: viticulture cache --clear") from error
    return {name: torch.from_numpy(vectors) for name, vectors in found.items()}
