# SPDX-License-Identifier: Apache-2.0
"""The contract of a method, which turns a batch into named loss terms; training/module.py trains it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Capability, Guide
from ..models.data_spec import DataSpec
from ..models.taps import Readings, Taps
from ..models.teachers.frozen import Frozen
from ..models.weights.load_matching import classifiers
from ..optim import Optim, Schedule


@dataclass(frozen=True, eq=False)
class Setup:
    """Arguments of every method, built from the other sections of a recipe.

    Args:
        student: the network that remains after training.
        data_spec: classes and input of the student.
        guides: guides by their names in the recipe.
        optim: optimizer and its parameter groups.
        schedule: learning rate over the steps.
        class_weights: [C] float32, factor of every class in the label term; None for 1.
        labeled_share: share of the training images that have a label; the others' is -1.
    """

    student: nn.Module
    data_spec: DataSpec
    guides: Mapping[str, Guide] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    class_weights: Tensor | None = None
    labeled_share: float = 1.0


def check_no_classifier(setup: Setup, method: str) -> None:
    """Raises: UserError for guides and for layer decay, which need a classifier."""
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
    """Contents of a batch; `guides.guide.Batch` lists the names.

    Args:
        labels: the method reads labels; without, unlabeled data will do.
        contents: annotation of an image: its class ("classes"), several "labels", a number ("numbers"), "objects" in
            it, or the classes of its "pixels".
        masks: objects have masks.
        views: of an image; 2 needs a recipe's `augment2`.
        local_crops: local crops of an image; more than none need a recipe's `augment_local_crops`.
        local_size: side of a local crop, pixels.
        noise: uniform numbers for each image.
    """

    labels: bool = True
    contents: Literal["classes", "labels", "numbers", "objects", "pixels"] = "classes"
    masks: bool = False
    views: int = 1
    local_crops: int = 0
    local_size: int = 0
    noise: int = 0

    @property
    def dense(self) -> bool:
        """Images are annotated with objects or pixel classes."""
        return self.contents in ("objects", "pixels")

    def noise_of(self, images: Tensor, seed: int = 0) -> Tensor:
        """Return fixed noise for as many images: the same for every batch of that size."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(len(images), self.noise, generator=generator).to(images.device)


@dataclass(frozen=True)
class TrainingLength:
    """Length of a training in optimizer steps and epochs, and the split that is evaluated between epochs."""

    steps_per_epoch: int = 1
    epochs: int = 1
    split: str = "val"

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.steps_per_epoch * self.epochs


@dataclass(frozen=True)
class StepContext:
    """Position within an optimizer step; a plain loop over whole batches may leave the defaults.

    Args:
        first: this micro-batch is the first of its step.
        last: it is the last one: all gradients are there after it.
        perturbed: this is SAM's second pass: nothing is logged, and nothing that follows the student moves. Buffers of
            networks are restored (`optim.SAM`), a method's are not.
    """

    first: bool = True
    last: bool = True
    perturbed: bool = False

    @property
    def begins(self) -> bool:
        """The step begins: what follows the student moves now."""
        return self.first and not self.perturbed


class Method(nn.Module, ABC):
    """A training method: a batch in, named and weighted loss terms out.

    A subclass takes a `Setup` first and passes it on; its other keywords are the `method` section of a recipe. It
    defines `losses` and `metrics`, and puts further networks into `auxiliary`: they are trained with the student and
    then thrown away.

    Args:
        setup: student, data spec, guides, optimizer, schedule.
        forward: the pass over the student that taps and guides read, of images and whatever `losses` gives the taps
            besides; None: the student's.

    Attributes:
        task: dotted path of the task whose runs it trains, or its class (tasks/task.py); "" for classification, or,
            of a method without labels, for representation.
        provides: what guides may rely on.
        batch_spec: what `losses` reads from a batch; of the class where no student is needed for it.
        best_metric: metric whose highest value selects the best weights; where it is missing, the lowest `loss` does.
        takes_class_weights: `losses` applies the setup's class weights.
        takes_non_square: images may be non-square.
        closed_form: the optimum is computed at once (training/linear_head.py), without augmentation, guides or steps.
        capturable: the device's work is the same in every step between two calls of `start_epoch`, but for what tensors
            on the device hold, and nothing in it waits for the device; so a CUDA graph can hold a step. Not inherited.
        depends_on_length: a step depends on `length`, so a budget does not fix the length during warm-up.
        start: digest of the weights that the student starts from; None for random ones.
        loaded: sentences about these weights: their source, what was loaded and what was not.
        taps: the student's pass, `taps(images)`, with what guides read.
        length: of the training, set by the run before it.
        step: set before every call of `losses`.
        logs: scalars of the last step: the loss, its terms, and what `losses` adds.
        extra_config: what config.json of saved weights needs besides the student to rebuild the network.
    """

    task: ClassVar[str | type] = ""
    provides: ClassVar[frozenset[Capability]] = frozenset(Capability)
    batch_spec: BatchSpec = BatchSpec()
    best_metric: ClassVar[str] = "accuracy"
    takes_class_weights: ClassVar[bool] = False
    takes_non_square: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    capturable: ClassVar[bool] = False
    depends_on_length: ClassVar[bool] = True
    start: str | None = None
    loaded: Sequence[str] = ()

    def __init__(self, setup: Setup, forward: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.student, self.data_spec = setup.student, setup.data_spec
        self.guides = nn.ModuleDict(dict(setup.guides))
        self.auxiliary = nn.ModuleDict()
        self.optim, self.schedule = setup.optim, setup.schedule
        needs: frozenset[str] = frozenset().union(*(guide.needs for guide in setup.guides.values()))
        self.taps = Taps(setup.student, needs, forward)
        self.length, self.step = TrainingLength(), StepContext()
        self.logs: dict[str, Tensor] = {}
        self.extra_config: dict[str, Any] = {}

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return named, weighted scalar terms whose sum is minimized, with those of guides (`guide_losses`)."""

    @abstractmethod
    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return metrics of a held-out batch, means over its images. What is no scalar is summed over the split."""

    def num_evaluated(self, batch: Batch) -> int:
        """Return how many images of a held-out batch the metrics are means over; 0 leaves the batch out."""
        return len(batch["image"])

    def warnings(self, batch_size: int) -> list[str]:
        """Return warnings about a training whose losses see so many images at once."""
        return []

    def after_backward(self) -> None:
        """Runs once all gradients of a step are there, averaged over processes, not yet unscaled or clipped."""

    def after_step(self) -> None:
        """Runs after the optimizer's step."""

    def compile_networks(self, by_block: bool = False, **options: Any) -> None:
        """Compile in place all that a step runs: the student's pass, auxiliary networks, what guides train, and frozen
        teachers. Options are `torch.compile`'s.

        Args:
            by_block: compile one block of student and teachers for all their blocks, where these are equal.
        """
        self.taps.compile(by_block, **options)
        for network in self.auxiliary.children():
            network.compile(**options)
        for _, guide in self.named_guides():
            guide.compile_networks(**options)
        for module in self.modules():
            if isinstance(module, Frozen):
                module.compile_network(by_block, **options)

    def start_epoch(self, epoch: int = 0) -> None:
        """Call the guides before an epoch, counted from 0."""
        for _, guide in self.named_guides():
            guide.start_epoch(epoch, self.length.epochs)

    def guide_losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return the terms of all guides, with their guide's name before them."""
        terms = {}
        for name, guide in self.named_guides():
            shipped_name = type(guide).__module__.rpartition(".")[2] == name
            for term, value in guide.losses(batch, readings).items():
                terms[term if shipped_name and term.startswith(name) else f"{name}_{term}"] = value
        return terms

    def all_metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the method's metrics and those of guides, with their guide's name before them."""
        values = self.metrics(batch)
        for name, guide in self.named_guides():
            values |= {f"{name}_{metric}": value for metric, value in guide.metrics(batch).items()}
        return values

    def named_guides(self) -> list[tuple[str, Guide]]:
        """Return names and guides, which a ModuleDict types as modules."""
        return cast("list[tuple[str, Guide]]", list(self.guides.items()))

    @property
    def counted_network(self) -> nn.Module:
        """The network whose MACs are reported."""
        return self.student

    def trained_on_labels(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs of the first head, and of others that no guide trains, as predictions are their mean."""
        return outputs if len(outputs) > 1 and self.has_idle_heads else outputs[:1]

    @property
    def has_unread_weights(self) -> bool:
        """Some weights may have no gradient: those of idle heads or, without a label term, what no guide reads."""
        return self.has_idle_heads or (len(self.guides) > 0 and not getattr(self, "label_weight", 0))

    @property
    def has_idle_heads(self) -> bool:
        """The student has heads after the first that neither labels nor a guide train."""
        guides = [guide for _, guide in self.named_guides()]
        trained = 1 + any(guide.trains_last_head for guide in guides)
        return len(classifiers(self.student)) > trained and not any(guide.trains_every_head for guide in guides)
