# SPDX-License-Identifier: Apache-2.0
"""A co-advised CiT-Ti training step beside one of timm's ViT-Ti, on a CPU.

    python -m benchmarks.co_advise_step                 batch 8, 224 px, float32, two threads
    python -m benchmarks.co_advise_step --student cit_tiny

The step: both teachers' forward passes (RegNetY-600M, RedNet-26, random weights), student, Eq. (1), backward, fused
AdamW; ViT-Ti's has cross-entropy alone. Steps alternate in one run; ratios are medians of neighboring steps. `core-s`
counts processor time, which other work on the machine disturbs less than the wall clock. Parts are shown as well.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viticulture.losses import cross_entropy, soft_distillation
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import token_logits
from viticulture.models.students import create_student
from viticulture.models.teachers.frozen import Adapted, Frozen

from .clock import begin, count, measure

CLASSES, WARMUP = 1000, 2


def plain(images: Tensor, labels: Tensor) -> Callable[[], None]:
    """timm's ViT-Ti."""
    model = timm.create_model("vit_tiny_patch16_224", img_size=images.shape[-1], num_classes=CLASSES).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def teachers(images: Tensor) -> dict[str, nn.Module]:
    """As `load_teacher` gives them, without their weights."""
    side = images.shape[-1]
    data_spec = DataSpec(tuple(map(str, range(CLASSES))), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return {
        name: Frozen(Adapted(timm.create_model(name), data_spec, data_spec)) for name in ("regnety_006", "rednet26")
    }


def advised(student: str, images: Tensor, labels: Tensor, nets: dict[str, nn.Module]) -> Callable[[], None]:
    """A student with a token for each teacher."""
    side = images.shape[-1]
    data_spec = DataSpec(tuple(map(str, range(CLASSES))), (side, side), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = create_student(student, data_spec, 16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        first, *tokens = token_logits(model(images))
        terms = [soft_distillation(token, net(images)) for token, net in zip(tokens, nets.values(), strict=False)]
        torch.stack([cross_entropy(first, labels), *terms]).sum().backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", default="cit_tiny_aligned")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--batch", type=count, default=8)
    parser.add_argument("--rounds", type=count, default=7, help="measured steps of each")
    options = begin(parser)
    torch.manual_seed(0)
    images, labels = torch.randn(options.batch, 3, 224, 224), torch.randint(CLASSES, (options.batch,))
    nets = teachers(images)
    runs: dict[str, Callable[[], object]] = {
        "vit_tiny": plain(images, labels),
        "advised": advised(options.student, images, labels, nets),
        "student": advised(options.student, images, labels, {}),
        **{name: partial(net, images) for name, net in nets.items()},
    }
    times = [{name: measure(run) for name, run in runs.items()} for _ in range(WARMUP + options.rounds)][WARMUP:]
    for clock, word in enumerate(("wall", "core-s")):
        shown = "  ".join(f"{name} {median(step[name][clock] for step in times):.3f}" for name in runs)
        ratio = median(step["advised"][clock] / step["vit_tiny"][clock] for step in times)
        print(f"{word:7} {shown}   advised / vit_tiny {ratio:.2f}")


if __name__ == "__main__":
    main()
