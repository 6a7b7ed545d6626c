# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping's training steps beside that of timm's ViT-Ti, on a CPU, and the peak memory of the joint ones.

    python -m benchmarks.bootstrap_step                 steps, two threads
    python -m benchmarks.bootstrap_step --memory        peak resident memory of each, in processes of their own

224 px, patch 16, batch 8, float32, ViT-S with its dropout, res-like agent, all published terms, fused AdamW. Steps
alternate in one run; ratios are medians of neighboring steps. `core-s` counts processor time.
"""

import argparse
import multiprocessing
import resource
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F

from viticulture.guides.bootstrap import Bootstrap
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.optim import Optim

from .clock import begin, count, measure, print_beside

TASK = DataSpec(tuple(map(str, range(100))), (224, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CASES = ("vit_tiny_patch16_224", "vit_small", "own", "shared", "aligned")
BATCH, WARMUP = 8, 2


def stepper(case: str) -> Callable[[], None]:
    """One training step on random images, always the same; the guide's `weights` name a case."""
    torch.manual_seed(0)
    batch = {"image": torch.randn(BATCH, 3, 224, 224), "label": torch.randint(100, (BATCH,))}
    if case.startswith("vit_tiny"):
        model = timm.create_model(case, num_classes=100).train()
        plain = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def yardstick() -> None:
            plain.zero_grad()
            F.cross_entropy(model(batch["image"]), batch["label"]).backward()
            plain.step()

        return yardstick
    student = create_student("vit_small", TASK, 16)
    guides = {} if case == "vit_small" else {"bootstrap": Bootstrap(student, TASK, weights=case)}  # type: ignore[arg-type]
    optim = Optim(decay_everything=True)
    method = Supervised(Setup(student, TASK, guides, optim)).train()
    optimizer = optim.build(optim.groups(student, method.guides))

    def step() -> None:
        optimizer.zero_grad()
        torch.stack(list(method.losses(batch).values())).sum().backward()
        for guide in guides.values():
            guide.after_backward()
        optimizer.step()

    return step


def peak(case: str, memory: "multiprocessing.Queue[int]") -> None:
    """Largest resident memory of a process that takes three steps, kB."""
    step = stepper(case)
    for _ in range(3):
        step()
    memory.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=9, help="measured steps of each")
    parser.add_argument("--memory", action="store_true")
    options = begin(parser)
    if options.memory:
        context = multiprocessing.get_context("spawn")
        for case in CASES:
            memory: multiprocessing.Queue[int] = context.Queue()
            child = context.Process(target=peak, args=(case, memory))
            child.start()
            print(f"{case:24}{memory.get() / 1e6:6.2f} GB", flush=True)
            child.join()
        return
    runs = {case: stepper(case) for case in CASES}
    times = [{case: measure(run) for case, run in runs.items()} for _ in range(WARMUP + options.steps)][WARMUP:]
    print_beside(times, CASES[0])


if __name__ == "__main__":
    main()
