# SPDX-License-Identifier: Apache-2.0
"""A training step of vit_small with its dropout beside one of timm's vit_tiny_patch16_224, on a CPU.

    python -m benchmarks.vit_small_step                 all cases, two threads
    python -m benchmarks.vit_small_step --threads 1 --steps 30

A step is forward, cross-entropy, backward and fused AdamW in float32. Beside ours stand the same network without
dropout, with torch's own dropout (what bare timm trains), and with sparse attention. Steps alternate in one run;
ratios are medians of neighboring steps, on the wall clock and in processor time, which other work on the machine
disturbs less.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn

from viticulture.models.vit import plain_vit

from .clock import begin, count, measure

CLASSES, BATCH, WARMUP = 100, 8, 2


def networks(pixels: int, patch: int) -> dict[str, nn.Module]:
    """The yardstick first."""
    sizes: dict[str, Any] = {"num_classes": CLASSES, "img_size": pixels, "patch_size": patch}
    return {
        "timm vit_tiny": timm.create_model("vit_tiny_patch16_224", **sizes),
        "without dropout": plain_vit.build("vit_small", **sizes, attn_drop_rate=0.0, proj_drop_rate=0.0),
        "vit_small": plain_vit.build("vit_small", **sizes),
        "torch's dropout": timm.create_model(plain_vit.ARCHITECTURE, **plain_vit.timm_form("vit_small", sizes)[1]),
        "vit_small_sparse": plain_vit.build_sparse("vit_small_sparse", **sizes),
    }


def stepper(model: nn.Module, pixels: int) -> Callable[[], None]:
    """One training step on random images, always the same."""
    images, labels = torch.randn(BATCH, 3, pixels, pixels), torch.randint(CLASSES, (BATCH,))
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def compare(pixels: int, patch: int, steps: int) -> None:
    """A table for one image size."""
    torch.manual_seed(0)
    runs = {name: stepper(model, pixels) for name, model in networks(pixels, patch).items()}
    rows = [[measure(run) for run in runs.values()] for _ in range(WARMUP + steps)][WARMUP:]
    print(f"{pixels} px, patch {patch}, batch {BATCH}\n{'':20}{'wall s':>8}{'ratio':>8}{'core-s':>8}{'ratio':>8}")
    for place, name in enumerate(runs):
        columns = []
        for clock in (0, 1):
            seconds = median(row[place][clock] for row in rows)
            columns.append(f"{seconds:8.3f}{median(row[place][clock] / row[0][clock] for row in rows):8.2f}")
        print(f"{name:20}{columns[0]}{columns[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=15, help="measured steps of each network")
    options = begin(parser)
    for pixels, patch in ((224, 16), (32, 4)):
        compare(pixels, patch, options.steps)


if __name__ == "__main__":
    main()
