# SPDX-License-Identifier: Apache-2.0
"""A method under Lightning: sums its terms, calls its hooks and its guides', builds its optimizer."""

from typing import cast
from weakref import ref

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..data.batches.targets import Batch
from ..guides.guide import teacher_images
from ..methods.method import Method, StepContext
from ..optim import SAM


class TrainingModule(LightningModule):
    """Trains a method.

    Attributes:
        terms: names of the loss terms of the last step, whose values are in `method.logs`.
        guide_logs: scalars that guides returned after the last backward pass.
        rate: learning rate of the last step.
        sums: metrics that are no scalars, such as counts by class, summed over the held-out split so far. Every process
            evaluates the whole split.
        sam: the optimizer, where it takes two gradients a step.
    """

    def __init__(self, method: Method, clip_each: bool = False) -> None:
        super().__init__()
        self.method, self.clip_each = method, clip_each
        self.terms: tuple[str, ...] = ()
        self.guide_logs: dict[str, Tensor] = {}
        self.rate = 0.0
        self.sums: dict[str, Tensor] = {}
        self.sam: SAM | None = None
        self.images: ref[Tensor] | None = None
        self.micro_batch = 0
        self.channels_last = starts_with_convolution(method.student)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        group = self.trainer.optimizers[0].param_groups[0]
        self.rate = self.method.optim.lr * group["lr"] / group["initial_lr"]  # layers' and kernels' are in proportion

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum the terms; Lightning calls backward and steps."""
        method, parts = self.method, self.trainer.accumulate_grad_batches
        perturbed = self.sam is not None and self.sam.perturbed
        self.set_memory_layout(batch)
        self.images, self.micro_batch = ref(teacher_images(batch)), batch_idx
        method.step = StepContext(batch_idx % parts == 0, (batch_idx + 1) % parts == 0, perturbed)
        before, method.logs = method.logs, {}
        terms = method.losses(batch)
        total = torch.stack(list(terms.values())).sum()
        if perturbed:
            method.logs = before
            return total
        self.terms = tuple(terms)
        method.logs = {"loss": total.detach(), **{name: term.detach() for name, term in terms.items()}, **method.logs}
        return total

    def on_after_backward(self) -> None:
        """Once the whole batch has its gradients, each guide may combine its gradients with the student's."""
        method = self.method
        if not method.step.last:
            return
        method.after_backward()
        if not method.step.perturbed:
            self.guide_logs = {}
        for name, guide in method.named_guides():
            logs = guide.after_backward()
            if not method.step.perturbed:
                self.guide_logs |= {f"{name}_{log}": value for log, value in logs.items()}

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        if self.clip_each and gradient_clip_val is not None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    torch.nn.utils.clip_grad_norm_(parameter, gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | LightningOptimizer, closure: object = None
    ) -> None:
        step = self.trainer.lr_scheduler_configs[0].scheduler.last_epoch
        self.method.optim.set_decay(self.trainer.optimizers[0], step / self.method.length.steps)
        super().optimizer_step(epoch, batch_idx, optimizer, closure)  # type: ignore[arg-type]
        self.method.step = StepContext()
        self.method.after_step()
        for _, guide in self.method.named_guides():
            guide.after_step()

    def on_validation_epoch_start(self) -> None:
        self.sums = {}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log a batch's metrics, weighted by the images evaluated; NaN of a split without any. All processes log, as
        each waits for the others."""
        self.set_memory_layout(batch)
        metrics, split = self.method.all_metrics(batch), self.method.length.split
        for name, value in metrics.items():
            if value.ndim:
                self.sums[name] = self.sums[name] + value if name in self.sums else value
        scalars = {f"{split}/{name}": value for name, value in metrics.items() if not value.ndim}
        self.log_dict(scalars, batch_size=self.method.num_evaluated(batch), on_epoch=True, sync_dist=True)

    def on_train_start(self) -> None:
        self.method.start_epoch(self.current_epoch)  # a run resumed inside an epoch gets no on_train_epoch_start
        schedule = self.trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(schedule, LambdaLR)
        groups = zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
        for group, highest, share in groups:  # a checkpoint has the next step's rate by the length of that time
            group["lr"] = highest * share(schedule.last_epoch)

    def on_train_epoch_start(self) -> None:
        self.method.start_epoch(self.current_epoch)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the optimizer over the student, guides and auxiliary networks; the rate is set every step."""
        method = self.method
        optimizer = method.optim.build(
            method.optim.groups(method.student, nn.ModuleDict({**method.guides, **method.auxiliary}))
        )
        if method.optim.sam_rho is not None:
            networks = nn.ModuleList([method.student, method.guides, method.auxiliary])
            optimizer = self.sam = SAM(optimizer, method.optim.sam_rho, networks)
        schedule = method.schedule.attach(
            optimizer, method.length.steps_per_epoch, method.length.epochs, method.optim.lr
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def set_memory_layout(self, batch: Batch) -> None:
        """Store images for a CNN with channels last on a CPU, where its step takes less time then (benchmarks/log)."""
        images = batch["image"]
        if self.channels_last and isinstance(images, Tensor) and images.is_cpu and images.ndim == 4:
            batch["image"] = images.contiguous(memory_format=torch.channels_last)

    def place_of(self, images: Tensor) -> tuple[int, int] | None:
        """Return epoch and micro-batch, from 0, if these are the very images of the current step; None for others."""
        return (self.current_epoch, self.micro_batch) if self.images and images is self.images() else None


def starts_with_convolution(student: nn.Module) -> bool:
    """Return whether the first layer is a convolution with overlapping windows, as in a CNN."""
    first = next((layer for layer in student.modules() if isinstance(layer, nn.Conv2d)), None)
    return first is not None and first.kernel_size != first.stride


def module_of(trained: LightningModule) -> TrainingModule:
    """Return Lightning's module as ours, for callbacks."""
    return cast(TrainingModule, trained)
