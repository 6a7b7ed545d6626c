# SPDX-License-Identifier: Apache-2.0
"""Time of a training step by method: AAL, supplement, Table D (an A100, 128 images, teachers' forward included).

    python -m benchmarks.attention_link_methods                          seconds, two threads, batch 8, float32
    python -m benchmarks.attention_link_methods --device cuda --batch 128    as the table, under bfloat16 autocast

DeiT-S distilled by RegNetY-16GF's hard labels, ConViT-S, and DeiT-S with full links to EfficientNet-B3, at 224 pixels
and with random weights. A step is forward, losses, backward and fused AdamW; methods take turns, the median counts.
Compare ratios: absolute numbers are the machine's.
"""

import argparse
import tempfile
from collections.abc import Callable
from statistics import median

import torch

from viticulture.guides.attention_link import AttentionLink
from viticulture.guides.guide import Guide
from viticulture.guides.logits import Logits
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.students import create_student

from .attention_link_step import TASK, stepper, teacher_file
from .clock import begin, count, measure

PUBLISHED = {"DeiT-S": 0.40, "ConViT-S": 1.23, "AAL": 0.36}
WARMUP = 2


def step_of(method: str, folder: str, options: argparse.Namespace) -> Callable[[], None]:
    """One training step of a method on random images, always the same."""
    torch.manual_seed(0)
    student = create_student("convit_small" if method == "ConViT-S" else "deit_small_distilled_patch16_224", TASK)
    guides: dict[str, Guide] = {}
    if method == "DeiT-S":
        guides = {"logits": Logits(student, TASK, teacher=teacher_file(folder, "regnety_160"))}
    if method == "AAL":
        guides = {"attention_link": AttentionLink(student, TASK, teacher=teacher_file(folder, "efficientnet_b3"))}
    return stepper(Supervised(Setup(student, TASK, guides), every_head=method == "AAL"), options)


def main() -> None:
    """Print seconds a step, and both relative to AAL."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=9, help="measured steps of each method")
    parser.add_argument("--batch", type=count, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: step_of(name, folder, options) for name in PUBLISHED}
        times = [{name: measure(step)[0] for name, step in steps.items()} for _ in range(WARMUP + options.steps)]
    seconds = {name: median(taken[name] for taken in times[WARMUP:]) for name in steps}
    print(f"{'':10} s a step  of AAL  published")
    for name, taken in seconds.items():
        print(f"{name:10} {taken:8.3f}  {taken / seconds['AAL']:6.2f}  {PUBLISHED[name] / PUBLISHED['AAL']:9.2f}")


if __name__ == "__main__":
    main()
