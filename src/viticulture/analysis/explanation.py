# SPDX-License-Identifier: Apache-2.0
"""What goes on inside a run's student, measured on its own images and kept in explain.json."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset, prepare
from ..data.images import Images
from ..data.splits import Selection
from ..errors import UserError
from ..evaluation.kept import read_kept
from ..evaluation.subject import Subject, of_run, of_source
from ..training.progress import showing
from ..training.rundir import RunDir
from ..training.session import dataset_of, recipe_of
from .inside import Inside, look_inside, numbers, similarity, tensor

BATCH = 128  # images at once, the size that CKA is estimated by
FEWEST = 4  # images; CKA cannot be estimated from fewer
FILE = "explain.json"


@dataclass(frozen=True)
class Explanation:
    """Attention statistics, CKA and Fourier amplitudes of a run's student, and which images they are of.

    Args:
        weights: which of the run's were looked at; "its" for any other network.
        split: whose images were shown.
        inside: what was found.
        beside: name of another network, or nothing.
        cka: between this student's layers and the other's, [layers, other layers]; None without another one.
    """

    weights: str
    split: str
    inside: Inside
    beside: str = ""
    cka: Tensor | None = None

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON holds them."""
        beside = None if self.cka is None else {"run": self.beside, "cka": numbers(self.cka)}
        return {"weights": self.weights, "split": self.split, **self.inside.to_dict(), "beside": beside}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Explanation":
        """The inverse of `to_dict`."""
        inside, beside = Inside.from_dict(content), content["beside"]
        other = ("", None) if beside is None else (beside["run"], tensor(beside["cka"]))
        return cls(content["weights"], content["split"], inside, *other)


def explain_run(run: RunDir, dataset: Dataset, most: int, beside: str = "", reading: str = "norms") -> Explanation:
    """Look at a run's student with the weights that count, as `explain` does; keep the numbers in the run."""
    explanation = explain(of_run(run, batch_size=BATCH), dataset, most, beside, reading)
    explanation = replace(explanation, weights=run.which()[0])
    run.write(FILE, explanation.to_dict())
    return explanation


def explain(subject: Subject, dataset: Dataset, most: int, beside: str = "", reading: str = "norms") -> Explanation:
    """Look inside a network with test images (validation or training ones, where there are none).

    Args:
        subject: it; it is shown images in its own size, crop and colors.
        dataset: images.
        most: images to look at; which ones is drawn once and for all.
        beside: another network, a run or what `subject.of_source` takes, whose layers are compared on the same images.
        reading: what stands for a layer, norms or blocks, see `inside`.

    Raises: UserError for too few images, or a network without attention or without what is to be read.
    """
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    if min(most, len(images)) < FEWEST:
        raise UserError(f"an explanation needs at least {FEWEST} images, got {min(most, len(images))} of {split}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    some = images.part(order[:most])
    subject = replace(subject, batch_size=BATCH)
    found = Explanation("its", split, look_inside(subject.network, _shown(subject, some), reading))
    if not beside:
        return found
    other, name = of_any(beside)
    pairs = zip(_shown(subject, some), _shown(other, some), strict=True)
    return replace(found, beside=name, cka=similarity(subject.network, other.network, pairs, reading))


def explain_any(source: str, data: str, most: int, beside: str = "", reading: str = "norms") -> Explanation:
    """The same for a network by its name, on any images; nothing is kept.

    Args:
        source: a run, or what `subject.of_source` takes.
        data: images; those of the run where it is empty.
        most: as for `explain`.
        beside: as for `explain`.
        reading: as for `explain`.
    """
    subject, _ = of_any(source)
    if data:
        pictures = replace(
            subject.image_settings, normalize="imagenet"
        )  # not looked at: the task has the network's own
        whole = Selection(val_fraction=0, test_fraction=0)
        with showing("reading images") as progress:
            dataset = prepare(data, whole, pictures, 0, progress, labeled=False)
    else:
        run = RunDir.open(source)
        dataset = dataset_of(run, recipe_of(run))
    return explain(subject, dataset, most, beside, reading)


def of_any(source: str) -> tuple[Subject, str]:
    """A run's network, or what `subject.of_source` takes, and what to call it."""
    if (Path(source) / "run.json").exists():
        return of_run(RunDir.open(source), batch_size=BATCH), Path(source).name
    return replace(of_source(source), batch_size=BATCH), source


def read_explanation(run: RunDir) -> Explanation | None:
    """What was found the last time; None before the first."""
    return read_kept(run, FILE, Explanation.from_dict, None)


def _shown(subject: Subject, images: Images) -> Iterator[Tensor]:
    return (batch["image"] for batch in subject.batches(images))
