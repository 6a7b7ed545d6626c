# SPDX-License-Identifier: Apache-2.0
"""What goes on inside a run's student, measured on its own images and kept in explain.json."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.images import Images
from ..errors import UserError
from ..evaluation.kept import read_kept
from ..evaluation.subject import Subject, of_run
from ..training.rundir import RunDir
from .inside import Inside, look_inside, numbers, similarity, tensor

BATCH = 128  # images at once, the size that CKA is estimated by
FEWEST = 4  # images; CKA cannot be estimated from fewer
FILE = "explain.json"


@dataclass(frozen=True)
class Explanation:
    """Attention statistics, CKA and Fourier amplitudes of a run's student, and which images they are of.

    Args:
        weights: which of the run's were looked at.
        split: whose images were shown.
        inside: what was found.
        beside: name of another run, or nothing.
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

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Explanation":
        """The inverse of `to_dict`."""
        inside, beside = Inside.from_dict(content), content["beside"]
        other = ("", None) if beside is None else (beside["run"], tensor(beside["cka"]))
        return cls(content["weights"], content["split"], inside, *other)


def explain_run(
    run: RunDir, dataset: Dataset, most: int, beside: RunDir | None = None, reading: str = "norms"
) -> Explanation:
    """Look at a run's student with test images (validation or training ones, where there are none); keep the numbers.

    Args:
        run: whose weights that count are looked at.
        dataset: the run's.
        most: images to look at; which ones is drawn once and for all.
        beside: another run, whose layers are compared with this one's on the same images.
        reading: what stands for a layer, norms or blocks, see `inside`.

    Raises: UserError for too few images, or a student without attention or without what is to be read.
    """
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    if min(most, len(images)) < FEWEST:
        raise UserError(f"an explanation needs at least {FEWEST} images, got {min(most, len(images))} of {split}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    some = images.part(order[:most])
    subject = of_run(run, batch_size=BATCH)
    explanation = Explanation(run.which()[0], split, look_inside(subject.network, _shown(subject, some), reading))
    if beside is not None:
        other = of_run(beside, batch_size=BATCH)
        pairs = zip(_shown(subject, some), _shown(other, some), strict=True)
        cka = similarity(subject.network, other.network, pairs, reading)
        explanation = Explanation(explanation.weights, split, explanation.inside, beside.path.name, cka)
    run.write(FILE, explanation.to_dict())
    return explanation


def read_explanation(run: RunDir) -> Explanation | None:
    """What was found the last time; None before the first."""
    return read_kept(run, FILE, Explanation.from_dict, None)


def _shown(subject: Subject, images: Images) -> Iterator[Tensor]:
    return (batch["image"] for batch in subject.batches(images))
