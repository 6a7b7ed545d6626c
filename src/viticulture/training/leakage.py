# SPDX-License-Identifier: Apache-2.0
"""Refuses a start or a teacher that was trained on the images by which this training is evaluated."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.open import start_of
from ..errors import UserError
from ..models.weights.sources import place_of
from .run_folder import BEGUN, RunFolder


def check_leakage(config: Config, dataset: Dataset, about: Mapping[str, Any]) -> list[str]:
    """Check the runs that a recipe takes weights from, and the runs that those began from.

    Args:
        config: of the training; any value of it may be a run's folder, or one or a file of weights inside.
        about: where they came from, as run.json says it under `data`.

    Returns: a warning for each run that was trained on validation images.
    Raises: UserError if one was trained on test images.
    """
    warnings = []
    for key, run in _runs(config.values, set()):
        metadata = run.read("run.json")
        if "names" not in run.read("split.json"):
            continue
        theirs, ours = _origin(metadata["data"]), _origin(about)
        if theirs != ours and not (isinstance(theirs, Path) and isinstance(ours, Path)):
            continue
        trained_on = {_place(theirs, name) for name in run.image_names.get("train", ())}
        shared = {
            split: len(trained_on.intersection(_place(ours, name) for name in names))
            for split, names in dataset.split_names.items()
        }
        if shared.get("test"):
            raise UserError(
                f"{key}: {run.path} was trained on {shared['test']:,} of the {len(dataset.split_names['test']):,} test "
                "images of this training; divide the images as that run did (its data.* keys; for images added since, "
                "by test/CLASS or a column `split`), or take other weights"
            )
        if shared.get("val"):
            count = f"{shared['val']:,} of the {len(dataset.split_names['val']):,}"
            warnings.append(
                f"{key}: {run.path} was trained on {count} validation images, so validation results are too good"
            )
    return warnings


def _origin(about: Mapping[str, Any]) -> Any:
    """Return what distinguishes images of the same names: folder, digest of a Python object, or name of the set."""
    if folder := about.get("folder"):
        return start_of(folder).resolve()
    return about.get("given") or about.get("name")


def _place(origin: Any, name: str) -> str:
    """Return the path of an image's file, as a folder may be a part of another; its name in data without a folder."""
    return os.path.normpath(origin / name) if isinstance(origin, Path) else name


def _runs(values: Mapping[str, Any], visited: set[Path], key: str = "") -> Iterator[tuple[str, RunFolder]]:
    """Dotted key -> the run that its value is or lies in, and the runs that the run's settings name."""
    for name, value in values.items():
        dotted = f"{key}.{name}" if key else name
        if isinstance(value, Mapping):
            yield from _runs(value, visited, dotted)
        elif isinstance(value, str) and value and (run := _around(value)) is not None and run.path not in visited:
            visited.add(run.path)
            yield dotted, run
            yield from ((dotted, inner) for _, inner in _runs(run.read("run.json").get("settings", {}), visited))


def _around(place: str) -> RunFolder | None:
    """The run that a source of weights is, or lies in; None for any other text."""
    try:
        path = place_of(place).absolute()
        if not path.exists():
            return None
    except (OSError, ValueError):  # text that no path can be
        return None
    for folder in (path, *path.parents[:3]):
        if all((folder / name).is_file() for name in (*BEGUN, "run.json")):
            return RunFolder(folder)
    return None
