# SPDX-License-Identifier: Apache-2.0
"""MedMNIST's files of arrays: `viticulture train pathmnist.npz`, or `medmnist:pathmnist`, which is looked for in
VITICULTURE_DATA and downloaded by the package `medmnist` where that is installed.

    train_images, val_images, test_images    [N, H, W] or [N, H, W, 3] uint8
    train_labels, val_labels, test_labels    [N] or [N, 1]

Source: Yang et al., "MedMNIST v2", Scientific Data 2023, arXiv:2110.14795.
"""

import importlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...cache import data_folder, locked
from ...errors import UserError
from ..images.arrays import check_npz
from .arrays import from_arrays
from .source import Source

SPLITS = ("train", "val", "test")
MAX_EMPTY_CLASSES = 1000  # classes without images that a label's number may imply; a greater number is damage


def open_named(name: str) -> Source:
    """Open a set by its name, such as pathmnist. Raises: UserError that says which file to put where."""
    path = data_folder() / f"{name}.npz"
    if not path.is_file():
        _download(name, path)
    return open_npz(path)


def open_npz(path: Path) -> Source:
    """Open a file of the six arrays. Raises: UserError for other arrays, volumes, or several labels an image."""
    keys = [f"{split}_{part}" for split in SPLITS for part in ("images", "labels")]
    try:
        held = check_npz(path, keys)
        if missing := [key for key in keys if key not in held]:
            raise UserError(f"{path} lacks {missing[0]}; of .npz files, MedMNIST's are read: {', '.join(keys)}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in keys}
    except UserError:
        raise
    except Exception as error:  # of damage the library makes whatever comes of it
        raise UserError(f"{path} is no file of arrays that can be read: {error}") from error
    parts = {split: _part(path, split, arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in SPLITS}
    parts = {split: part for split, part in parts.items() if len(part[1])}
    if not parts:
        raise UserError(f"no images in {path}: its arrays are empty")
    if len(shapes := {images.shape[1:] for images, _ in parts.values()}) > 1:
        raise UserError(f"images of {path} must agree in shape, got {' and '.join(map(str, sorted(shapes)))}")
    number = 1 + max(int(labels.max()) for _, labels in parts.values())
    return from_arrays(path.stem, _names(path.stem, number), parts)


def _part(path: Path, split: str, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)):
        raise UserError(
            f"{split}_images of {path} must be [N, H, W] or [N, H, W, 3] uint8, got {list(images.shape)} {images.dtype}"
        )
    if len(labels) != len(images) or labels.size != len(labels) or labels.dtype.kind not in "iu":
        raise UserError(
            f"{split}_labels of {path} must hold one class an image, got {list(labels.shape)} {labels.dtype} for "
            f"{len(images)} images"
        )
    highest = int(labels.max(initial=0))
    if highest >= MAX_EMPTY_CLASSES + len(labels):
        raise UserError(
            f"{split}_labels of {path} hold {highest} for one of {len(labels)} images; they must number classes from 0"
        )
    return images, labels.reshape(-1).astype(np.int64).clip(min=-1)  # below 0 is no label, as elsewhere


def _names(name: str, number: int) -> tuple[str, ...]:
    """Return the published names of the classes where the package has them, else numbers."""
    sets = _published().get(name.partition("_")[0], {}).get("label", {})
    names = tuple(f"{sets.get(str(label), label)}" for label in range(number))
    return names if len(set(names)) == number else tuple(map(str, range(number)))


def _published() -> dict[str, Any]:
    try:
        info: dict[str, Any] = importlib.import_module("medmnist").INFO
    except ImportError:
        return {}
    return info


def _download(name: str, path: Path) -> None:
    """Have the package download into a temporary folder; only what is complete is renamed."""
    where = f"put {path.name} into {path.parent} (or point VITICULTURE_DATA at its folder)"
    sets = _published()
    if not sets:
        raise UserError(f"medmnist:{name} is not there: {where}, or pip install medmnist, which downloads it")
    if name not in sets:
        raise UserError(f"MedMNIST has no set {name!r}; it has {', '.join(sets)}")
    made = getattr(importlib.import_module("medmnist"), sets[name]["python_class"])
    with locked(path.parent / f".{name}.lock"), TemporaryDirectory(dir=path.parent, prefix=".download-") as aside:
        if path.is_file():  # another process was faster
            return
        try:
            made(split="train", download=True, root=aside)
            Path(aside, path.name).rename(path)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"medmnist:{name} could not be downloaded ({error}); {where}") from error
