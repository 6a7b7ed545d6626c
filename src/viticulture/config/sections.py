# SPDX-License-Identifier: Apache-2.0
"""The sections of a recipe that belong to no other layer: the student, the training and the machine."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..errors import UserError
from ..keywords import check_fields

MAX_EPOCHS, MAX_REPEATS, MAX_DEVICES = 10**6, 1000, 10**4
"""Larger numbers are typing errors, which would otherwise come to light only when the training ends."""


@dataclass(frozen=True)
class Student:
    """The network that is trained and saved.

    Args:
        name: any classifier that timm has, ours included (`viticulture models`).
        patch_size: side of a patch, pixels; null takes the student's default, or where the student leaves it open, a
            size that cuts the images into about 8 to 15 patches a side (hybrids: 4 to 7).
        init: weights to start from: a run or a folder of weights, a timm model such as
            vit_tiny_patch16_224.augreg_in21k, hf-hub:OWNER/NAME, ARCHITECTURE=FILE, or a .safetensors or .pth file for
            the student, such as a checkpoint of MAE or MoCo-v3; null starts from random numbers. Set on the command
            line without a student, it also names the network, and brings its colors and image size.
        init_blocks: take only this many leading blocks and the layers before them from init, and start the rest from
            random numbers; null takes every tensor that fits.
        head: how the classifier starts. null: from init where its classes are the same, else from random numbers;
            probe: as the optimum of logistic regression on features of the training images, so that the first steps do
            not distort what init has learned (LP-FT, Kumar et al., ICLR 2022). With `train.validate val` the weights
            before the first step are validated, too, and may be the best.
        frozen_layers: share of the layers, from the first on, that keep the weights of init; a step takes less time.
        options: further keywords of the timm model, such as {drop_path_rate: 0.1}.
    """

    name: str = "vit_tiny"
    patch_size: int | None = None
    init: str | None = None
    init_blocks: int | None = None
    head: Literal["probe"] | None = None
    frozen_layers: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields("student", self)
        if self.init_blocks is not None and self.init is None:
            raise UserError(
                f"student.init_blocks takes blocks from student.init, got {self.init_blocks} and no init; "
                "name the weights by --init"
            )
        if not 0 <= self.frozen_layers < 1 or (self.frozen_layers and self.init is None):
            raise UserError(
                "student.frozen_layers must lie in [0, 1), and freezes layers of student.init, got "
                f"{self.frozen_layers} and init {self.init}"
            )
        if self.init_blocks is not None and self.init_blocks < 0:
            raise UserError(f"student.init_blocks must not be negative, got {self.init_blocks}")


@dataclass(frozen=True)
class Train:
    """How long and in which micro-batches the student is trained.

    Args:
        epochs: passes over the training images.
        batch_size: images in one optimizer step, over all devices; null picks a power of two from 16 to 512 that
            gives 40 to 80 steps an epoch, by Muon 80 to 160.
        accumulate: micro-batches in which a batch is computed, to save memory; the result stays that of the whole batch
            up to rounding (and batch statistics), except for losses that are no mean over images: moco_v3 contrasts an
            image with the others of its micro-batch, and detection takes the means over a micro-batch's proposals.
        clip_norm: largest gradient norm; null does not clip.
        clip_each: clip every parameter's gradient by its norm (DINO), instead of all by theirs together.
        ema_decay: decay per step of an exponential moving average of the weights; null computes none.
        repeats: times each image appears in a batch, differently augmented (repeated augmentation; DeiT uses 3).
        fixed_views: epochs after which order and augmentation begin again, so that each image has so many views; the
            outputs of teachers for them are computed once, where engine.replay_gb has room for them. null: every epoch
            has its own.
        validate: split evaluated after every epoch: `val` selects the best weights, those of the last epoch whose
            accuracy is within a standard error of the highest; `test` only draws the curve, as papers do; `none` saves
            the time.
        validate_every: epochs from one validation to the next; the last epoch is always validated.
        best_by: the measure on validation images that selects the best weights. null: the method's default, such as
            accuracy; balanced_accuracy: mean over classes of the share of correct images, for uneven classes where rare
            ones count as much.
        stop_when_perfect: end the training after this many validations in a row with a perfect score, such as 30; the
            learning rate has not fallen to its end by then. null: train all epochs.
    """

    epochs: int = 100
    batch_size: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    clip_each: bool = False
    ema_decay: float | None = None
    repeats: int = 1
    fixed_views: int | None = None
    validate: Literal["val", "test", "none"] = "val"
    validate_every: int = 1
    best_by: Literal["balanced_accuracy"] | None = None
    stop_when_perfect: int | None = None

    def __post_init__(self) -> None:
        check_fields("train", self)
        for name in ("epochs", "accumulate", "repeats", "validate_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1, got {getattr(self, name)}")
        for name, limit in (("epochs", MAX_EPOCHS), ("repeats", MAX_REPEATS)):
            if getattr(self, name) > limit:
                raise UserError(f"train.{name} must be at most {limit:,}, got {getattr(self, name)}")
        for name in ("batch_size", "fixed_views"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1, got {getattr(self, name)}")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"train.ema_decay must lie between 0 and 1, got {self.ema_decay}")
        if self.best_by is not None and self.validate != "val":
            raise UserError(
                f"train.best_by selects weights on validation images, and train.validate is {self.validate}; "
                "add --train.validate val"
            )
        if self.stop_when_perfect is not None and (self.stop_when_perfect < 1 or self.validate != "val"):
            raise UserError(
                "train.stop_when_perfect counts validations, at least 1, with train.validate val, "
                f"got {self.stop_when_perfect} with train.validate {self.validate}"
            )
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UserError(f"train.clip_norm must be positive, got {self.clip_norm}; null does not clip")
        if self.clip_each and self.clip_norm is None:
            raise UserError("train.clip_each clips at train.clip_norm, which is null; add --train.clip_norm 3")


@dataclass(frozen=True)
class Engine:
    """The machine; nothing here should change the trained weights.

    Args:
        device: `auto` takes a GPU where there is one.
        devices: processes on this machine, one device each. One process on one machine trains alone, also as a task of
            a scheduler that started several.
        nodes: machines; torchrun, srun, jsrun or mpirun starts their processes.
        precision: `auto` is bfloat16 mixed precision on a GPU that computes in it, and float32 elsewhere. On a CPU
            mixed precision is bfloat16, and refused where gradients in it are wrong.
        compile: compile the student, by block below 10,000 steps, as a whole from there on, which takes a minute or
            two; null does so on a GPU from 2,500 steps on.
        cuda_graph: capture the whole step on a GPU in one CUDA graph, so that the GPU does not wait for Python; null
            does not yet.
        sync_batchnorm: share BatchNorm statistics between devices.
        checkpoint_minutes: maximum time that a kill can cost; ends of epochs are saved as well, except short ones.
        replay_gb: cache the logits of frozen teachers on this disk, up to 10^9 bytes times this over all runs, for runs
            with the same teachers, images, augmentation, seed and batches; null runs the teachers again.
        logger: also send metrics to MLflow, Weights & Biases or Trackio; csv and tensorboard are always written.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Literal["auto", "32", "bf16-mixed", "16-mixed"] = "auto"
    compile: bool | None = None
    cuda_graph: bool | None = None
    sync_batchnorm: bool = False
    checkpoint_minutes: float = 5.0
    replay_gb: float | None = None
    logger: Literal["none", "mlflow", "wandb", "trackio"] = "none"

    def __post_init__(self) -> None:
        check_fields("engine", self)
        if not (1 <= self.devices <= MAX_DEVICES and 1 <= self.nodes <= MAX_DEVICES):
            raise UserError(
                f"engine.devices and engine.nodes must lie between 1 and {MAX_DEVICES:,}, got {self.devices} and "
                f"{self.nodes}"
            )
        if self.replay_gb is not None and self.replay_gb <= 0:
            raise UserError(f"engine.replay_gb must be positive, got {self.replay_gb}; null caches nothing")
        if self.checkpoint_minutes <= 0:
            raise UserError(f"engine.checkpoint_minutes must be positive, got {self.checkpoint_minutes}")

    @property
    def processes(self) -> int:
        """Number of processes over all machines."""
        return self.devices * self.nodes

    @property
    def on_cpu(self) -> bool:
        """True if the training runs on the CPU."""
        return self.device == "cpu" or (self.device == "auto" and not torch.accelerator.is_available())

    @property
    def mixed_on_cpu(self) -> bool:
        """True if the training runs on the CPU in mixed precision."""
        return self.on_cpu and self.precision.endswith("-mixed")
