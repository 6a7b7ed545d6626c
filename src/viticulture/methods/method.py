# SPDX-License-Identifier: Apache-2.0
"""The contract of a method: it turns a batch into named loss terms; this base class sums, logs and steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar
from weakref import ref

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from ..guides.guide import Batch, Given, Guide
from ..models.taps import Seen, Taps
from ..models.task import Task
from ..optim import SAM, Optim, Schedule


class Method(LightningModule, ABC):
    """A way of learning: one batch in, named and weighted loss terms out.

    A subclass hands on the five arguments below and adds its own keywords, which are the `method` section of a recipe.

    Args:
        student: the network that is kept.
        task: classes and input of the student.
        guides: what teaches it besides, by name.
        optim: optimizer and its parameter groups.
        schedule: learning rate over the steps.
    """

    gives: ClassVar[frozenset[Given]] = frozenset(Given)  # what guides may count on
    labeled: ClassVar[bool] = True  # whether it learns from labels; else data without any will do
    views: ClassVar[int] = 1  # of an image that a batch must hold: 2 asks for a recipe's augment2

    def __init__(
        self, student: nn.Module, task: Task, guides: Mapping[str, Guide], optim: Optim, schedule: Schedule
    ) -> None:
        super().__init__()
        self.student, self.task = student, task
        self.guides = nn.ModuleDict(dict(guides))
        self.auxiliary = nn.ModuleDict()  # networks of the method's own, trained with the student and then thrown away
        self.noise = 0  # uniform numbers for each image that `losses` finds in the batch
        self.local_crops = (0, 0)  # how many views (image3, ...) of the batch are local crops, and their side in px
        self.optim, self.schedule = optim, schedule
        self.taps = Taps(student, frozenset().union(*(guide.needs for guide in guides.values())))
        self.split = "val"  # what validation batches are called in the metrics
        # Set by the run. Asking the Trainer would make it build the loader too early to restore its state.
        self.steps_per_epoch = self.epochs = 1
        self.last_micro_batch = True  # whether the micro-batch at hand completes a batch
        self.epoch_step: tuple[int, int] | None = None  # epoch and micro-batch in training, from 0
        self.shown: ref[Tensor] | None = None  # the images of the last training step, while they are there
        self.extra_logs: dict[str, Tensor] = {}  # what `losses` wants logged beside its terms
        self.logged: dict[str, Tensor] = {}  # what the last training step logged, for means over the epoch
        self.sam: SAM | None = None

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Named, weighted scalar terms whose sum is minimized."""

    @abstractmethod
    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """What the method itself measures on a held-out batch, means over its images; `accuracy` or else `loss` chooses
        the best.
        """

    def measured(self, batch: Batch) -> dict[str, Tensor]:
        """What is watched on a held-out batch: the method's measures, and every guide's by a name that says whose."""
        found = self.measures(batch)
        for name, guide in self.guides.items():
            assert isinstance(guide, Guide)
            found |= {f"{name}_{measure}": value for measure, value in guide.measures(batch).items()}
        return found

    def epoch_step_of(self, images: Tensor) -> tuple[int, int] | None:
        """Epoch and micro-batch in training, from 0, if these are the very images of the step at hand; None for others."""
        return self.epoch_step if self.shown is not None and images is self.shown() else None

    @property
    def perturbed(self) -> bool:
        """Whether this is a step's second pass: nothing is logged, and nothing that follows the student moves."""
        return self.sam is not None and self.sam.perturbed

    def remarks(self, batch_size: int) -> list[str]:
        """What a person should know before a training with so many images a step begins."""
        return []

    def after_backward(self) -> None:
        """Called once a step when all gradients are there, averaged over processes, not yet unscaled or clipped."""

    def guided(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Every term of every guide, by a name that says whose it is."""
        terms = {}
        for name, guide in self.guides.items():
            assert isinstance(guide, Guide)
            plain = type(guide).__module__.rpartition(".")[2] == name  # it has its file's name, not one of its own
            for term, value in guide.losses(batch, seen).items():
                terms[term if plain and term.startswith(name) else f"{name}_{term}"] = value
        return terms

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum the terms; Lightning calls backward and steps."""
        self.epoch_step, self.shown = (self.current_epoch, batch_idx), ref(batch["image"])
        self.last_micro_batch = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        terms = self.losses(batch)
        total = torch.stack(list(terms.values())).sum()
        self.seen_terms = {name: term.detach() for name, term in terms.items()}
        if self.perturbed:
            return total
        self.logged = {"loss": total.detach(), **self.seen_terms, **self.extra_logs}
        self.log_dict({f"train/{name}": value for name, value in self.logged.items()}, batch_size=len(batch["image"]))
        self.log("lr", self.trainer.optimizers[0].param_groups[-1]["lr"])  # the last group has no layer-wise decay
        return total

    def on_after_backward(self) -> None:
        """Once the whole batch has its gradients, each guide may combine its own with the student's."""
        if not self.last_micro_batch:
            return
        self.after_backward()
        for name, guide in self.guides.items():
            assert isinstance(guide, Guide)
            logs = guide.after_backward()
            if not self.perturbed:
                self.log_dict({f"train/{name}_{key}": value for key, value in logs.items()})

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the measures of one held-out batch."""
        self.epoch_step = None
        values = {f"{self.split}/{name}": value for name, value in self.measured(batch).items()}
        self.log_dict(values, batch_size=len(batch["image"]), on_epoch=True, sync_dist=True)

    def start_epoch(self) -> None:
        for guide in self.guides.values():
            assert isinstance(guide, Guide)
            guide.start_epoch(self.current_epoch, self.trainer.max_epochs or 1)

    def on_train_start(self) -> None:
        self.start_epoch()  # a run resumed inside an epoch gets no on_train_epoch_start

    def on_train_epoch_start(self) -> None:
        self.start_epoch()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer over the student's groups and what else is trainable; the rate is set every step."""
        epochs = self.trainer.max_epochs or 1
        optimizer = self.optim.build(self.optim.groups(self.student, nn.ModuleDict({**self.guides, **self.auxiliary})))
        if self.optim.sam_rho is not None:
            optimizer = self.sam = SAM(optimizer, self.optim.sam_rho, self)
        schedule = self.schedule.attach(optimizer, self.steps_per_epoch, epochs, self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
