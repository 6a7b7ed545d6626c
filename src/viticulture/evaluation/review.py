# SPDX-License-Identifier: Apache-2.0
"""Images of a data set that deserve a second look: labels that are probably wrong, near-duplicates under two labels,
blank and blurred images, images of unusual size, and images that are unlike all others.

A frozen network computes features, a linear classifier of which predicts every image after training on others alone.
Near-duplicates lie in one fold, so that an image's copy does not confirm its label.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.ndimage import laplace
from torch import Tensor

from ..config.keys import PROBE
from ..data.data_settings import DataSettings
from ..data.dataset import FOLDS
from ..data.decoded_cache import find_near_duplicates
from ..data.image_set import Images
from ..data.near_duplicates import MIN_SPREAD, NearDuplicates
from ..data.open import open_source
from ..data.sources.several import is_joined
from ..data.sources.source import Source
from ..data.splits import folds_of, groups_of
from ..data.subsets import numbered
from ..errors import UserError, counted, some
from ..models.similarity import K, evenly
from ..optim.logistic_regression import fit
from ..scores.confident_learning import margins, suspected
from ..training.linear_head import DECAYS, first_device, head_features
from ..training.progress import showing
from ..training.session import begin

FAR_OUT = 3.0  # interquartile ranges above the upper quartile (Tukey, "Exploratory Data Analysis", 1977)
LOW = 1.5  # interquartile ranges below the lower quartile, likewise
MIN_SIDE = 32  # shorter side, pixels, of images whose sharpness means something
SMALL, LONG = 0.25, 3.0  # of the median of the shorter sides; times the median of longer by shorter side

LABEL, COPIES, BLANK, BLURRED, SIZE, OUTLIER = "label", "near-duplicate", "blank", "blurred", "size", "outlier"
"""Reasons for a second look, in this order."""
REASONS = {
    LABEL: "The label may be wrong",
    COPIES: "Near-duplicates with different labels",
    BLANK: "Blank images",
    BLURRED: "Blurred images",
    SIZE: "Images of unusual size",
    OUTLIER: "Images unlike all others",
}
MAX_PAIRS = 1000

Labels = NDArray[np.int64]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Suspect:
    """An image that deserves a second look."""

    images: Images
    number: int
    split: str  # of the data; train where it has none
    label: str
    reason: str  # a key of `REASONS`; within it the most suspect come first
    suggested: str = ""  # another class that is more probable; "" for none
    # The margin of a label (`confident_learning.margins`), the similarity of an outlier; None for others.
    score: float | None = None
    detail: str = ""  # in words: the near-duplicate, the size

    @property
    def name(self) -> str:
        """Of the file."""
        return self.images.records.names[self.number]


@dataclass(frozen=True)
class Review:
    """A reviewed data set."""

    data: str
    network: str
    images: int
    accuracy: float  # share of images that the classifier, trained on others, predicts as labeled
    suspects: Sequence[Suspect]
    warnings: Sequence[str] = ()


def review(data: str | Source, overrides: Mapping[str, Any]) -> Review:
    """Review a data set's labeled images of all splits.

    Args:
        overrides: recipe keys; `student.init` is the network.

    Raises: UserError without a network, for other than one class an image, and for a class with one image or group.
    """
    keys = {"data.val_fraction": 0.0, "data.test_fraction": 0.0, **overrides}
    if not (network := keys.get("student.init")):
        raise UserError(
            "a review compares images by a trained network's features, and none is named; add --init NETWORK: a run, a "
            "timm model, hf-hub:OWNER/NAME or ARCHITECTURE=FILE"
        )
    source = open_source(data, "classes") if isinstance(data, str) else data
    if is_joined(source):
        raise UserError(
            f"a review predicts one class per image, and {source.name} has several labels; name other images"
        )
    with TemporaryDirectory(prefix="viticulture-review-") as folder:
        session = begin(data, PROBE, 0, str(Path(folder, "run")), False, keys, "")
        dataset, config, method = session.dataset, session.config, session.method
        device = first_device(config.engine)
        features = head_features(method.student, method.data_spec, dataset, config.images.crop, device)
        session.run.unlock()
    classes = dataset.classes
    x = torch.cat([features[split].float() for split in dataset.splits])
    labels = torch.cat([images.records.labels for images in dataset.splits.values()]).numpy()
    names = [name for images in dataset.splits.values() for name in images.records.names]
    places = [(split, images, i) for split, images in dataset.splits.items() for i in range(len(images))]
    position = {name: i for i, name in enumerate(source.names)}
    rows = np.array([position[name] for name in names])
    with showing("searching near-duplicates") as progress:
        near = find_near_duplicates(source, progress)
    predicted = out_of_fold(x, labels, len(classes), folds(source, rows, near))
    place_of = {int(row): place for place, row in enumerate(rows)}

    def suspect(place: int, reason: str, **more: Any) -> Suspect:
        split, images, number = places[place]
        return Suspect(images, number, split, classes[labels[place]], reason, **more)

    suspects = [
        suspect(place, LABEL, suggested=classes[other], score=margin)
        for place, other, margin in wrong_labels(predicted, labels)
    ]
    for a, b in _contradicting(near, labels, place_of):
        suspects += [
            suspect(one, COPIES, suggested=classes[labels[other]], detail=f"like {names[other]}")
            for one, other in ((a, b), (b, a))
        ]
    pictures = (images.original(i).mean(2) for images in dataset.splits.values() for i in range(len(images)))
    sharp = np.array([sharpness(gray) for gray in pictures])
    suspects += [suspect(place, BLANK) for place in np.flatnonzero(np.isnan(sharp)).tolist()]
    sides = torch.cat([images.sizes(torch.arange(len(images))).amin(1) for images in dataset.splits.values()])
    suspects += [suspect(place, BLURRED) for place in blurred(sharp) if sides[place] >= MIN_SIDE]
    start = 0
    for images in dataset.splits.values():
        suspects += [suspect(start + i, SIZE, detail=size) for i, size in _odd_sizes(images)]
        start += len(images)
    suspects += [suspect(place, OUTLIER, score=score) for place, score in outliers(x)]
    ordered = sorted(suspects, key=lambda each: [*REASONS].index(each.reason))
    accuracy = float((predicted.argmax(1) == labels).mean())
    return Review(dataset.name, str(network), len(labels), accuracy, ordered, dataset.warnings)


def folds(source: Source, rows: Labels, near: NearDuplicates | None) -> Labels:
    """Return the fold of each image, [N]: as many as the smallest class has images, or groups, at most `FOLDS`.

    Raises: UserError for a class with a single image or group.
    """
    labels, what = source.labels[rows], "image" if source.groups is None else "group"
    number = numbered(None if source.groups is None else source.groups[rows], len(rows))
    counts = np.array([len(np.unique(number[labels == c])) for c in range(len(source.classes))])
    if single := [name for name, count in zip(source.classes, counts, strict=True) if count == 1]:
        raise UserError(
            f"an image is reviewed by other {what}s of its class, and {counted(len(single), 'class')} of {source.name} "
            f"{'has' if len(single) == 1 else 'have'} one {what}: {some(single)}; add {what}s, or remove the class"
        )
    near_groups, smallest = groups_of(near, DataSettings()), int(counts[counts > 0].min())
    return folds_of(source, rows, min(smallest, FOLDS), 0, None if near_groups is None else near_groups[rows])


def out_of_fold(features: Tensor, labels: Labels, classes: int, fold: Labels) -> Probabilities:
    """Predict every image by a classifier trained on the other folds; the weight decay is the most likely of the first.
    `features`: [N, D]. Returns: probabilities [N, C].
    """
    probabilities, y = torch.zeros(len(labels), classes, dtype=torch.float64), torch.from_numpy(labels)
    decays: Sequence[float] = DECAYS
    for number in range(int(fold.max()) + 1):
        held = torch.from_numpy(fold == number)
        fitted = fit(features[~held], y[~held], classes, decays)
        heads = [fitted.on_features(g) for g in range(len(decays))]
        logs = torch.stack([(features[held] @ weight.T + bias).double().log_softmax(1) for weight, bias in heads])
        best = int(logs[:, torch.arange(logs.shape[1]), y[held]].mean(1).argmax())
        probabilities[held], decays = logs[best].exp(), [decays[best]]
    return probabilities.numpy()


def wrong_labels(probabilities: Probabilities, labels: Labels) -> Iterator[tuple[int, int, float]]:
    """Yield the images whose label is probably wrong, the most doubtful first: position, suggested class, margin."""
    margin, doubtful = margins(probabilities, labels), suspected(probabilities, labels)
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -1
    for place in np.argsort(margin, kind="stable"):
        if doubtful[place]:
            yield int(place), int(others[place].argmax()), float(margin[place])


def outliers(features: Tensor) -> list[tuple[int, float]]:
    """Return the images far from all others, the farthest first: position, and similarity to the k-th nearest other of
    at most 1,000 evenly spaced images."""
    chosen, unit = evenly(len(features)), F.normalize(features, dim=1)
    among = torch.zeros(len(features), dtype=torch.long).index_fill(0, chosen, 1)  # the nearest is the image itself
    k = min(K, len(chosen) - 1)
    similar = torch.cat([(some @ unit[chosen].T).topk(k + 1).values for some in torch.split(unit, 4096)])
    distance = 1 - similar.gather(1, (k - 1 + among)[:, None])[:, 0].double()
    low, high = distance.quantile(0.25), distance.quantile(0.75)
    far = (distance > high + FAR_OUT * (high - low)).nonzero()[:, 0]
    return [(int(place), 1 - float(distance[place])) for place in far[distance[far].argsort(descending=True)]]


def _contradicting(
    near: NearDuplicates | None, labels: Labels, place_of: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of near-duplicates with different labels, the first 1,000."""
    pairs = 0
    for first, second in near.listed() if near is not None else ():
        if first in place_of and second in place_of and pairs < MAX_PAIRS:
            a, b = place_of[first], place_of[second]
            if labels[a] != labels[b]:
                pairs += 1
                yield a, b


def sharpness(gray: NDArray[np.float64]) -> float:
    """Return the logarithm of the variance of the Laplacian (Pech-Pacheco et al., "Diatom autofocusing in brightfield
    microscopy", ICPR 2000) relative to that of the gray levels [H, W]; NaN for nearly one gray level, among which
    near-duplicates are not searched."""
    if gray.std() < MIN_SPREAD:
        return float("nan")
    return float(np.log(laplace(gray, mode="nearest").var() / gray.var() + 1e-9))


def blurred(sharp: NDArray[np.float64]) -> list[int]:
    """Return the images of less than half the median's sharpness that lie far below the lower quartile, the most
    blurred first. `sharp`: [N], NaN for blank images."""
    if np.isnan(sharp).all():
        return []
    low, middle, high = np.nanquantile(sharp, (0.25, 0.5, 0.75))
    limit = min(low - LOW * (high - low), middle - np.log(2))
    return [int(i) for i in np.argsort(sharp) if sharp[i] < limit]


def _odd_sizes(images: Images) -> Iterator[tuple[int, str]]:
    """Yield the images that are much smaller or longer than most, and their size in words."""
    sizes = images.sizes(torch.arange(len(images))).double().numpy()
    short, ratio = sizes.min(1), sizes.max(1) / sizes.min(1)
    odd = (short < SMALL * np.median(short)) | (ratio > LONG * np.median(ratio))
    for i in np.flatnonzero(odd):
        yield int(i), f"{sizes[i, 1]:.0f} x {sizes[i, 0]:.0f} pixels"
