# SPDX-License-Identifier: Apache-2.0
"""Unlabeled images to label next: those that a classifier is uncertain about and that differ from each other.

    g = (p - y) h^T        p: probabilities, y: the prediction as if it were the label, h: input of the classifier

is the gradient of the loss with respect to a linear classifier's weights, if the prediction were right: long where the
classifier is uncertain, and of another direction for another kind of image. The images are chosen as k-means++ chooses
centers: the longest gradient first, each further image in proportion to its squared distance to the nearest chosen one.

Source: Ash et al., "Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds" (BADGE), ICLR 2020,
arXiv:1906.03671, Algorithm 1. Deviation: of several labels an image, y holds every label from one half on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.sources.several import JOINT
from ..errors import UserError, counted
from ..models.data_spec import DataSpec
from ..models.similarity import HeadInputs, vary
from ..scores.labels import UNDECIDED
from ..training.progress import showing
from ..training.run_folder import RunFolder
from .inputs import Item, open_items, pixel_digests, run_digests
from .model import check_classes, of_run
from .outputs import check_finite

BATCH = 64  # images that are held decoded


@dataclass(frozen=True, eq=False)
class Unlabeled:
    """An image without a label."""

    name: str
    picture: NDArray[np.uint8]  # [H, W, 3] uint8
    predicted: str  # its classes; of several labels those from one half on, joined as in a list of training images
    probability: str  # of each of them, joined alike


@dataclass(frozen=True)
class NextLabels:
    """The images to label next, in the order in which they were chosen."""

    run: str  # its folder
    images: int  # number of different images without a label among which they were chosen
    chosen: Sequence[Unlabeled]
    warnings: Sequence[str] = ()


def choose_next(run: RunFolder, items: Sequence[Item], count: int) -> NextLabels:
    """Choose images to label next.

    Args:
        run: of a classifier, of one or several labels an image.
        items: images; those of the run's own data, and copies of others, are left out by their pixels.
        count: at least 1.

    Raises: UserError where no image is left, or all have the same features.
    """
    if count < 1:
        raise UserError(f"--count is the number of images to label, at least 1, got {count}")
    model = of_run(run)
    check_classes(run, model.data_spec.classes)
    warnings, labeled = list[str](), set[bytes]()
    try:
        labeled = run_digests(run)
    except UserError as error:
        warnings.append(f"whether {run.path} was trained on some of these images is not known: {error}")
    places, seen, own, unread = list[int](), set[bytes](), 0, list[str]()
    probabilities, features = list[Tensor](), list[Tensor]()
    inputs = HeadInputs(model.network)
    with showing("reading images") as progress, torch.inference_mode():
        for start in range(0, len(items), BATCH):
            opened = open_items(model, items[start : start + BATCH])
            unread += [f"{name}: {error}" for name, error in zip(opened.names, opened.errors, strict=True) if error]
            readable = [start + i for i, error in enumerate(opened.errors) if not error]
            fresh = list[int]()
            for number, mark in enumerate(pixel_digests(opened.images) if opened.images is not None else ()):
                own += mark in labeled
                if mark not in labeled and mark not in seen:
                    fresh.append(number)
                seen.add(mark)
            if opened.images is not None and fresh:
                for batch in model.batches(opened.images.part(torch.tensor(fresh))):
                    with inputs:
                        probabilities.append(model.data_spec.probabilities(model.tta_network(batch["image"])).cpu())
                        features.append(inputs.read()[: len(batch["image"])].float().cpu())  # of the first view
            places += [readable[number] for number in fresh]
            progress(min(start + BATCH, len(items)), len(items))
    copies = len(items) - len(unread) - own - len(places)
    if unread:
        warnings.append(f"left out {counted(len(unread), 'image')} that could not be read, such as {unread[0]}")
    if own:
        warnings.append(f"left out {counted(own, 'image')} of the run's own data, which have labels")
    if copies:
        warnings.append(f"left out {counted(copies, 'image')} with the same pixels as another")
    if not places:
        raise UserError(f"no image is left to label: {'; '.join(warnings)}; name other images")
    if count > len(places):
        warnings.append(f"--count is {count:,}, and {counted(len(places), 'image')} can be chosen: all are listed")
    p, h = torch.cat(probabilities).double(), torch.cat(features)
    check_finite(torch.cat([p, h], 1))
    if not vary(h):
        raise UserError(
            f"the network of {run.path} has the same features for all {len(h):,} images, so that none says more than "
            "another; train it longer, or name another run"
        )
    chosen = select(p, h, as_labels(p, model.data_spec), count)
    again = open_items(model, [items[places[i]] for i in chosen])
    there = [i for i, error in zip(chosen, again.errors, strict=True) if not error]
    if again.images is None:
        raise UserError(f"the chosen images are gone meanwhile, such as {again.names[0]}; bring them back")
    if gone := len(chosen) - len(there):
        warnings.append(f"left out {counted(gone, 'chosen image')} gone meanwhile")
    listed = [
        Unlabeled(name, again.images.original(number), *_predicted(p[i], model.data_spec))
        for number, (i, name) in enumerate(zip(there, again.images.records.names, strict=True))
    ]
    return NextLabels(str(run.path), len(places), listed, warnings)


def as_labels(probabilities: Tensor, data_spec: DataSpec) -> Tensor:
    """Return predictions as labels, [N, C] of 0 and 1: the most probable class, of several those from one half on."""
    if data_spec.multilabel:
        return (probabilities >= UNDECIDED).to(probabilities)
    return torch.zeros_like(probabilities).scatter_(1, probabilities.argmax(1, keepdim=True), 1)


def select(probabilities: Tensor, features: Tensor, labels: Tensor, count: int) -> list[int]:
    """Return positions of `count` images, or of all where there are fewer, in the order in which they are chosen.

    Args:
        probabilities: [N, C].
        features: [N, D].
        labels: [N, C], predictions as labels.
    """
    a, h = probabilities - labels, features
    squares = a.square().sum(1) * h.square().sum(1)
    generator, distance = torch.Generator().manual_seed(0), squares.clone()
    chosen = [int(squares.argmax())]
    while len(chosen) < min(count, len(h)):
        last = chosen[-1]
        to_last = squares + squares[last] - 2 * (a @ a[last]) * (h @ h[last])
        distance = torch.minimum(distance, to_last.clamp_min(0)) if len(chosen) > 1 else to_last.clamp_min(0)
        distance[chosen] = 0
        weights = distance if distance.any() else torch.ones_like(distance).index_fill(0, torch.tensor(chosen), 0)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return chosen


def _predicted(probabilities: Tensor, data_spec: DataSpec) -> tuple[str, str]:
    """Return the predicted classes of one image, joined, and their probabilities."""
    places = as_labels(probabilities[None], data_spec)[0].nonzero()[:, 0].tolist()
    return (
        JOINT.join(data_spec.classes[k] for k in places),
        JOINT.join(f"{probabilities[k]:.4f}" for k in places),
    )
