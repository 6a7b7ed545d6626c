# SPDX-License-Identifier: Apache-2.0
"""Whole training steps in one CUDA graph, so that a GPU does not wait for Python.

The first steps run as usual on a side stream. The next one is captured: Lightning's own step, from the forward pass to
the optimizer and to what follows it, is recorded and not computed. From then on a step is: copy the batch and the
learning rates into the tensors that were captured, replay.

Numbers are captured as they are, so what changes from step to step must be a tensor on the device; a method or guide
states by `capturable` that this holds. What changes at the start of an epoch may be a number: steps are captured anew
for guides that have a `start_epoch`. Random numbers come from the device's generator, which a replay advances as the
step itself does; its state is in checkpoints, as always. After a resume the first steps run as usual again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from ..config.checks import why_not_captured
from ..config.resolve import Config
from ..data.batches.targets import Batch
from ..data.transforms.transform import send
from ..errors import UserError
from ..guides.guide import Guide
from ..methods.method import Method
from ..text import log
from .module import TrainingModule

AUTO = False
"""`engine.cuda_graph: null` captures. Off until tests/training/test_cuda_graph.py has passed on a GPU, see
benchmarks/log/gpu.md."""
WARM_UP = 3
"""Steps before the capture, in which libraries and compilers choose kernels and optimizers create their state."""
HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")


def is_captured(config: Config, on_gpu: bool, callbacks: Sequence[Callback] = ()) -> bool:
    """Return whether a training captures its steps; by default with a note where it cannot.

    Raises: UserError if engine.cuda_graph is true and a callback runs inside the step.
    """
    chosen = config.engine.cuda_graph
    if not on_gpu or not (AUTO if chosen is None else chosen):
        return False
    inside = (
        f"{type(callback).__name__}.{hook} runs inside the step"
        for callback in callbacks
        for hook in HOOKS
        if getattr(type(callback), hook) is not getattr(Callback, hook)
    )
    reason = why_not_captured(config) or next(inside, "")
    if reason and chosen:
        raise UserError(f"engine.cuda_graph captures the whole step, and {reason}; set one of the two off")
    if reason:
        log(f"note     steps are not captured in a CUDA graph: {reason}")
    return not reason


class CapturedModule(TrainingModule):
    """Trains a method by a CUDA graph of its step.

    Attributes:
        graph: of the step; None while steps run as usual or are captured.
        inputs: the batch's tensors that were captured.
        rates: learning rate of every parameter group, [groups] float32.
        logged: the method's and the guides' scalars as captured; those on the device are in `values`, [N] float32.
    """

    graph: torch.cuda.CUDAGraph | None = None
    rates: Tensor
    values: Tensor
    logged: tuple[dict[str, Tensor], dict[str, Tensor]]

    def __init__(self, method: Method, clip_each: bool = False) -> None:
        super().__init__(method, clip_each)
        self.inputs: Batch = {}
        self.warm_steps = 0
        starts = [type(guide).start_epoch is not Guide.start_epoch for _, guide in method.named_guides()]
        self.follows_epochs = any(starts) or type(method).start_epoch is not Method.start_epoch

    def on_train_start(self) -> None:
        super().on_train_start()
        self.rates = torch.zeros(len(self.trainer.optimizers[0].param_groups), device=self.device)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        if self.follows_epochs:
            self.graph = None
            self.zero_grad()  # gradients are in the graph's memory

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self.inputs = self.inputs or {name: value.clone() for name, value in batch.items()}
        for name, value in batch.items():
            if value.shape != self.inputs[name].shape:
                raise UserError(
                    f"engine.cuda_graph needs batches of one shape, got {name} {list(value.shape)} after "
                    f"{list(self.inputs[name].shape)}; set it to false"
                )
            self.inputs[name].copy_(value)
        rates = [float(group["lr"]) for group in self.trainer.optimizers[0].param_groups]
        self.rates.copy_(send(torch.tensor(rates), self.device), non_blocking=True)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Replay the whole step, or compute its loss from the captured tensors, as new objects, by which frozen
        teachers know new images."""
        if self.graph is None:
            return super().training_step({name: value.view_as(value) for name, value in self.inputs.items()}, batch_idx)
        self._replay(self.graph)
        return self.method.logs["loss"]

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if self.graph is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.graph is None:
            super().backward(loss, *args, **kwargs)

    def on_after_backward(self) -> None:
        if self.graph is None:
            super().on_after_backward()

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        """Take a step: as usual, captured and replayed, or replayed by `training_step`, which the closure calls."""
        if self.graph is not None:
            closure()
            return
        step = partial(super().optimizer_step, epoch, batch_idx, optimizer, closure)
        with self._rates_on_device():
            if self.warm_steps < WARM_UP:
                self.warm_steps += 1
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    step()
                torch.cuda.current_stream().wait_stream(self.stream)
                return
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=self.stream):
                    step()
                    self.logged = self.method.logs, self.guide_logs
                    scalars = [value for logs in self.logged for value in logs.values()]
                    self.values = torch.stack([value.float() for value in scalars if not value.is_cpu])
            except RuntimeError as error:
                reason = str(error.__context__ or error).splitlines()[0]  # the capture's end fails after the step
                raise UserError(f"engine.cuda_graph cannot capture this step ({reason}); set it to false") from error
        self._replay(graph)
        self.graph = graph

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Compute the captured step, and give the scalars that it logs a memory that the next one leaves alone."""
        graph.replay()
        values = iter(self.values.clone().unbind())
        self.method.logs, self.guide_logs = (
            {name: value if value.is_cpu else next(values) for name, value in logs.items()} for logs in self.logged
        )

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Let the optimizer read its learning rates from the device; schedules and checkpoints have them as numbers."""
        groups = self.trainer.optimizers[0].param_groups
        before = [dict(group) for group in groups]
        for group, rate in zip(groups, self.rates.unbind(), strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)
