# SPDX-License-Identifier: Apache-2.0
"""Errors of a student on images unlike its training images: corrupted ones, and ImageNet-A, -R and -C.

    CE_c = sum over severities s of E_sc / sum over s of E_sc of AlexNet,   mCE = mean over the 15 corruptions c

where E is the share of misclassified images. Without AlexNet: the mean of E. Source: Hendrycks and Dietterich, ICLR
2019, arXiv:1903.12261, Sec. 4. The images are defined in evaluate.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from ...keywords import rebuilt
from ..model import OutputHeads, all_logits
from .strengths import MAIN, SEVERITIES

ALEXNET = {
    "gaussian_noise": 0.886428, "shot_noise": 0.894468, "impulse_noise": 0.922640, "defocus_blur": 0.819880,
    "glass_blur": 0.826268, "motion_blur": 0.785948, "zoom_blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic_transform": 0.646056,
    "pixelate": 0.717840, "jpeg_compression": 0.606500,
}  # fmt: skip
"""AlexNet's error on ImageNet-C, mean over severities. Source: the authors' figures (rounded to percent in Table 1 of
arXiv:1903.12261, in full at github.com/hendrycks/robustness)."""


@dataclass(frozen=True)
class Robustness:
    """Errors of one set of weights on one collection of images, shares in [0, 1]."""

    data: str
    weights: str
    images: int
    classes: int
    trained_classes: int
    corrupted_by: str  # the published set with the strengths of the corruptions, such as CIFAR-10-C; "" without any
    rule: str
    heads: tuple[str, ...]  # the columns of errors: the student, then each of its heads if it has several
    clean: tuple[float, ...] = ()  # errors on uncorrupted images, by head; empty if there are none
    # Corruption -> for each severity the errors by head.
    errors: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    imagenet: bool = False
    key: str = ""
    checksum: str = ""

    def error(self, corruption: str, head: int = 0) -> float:
        """Return the mean over severities."""
        return fmean(severity[head] for severity in self.errors[corruption])

    def mean_error(self, head: int = 0) -> float | None:
        """Return the mean over the 15 corruptions, not normalized; None if one of them is missing."""
        return fmean(self.error(name, head) for name in MAIN) if self.errors.keys() >= set(MAIN) else None

    def mean_corruption_error(self, head: int = 0) -> float | None:
        """Return mCE, normalized by AlexNet, whose mCE is 1; None for other classes than ImageNet's 1,000."""
        if not self.imagenet or not self.errors.keys() >= set(MAIN):
            return None
        return fmean(self.error(name, head) / ALEXNET[name] for name in MAIN)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the means for JSON."""
        means = {
            name: [mean(head) for head in range(len(self.heads))]
            for name, mean in (("mean_error", self.mean_error), ("mce", self.mean_corruption_error))
        }
        return asdict(self) | means

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Robustness":
        """Invert `to_dict`."""
        return rebuilt(Robustness, {k: v for k, v in content.items() if k not in ("mean_error", "mce")})

    def rows(self) -> Iterator[tuple[str, int, str, float]]:
        """Yield corruption, severity (0 without one), head, error."""
        for head, error in zip(self.heads, self.clean, strict=False):
            yield "clean", 0, head, error
        for name, severities in self.errors.items():
            for severity, by_head in zip(SEVERITIES, severities, strict=True):
                for head, error in zip(self.heads, by_head, strict=True):
                    yield name, severity, head, error


@torch.inference_mode()
def wrong_predictions(
    student: nn.Module,
    heads: OutputHeads,
    images: Tensor,
    labels: Tensor,
    allowed: Tensor | None = None,
    tta_network: nn.Module | None = None,
) -> Tensor:
    """Count the images that each head misclassifies, the student's prediction first.

    Args:
        labels: [B]; or [B, C] bool, if any of several classes is correct.
        allowed: [C] bool, classes that may be predicted; None for all.

    Returns: [1] for a student with one head, else [1 + K].
    """
    by_head = all_logits(student, images)
    output = heads.combine(by_head) if tta_network in (None, student) else tta_network(images)
    logits = output[None] if len(by_head) == 1 else torch.cat([output[None], by_head])
    if allowed is not None:
        logits = logits.masked_fill(~allowed, float("-inf"))
    predicted = logits.argmax(-1)  # [1 + K, B]
    if labels.ndim == 2:
        return (~labels.gather(1, predicted.mT)).sum(0)
    return (predicted != labels).sum(-1)
