# SPDX-License-Identifier: Apache-2.0
"""What goes on inside a run's student, measured on its own images and kept in explain.json and features.npz."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset, prepare
from ..data.images import Images
from ..data.open import open_source
from ..data.sources.source import Source
from ..data.splits import Selection
from ..errors import UserError, counted
from ..evaluation.kept import checksum_of, read_kept, still_there
from ..evaluation.subject import Subject, of_run, of_source
from ..training.progress import showing
from ..training.run_folder import RunFolder
from ..training.run_inputs import dataset_of, recipe_of, stands_for_own
from .agents import agents_of
from .feature_maps import feature_galleries
from .galleries import Gallery, keep_galleries, read_galleries
from .inside import Inside, look_inside, numbers, similarity, tensor, usual_reading
from .pictures import attention

BATCH = 128  # images at once, the size that CKA is estimated by
FEWEST = 4  # images; CKA cannot be estimated from fewer
FILE, PICTURES = "explain.json", "features.npz"


@dataclass(frozen=True)
class Wanted:
    """What to look at.

    Args:
        images: how many; which ones is drawn once and for all.
        beside: another network, a run or what `subject.of_source` takes, whose layers are compared on the same images.
        reading: what stands for a layer in the numbers, norms or blocks, see `inside`; "" takes norms where all
            networks have them.
        layers: whose attention and features are drawn, counted from 1; empty takes up to four, spread over the depth.
    """

    images: int = 1152
    beside: str = ""
    reading: str = ""
    layers: Sequence[int] = ()


@dataclass(frozen=True)
class Explanation:
    """Attention statistics, CKA and Fourier amplitudes of a run's student, and which images they are of.

    Args:
        weights: which of the run's were looked at; "its" for any other network.
        split: whose images were shown.
        inside: what was found.
        beside: name of another network, or nothing.
        cka: between this student's layers and the other's, [layers, other layers]; None without another one.
        features: what layers of this network, of its agents and of the other one hold of some images, by image.
        attention: where this network looks in some images.
        checksum: of a run's weights, see `kept.checksum_of`.
    """

    weights: str
    split: str
    inside: Inside
    beside: str = ""
    cka: Tensor | None = None
    features: Sequence[Gallery] = ()
    attention: Sequence[Gallery] = ()
    checksum: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON holds them; no pictures."""
        beside = None if self.cka is None else {"run": self.beside, "cka": numbers(self.cka)}
        about = {"weights": self.weights, "checksum": self.checksum, "split": self.split}
        return {**about, **self.inside.to_dict(), "beside": beside}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Explanation":
        """The inverse of `to_dict`."""
        inside, beside = Inside.from_dict(content), content["beside"]
        explanation = cls(content["weights"], content["split"], inside, checksum=content.get("checksum", ""))
        if beside is None:
            return explanation
        return replace(explanation, beside=beside["run"], cka=tensor(beside["cka"]))


def explain_run(run: RunFolder, dataset: Dataset, wanted: Wanted) -> Explanation:
    """Look at a run's student with the weights that count, as `explain` does; keep what was found in the run."""
    weights = run.which()[0]
    known = checksum_of(run, weights)
    explanation = explain(of_run(run, weights, BATCH), dataset, wanted, agents_beside(run))
    explanation = replace(explanation, weights=weights, checksum=known)
    drawn = {"features": explanation.features, "attention": explanation.attention}
    keep_galleries(run.path / PICTURES, drawn)
    run.write(FILE, explanation.to_dict())
    return explanation


def explain(subject: Subject, dataset: Dataset, wanted: Wanted, agents: Mapping[str, Subject] = {}) -> Explanation:
    """Look inside a network with test images (validation or training ones, where there are none).

    Args:
        subject: it; it is shown images in its own size, crop and colors.
        dataset: images.
        wanted: what to look at.
        agents: networks that learned beside it, whose features are drawn too.

    Raises: UserError for too few images, a network without attention or without what is to be read, or layers that a
        network does not have.
    """
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    if min(wanted.images, len(images)) < FEWEST:
        raise UserError(
            f"an explanation needs at least {FEWEST} images, got {min(wanted.images, len(images))} of {split}"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    some = images.part(order[: wanted.images])
    subject = replace(subject, batch_size=BATCH)
    networks = {"the student": subject, **agents}
    other, name = of_any(wanted.beside) if wanted.beside else (None, "")
    if other is not None:
        if other.data_spec.channels != subject.data_spec.channels:
            raise UserError(
                f"{wanted.beside} takes {counted(other.data_spec.channels, 'channel')}, and these images have "
                f"{subject.data_spec.channels}; compare networks that take the same"
            )
        networks[f"{name}, beside" if name in networks else name] = other
    features = feature_galleries(networks, some, wanted.layers)  # first, for they tell a layer that is not there
    compared = [subject.network] if other is None else [subject.network, other.network]
    reading = wanted.reading or usual_reading(compared)
    explanation = Explanation("its", split, look_inside(subject.network, _shown(subject, some), reading))
    explanation = replace(explanation, features=features, attention=attention(subject, some, wanted.layers))
    if other is None:
        return explanation
    pairs = zip(_shown(subject, some), _shown(other, some), strict=True)
    return replace(explanation, beside=name, cka=similarity(subject.network, other.network, pairs, reading))


def explain_any(source: str, data: str | Source, wanted: Wanted) -> Explanation:
    """The same for a network by its name, on any images; nothing is kept.

    Args:
        source: a run, or what `subject.of_source` takes.
        data: images; those of the run where it is empty, or the very object that the run learnt from.
        wanted: what to look at.
    """
    subject, _ = of_any(source)
    run = RunFolder.open(source) if (Path(source) / "run.json").exists() else None
    if run is None or not stands_for_own(run, data):
        pictures = subject.image_settings.without_statistics
        whole = Selection(val_fraction=0, test_fraction=0, near_copies="ignore")
        images = open_source(data, annotations_first=True).images_alone
        with showing("reading images") as progress:
            dataset = prepare(images, whole, pictures, 0, progress, labeled=False)
    else:
        dataset = dataset_of(run, recipe_of(run), data)
    return explain(subject, dataset, wanted, agents_beside(run) if run else {})


def agents_beside(run: RunFolder) -> dict[str, Subject]:
    """The agents that learned beside a run's student, shown images as it is, by what to call them; none where there was
    no agent, or where the checkpoint that holds it is gone."""
    if not run.checkpoint.exists():
        return {}
    own = of_run(run, batch_size=BATCH)
    agents = agents_of(run)
    names = {name: "its agent" if len(agents) == 1 else f"its agent {name}" for name in agents}
    return {names[name]: replace(own, network=agent.to(own.device)) for name, agent in agents.items()}


def of_any(source: str) -> tuple[Subject, str]:
    """A run's network, or what `subject.of_source` takes, and what to call it."""
    if (Path(source) / "run.json").exists():
        return of_run(RunFolder.open(source), batch_size=BATCH), Path(source).name
    return replace(of_source(source), batch_size=BATCH), source


def read_explanation(run: RunFolder) -> Explanation | None:
    """What was found the last time; None before the first, or where it is of other weights."""
    explanation = read_kept(run, FILE, Explanation.from_dict)
    if explanation is None or not still_there(run, explanation.weights, explanation.checksum):
        return None
    if (kept := read_galleries(run.path / PICTURES)) is None:
        return explanation
    return replace(explanation, features=kept.get("features", ()), attention=kept.get("attention", ()))


def _shown(subject: Subject, images: Images) -> Iterator[Tensor]:
    return (batch["image"] for batch in subject.batches(images))
