# SPDX-License-Identifier: Apache-2.0
"""Captures on the simulated GPU: the operations below autograd are recorded, and a replay computes them again on the
same tensors. So numbers of Python are repeated as captured, and what a capture refuses is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CAPTURE_ERROR = "operation not permitted when stream is capturing"
SIZED = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "repeat_interleave")
"""Operations whose results the CPU reads, or whose results' shapes depend on numbers."""
capturing: list["Recorder"] = []
"""The graph that is captured, if one is."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A CUDAGraph that records what the simulated GPU computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_gpu = False  # the operation is the GPU's, not the CPU's
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        if not self.on_gpu:
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise RuntimeError(f"{CAPTURE_ERROR}: {name} draws random numbers of the CPU, the same in every replay")
            return func(*args, **kwargs)
        masks = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        sized = name in SIZED and not (name == "repeat_interleave" and kwargs.get("output_size") is not None)
        if masks or sized:
            raise RuntimeError(f"{CAPTURE_ERROR}: {name} has a result that the CPU reads")
        if func._schema.is_mutable or "batch_norm" in name:  # which moves its running mean, whatever its schema says
            for tensor in _tensors((args, kwargs)):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.before:
                    self.before[storage.data_ptr()] = storage, storage.clone()  # type: ignore[no-untyped-call]
        results = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, _tensors(results)))
        return results

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the block, whose results a GPU would not have computed; weights and random state are as before."""
        state = torch.get_rng_state()
        capturing.append(self)
        try:
            with self:
                yield
        finally:
            capturing.clear()
            for storage, values in self.before.values():
                storage.copy_(values)
            torch.set_rng_state(state)

    def replay(self) -> None:
        """Compute what was recorded; results go where they were then."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for func, args, kwargs, results in self.calls:
                for old, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def graph(recorder: Recorder, **_: Any) -> Iterator[None]:
    """As torch.cuda.graph."""
    with recorder.capture():
        yield


class Stream:
    """A stream; all work is done in the order of the program."""

    def wait_stream(self, other: "Stream") -> None: ...
