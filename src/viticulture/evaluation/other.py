# SPDX-License-Identifier: Apache-2.0
"""A run's weights on other images than its own, and whether those are as new to it as they should be."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..data.dataset import warnings_on_test
from ..data.image_set import CachedImages, Images
from ..data.open import open_source
from ..data.sources.source import Source
from ..errors import UserError, counted
from ..models.weights.files import load
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of
from .accuracy import Evaluation
from .evaluate import results_of
from .inputs import read_unseen
from .model import check_classes
from .results import Result
from .saved import name_of

BATCH = 256  # images whose pixels are compared at once


@dataclass(frozen=True)
class OtherImages:
    """What a run says of images that are not its own.

    Args:
        name: of the images.
        results: WEIGHTS/NAME -> result, the weights that count first.
        warnings: what a person should know before believing them.
    """

    name: str
    results: dict[str, Result[Evaluation]]
    warnings: list[str]


def evaluate_other(run: RunFolder, data: str | Source) -> OtherImages:
    """Measure every kept set of weights on other images: their test split where they declare one, else all of them.

    Nothing is kept. Raises: UserError if they have classes that the run does not know, or no labels.
    """
    config = config_of(run)
    _, data_spec, _ = load(run.weights(run.which()[0]))
    check_classes(run, data_spec.classes)
    source = data if isinstance(data, Source) else open_source(data)
    images, skipped = read_unseen(config, source, data_spec.classes)
    name = name_of(data)
    warnings = [*warnings_on_test(source, skipped), *taught_by(run, images)]
    return OtherImages(name, results_of(run, config, name, images), warnings)


def taught_by(run: RunFolder, images: Images) -> list[str]:
    """A sentence where images, as they are kept, are those that taught a run, or where that cannot be told."""
    try:
        dataset = dataset_of(run, config_of(run))
    except UserError:
        return [f"whether some of these images taught {run.path} is not known: its own are not there to compare with"]
    if not (isinstance(dataset.train, CachedImages) and isinstance(images, CachedImages)):
        return [f"whether some of these images taught {run.path} is not known: they are streamed, and not compared"]
    known = set(_marks(dataset.train))
    same = [name for name, mark in zip(images.records.names, _marks(images), strict=True) if mark in known]
    if not same:
        return []
    share = f"{counted(len(same), 'image')} of {len(images):,}"
    return [f"{share} taught this run, pixel by pixel the same, such as {same[0]}: what follows flatters it"]


def _marks(images: CachedImages) -> Iterator[bytes]:
    """Digests of images' pixels."""
    for start in range(0, len(images), BATCH):
        numbers = torch.arange(start, min(start + BATCH, len(images)))
        for pixels in images.take(numbers).cpu().numpy():
            yield hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
