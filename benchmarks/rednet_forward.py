# SPDX-License-Identifier: Apache-2.0
"""RedNet-26's forward pass beside timm's ResNet-50, and beside RedNet-26 by unfolding and multiplying, on a CPU.

    python -m benchmarks.rednet_forward                 batch 8, 224 px, float32, two threads
    python -m benchmarks.rednet_forward --threads 1 --backward

As a teacher: evaluation mode, no gradients. `--backward` measures a training step's forward and backward instead.
Passes alternate in one run; ratios are medians of neighboring passes. `core-s` counts processor time, which other
work on the machine disturbs less than the wall clock.
"""

import argparse
from collections.abc import Callable
from statistics import median

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import viticulture.models.cit.rednet  # noqa: F401 (registers the models)
from viticulture.models.cit.rednet import Involution

from .clock import begin, count, measure

WARMUP = 1


class Unfolded(nn.Module):
    """The same layer as in the authors' code for CPUs: all neighborhoods times all kernels, then a sum over taps."""

    def __init__(self, layer: Involution) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        kernels = layer.conv2(layer.conv1(layer.pool(x))).unflatten(1, (layer.groups, 1, -1))  # [B, G, 1, K * K, ...]
        size = int(kernels.shape[3] ** 0.5)
        seen = F.unfold(x, size, padding=size // 2, stride=layer.stride)
        seen = seen.view(len(x), layer.groups, -1, *kernels.shape[3:])  # [B, G, C / G, K * K, ...]
        return (kernels * seen).sum(3).flatten(1, 2)


def unfold(net: nn.Module) -> nn.Module:
    """Put the other form in the place of every involution."""
    for name, child in net.named_children():
        if isinstance(child, Involution):
            setattr(net, name, Unfolded(child))
        else:
            unfold(child)
    return net


def passes(net: nn.Module, images: Tensor, backward: bool) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            net(images)

    def both() -> None:
        net(images).square().mean().backward()

    net.train(backward)
    return both if backward else forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--batch", type=count, default=8)
    parser.add_argument("--pixels", type=count, default=224)
    parser.add_argument("--rounds", type=count, default=7, help="measured passes of each network")
    parser.add_argument("--backward", action="store_true")
    options = begin(parser)
    torch.manual_seed(0)
    images = torch.randn(options.batch, 3, options.pixels, options.pixels)
    nets = {
        "resnet50": timm.create_model("resnet50"),
        "rednet26": timm.create_model("rednet26"),
        "unfolded": unfold(timm.create_model("rednet26")),
    }
    runs = [passes(net, images, options.backward) for net in nets.values()]
    times = [[measure(run) for run in runs] for _ in range(WARMUP + options.rounds)][WARMUP:]
    for clock, name in enumerate(("wall", "core-s")):
        resnet, rednet, unfolded = ([step[net][clock] for step in times] for net in range(3))
        shown = "  ".join(f"{key} {median(t):.3f}" for key, t in zip(nets, (resnet, rednet, unfolded), strict=True))
        slower = median(b / a for a, b in zip(resnet, rednet, strict=True))
        faster = median(b / a for a, b in zip(rednet, unfolded, strict=True))
        print(f"{name:7} {shown}   rednet26 / resnet50 {slower:.2f}   unfolded / rednet26 {faster:.2f}")


if __name__ == "__main__":
    main()
