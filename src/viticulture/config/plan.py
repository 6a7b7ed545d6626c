# SPDX-License-Identifier: Apache-2.0
"""The numbers of a training that follow from its config and how many images it has."""

from dataclasses import dataclass
from math import lcm

import torch

from ..data.batches.sampling import repeated
from ..errors import UserError
from .keys import VIEWS
from .resolve import Config
from .schema import of_class

BATCHES, MUON_BATCHES = 40, 80
"""Batches in an epoch, at most twice as many, where a recipe leaves them open; evidence: benchmarks/log. With Muon
small batches train better: of 3,000 images 32 at once are worth two points over 64."""
FINE_TUNED = 32
"""Images per step at most where a recipe leaves them open and the classifier of a trained network was probed first: 224
pixels of 64 images take 8.5 GB."""


@dataclass(frozen=True)
class Plan:
    """Images per step, and steps of a training."""

    batch_size: int  # images per optimizer step, over all processes
    steps_per_epoch: int  # optimizer steps; an epoch's remainder is left out
    epochs: int  # passes over the training images


def plan_of(config: Config, images: int) -> Plan:
    """Return the plan of a training on this number of images. Raises: UserError, as `_batch_size`."""
    size = _batch_size(config, images)
    taken = len(repeated(torch.arange(images), config.train.repeats, config.engine.processes))
    return Plan(size, taken // size, config.train.epochs)


def _batch_size(config: Config, images: int) -> int:
    """Return the recipe's batch size, or a power of two from 16 to 512 (or `FINE_TUNED`), the largest that leaves an
    epoch `BATCHES`, cut to what processes and micro-batches can share. Where images are mixed, each of several
    processes has an even number: then every image's partner, half a batch away, is in the same process, as with one.

    Raises: UserError for a batch larger than an epoch, or one that cannot be shared.
    """
    train, processes = config.train, config.engine.processes
    epoch = len(repeated(torch.arange(images), train.repeats, 1))
    mixed = processes > 1 and any(of_class(config.values[view], "mix") for view in VIEWS)
    shares = lcm(train.accumulate, 2 if mixed else 1) * processes
    rule = f"a multiple of {shares}: train.accumulate is {train.accumulate}, there are {processes} process(es)"
    rule += ", and mixing pairs the images of each" if mixed else ""
    if shares > epoch:
        raise UserError(f"a batch must be {rule}, but an epoch has {epoch} training images; take fewer devices")
    if train.batch_size is None:
        batches = MUON_BATCHES if config.optim.name == "muon" else BATCHES
        size, most = 16, 512 if config.student.head is None else FINE_TUNED
        while size < most and 2 * size * batches <= images:
            size *= 2
        size = min(size, epoch)
        return max(size - size % shares, shares)
    if train.batch_size > epoch:
        raise UserError(
            f"train.batch_size must not exceed the {epoch} training images of an epoch, got {train.batch_size}; "
            "null (--batch-size null) has it chosen"
        )
    if train.batch_size % shares:
        raise UserError(f"train.batch_size must be {rule}; got {train.batch_size}")
    return train.batch_size
