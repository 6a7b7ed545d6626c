# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose BatchNorm has constant statistics, as in fine-tuning, computed in one pass.

    gamma (W * x - mean) / sqrt(var + eps) + beta  =  (s W) * x + (beta - s mean),     s = gamma / sqrt(var + eps)

Both sides have the same gradients for W, gamma and beta, and the right one reads a map once less in each direction: on
a CPU a step of EfficientNet-Lite0 takes a tenth to a sixth less time (benchmarks/log/public-weights.md).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from ...kernels import fast_kernels

Pairs = list[tuple[nn.Conv2d, nn.BatchNorm2d]]
TOLERANCE = 1e-3  # of outputs, relative to the largest: beyond it a map is read by more than its BatchNorm

_pairs: WeakKeyDictionary[nn.Module, Pairs] = WeakKeyDictionary()


def folded_batch_norms(network: nn.Module, images: Tensor) -> AbstractContextManager[None]:
    """Return a context in which a network in evaluation mode computes each convolution and its BatchNorm as one.

    Args:
        images: [B, C, H, W]; the first of them finds the pairs when the network is seen for the first time.
    """
    if not (images.is_cpu and fast_kernels()) or torch.compiler.is_compiling():
        return nullcontext()
    if network not in _pairs:
        _pairs[network] = _found(network, images[:1])
    return _folded(_pairs[network])


@contextmanager
def _folded(pairs: Pairs) -> Iterator[None]:
    with ExitStack() as undo:
        for convolution, norm in pairs:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = norm.bias - scale * norm.running_mean
            if convolution.bias is not None:
                bias = bias + scale * convolution.bias
            # Instance attributes hide the parameters of the same name from the layer's forward pass.
            _hide(undo, convolution, "weight", scale[:, None, None, None] * convolution.weight)
            _hide(undo, convolution, "bias", bias)
            _hide(undo, norm, "forward", partial(_activated, norm))
        yield


def _hide(undo: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    module.__dict__[name] = value
    undo.callback(module.__dict__.pop, name)


def _activated(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return norm.act(norm.drop(x)) if isinstance(norm, BatchNormAct2d) else x


@torch.no_grad()
def _found(network: nn.Module, image: Tensor) -> Pairs:
    """Find each BatchNorm whose input is a convolution's output; none where outputs differ then."""
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the tensors are kept, so that no two have the same id
    pairs: Pairs = []

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            made[id(output)] = module, output
        elif id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], module))  # type: ignore[arg-type]

    kinds = (nn.BatchNorm2d, BatchNormAct2d)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d) or (type(m) in kinds and _constant(m))]
    with ExitStack() as undo, torch.autocast("cpu", enabled=False):
        for layer in layers:
            undo.callback(layer.register_forward_hook(note).remove)
        plain = network(image)
    once = len({id(layer) for pair in pairs for layer in pair}) == 2 * len(pairs)
    with _folded(pairs if once else []), torch.autocast("cpu", enabled=False):
        close = torch.allclose(network(image), plain, rtol=0, atol=TOLERANCE * float(plain.abs().max()))
    return pairs if once and close else []


def _constant(norm: Any) -> bool:
    return norm.affine and norm.running_var is not None and not norm.training
