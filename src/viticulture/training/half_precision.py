# SPDX-License-Identifier: Apache-2.0
"""Mixed precision on a CPU, with float32 for the convolutions that oneDNN computes wrongly or slowly in half precision.

For output o, tap j of a kernel reads pixel o * stride + j * dilation - padding. On a small map some taps read padding
alone. The gradient of such a tap is 0, but in bfloat16 it is a sum over memory that was never written. Of a transposed
convolution it is one over outputs that padding cuts off, and where the stride exceeds the kernel the bias is left out
of outputs that no tap writes. All these run in float32, which takes no longer on a map of that size.

A depth-wise convolution with stride or a kernel larger than 3x3 has a fast forward pass in bfloat16, and a backward
pass that takes three to ten times as long as float32's (benchmarks/log): it runs in float32, too.

These are the known faults. `compare_gradients` finds others before a training begins: it computes the training's first
step twice, in memory that is filled differently, and once in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision, Precision
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.overrides import TorchFunctionMode

from ..config.resolve import Config
from ..config.sections import Engine, Train
from ..data.dataset import Dataset
from ..errors import UserError
from ..methods.method import TrainingLength
from ..models.students import count
from ..text import log
from .assemble import assemble
from .feed import training_loader
from .machine import filled_memory
from .module import TrainingModule
from .run_folder import RunFolder
from .session import Session

HALF = (torch.bfloat16, torch.float16)
CHECKED_MACS, MIN_IMAGES = 4e9, 4
"""MACs of the images in the checked step, which take a second or two, and its minimum of images."""
FILLS = (0xFF, 0x3F)  # bytes of the memory in which a step is computed: NaN, which a factor of 0 does not hide, and 0.7
FAR = 0.5
"""Distance of all gradients from float32's, as a share of the norm of those, beyond which a budget trains in float32.
Students and teachers of budgets lie below 0.2, deep CNNs with random weights reach 0.9."""


class CpuMixedPrecision(MixedPrecision):
    """Lightning's mixed precision on a CPU with `ExactConvolutions`."""

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        with super().forward_context(), ExactConvolutions():
            yield


class ExactConvolutions(TorchFunctionMode):
    """Runs convolutions in float32 that half precision computes wrongly or slowly; outputs are in half precision."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CONVOLUTIONS and CONVOLUTIONS[func](*args, **kwargs) and (half := _half_of(*args, **kwargs)):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_float32, args), **{key: _float32(value) for key, value in kwargs.items()}).to(half)
        return func(*args, **kwargs)


def wrong_or_slow(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> bool:
    """Return whether a convolution is computed wrongly in half precision, or is a depth-wise one that is slow in it;
    arguments as `torch.conv2d`'s."""
    kernel = weight.shape[2:]
    steps, gaps = _each(stride, kernel), _each(dilation, kernel)
    if groups > 1 and weight.shape[1] == 1 and (max(kernel) > 3 or max(steps) > 1):
        return True
    spans = [gap * (taps - 1) for gap, taps in zip(gaps, kernel, strict=True)]
    if isinstance(padding, str):
        both = spans if padding == "same" else [0] * len(kernel)
        before = [zeros // 2 for zeros in both]
    else:
        before = _each(padding, kernel)
        both = [2 * zeros for zeros in before]
    pixels = input.shape[-len(kernel) :]
    return any(map(_reads_padding_alone, pixels, kernel, steps, gaps, before, both))


def _reads_padding_alone(size: int, taps: int, step: int, gap: int, before: int, both: int) -> bool:
    """Return whether a tap of a kernel reads no pixel of a dimension of `size`, `before` of `both` zeros before it."""
    outputs = range(0, size + both - gap * (taps - 1), step)  # where each begins
    return any(
        all(not 0 <= output + tap * gap - before < size for output in outputs) for tap in range(taps if before else 0)
    )


def pads_or_skips(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    *rest: Any,
    **others: Any,
) -> bool:
    """Return whether a transposed convolution may have a tap that writes into what padding cuts off, or an output that
    no tap writes, at which bfloat16 leaves out the bias; arguments as `torch.conv_transpose2d`'s."""
    kernel = weight.shape[2:]
    skips = any(taps < step for taps, step in zip(kernel, _each(stride, kernel), strict=True))
    return skips or any(_each(padding, kernel))


CONVOLUTIONS: dict[Any, Callable[..., bool]] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), wrong_or_slow),
    **dict.fromkeys((torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), pads_or_skips),
}
"""Convolution -> test of whether half precision computes it wrongly or slowly."""


@dataclass(frozen=True)
class Comparison:
    """Gradients in bfloat16 compared with each other and with those in float32."""

    unstable: tuple[str, ...]  # weights whose gradients depend on what was in memory, or are no numbers
    distance: float

    @property
    def fault(self) -> str:
        """Description of the difference; "" for none that matters."""
        if self.unstable:
            return f"the gradient of {self.unstable[0]} is not finite, or depends on what was in memory"
        return f"gradients are {self.distance:.0%} away from those in float32" if self.distance > FAR else ""


def compare_gradients(config: Config, dataset: Dataset, seed: int) -> Comparison:
    """Compute a training's first step in bfloat16 twice and in float32 once, on images that take about a second."""
    config = config.changed({"student.head": None}, by="half precision")  # which takes a pass over all images
    half = CpuMixedPrecision("bf16-mixed", "cpu")
    once, again = (_gradients(config, dataset, seed, half, fill) for fill in FILLS)
    exact = _gradients(config, dataset, seed, Precision(), FILLS[0])
    unstable = tuple(name for name in once if not torch.equal(once[name], again[name]))
    vector, true = (parameters_to_vector(gradients.values()) for gradients in (once, exact))
    return Comparison(unstable, ((vector - true).norm() / true.norm()).item())


def check_precision(session: Session) -> None:
    """Compare the gradients of a training in mixed precision on a CPU before it begins, and print warnings.

    Raises: UserError where they depend on what was in memory.
    """
    engine: Engine = session.config.engine
    if not engine.mixed_on_cpu:
        return
    comparison = compare_gradients(session.config, session.dataset, session.seed)
    if comparison.unstable:
        student = session.config.student.name
        raise UserError(
            f"{engine.precision} must compute the same gradients twice, but for {student} on this processor "
            f"{comparison.fault}; train in float32: --engine.precision 32"
        )
    if session.leads and comparison.fault:
        log(f"note     in {engine.precision} {comparison.fault}; --engine.precision 32 may train better")
    if session.leads and engine.precision == "16-mixed":
        log("note     engine.precision 16-mixed needs a GPU; on the CPU this training runs in bf16-mixed")


def _gradients(config: Config, dataset: Dataset, seed: int, precision: Precision, fill: int) -> dict[str, Tensor]:
    """Return the gradients of a training's first step, by a method that is then thrown away."""
    with torch.random.fork_rng(devices=[]), filled_memory(fill):
        method, _ = assemble(config, dataset, seed)
        loader = training_loader(Session(RunFolder(""), config, dataset, method, seed, []))
        train: Train = config.train
        method.length = TrainingLength(len(loader), train.epochs)
        batch = loader.batch(0, 0)
        _, macs = count(method.counted_network, method.data_spec.image_size, method.data_spec.channels)
        most = max(MIN_IMAGES, int(CHECKED_MACS / max(macs, 1)))
        parts = max(train.accumulate, -(-len(batch["image"]) // most))
        batch = {name: value.chunk(parts)[0] for name, value in batch.items()}
        TrainingModule(method.train()).set_memory_layout(batch)
        method.start_epoch()
        with precision.forward_context():
            loss = torch.stack(list(method.losses(batch).values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        method.after_backward()
        for _, guide in method.named_guides():
            guide.after_backward()  # of weights that an agent shares
        return {name: weight.grad for name, weight in method.named_parameters() if weight.grad is not None}


def _half_of(input: Tensor, *args: Any, **kwargs: Any) -> torch.dtype | None:
    """Return the half-precision type that a CPU would compute an operation on a tensor in; None for other types."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
    return dtype if input.is_cpu and dtype in HALF else None


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value


def _each(value: int | str | Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return a number for each dimension of a kernel; a single one is for all."""
    numbers = [value] if isinstance(value, int) else [int(number) for number in value]
    return numbers * len(kernel) if len(numbers) == 1 else numbers
