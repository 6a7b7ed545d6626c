# SPDX-License-Identifier: Apache-2.0
"""Images a second that networks classify: Co-advise, Table 3 (an RTX 3090, 64 images at once), and lightweight SSL,
Table 2 (the same, 1,024 at once, from timm).

    python -m benchmarks.throughput                                 Co-advise's students and teachers, on what there is
    python -m benchmarks.throughput cit_tiny rednet26 --batch 8     some of them
    python -m benchmarks.throughput --table mae --batch 1024        lightweight SSL's

Evaluation mode, 224 pixels (384 where a network is made for them), random weights; on a GPU under bfloat16 unless told
otherwise. Networks take turns, so that a busy machine slows all of them; the median counts. Compare ratios: absolute
numbers are the machine's.
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

PUBLISHED: dict[str, dict[str, float]] = {
    "co_advise": {
        "resnet50": 1349.4, "resnet101": 799.4, "regnety_006": 1200.5, "regnety_040": 350.5, "regnety_080": 220.5,
        "rednet26": 1820.9, "rednet50": 1066.8, "rednet101": 657.4, "rednet152": 459.3, "vit_base_patch16_384": 166.88,
        "vit_large_patch16_384": 54.4, "deit_tiny_patch16_224": 3082.9, "deit_small_patch16_224": 1562.0,
        "deit_tiny_distilled_patch16_224": 3060.8, "deit_small_distilled_patch16_224": 1546.1, "cit_tiny": 3053.0,
        "cit_small": 1564.1, "cit_small_aligned": 1414.1,
    },
    "mae": {
        "resnet18": 8951, "resnet50": 2696, "efficientnet_b0": 5369, "efficientnet_b1": 2953, "mobilenetv2_100": 7909,
        "mobilenetv3_large_100": 9113, "levit_128": 13276, "levit_192": 11389, "xcit_tiny_12_p16_224": 3157,
        "pit_ti_distilled_224": 4547, "cait_xxs24_224": 1351, "mobilevit_s": 1900, "deit_tiny_patch16_224": 4844,
        "deit_tiny_distilled_patch16_224": 4764, "mae_tiny": 4020,
    },
}  # fmt: skip
"""Table -> network -> images a second. That ViT-B/16 and -L/16 saw 384 pixels is read off their accuracies."""
BASE, WARMUP = "deit_tiny_patch16_224", 2


def classify(net: nn.Module, images: Tensor, precision: torch.dtype) -> None:
    with torch.inference_mode(), torch.autocast(images.device.type, precision, enabled=precision != torch.float32):
        net(images)


def main() -> None:
    """Print images a second, and both relative to DeiT-Ti."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table", choices=list(PUBLISHED), default="co_advise")
    parser.add_argument("--batch", type=count, default=64)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--fp32", action="store_true", help="on a GPU too")
    options = begin(parser)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = torch.float32 if options.fp32 or device.type == "cpu" else torch.bfloat16
    known = PUBLISHED[options.table]
    side = {name: 384 if name.endswith("_384") else 224 for name in dict.fromkeys([BASE, *(options.names or known)])}
    images = {pixels: torch.randn(options.batch, 3, pixels, pixels, device=device) for pixels in set(side.values())}
    runs: dict[str, Callable[[], object]] = {
        name: partial(classify, timm.create_model(name).to(device).eval(), images[pixels], precision)
        for name, pixels in side.items()
    }
    times = [{name: measure(run)[0] for name, run in runs.items()} for _ in range(WARMUP + options.rounds)][WARMUP:]
    speeds = {name: options.batch / median(step[name] for step in times) for name in runs}
    print(f"{'':32} images/s  of DeiT-Ti  published")
    for name, speed in speeds.items():
        published = f"{known[name] / known[BASE]:9.2f}" if name in known else ""
        print(f"{name:32} {speed:8.1f}  {speed / speeds[BASE]:10.2f}  {published}")


if __name__ == "__main__":
    main()
