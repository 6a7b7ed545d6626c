# SPDX-License-Identifier: Apache-2.0
"""The contract of a method: it turns a batch into named loss terms; this base class sums, logs and steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast
from weakref import ref

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..errors import UserError
from ..guides.guide import Batch, Given, Guide
from ..models.data_spec import DataSpec
from ..models.taps import Readings, Taps
from ..models.weights.load_matching import classifiers
from ..optim import SAM, Optim, Schedule


@dataclass(frozen=True, eq=False)
class Setup:
    """What every method starts from; the other sections of a recipe say it.

    Args:
        student: the network that is kept.
        data_spec: classes and input of the student.
        guides: what teaches it besides, by the name that the recipe gives.
        optim: optimizer and its parameter groups.
        schedule: learning rate over the steps.
        class_weights: [C] float32, the factor of every class in a term that learns from labels; None for 1.
    """

    student: nn.Module
    data_spec: DataSpec
    guides: Mapping[str, Guide] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    class_weights: Tensor | None = None


def check_dense(setup: Setup, method: str) -> None:
    """Raises: UserError for guides, and for rates by layer: both know classifiers alone, and the method trains none."""
    if setup.optim.layer_decay is not None:
        raise UserError(
            f"optim.layer_decay needs a classifier, and method {method} trains none; leave it out, "
            f"got {setup.optim.layer_decay}"
        )
    if setup.guides:
        raise UserError(
            f"guides teach classifiers, and method {method} trains none; take guides.{next(iter(setup.guides))} out, "
            "or start from a student that it has taught: --init RUN"
        )


@dataclass(frozen=True)
class BatchSpec:
    """What a batch must hold; `guides.guide.Batch` says under which names.

    Args:
        labels: whether the method learns from them; else data without any will do.
        contents: what is known of an image: its class ("classes"), several "labels", "objects" in it, or the classes of
            its "pixels".
        masks: whether objects have masks.
        views: of an image; 2 asks for a recipe's `augment2`.
        local_crops: local crops of an image; more than none ask for a recipe's `augment_local_crops`.
        local_size: side of a local crop, pixels.
        noise: uniform numbers for each image.
    """

    labels: bool = True
    contents: Literal["classes", "labels", "objects", "pixels"] = "classes"
    masks: bool = False
    views: int = 1
    local_crops: int = 0
    local_size: int = 0
    noise: int = 0

    @property
    def dense(self) -> bool:
        """Whether more is known of an image than what it shows as a whole: objects, or classes of its pixels."""
        return self.contents in ("objects", "pixels")

    def noise_of(self, images: Tensor, seed: int = 0) -> Tensor:
        """The noise of as many images, which nobody drew for them: the same for every batch of that size."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(len(images), self.noise, generator=generator).to(images.device)


@dataclass(frozen=True)
class Course:
    """How long a training is, and what is measured on the way.

    Args:
        steps_per_epoch: of the optimizer.
        epochs: of the whole training.
        watched: the split that is measured between epochs, as the metrics call it.
    """

    steps_per_epoch: int = 1
    epochs: int = 1
    watched: str = "val"

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.steps_per_epoch * self.epochs


@dataclass(frozen=True, eq=False)
class Moment:
    """Which training step is at hand; a plain loop over whole batches may leave it as it is.

    Args:
        epoch: from 0.
        micro_batch: of the epoch, from 0.
        first: whether the micro-batch is the first of its step.
        last: whether it is the last: all gradients are there after it.
        images: the step's, while they are there.
    """

    epoch: int = 0
    micro_batch: int = 0
    first: bool = True
    last: bool = True
    images: Callable[[], Tensor | None] = lambda: None


class Method(LightningModule, ABC):
    """A way of learning: one batch in, named and weighted loss terms out.

    A subclass takes a `Setup` first and hands it on; its keywords are the `method` section of a recipe. It defines
    `losses` and `measures`, and puts networks of its own into `auxiliary`: they are trained with the student and then
    thrown away. What it needs of a batch it says in `batch_spec`, of the class as far as no student is needed for it.

    Args:
        setup: student, data_spec, guides, optimizer, schedule.
        forward: the pass over the student that taps and guides watch, of images and whatever `losses` hands to the taps
            besides; None: the student's own.

    Attributes:
        task: dotted path of the task whose runs it trains, or its class (tasks/task.py); "" for classification, or,
            of a method without labels, for representation.
        gives: what guides may count on.
        batch_spec: what `losses` finds in a batch.
        taps: the student's pass, `taps(images)`, with what the guides beside it read.
        course: length of the training. The run sets it once; asking Lightning's Trainer would make it build the loader
            too early to restore its state.
        moment: the step at hand, set in each training step.
        extra_logs: scalars that `losses` wants logged beside its terms; it sets them anew.
        logged: what the last training step logged, for means over the epoch.
        seen_terms: the terms of the last training step, detached.
        chosen_by: the measure whose highest value chooses the best weights; where it is not measured, the lowest `loss`
            does.
        weighs_classes: whether `losses` heeds the setup's class weights.
        oblong: whether images may be higher than wide, or wider.
        asks_length: whether a step depends on `course`, on how many there are to be; a budget settles the length of a
            training that does not ask while it warms up.
        extra_config: what a folder of weights must say beside the student, for the network to be built anew.
        by_class: [2, C], of the held-out split so far: images of each class that are told right, and all; None where
            nobody counts them.
        sam: the optimizer, where it takes two gradients a step.
        start: digest of the weights that the student starts from; None where it starts from none.
        convolves: whether the student's first layer is a convolution whose windows overlap, as a CNN's.
    """

    task: ClassVar[str | type] = ""
    gives: ClassVar[frozenset[Given]] = frozenset(Given)
    batch_spec: BatchSpec = BatchSpec()
    chosen_by: ClassVar[str] = "accuracy"
    weighs_classes: ClassVar[bool] = False
    oblong: ClassVar[bool] = False
    asks_length: ClassVar[bool] = True
    start: str | None = None

    def __init__(self, setup: Setup, forward: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.student, self.data_spec = setup.student, setup.data_spec
        self.guides = nn.ModuleDict(dict(setup.guides))
        self.auxiliary = nn.ModuleDict()
        self.optim, self.schedule = setup.optim, setup.schedule
        needs: frozenset[str] = frozenset().union(*(guide.needs for guide in setup.guides.values()))
        self.taps = Taps(setup.student, needs, forward)
        self.course, self.moment = Course(), Moment()
        self.extra_logs: dict[str, Tensor] = {}
        self.logged: dict[str, Tensor] = {}
        self.seen_terms: dict[str, Tensor] = {}
        self.extra_config: dict[str, Any] = {}
        self.by_class: Tensor | None = None
        self.sam: SAM | None = None
        first = next((layer for layer in setup.student.modules() if isinstance(layer, nn.Conv2d)), None)
        self.convolves = first is not None and first.kernel_size != first.stride

    @property
    def has_idle_heads(self) -> bool:
        """Whether the student has heads beside the first that neither labels nor a guide teach."""
        return len(classifiers(self.student)) > 1 and not any(guide.teaches_heads for _, guide in self._guides())

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Named, weighted scalar terms whose sum is minimized, the guides' (`guided`) among them."""

    @abstractmethod
    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """What the method itself measures on a held-out batch, means over its images; `chosen_by` names the one that
        chooses the best weights.
        """

    def judged(self, batch: Batch) -> int:
        """Images of a held-out batch that `measures` takes the mean of, all by default; without any it says nothing."""
        return len(batch["image"])

    @property
    def counted_network(self) -> nn.Module:
        """The network whose multiply-accumulates are told."""
        return self.student

    def warnings(self, batch_size: int) -> list[str]:
        """What a person should know before a training begins whose losses see so many images at once.

        Raises: UserError where nothing can be learnt from so few.
        """
        return []

    def after_backward(self) -> None:
        """Called once a step when all gradients are there, averaged over processes, not yet unscaled or clipped."""

    def guided(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Every term of every guide, by a name that says whose it is."""
        terms = {}
        for name, guide in self._guides():
            plain = type(guide).__module__.rpartition(".")[2] == name  # it has its file's name, not one of its own
            for term, value in guide.losses(batch, readings).items():
                terms[term if plain and term.startswith(name) else f"{name}_{term}"] = value
        return terms

    def measured(self, batch: Batch) -> dict[str, Tensor]:
        """What is watched on a held-out batch: the method's measures, and every guide's by a name that says whose."""
        values = self.measures(batch)
        for name, guide in self._guides():
            values |= {f"{name}_{measure}": value for measure, value in guide.measures(batch).items()}
        return values

    def epoch_step_of(self, images: Tensor) -> tuple[int, int] | None:
        """Epoch and micro-batch, from 0, if these are the very images of the step at hand; None for others."""
        return (self.moment.epoch, self.moment.micro_batch) if images is self.moment.images() else None

    @property
    def perturbed(self) -> bool:
        """Whether this is a step's second pass: nothing is logged, and nothing that follows the student moves. Buffers
        of networks go back by themselves (`optim.SAM`), a method's own do not."""
        return self.sam is not None and self.sam.perturbed

    @property
    def begins_step(self) -> bool:
        """Whether what follows the student moves now: once a step, with its first pass over its first micro-batch."""
        return self.moment.first and not self.perturbed

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum the terms; Lightning calls backward and steps."""
        parts = self.trainer.accumulate_grad_batches
        first, last = batch_idx % parts == 0, (batch_idx + 1) % parts == 0
        self.lay_out(batch)
        self.moment = Moment(self.current_epoch, batch_idx, first, last, ref(batch["image"]))
        terms = self.losses(batch)
        total = torch.stack(list(terms.values())).sum()
        self.seen_terms = {name: term.detach() for name, term in terms.items()}
        if self.perturbed:
            return total
        self.logged = {"loss": total.detach(), **self.seen_terms, **self.extra_logs}
        self.log_dict({f"train/{name}": value for name, value in self.logged.items()}, batch_size=len(batch["image"]))
        group = self.trainer.optimizers[0].param_groups[0]
        rate = self.optim.lr * group["lr"] / group["initial_lr"]  # layers' and kernels' own are in proportion
        self.log("lr", torch.tensor(rate))  # Lightning sends a plain number to the device, and waits for it
        return total

    def on_after_backward(self) -> None:
        """Once the whole batch has its gradients, each guide may combine its own with the student's."""
        if not self.moment.last:
            return
        self.after_backward()
        for name, guide in self._guides():
            logs = guide.after_backward()
            if not self.perturbed:
                self.log_dict({f"train/{name}_{log}": value for log, value in logs.items()})

    def on_validation_epoch_start(self) -> None:
        self.by_class = None

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the measures of one held-out batch, weighted by the images that were judged; of a split without any, NaN.
        A process logs even what weighs nothing, as the others wait for it."""
        self.lay_out(batch)
        values = {f"{self.course.watched}/{name}": value for name, value in self.measured(batch).items()}
        self.log_dict(values, batch_size=self.judged(batch), on_epoch=True, sync_dist=True)

    def start_epoch(self) -> None:
        for _, guide in self._guides():
            guide.start_epoch(self.current_epoch, self.course.epochs)

    def on_train_start(self) -> None:
        self.start_epoch()  # a run resumed inside an epoch gets no on_train_epoch_start
        schedule = self.trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(schedule, LambdaLR)
        groups = zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
        for group, highest, share in groups:  # a checkpoint holds the next step's rate by the length that it knew
            group["lr"] = highest * share(schedule.last_epoch)

    def on_train_epoch_start(self) -> None:
        self.start_epoch()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer over the student's groups and what else is trainable; the rate is set every step."""
        groups = self.optim.groups(self.student, nn.ModuleDict({**self.guides, **self.auxiliary}))
        optimizer = self.optim.build(groups)
        if self.optim.sam_rho is not None:
            networks = nn.ModuleList([self.student, self.guides, self.auxiliary])
            optimizer = self.sam = SAM(optimizer, self.optim.sam_rho, networks)
        schedule = self.schedule.attach(optimizer, self.course.steps_per_epoch, self.course.epochs, self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lay_out(self, batch: Batch) -> None:
        """Images for a CNN get their channels last in memory on a CPU, where its step takes less time then (LOG.md)."""
        images = batch["image"]
        if self.convolves and isinstance(images, Tensor) and images.is_cpu and images.ndim == 4:
            batch["image"] = images.contiguous(memory_format=torch.channels_last)

    def _guides(self) -> list[tuple[str, Guide]]:
        """Names and guides, which a ModuleDict knows as modules alone."""
        return cast("list[tuple[str, Guide]]", list(self.guides.items()))
