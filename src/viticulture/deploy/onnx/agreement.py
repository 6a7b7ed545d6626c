# SPDX-License-Identifier: Apache-2.0
"""Comparison of a file with its network on images that suit it.

Other kernels round differently: a pixel of the canvas may differ by a gray level, and a detector's boxes, proposals and
scores near the minimum may depend on it. So the network is first compared with itself under such changes, and the image
is used for which they change the least.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_DIFFERENT = 0.02
"""Share of boxes or pixels that may differ on a suitable image."""
UNSTABLE = 0.25
"""Share from which an image with boxes suits less than one without any."""
CLOSE = {"boxes": 0.5, "scores": 1e-2}  # pixels, and shares, within which two boxes are the same
PERTURBED = 0.02  # share of a canvas's values that other kernels may round differently
SIZES = ((48, 64), (301, 203))
TRIES = 6  # images per size


@torch.inference_mode()
def check_agreement(file: Callable[[Tensor], tuple[Tensor, ...]], network: Any) -> None:
    """Compare a file and its network on images of two sizes. Raises: RuntimeError if they differ."""
    for size in SIZES:
        image, expected, alone = stable_image(network, size)
        share = different(file(image), expected)
        if not share <= MAX_DIFFERENT:  # a NaN does not agree
            raise RuntimeError(
                f"the ONNX file differs from the network: {share:.1%} of its outputs differ, and {alone:.1%} of the "
                "network's under changes of a gray level"
            )


def stable_image(network: Any, size: tuple[int, int]) -> tuple[Tensor, tuple[Tensor, ...], float]:
    """Find the image with outputs that change the least under changes of a gray level.

    Returns: the image, the network's outputs, and the share of them that changes.
    """
    tried: list[tuple[tuple[bool, bool, float], Tensor, tuple[Tensor, ...]]] = []
    for seed in range(TRIES):
        image = random_image(size, seed, network.canvas.channels)
        outputs, share = network(image), 0.0
        for noise in (seed, seed + TRIES):
            with perturbed(network.canvas, noise):
                share = max(share, different(network(image), outputs))
        tried.append(((share >= UNSTABLE, not len(outputs[0]), share), image, outputs))
        if share <= MAX_DIFFERENT and len(outputs[0]):
            break
    (_, _, share), image, outputs = min(tried, key=lambda each: each[0])
    return image, outputs, share


def random_image(size: tuple[int, int], seed: int, channels: int = 3) -> Tensor:
    """Return smooth random colors, [H, W, channels] uint8; smoother with every second seed."""
    generator = torch.Generator().manual_seed(size[0] * size[1] + seed)
    coarse = torch.rand(1, channels, 5 - seed // 2, 7 - seed // 2, generator=generator)
    smooth = F.interpolate(coarse, size=size, mode="bicubic")
    return (255 * smooth[0].clamp(0, 1)).permute(1, 2, 0).to(torch.uint8).contiguous()


@contextmanager
def perturbed(canvas: nn.Module, seed: int) -> Iterator[None]:
    """Change a few values of a canvas's output by a gray level while the context lasts."""

    def hook(module: Any, _: Any, output: Tensor) -> Tensor:
        uniform = torch.rand(output.shape, generator=torch.Generator().manual_seed(seed))
        step = (uniform < PERTURBED / 2).float() - (uniform > 1 - PERTURBED / 2).float()
        return output + step * module.scale

    handle = canvas.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def different(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the share of a segmenter's pixels, or of a detector's boxes, by which two outputs for an image differ."""
    if len(expected) == 1:
        return float((outputs[0] != expected[0]).float().mean())
    (boxes, scores, labels), (true_boxes, true_scores, true_labels) = outputs[:3], expected[:3]
    if not len(boxes) and not len(true_boxes):
        return 0.0
    same = (boxes[:, None] - true_boxes).abs().amax(2) <= CLOSE["boxes"]  # [n, m]
    same &= ((scores[:, None] - true_scores).abs() <= CLOSE["scores"]) & (labels[:, None] == true_labels)
    for masks, true in zip(outputs[3:], expected[3:], strict=True):
        area = true.flatten(1).sum(1)
        unlike = (masks[:, None] ^ true).flatten(2).sum(2)
        same &= unlike <= 1 + MAX_DIFFERENT * area
    alone = (~same.any(1)).sum() + (~same.any(0)).sum()
    return float(alone / (len(boxes) + len(true_boxes)))
