# SPDX-License-Identifier: Apache-2.0
"""Loaders of a training and of its validation, for Lightning."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor

from ..config.sections import Train
from ..data.balance import class_weights
from ..data.batches.evaluation import evaluation_batches, target_batches, usual_batch
from ..data.batches.loader import CPU, Loader, Shard
from ..data.batches.sampling import Sampling
from ..data.batches.targets import TEACHER_IMAGE, Batch
from ..data.image_set import Images
from ..models.data_spec import DataSpec
from .assemble import augmentations
from .session import Session

ALONE = Shard()
DENSE_BATCH = 16  # images with objects or masks
EVALUATION_PIXELS, TRAINING_BATCHES = 2**23, 16
"""On a GPU, small images are evaluated in larger batches, of so many pixels, and of so many training batches, whose
activations training would hold for many layers at once."""


class Feed(LightningDataModule):
    """Builds the loaders once Lightning knows this process's device and rank, and puts their state into checkpoints:
    Lightning itself does not restore a loader's state after a whole epoch."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.loader: Loader | None = None
        self.restored: dict[str, int] = {}

    def state_dict(self) -> dict[str, int]:
        return self.loader.state_dict() if self.loader else {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.restored = state_dict

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Return the batch as it is: loaders make it on the device."""
        return batch

    def train_dataloader(self) -> "MicroBatches":
        trainer = self.trainer
        assert isinstance(trainer, Trainer)
        shard = Shard(trainer.global_rank, trainer.world_size)
        self.loader = training_loader(self.session, shard, trainer.strategy.root_device)
        if self.restored:
            self.loader.load_state_dict(self.restored)
        return MicroBatches(self.loader, trainer.accumulate_grad_batches)

    def val_dataloader(self) -> "ValidationLoader":
        trainer, images = self.trainer, validation_split(self.session)
        assert isinstance(trainer, Trainer)
        assert images is not None, "without a validation split there is no validation"
        return ValidationLoader(images, self.session, trainer.strategy.root_device)


def training_loader(session: Session, shard: Shard = ALONE, device: torch.device = CPU) -> Loader:
    """Return the loader of a training, or of one of its several processes."""
    train: Train = session.config.train
    loader = Loader(
        session.dataset.trained_on,
        augmentations(session.config, session.dataset, session.method.batch_spec),
        session.plan.batch_size,
        session.seed,
        Sampling(train.repeats, session.config.data.sampling == "balanced", train.fixed_views),
        shard,
        device,
    )
    if (side := session.config.images.teacher_size) is not None:
        loader = loader.with_teacher_view(side)
    targets = session.dataset.annotations.get("train")
    return loader if targets is None else loader.with_targets(targets, session.method.batch_spec.masks)


class MicroBatches:
    """Splits a loader's batches into equal parts, for gradient accumulation."""

    def __init__(self, loader: Loader, parts: int) -> None:
        self.loader, self.parts = loader, parts

    def __len__(self) -> int:
        return len(self.loader) * self.parts

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            micro_batches = {name: value.chunk(self.parts) for name, value in batch.items()}
            for k in range(self.parts):
                yield {name: chunks[k] for name, chunks in micro_batches.items()}


class ValidationLoader:
    """Batches of the split that is evaluated between epochs; every process evaluates all of it, so that all agree."""

    def __init__(self, images: Images, session: Session, device: torch.device, split: str = "") -> None:
        self.images, self.data_spec, self.device = images, session.method.data_spec, device
        self.crop = session.config.images.crop
        self.annotations = session.dataset.annotations.get(split or session.method.length.split)
        self.batch_size = DENSE_BATCH if self.annotations else usual_batch(self.data_spec.image_size)
        if device.type == "cuda" and self.data_spec.classes and not self.annotations:
            fitting = min(
                EVALUATION_PIXELS // prod(self.data_spec.image_size), TRAINING_BATCHES * session.plan.batch_size
            )
            self.batch_size = max(self.batch_size, fitting)
        self.weights: Tensor | None = None
        self.teacher_spec: DataSpec | None = None
        side = session.config.images.teacher_size
        if side and not session.method.batch_spec.labels:  # guides are evaluated
            self.teacher_spec = replace(self.data_spec, image_size=(side, side))
        if session.config.train.best_by:
            labels, classes = images.records.labels, session.dataset.classes
            self.weights = class_weights("balanced", classes, torch.bincount(labels, minlength=len(classes)))

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.annotations is not None:
            return target_batches(self.images, self.annotations, self.data_spec, self.batch_size, self.device)
        batches = evaluation_batches(self.images, self.data_spec, self.batch_size, self.device, self.crop)
        if self.teacher_spec is not None:
            others = evaluation_batches(self.images, self.teacher_spec, self.batch_size, self.device, self.crop)
            return ({**batch, TEACHER_IMAGE: other["image"]} for batch, other in zip(batches, others, strict=True))
        if self.weights is None:
            return batches
        weights = self.weights.to(self.device)
        return ({**batch, "class_weight": weights[batch["label"]]} for batch in batches)


def validation_split(session: Session) -> Images | None:
    """Return the images evaluated between epochs; None where the recipe or the data has none."""
    return session.dataset.held_out.get(session.config.train.validate)
