# SPDX-License-Identifier: Apache-2.0
"""Whether a file says what its network says, on images that are a fair question.

Other kernels round otherwise: here and there a pixel of the canvas differs by a gray level. A detector's choices may
hang on that: which of two boxes suppresses the other, which proposals are the best, what is just above the least score.
So the network is asked first what it says when such pixels tip, and the image is taken on which that changes least.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIFFERENT = 0.02
"""Share of boxes or pixels that may differ on a fair image."""
TOUCHY = 0.25
"""Share from which an image with answers is a worse question than one without any."""
CLOSE = {"boxes": 0.5, "scores": 1e-2}  # pixels, and shares, within which two answers are the same
TIPPED = 0.02  # share of a canvas's values that other kernels may round otherwise
SIZES = ((48, 64), (301, 203))
TRIES = 6  # images of a size that are tried

Answers = Callable[[Tensor], tuple[Tensor, ...]]
"""[H, W, channels] uint8 -> boxes, scores, labels and perhaps masks; or classes [H, W]."""


@torch.inference_mode()
def check_agreement(file: Answers, network: Any) -> None:
    """Ask both about images of two sizes.

    Args:
        file: what is checked.
        network: a module that says what is right; its `canvas` makes of an image what it is shown.

    Raises: RuntimeError if they differ.
    """
    for size in SIZES:
        image, expected, alone = fair_image(network, size)
        share = different(file(image), expected)
        if not share <= DIFFERENT:  # a NaN is no agreement
            raise RuntimeError(
                f"the ONNX file does not say what the network says: {share:.1%} of its answers differ, and "
                f"{alone:.1%} where gray levels tip"
            )


def fair_image(network: Any, size: tuple[int, int]) -> tuple[Tensor, tuple[Tensor, ...], float]:
    """Of a few images that with answers which change least where gray levels tip.

    Returns: the image, the network's answers, and the share of them that changes.
    """
    tried: list[tuple[tuple[bool, bool, float], Tensor, tuple[Tensor, ...]]] = []
    for seed in range(TRIES):
        image = something(size, seed, network.canvas.channels)
        answer = network(image)
        with tipped(network.canvas, seed):
            share = different(network(image), answer)
        with tipped(network.canvas, seed + TRIES):
            share = max(share, different(network(image), answer))
        tried.append(((share >= TOUCHY, not len(answer[0]), share), image, answer))
        if share <= DIFFERENT and len(answer[0]):
            break
    (_, _, share), image, answer = min(tried, key=lambda each: each[0])
    return image, answer, share


def something(size: tuple[int, int], seed: int, channels: int = 3) -> Tensor:
    """Smooth colors of a few places, [H, W, channels] uint8; more places with every second seed."""
    generator = torch.Generator().manual_seed(size[0] * size[1] + seed)
    coarse = torch.rand(1, channels, 5 - seed // 2, 7 - seed // 2, generator=generator)
    smooth = F.interpolate(coarse, size=size, mode="bicubic")
    return (255 * smooth[0].clamp(0, 1)).permute(1, 2, 0).to(torch.uint8).contiguous()


@contextmanager
def tipped(canvas: nn.Module, seed: int) -> Iterator[None]:
    """A few values of what a canvas gives are a gray level higher or lower while the context lasts."""

    def tip(module: Any, _: Any, shown: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(shown.shape, generator=generator)
        step = (drawn < TIPPED / 2).float() - (drawn > 1 - TIPPED / 2).float()
        return shown + step * module.scale

    handle = canvas.register_forward_hook(tip)
    try:
        yield
    finally:
        handle.remove()


def different(outputs: "list[Tensor] | tuple[Tensor, ...]", expected: tuple[Tensor, ...]) -> float:
    """Share of a segmenter's pixels, or of a detector's boxes, that two answers to an image do not have in common."""
    if len(expected) == 1:
        return float((outputs[0] != expected[0]).float().mean())
    (ours, sure, named), (boxes, scores, labels) = outputs[:3], expected[:3]
    if not len(ours) and not len(boxes):
        return 0.0
    same = (ours[:, None] - boxes).abs().amax(2) <= CLOSE["boxes"]  # [n, m]
    same &= ((sure[:, None] - scores).abs() <= CLOSE["scores"]) & (named[:, None] == labels)
    for masks, true in zip(outputs[3:], expected[3:], strict=True):
        area = true.flatten(1).sum(1)
        unlike = (masks[:, None] ^ true).flatten(2).sum(2)
        same &= unlike <= 1 + DIFFERENT * area
    alone = (~same.any(1)).sum() + (~same.any(0)).sum()
    return float(alone / (len(ours) + len(boxes)))
