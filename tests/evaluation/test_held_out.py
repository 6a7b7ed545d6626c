# SPDX-License-Identifier: Apache-2.0
"""Runs that learn from every image that they are given, as contests ask for whose choices are made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import viticulture
from colored import SMALL, colored_csv
from dense_scenes import mask_folder
from photographs import pictures
from viticulture.errors import UserError

ALL = {"data.val_fraction": 0.0, "data.test_on": "none", "train.epochs": 1}


def classes(root: Path) -> Path:
    return pictures(root / "photos", {"a": 16, "b": 16}, side=24)


def labels(root: Path) -> Path:
    return colored_csv(root / "colors", 32)


def pixels(root: Path) -> Path:
    return mask_folder(root / "masks", {"train": 6})


@pytest.mark.parametrize(("images", "recipe"), [(classes, ""), (labels, ""), (pixels, "segmentation/photos")])
def test_nothing_held_out_is_said_in_a_line(images: Callable[[Path], Path], recipe: str, tmp_path: Path) -> None:
    """Fails if a table of no results is drawn (a traceback, once), or a page is taken for a measurement."""
    keys: dict[str, Any] = {**SMALL, **ALL, "images.image_size": 24, "train.batch_size": 4}
    named = {"recipe": recipe} if recipe else {}
    run = viticulture.train(str(images(tmp_path)), out=str(tmp_path / "run"), overrides=keys, progress=False, **named)
    with pytest.raises(UserError, match=r"held out none of its images; name others.*evaluate .*run DATA"):
        viticulture.evaluate(str(run.path))
