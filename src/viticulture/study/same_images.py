# SPDX-License-Identifier: Apache-2.0
"""Whether the cells of a study learn from, choose by and are tested on the same images.

splits.json     data set, or one of its folds -> digest of the names of its held-out images
contents.json   data set -> digest of a split's names -> digest of what these images hold
"""

from collections.abc import Mapping
from typing import Any

from ..disk import read_json
from ..errors import UserError
from .grid import digest
from .folder import StudyDir

SPLITS = {"train": "training", "val": "validation", "test": "test"}
"""Splits, and what their images are called."""


def check_splits(study: StudyDir, data: str, splits: dict[str, list[str]]) -> None:
    """All cells of one data set, or of one of its folds, are chosen and tested by the same images, in the same
    order.

    Raises: UserError for a cell whose validation or test images are others.
    """
    held_out = held_out_digest(splits)
    with study.locked("splits"):
        path = study.path / "splits.json"
        known = read_json(path) if path.exists() else {}
        if data not in known:
            study.write("splits.json", {**known, data: held_out})
        elif known[data] != held_out:
            raise UserError(
                f"the validation or test images of {data} are not those of the study's other cells: either the "
                "data has changed since, or a recipe holds out other images; bring them back, or begin a new study"
            )


def check_contents(
    study: StudyDir, data: str, kept: Any, splits: dict[str, list[str]], contents: Mapping[str, str]
) -> None:
    """Images that cells share, by their names, are the same images: those of one subset and seed that are learnt
    from, those of all that are held out. What a study of an earlier version has trained is not known here.

    Args:
        study: whose cells they are.
        data: the data set.
        kept: what decides, besides the files, what is kept of an image; only cells that agree in it are compared.
        splits: names of each split's images, in their order.
        contents: split -> digest of what they hold.

    Raises: UserError for a cell whose images hold other pixels or labels than when the first such cell began.
    """
    marks = {digest([kept, names]): (split, contents.get(split, "")) for split, names in splits.items()}
    with study.locked("splits"):
        path = study.path / "contents.json"
        every = read_json(path) if path.exists() else {}
        known = every.get(data, {})
        for key, (split, mark) in marks.items():
            if known.get(key, mark) != mark:
                raise UserError(
                    f"the {SPLITS[split]} images of {data} are not what the study's other cells had under the same "
                    "names: the data has changed since; bring them back (streamed ones with the times of their "
                    "files, cp -a), or begin a new study"
                )
        if new := {key: mark for key, (_, mark) in marks.items() if key not in known}:
            study.write("contents.json", {**every, data: {**known, **new}})


def held_out_digest(splits: dict[str, list[str]]) -> str:
    """Digest of the names of validation and test images, in their order; `splits` names those of each split."""
    return digest([splits.get("val", []), splits.get("test", [])])
