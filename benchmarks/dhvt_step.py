# SPDX-License-Identifier: Apache-2.0
"""A DHVT-T training step beside one of timm's DeiT-Ti of the same width, depth and patches, on a CPU.

    python -m benchmarks.dhvt_step                      all cases, two threads
    python -m benchmarks.dhvt_step --threads 1 --steps 30

A step is forward, cross-entropy, backward and fused AdamW, drop path 0.1, in float32 and under bfloat16 autocast. Steps
alternate in one run; ratios are medians of neighboring steps. `core-s` counts processor time, which other work on the
machine disturbs less than the wall clock.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn

import viticulture.models.dhvt.students  # noqa: F401 (registers the students)

from .clock import begin, count, measure

CLASSES, DROP_PATH, WARMUP = 100, 0.1, 3


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        student: our model.
        pixels: height and width of the images.
        patch: side of a patch, pixels.
        batch: images a step.
    """

    student: str
    pixels: int
    patch: int
    batch: int


CASES = (
    Case("dhvt_tiny_cifar_patch4", 32, 4, 8),
    Case("dhvt_tiny_cifar_patch4", 32, 4, 64),
    Case("dhvt_tiny_imagenet_patch16", 224, 16, 8),
)


def stepper(model: nn.Module, case: Case, half: bool) -> Callable[[], None]:
    """One training step on random images, always the same."""
    images, labels = torch.randn(case.batch, 3, case.pixels, case.pixels), torch.randint(CLASSES, (case.batch,))
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()

    return step


def compare(case: Case, half: bool, steps: int) -> str:
    """One line of the table."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_classes": CLASSES, "drop_path_rate": DROP_PATH}
    deit = timm.create_model("deit_tiny_patch16_224", img_size=case.pixels, patch_size=case.patch, **settings)
    runs = [stepper(model, case, half) for model in (deit, timm.create_model(case.student, **settings))]
    times = [[measure(run) for run in runs] for _ in range(WARMUP + steps)][WARMUP:]
    columns = []
    for clock in (0, 1):
        theirs, ours = ([step[model][clock] for step in times] for model in (0, 1))
        ratio = median(b / a for a, b in zip(theirs, ours, strict=True))
        columns.append(f"{median(theirs):7.3f} {median(ours):7.3f} {ratio:6.2f}")
    size = f"{case.pixels} px, patch {case.patch}, batch {case.batch}"
    return f"{size:28}{'bfloat16' if half else 'float32':10}{columns[0]}   {columns[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=15, help="measured steps of each model")
    options = begin(parser)
    print(f"{'':38}{'wall: DeiT, DHVT, ratio':25}{'core-s: DeiT, DHVT, ratio'}")
    for half in (False, True):
        for case in CASES:
            print(compare(case, half, options.steps), flush=True)


if __name__ == "__main__":
    main()
