# SPDX-License-Identifier: Apache-2.0
"""A GPU made of the CPU: tensors that say they are on cuda:0, refuse what a GPU refuses, and hold numbers."""

import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ACROSS = {"to", "copy_", "cuda", "cpu", "__get__", "__set__", "set_", "type_as"}
"""Functions in which two devices may meet."""
READ = {
    "item",
    "tolist",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "nonzero",
    "masked_select",
    "unique",
    "equal",
}
"""Functions whose numbers, or whose results' shapes, the program must know to go on."""
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear"}
FILTERS = {"linear", "bilinear", "bicubic", "trilinear", "area"}
computing: list[str] = []  # the simulated GPU's function that runs, if one does
waits: list[str] = []
"""Functions that made the program wait for the GPU, in their order; whoever counts them empties it first."""


class OnGpu(Tensor):
    """A tensor on the simulated GPU; `held` is the CPU's, gradients included."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, *_: Any, **__: Any) -> "OnGpu":
        with torch._C.DisableTorchFunction():
            made = Tensor._make_subclass(cls, held.detach(), False)
        made.held = held
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return self.held.detach().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnGpu":
        with torch._C.DisableTorchFunction():
            made = OnGpu(self.held.detach().clone().requires_grad_(self.held.requires_grad))
        if getattr(self, "_is_param", False):
            made._is_param = True
        memo[id(self)] = made
        return made


class OnApple(Tensor):
    """A tensor on an Apple GPU, as far as that has no float64."""

    def double(self, *_: Any, **__: Any) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


class Event:
    """An event in the GPU's queue, which is always empty."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


class Simulated(TorchFunctionMode):
    """Intercepts functions that create tensors on the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; raises RuntimeError or TypeError where a GPU would."""
    name = getattr(func, "__name__", "")
    if name == "_has_compatible_shallow_copy_type":  # modules then replace their parameters
        return False
    if func is torch.device or name in ("_parse_to", "__deepcopy__"):  # about devices, or of one tensor alone
        return func(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    if there and name == "__get__" and isinstance(args[0], OnGpu):
        asked = getattr(getattr(func, "__self__", None), "__name__", "")
        if asked in ("device", "is_cuda", "is_cpu"):
            return {"device": GPU, "is_cuda": True, "is_cpu": False}[asked]
    wanted = device_wanted(name, args, kwargs)
    if wanted is not None and wanted.type == "meta":  # a network without numbers, which draws none
        return func(*args, **kwargs)
    check(name, args, there, [tensor for tensor in tensors if not isinstance(tensor, OnGpu)])
    on_gpu = bool(there) if wanted is None else wanted.type == "cuda"
    check_kernels(name, (*args, *kwargs.values()), there, on_gpu)
    if waits_for_gpu(name, args, kwargs, there, on_gpu):
        waits.append(name)
    if name == "pin_memory":
        return args[0].clone()
    if name in ("cpu", "cuda"):
        func, args, kwargs = Tensor.to, (args[0], wanted), {}
    plain = partial(tree_map_only, OnGpu, lambda tensor: tensor.held)
    here = partial(tree_map_only, torch.device, lambda _: CPU)  # the CPU stands for both
    named = {key: CPU if key == "device" and value is not None else value for key, value in here(kwargs).items()}
    named.pop("pin_memory", None)  # which only a driver does
    words = tuple(CPU if isinstance(word, str) and word.startswith("cuda") else word for word in here(args))
    with torch._C.DisableTorchFunction():
        computing[:] = [name] if on_gpu or there else []
        try:
            found = func(*plain(words), **plain(named))
        finally:
            computing.clear()
        leaves = wanted == CPU and bool(there) and any(found is tensor.held for tensor in there)
        found = found.clone() if leaves else found  # a copy that goes to the CPU is a copy
    if not on_gpu or name == "__set__":
        return found
    same = next((tensor for tensor in there if found is tensor.held), None)
    return same if same is not None else tree_map_only(Tensor, _kept, found)


def _kept(tensor: Tensor) -> OnGpu:
    return tensor if isinstance(tensor, OnGpu) else OnGpu(tensor)


def check(name: str, args: tuple[Any, ...], there: list[OnGpu], here: list[Tensor]) -> None:
    """Raise RuntimeError where devices meet, and TypeError where numpy gets a GPU's tensor."""
    if there and name in ("numpy", "__array__"):
        raise TypeError(f"{name}: a tensor on cuda:0 is no numpy array")
    if there and name == "pin_memory":
        raise RuntimeError("pin_memory: only tensors on the CPU can be pinned")
    if name == "pin_memory" and 0 in args[0].squeeze().stride():
        raise RuntimeError("pin_memory: a tensor that is expanded has several elements in one place of memory")
    if not there or name in ACROSS:
        return
    if name in ("__getitem__", "__setitem__", "index_put_"):
        if not isinstance(args[0], OnGpu):
            raise RuntimeError(f"{name}: a tensor on the CPU is indexed by one on cuda:0")
    elif large := [tuple(tensor.shape) for tensor in here if tensor.ndim]:
        shapes = [tuple(tensor.held.shape) for tensor in there]
        raise RuntimeError(f"{name}: tensors on the CPU {large} beside tensors on cuda:0 {shapes}")


def check_kernels(name: str, words: tuple[Any, ...], there: list[OnGpu], on_gpu: bool) -> None:
    """Raise RuntimeError where a GPU has no kernel for integers, or would draw by a CPU's generator."""
    if on_gpu and any(isinstance(word, torch.Generator) and word.device == CPU for word in words):
        raise RuntimeError(f"{name}: expected a generator of cuda:0, got one of the CPU")
    filters = name == "interpolate" and any(isinstance(word, str) and word in FILTERS for word in words)
    if (filters or name in PRODUCTS) and any(not tensor.held.is_floating_point() for tensor in there):
        raise RuntimeError(f"{name}: a GPU has no kernel for whole numbers")


def waits_for_gpu(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], there: list[OnGpu], on_gpu: bool) -> bool:
    """Return True if the program waits for the GPU: numbers are read, a mask is counted, or a copy blocks."""
    masks = [leaf for leaf in tree_leaves(args[1:2]) if isinstance(leaf, OnGpu) and leaf.held.dtype == torch.bool]
    if there and (name in READ or (name == "__getitem__" and masks)):
        return True
    leaves, arrives = there and not on_gpu, on_gpu and not there and name in ("tensor", "as_tensor", "to", "cuda")
    return bool(leaves or arrives) and not kwargs.get("non_blocking")


def device_wanted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that a call names for its result."""
    if name in ("cuda", "cpu"):
        return GPU if name == "cuda" else CPU
    named = kwargs.get("device")
    if named is None and name == "to":
        words = [word for word in args[1:] if isinstance(word, str | torch.device | Tensor)]
        named = next((word.device if isinstance(word, Tensor) else word for word in words), None)
    return None if named is None else torch.device(named)


@contextmanager
def simulated_gpu() -> Iterator[torch.device]:
    """Give torch one GPU for the context."""
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True, "memory_allocated": 0,
        "mem_get_info": (10**10, 10**10), "get_device_name": "NVIDIA Simulated", "get_device_capability": (9, 0),
        "get_device_properties": SimpleNamespace(memory_clock_rate=2_619_000, memory_bus_width=5120),
    }  # fmt: skip
    done = ("_lazy_init", "synchronize", "set_device", "empty_cache", "manual_seed_all", "set_rng_state")
    real = torch.autocast

    class Autocast(real):  # type: ignore[misc, valid-type]
        def __init__(self, kind: str, *words: Any, **options: Any) -> None:
            super().__init__("cpu" if kind == "cuda" else kind, *words, **options)

    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with pytest.MonkeyPatch.context() as patch, Simulated():
        for name, answer in {**answers, **dict.fromkeys(done)}.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
        patch.setattr(torch, "autocast", Autocast)
        patch.setattr(torch.amp, "autocast", Autocast)
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
            patch.setattr(torch.optim.Optimizer, name, lambda _: None, raising=False)
        try:
            yield GPU
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)


if __name__ == "__main__":  # python tests/simulated_gpu.py -m MODULE ARGUMENTS: a program on the simulated GPU
    sys.argv = sys.argv[2:]
    with simulated_gpu():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
