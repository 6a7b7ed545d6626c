# SPDX-License-Identifier: Apache-2.0
"""Images a second that networks classify: Co-advise, Table 3, column Throughput (an RTX 3090, 64 images at once).

    python -m benchmarks.throughput                                 the table's students and teachers, on what there is
    python -m benchmarks.throughput cit_tiny rednet26 --batch 8     some of them

Evaluation mode, 224 pixels, random weights; on a GPU under bfloat16 unless told otherwise. Networks take turns, so that
a busy machine slows all of them; the median counts. Compare ratios: absolute numbers are the machine's.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import timm
import torch
from torch import Tensor, nn

import viticulture.models.students  # noqa: F401, our own students join timm's

from .clock import begin, count, measure

PUBLISHED = {
    "resnet50": 1349.4, "resnet101": 799.4, "regnety_006": 1200.5, "regnety_040": 350.5, "rednet26": 1820.9,
    "rednet50": 1066.8, "rednet101": 657.4, "deit_tiny_patch16_224": 3082.9, "deit_small_patch16_224": 1562.0,
    "deit_tiny_distilled_patch16_224": 3060.8, "cit_tiny": 3053.0, "cit_small": 1564.1, "cit_small_aligned": 1414.1,
}  # fmt: skip
BASE, WARMUP = "deit_tiny_patch16_224", 2


def classify(net: nn.Module, images: Tensor, precision: torch.dtype) -> None:
    with torch.inference_mode(), torch.autocast(images.device.type, precision, enabled=precision != torch.float32):
        net(images)


def main() -> None:
    """Print images a second, and both relative to DeiT-Ti."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--batch", type=count, default=64)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--fp32", action="store_true", help="on a GPU too")
    options = begin(parser)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = torch.float32 if options.fp32 or device.type == "cpu" else torch.bfloat16
    images = torch.randn(options.batch, 3, 224, 224, device=device)
    runs: dict[str, Callable[[], object]] = {
        name: partial(classify, timm.create_model(name).to(device).eval(), images, precision)
        for name in dict.fromkeys([BASE, *options.names])
    }
    times = [{name: measure(run)[0] for name, run in runs.items()} for _ in range(WARMUP + options.rounds)][WARMUP:]
    speeds = {name: options.batch / median(step[name] for step in times) for name in runs}
    print(f"{'':32} images/s  of DeiT-Ti  published")
    for name, speed in speeds.items():
        known = f"{PUBLISHED[name] / PUBLISHED[BASE]:9.2f}" if name in PUBLISHED else ""
        print(f"{name:32} {speed:8.1f}  {speed / speeds[BASE]:10.2f}  {known}")


if __name__ == "__main__":
    main()
