# SPDX-License-Identifier: Apache-2.0
"""Bytes that the kernels of a compiled training step move on a GPU, and their number, counted without one.

    python -m benchmarks.step_bytes [STUDENT] [--depth 2] [--kernels 20]

Forward and backward pass of a student on 512 images of 32 px under bfloat16 autocast, drop path 0.1, no optimizer. They
are traced on fake tensors, moved to a fake H200 and scheduled by inductor as for it; nothing is computed. Each kernel's
inputs and outputs count once. Inductor's thresholds are its own, or those of trainings (`training.run.INDUCTOR`).
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import timm
import torch
import torch._inductor.config
from timm.layers.drop import DropPath
from torch import Tensor, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import viticulture.models.students  # noqa: F401  registers them
from viticulture.kernels import plain_kernels
from viticulture.models.compiled_blocks import DropPathOfTensor
from viticulture.training.run import INDUCTOR

from .clock import at_least

BATCH = 512
H200 = SimpleNamespace(
    name="H200", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=2**16, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, total_memory=141 * 10**9, gcnArchName="",
    L2_cache_size=50 * 2**20, shared_memory_per_block=48 * 2**10, shared_memory_per_block_optin=227 * 2**10,
    shared_memory_per_multiprocessor=228 * 2**10,
)  # fmt: skip
Kernel = tuple[int, str, list[str]]
"""Bytes, "forward" or "backward", and the names of the operations in it."""


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Have inductor see an H200."""
    values = {
        "torch.cuda.is_available": True, "torch.cuda.get_device_properties": H200, "torch.cuda.current_device": 0,
        "torch.cuda.get_device_capability": (9, 0), "torch.cuda.device_count": 1, "torch.cuda._lazy_init": None,
        "torch.cuda.synchronize": None, "torch._subclasses.fake_tensor.init_gpu_context": None,
        "torch.utils._triton.has_triton": True,
        "torch._dynamo.device_interface.CudaInterface.Worker.get_device_properties": H200,
        "torch._dynamo.device_interface.CudaInterface.get_device_properties": H200,
    }  # fmt: skip
    with ExitStack() as patches:
        for name, value in values.items():
            patches.enter_context(mock.patch(name, lambda *_, value=value, **__: value))
        yield


def moved(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copy a graph for a GPU; random numbers become constants, whose kernels inductor fuses as well."""
    graph = copy.deepcopy(graph)
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
        if node.target is torch.ops.aten.rand.default:
            node.target, node.args = torch.ops.aten.full.default, (node.args[0], 0.5)
            node.kwargs = {"dtype": torch.float32, **node.kwargs}
    graph.recompile()
    return graph


def counter(kind: str, kernels: list[Kernel]) -> Callable[..., Any]:
    """Return a compiler for `aot_function` that appends the kernels of a graph and runs it on fake tensors."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        fake: Any = torch._guards.detect_fake_mode(inputs)
        on_gpu = copy.deepcopy(graph)
        with V.set_fake_mode(fake):
            post_grad_passes(on_gpu, False)
        with fake_gpu(), fake:
            on_gpu = moved(on_gpu)
            there = [x.to("cuda") if isinstance(x, Tensor) else x for x in inputs]
            FakeTensorProp(on_gpu, fake).propagate_dont_convert_inputs(*there)
            lowered = GraphLowering(on_gpu, there, fake.shape_env, is_backward=kind == "backward")
            with V.set_graph_handler(lowered), V.set_fake_mode(fake), V.set_debug_handler(DebugContext()):
                lowered.run(*there)
                lowered.init_wrapper_code()
                lowered._update_scheduler()
                for kernel in lowered.scheduler.nodes:
                    nodes: list[Any] = [part.node for part in kernel.get_nodes()]
                    names = [str(node.get_origin_node() or node.get_name()) for node in nodes]
                    kernels.append((kernel.get_read_write_buffers_sizes(), kind, names))

        def run(*tensors: Any) -> Any:
            with fake:
                return torch.fx.Interpreter(graph).run(*tensors)

        return make_boxed_func(run)

    return compile_graph


def count(network: nn.Module, thresholds: dict[str, Any]) -> list[Kernel]:
    """Return the kernels of a step."""
    kernels: list[Kernel] = []

    def like(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, requires_grad=tensor.requires_grad)

    with plain_kernels(), torch._inductor.config.patch(thresholds), FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: like(x) for name, x in (*network.named_parameters(), *network.named_buffers())}

        def loss(tensors: dict[str, Tensor], images: Tensor) -> tuple[Tensor, list[Tensor]]:
            with torch.autocast("cpu", torch.bfloat16):
                logits = functional_call(network, tensors, (images,))
            return logits.float().square().mean(), [tensors[name] for name, _ in network.named_buffers()]

        step = aot_function(
            loss,
            counter("forward", kernels),
            counter("backward", kernels),
            min_cut_rematerialization_partition,
            select_decomp_table(),
        )
        step(tensors, torch.empty(BATCH, 3, 32, 32))[0].backward()
    return kernels


def main() -> None:
    """Print bytes an image and kernels by inductor's thresholds and by ours, and our largest kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", nargs="?", default="dhvt_tiny_cifar_patch4")
    parser.add_argument("--depth", type=at_least(1), help="blocks; the student's")
    parser.add_argument("--kernels", type=at_least(0), default=0, help="how many of the largest to list")
    options = parser.parse_args()
    keywords: dict[str, Any] = {} if options.student.startswith("dhvt") else {"img_size": 32, "patch_size": 4}
    if options.depth:
        keywords["depth"] = options.depth
    network = timm.create_model(options.student, num_classes=100, drop_path_rate=0.1, **keywords).train()
    for path, module in list(network.named_modules()):
        if isinstance(module, DropPath):  # of timm's, inductor draws numbers by a kernel of their own
            network.set_submodule(path, DropPathOfTensor(module.drop_prob, True, torch.device("cpu")))
    for name, thresholds in (("inductor's thresholds", {}), ("ours", INDUCTOR)):
        kernels = count(network, thresholds)
        total = sum(moved_bytes for moved_bytes, _, _ in kernels)
        print(f"{options.student}, {name}: {total / BATCH / 1e6:.1f} MB an image, {len(kernels)} kernels", flush=True)
    for moved_bytes, kind, names in sorted(kernels, reverse=True)[: options.kernels]:
        print(f"{moved_bytes / BATCH / 1e6:8.3f} MB  {kind:8}  {' '.join(names[:6])}")


if __name__ == "__main__":
    main()
