# SPDX-License-Identifier: Apache-2.0
"""The similarity of an image to the training images, by which a classifier notices images of other things.

    similarity = the k-th largest cosine between the image's features and those of training images

Features are the inputs of the network's classifiers, of the image as evaluation feeds it, without further views. An
image below the threshold is unlike the training images. The threshold is the k-th lowest of n validation images, so
that a share k / (n + 1) of new images of the classes is below it: at most 5 %, or, of fewer than 19, 1 / (n + 1).

Source: Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022, arXiv:2204.06507, Section 3;
the distance there is sqrt(2 - 2 cosine). Deviation: few training images and a small k, as data sets are small.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..disk import replacing
from ..errors import UserError, received
from .weights.files import note, read_weights
from .weights.load_matching import classifiers

K = 5
IMAGES = 1000
"""Training images whose features are saved, and at most as many validation images that choose the threshold."""
BELOW = 0.05  # share of images of the classes that are below the threshold
MIN_IMAGES = 9  # validation images from which the threshold of a trained network is chosen
FILE = "train_features.safetensors"  # next to weights: features of training images, [M, D] float16, of length 1
KEY = "min_similarity"  # key of config.json next to weights: the threshold
MIN_DISTANCE = 1e-5  # between features that differ by more than rounding, of their length


class HeadInputs:
    """The inputs of a student's classifiers, one after the other, [B, channels, H, W] -> [B, D]; a context manager."""

    def __init__(self, student: nn.Module) -> None:
        self.student, self.names, self.inputs = student, classifiers(student), dict[str, Tensor]()
        if not self.names:
            raise UserError(f"{type(student).__name__} has no linear classifier to train; take another network")

    def __enter__(self) -> Self:
        self.inputs.clear()

        def reader(name: str) -> Any:
            def read(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                self.inputs.setdefault(name, inputs[0])

            return read

        layers = {name: self.student.get_submodule(name) for name in self.names}
        self.hooks = [layer.register_forward_pre_hook(reader(name)) for name, layer in layers.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def __call__(self, images: Tensor) -> Tensor:
        self.inputs.clear()
        self.student(images)
        return self.read()

    def read(self) -> Tensor:
        """Return the inputs in the first of the student's calls since they were last cleared."""
        inputs = [self.inputs[name] for name in self.names]
        if any(each.ndim != 2 for each in inputs):
            raise UserError(f"{type(self.student).__name__} classifies maps, not vectors; take another network")
        return torch.cat(inputs, dim=1)


@dataclass(frozen=True, eq=False)
class TrainFeatures:
    """Features of training images, and the similarity to them from which an image is like them."""

    features: Tensor  # [M, D] float16, of length 1
    threshold: float  # a cosine, in [-1, 1]

    @classmethod
    def fitted(cls, train: Tensor, val: Tensor | None) -> "TrainFeatures":
        """Choose the threshold by the features of validation images [N, D], or, for a frozen network, by those of every
        training image compared with the others. `train`: [M, D], M at least 2.
        """
        features = F.normalize(train.float(), dim=1).half()
        similar = similarity(train, features, skip=1) if val is None else similarity(val, features)
        return cls(features, float(similar.sort().values[place(len(similar)) - 1]))

    def save(self, folder: Path) -> None:
        """Write them next to weights."""
        with replacing(folder / FILE) as part:
            part.write_bytes(safetensors.torch.save({"features": self.features.contiguous()}))
        note(folder, {KEY: self.threshold})

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any], student: nn.Module) -> "TrainFeatures | None":
        """Read those of weights; None where there are none. Raises: UserError for damage."""
        if (threshold := config.get(KEY)) is None:
            return None
        features = read_weights(folder / FILE).get("features")
        length = sum(student.get_submodule(name).in_features for name in classifiers(student))  # type: ignore[misc]
        if not (isinstance(threshold, float) and isfinite(threshold)):
            raise UserError(f"{KEY} in config.json must be a number, got {received(threshold)}; evaluate the run again")
        if features is None or features.ndim != 2 or features.shape[1] != length or not features.isfinite().all():
            raise UserError(f"{folder / FILE} does not belong to these weights; evaluate the run again")
        return cls(features, threshold)


class SimilarityNetwork(nn.Module):
    """A classifier that also returns the similarity to its training images. `network`: [B, channels, H, W] -> logits
    [B, K]; it calls the student, first on the images as they are.
    """

    features: Tensor

    def __init__(self, network: nn.Module, student: nn.Module, train: TrainFeatures) -> None:
        super().__init__()
        self.network, self.student, self.threshold = network, student, train.threshold
        self.inputs = HeadInputs(student)  # whose names are not found while torch exports
        self.register_buffer("features", train.features)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """[B, channels, H, W] -> logits [B, K], similarity [B] float32."""
        with self.inputs as inputs:
            logits = self.network(images)
            vectors = inputs.read()[: images.shape[0]]  # an exported network takes all views in one batch
        return logits, similarity(vectors, self.features)


def place(count: int) -> int:
    """Return the place of the threshold among `count` similarities, the lowest is 1."""
    return max(1, int(BELOW * (count + 1)))


def similarity(vectors: Tensor, features: Tensor, skip: int = 0) -> Tensor:
    """Return the K-th largest cosine, [N, D] and [M, D] of length 1 -> [N] float32; of fewer than K the smallest.
    `skip`: this many largest are left out: 1 for vectors that are among the features.
    """
    k = min(K + skip, len(features))
    return (F.normalize(vectors.float(), dim=1) @ features.float().T).topk(k).values[:, -1]


def vary(features: Tensor) -> bool:
    """Return whether features [N, D] differ by more than rounding; those of a single image do."""
    first = features[:1].float()
    limit = MIN_DISTANCE * first.norm()
    parts = torch.split(features, 4096)
    return len(features) < 2 or any(bool(((part.float() - first).norm(dim=1) > limit).any()) for part in parts)


def evenly(count: int) -> Tensor:
    """Return at most `IMAGES` positions among `count`, evenly spaced."""
    return torch.arange(min(count, IMAGES)) * count // min(count, IMAGES)
