# SPDX-License-Identifier: Apache-2.0
"""A DeiT-S training step with attention links to an EfficientNet-B3, beside the plain step and the teacher's forward.

    python -m benchmarks.attention_link_step                    seconds, two threads, batch 8, 224 px, float32
    python -m benchmarks.attention_link_step --memory           peak memory of the plain and of the guided step
    python -m benchmarks.attention_link_step --device cuda      the same on a GPU, under bfloat16 autocast

A step is forward, losses, backward and fused AdamW. Steps alternate in one run; the ratio is guided over the sum of
plain and teacher, the median over neighboring steps. `core-s` counts processor time, which other work on the machine
disturbs less than the wall clock. Peak memory is counted from what the process held before any network was built, each
case in a process of its own.
"""

import argparse
import multiprocessing
import resource
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import safetensors.torch
import timm
import torch
from torch import Tensor

from viticulture.guides.attention_link import AttentionLink
from viticulture.guides.guide import Guide
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student

from .clock import begin, count, measure

TEACHER, STUDENT = "efficientnet_b3", "deit_small_distilled_patch16_224"
TASK = DataSpec(tuple(map(str, range(1000))), (224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
WARMUP = 2


def teacher_file(folder: str, name: str) -> str:
    """A teacher with random weights, as a recipe names it."""
    path = Path(folder) / f"{name}.safetensors"
    safetensors.torch.save_file(timm.create_model(name).state_dict(), path)
    return f"{name}={path}"


def linked(teacher: str, options: argparse.Namespace) -> Callable[[], None]:
    """One training step; without a teacher the plain one."""
    torch.manual_seed(0)
    student = create_student(STUDENT, TASK, options={"drop_path_rate": 0.1})
    guides: Mapping[str, Guide] = {}
    if teacher:
        guides = {"attention_link": AttentionLink(student, TASK, teacher=teacher, links=options.links)}
    return stepper(Supervised(Setup(student, TASK, guides), every_head=True), options)


def stepper(method: Supervised, options: argparse.Namespace) -> Callable[[], None]:
    """One training step on random images, always the same."""
    method.train().to(options.device)
    optimizer = method.optim.build(method.optim.groups(method.student, method.guides))
    batch = {"image": images(options), "label": torch.randint(1000, (options.batch,), device=options.device)}

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            loss = torch.stack(list(method.losses(batch).values())).sum()
        loss.backward()
        optimizer.step()

    return step


def images(options: argparse.Namespace) -> Tensor:
    return torch.randn(options.batch, 3, 224, 224, device=options.device)


def forward(options: argparse.Namespace) -> Callable[[], None]:
    """The teacher alone, to its logits."""
    net, given = timm.create_model(TEACHER).eval().to(options.device), images(options)

    def step() -> None:
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            net(given)

    return step


def compare(teacher: str, options: argparse.Namespace) -> None:
    """Print the three times and their ratio, by both clocks."""
    cases = [linked("", options), forward(options), linked(teacher, options)]
    times = [[measure(case) for case in cases] for _ in range(WARMUP + options.steps)][WARMUP:]
    for clock, name in enumerate(("wall", "core-s")):
        columns = [[step[case][clock] for step in times] for case in range(3)]
        ratio = median(together / (plain + alone) for plain, alone, together in zip(*columns, strict=True))
        plain, alone, together = map(median, columns)
        print(f"{name:7} plain {plain:.3f}, teacher {alone:.3f}, guided {together:.3f}, ratio {ratio:.3f}")


def peak(teacher: str, options: argparse.Namespace) -> int:
    """Bytes that building a case and three steps of it added at most."""
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = linked(teacher, options)
    for _ in range(3):
        step()
    after = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
    return (after or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=15, help="measured steps of each case")
    parser.add_argument("--batch", type=count, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--links", default="full", help="full, alpha or beta")
    parser.add_argument("--memory", action="store_true")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as folder:
        teacher = teacher_file(folder, TEACHER)
        if not options.memory:
            compare(teacher, options)
            return
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            plain, guided = (pool.apply(peak, (source, options)) for source in ("", teacher))
        print(f"plain {plain / 2**20:.0f} MiB, guided {guided / 2**20:.0f} MiB, ratio {guided / plain:.3f}")


if __name__ == "__main__":
    main()
