# SPDX-License-Identifier: Apache-2.0
"""Involution: a separate kernel for every pixel, computed from that pixel and shared by channels.

Paper: Li et al., "Involution: Inverting the Inherence of Convolution for Visual Recognition", CVPR 2021,
arXiv:2103.06255. RedNet (rednet.py) and the involution stem of CiT (cit.py) consist of it.
Equal to the authors' code; in addition, a stride need not divide the image. Its product with the neighborhoods, which
takes little memory, is in cpu/involution.py.
"""

import torch
import torch.nn.functional as F
from timm.layers.conv_bn_act import ConvNormAct
from torch import Tensor, nn

from ...errors import UserError
from ..cpu.involution import involve


class Involution(nn.Module):
    """Compute a kernel at every pixel from its channels, and apply it.

        kernels = W2 ReLU(BN(W1 pool(x))) + b,    y = involve(x, kernels)

    pool averages s x s pixels, W1 maps C to C / 4. Shape: [B, C, H, W] -> [B, C, H / s, W / s], rounded up.

    Args:
        channels: C, a multiple of group_width.
        kernel_size: K, odd.
        stride: s.
        group_width: number of neighboring channels that share a kernel.
    """

    def __init__(self, channels: int, kernel_size: int = 7, stride: int = 1, group_width: int = 16) -> None:
        super().__init__()
        if channels % group_width:
            raise UserError(
                f"channels must be a multiple of an involution's group_width, got {channels} and {group_width}"
            )
        if kernel_size % 2 == 0:
            raise UserError(f"kernel_size of an involution must be odd, got {kernel_size}")
        self.groups, self.stride = channels // group_width, stride
        narrow = max(1, channels // 4)
        self.conv1 = ConvNormAct(channels, narrow, 1)
        self.conv2 = nn.Conv2d(narrow, kernel_size**2 * self.groups, 1)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def pool(self, x: Tensor) -> Tensor:
        """Average s x s pixels; at the lower and right edge the last pixels are repeated."""
        if self.stride == 1:
            return x
        down, right = -x.shape[2] % self.stride, -x.shape[3] % self.stride
        if down or right:
            x = F.pad(x, (0, right, 0, down), mode="replicate")
        return F.avg_pool2d(x, self.stride)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.conv2(self.conv1(self.pool(x)))
        return involve(x, torch.unflatten(kernels, 1, (self.groups, -1)), self.stride)
