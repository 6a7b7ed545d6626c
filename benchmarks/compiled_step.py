# SPDX-License-Identifier: Apache-2.0
"""Compile a student as a whole and by block: time to the first step, time of a step, bytes that its kernels move.

    python -m benchmarks.compiled_step [STUDENT ...]            by default dhvt_tiny_cifar_patch4 and vit_tiny

A step is the forward pass under bfloat16 autocast (`--float32`: without) and the backward pass, images of 32 px in
patches of 4, drop path 0.1. Core-seconds include those of the C++ compiler, which is warmed up before; nothing is
cached. Bytes are counted by inductor, each kernel's inputs and outputs once, products and convolutions included, without
the optimizer; they depend on how a CPU's kernels are fused, which on a GPU differs.
"""

import argparse
import logging
import resource
import time
from statistics import median
from typing import Any

import timm
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._inductor import metrics

import viticulture.models.students  # noqa: F401  registers them
from viticulture.models.compiled_blocks import compile_blocks

from .clock import at_least, begin

BATCH = 8


def core_seconds() -> float:
    """Processor time of this process and of compilers that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def student(name: str) -> nn.Module:
    """A student for CIFAR-100."""
    options: dict[str, Any] = {} if name.startswith("dhvt") else {"img_size": 32, "patch_size": 4}
    network: nn.Module = timm.create_model(name, num_classes=100, drop_path_rate=0.1, **options)
    return network.train()


def step(network: nn.Module, images: Tensor, half: bool) -> None:
    """Forward and backward pass."""
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = network(images)
    logits.float().square().mean().backward()


def measure(name: str, by_block: bool, half: bool, steps: int) -> tuple[float, float, float]:
    """Core-seconds to the end of the first step and of a later one, and bytes an image of the compiled graphs.

    A graph's bytes count as often as it runs in a step.
    """
    torch._dynamo.reset()
    metrics.reset()
    network, images = student(name), torch.randn(BATCH, 3, 32, 32)
    if not (by_block and compile_blocks(network, fullgraph=True)):
        network.compile(fullgraph=True)
    began = core_seconds()
    step(network, images, half)
    first, times = core_seconds() - began, []
    for _ in range(steps):
        began = core_seconds()
        step(network, images, half)
        times.append(core_seconds() - began)
    graph_runs = len(network.get_submodule("blocks")._modules) if by_block else 1
    return first, median(times), metrics.num_bytes_accessed * graph_runs / BATCH


def main() -> None:
    """Print a line a student and way of compiling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("students", nargs="*", default=["dhvt_tiny_cifar_patch4", "vit_tiny"])
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--steps", type=at_least(1), default=10)
    parser.add_argument("--threads", type=at_least(1), default=1)
    options = begin(parser)
    torch._inductor.config.force_disable_caches = True
    logging.getLogger("torch._inductor.metrics").setLevel(logging.INFO)  # otherwise no bytes are counted
    torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
    for name in options.students:
        for by_block in (False, True):
            first, later, moved = measure(name, by_block, not options.float32, options.steps)
            print(
                f"{name}, {'by block' if by_block else 'as a whole'}: first step {first:.1f} core-s, later "
                f"{1e3 * later:.0f} core-ms, {moved / 1e6:.1f} MB an image",
                flush=True,
            )


if __name__ == "__main__":
    main()
