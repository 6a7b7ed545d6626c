# SPDX-License-Identifier: Apache-2.0
"""BatchNorm over the images of all processes, on any device; torch's own needs a GPU."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce


class SharedBatchNorm(nn.BatchNorm1d):
    """BatchNorm with the statistics of the whole batch over all processes.

    Every process must have as many images. Alone, and in evaluation, it is `nn.BatchNorm1d`. [B, D] -> [B, D].
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not distributed.is_initialized() or distributed.get_world_size() == 1:
            return super().forward(x)
        values = x.float()  # statistics of half precision would be rounded
        mean = averaged(values.mean(0))
        variance = averaged((values - mean).square().mean(0))
        images, buffers = len(x) * distributed.get_world_size(), vars(self)["_buffers"]
        with torch.no_grad():
            buffers["running_mean"].lerp_(mean, self.momentum or 0.0)
            buffers["running_var"].lerp_(variance * images / (images - 1), self.momentum or 0.0)
            buffers["num_batches_tracked"] += 1
        y = (values - mean) * torch.rsqrt(variance + self.eps)
        return (y if self.weight is None else y * self.weight + self.bias).to(x.dtype)


def averaged(x: Tensor) -> Tensor:
    """The mean over processes; gradients flow back to all of them."""
    if not distributed.is_initialized():
        return x
    total: Tensor = all_reduce(x)  # type: ignore[no-untyped-call]
    return total / distributed.get_world_size()


def gathered(x: Tensor) -> Tensor:
    """Gather the rows of all processes in the order of the whole batch, row b of this one at b * world + rank:
    [B, D] -> [world * B, D]; no gradient flows."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return x.detach()
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, x.detach().contiguous())
    return torch.stack(parts, 1).flatten(0, 1)


def rank() -> int:
    """Return the number of this process."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def perceptron(widths: list[int]) -> nn.Sequential:
    """Build linear layers without bias, each with a BatchNorm and a ReLU; the last with a BatchNorm without scale."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        last = number == len(widths) - 2
        layers += [nn.Linear(before, after, bias=False), SharedBatchNorm(after, affine=not last)]
        layers += [] if last else [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def normalized(x: Tensor) -> Tensor:
    """Scale rows to length 1, in float32."""
    return F.normalize(x.float(), dim=1)
