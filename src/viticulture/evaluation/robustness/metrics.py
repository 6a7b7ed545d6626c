# SPDX-License-Identifier: Apache-2.0
"""How a student fares on images unlike those that it learnt from: corrupted ones, and ImageNet-A, -R and -C.

    CE_c = sum over severities s of E_sc / sum over s of E_sc of AlexNet,   mCE = mean over the 15 corruptions c

where E is the share of wrong answers. Without AlexNet: the mean of E. Source: Hendrycks and Dietterich, ICLR 2019,
arXiv:1903.12261, Sec. 4. Which images are judged is said by evaluate.py.
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
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's error on ImageNet-C, mean over severities. Source: the authors' figures (rounded to percent in Table 1 of
arXiv:1903.12261, in full at github.com/hendrycks/robustness)."""


@dataclass(frozen=True)
class Robustness:
    """Errors of one set of weights on one collection of images, shares in [0, 1].

    Args:
        data: the collection's name.
        weights: best, last or ema.
        images: how many, of each corruption and severity.
        classes: classes that the student chose between.
        known: classes that it knows.
        corrupted_by: whose strengths the corruptions have, such as CIFAR-10-C; empty where nothing was corrupted.
        rule: which head made the student's answer.
        heads: what the columns of errors are: the student, then each of its heads where it has several.
        clean: errors on images as they are, by head; empty where there are none.
        errors: corruption -> for each severity the errors by head.
        imagenet: whether those that it knows are ImageNet's.
        key: changes with the weights, the images and the way of judging.
        checksum: of these weights, see `kept.checksum_of`.
    """

    data: str
    weights: str
    images: int
    classes: int
    known: int
    corrupted_by: str
    rule: str
    heads: tuple[str, ...]
    clean: tuple[float, ...] = ()
    errors: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    imagenet: bool = False
    key: str = ""
    checksum: str = ""

    def error(self, corruption: str, head: int = 0) -> float:
        """Mean over severities."""
        return fmean(severity[head] for severity in self.errors[corruption])

    def mean_error(self, head: int = 0) -> float | None:
        """Mean over the 15 corruptions, not normalized; None where one of them is missing."""
        return fmean(self.error(name, head) for name in MAIN) if self.errors.keys() >= set(MAIN) else None

    def mean_corruption_error(self, head: int = 0) -> float | None:
        """mCE, normalized by AlexNet, 1 for AlexNet itself; None but for ImageNet's 1,000 classes."""
        if not self.imagenet or not self.errors.keys() >= set(MAIN):
            return None
        return fmean(self.error(name, head) / ALEXNET[name] for name in MAIN)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, with the means."""
        means = {
            name: [mean(head) for head in range(len(self.heads))]
            for name, mean in (("mean_error", self.mean_error), ("mce", self.mean_corruption_error))
        }
        return asdict(self) | means

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Robustness":
        """What `to_dict` gave."""
        return rebuilt(Robustness, {k: v for k, v in content.items() if k not in ("mean_error", "mce")})

    def rows(self) -> Iterator[tuple[str, int, str, float]]:
        """Corruption, severity (0 without), head, error: the table in its long form."""
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
    chosen_from: Tensor | None = None,
    answers: nn.Module | None = None,
) -> Tensor:
    """How many images each head takes for another class, the student's answer first.

    Args:
        student: in evaluation mode.
        heads: of the student.
        images: [B, 3, H, W].
        labels: [B]; or [B, C] bool, where any of several answers is right.
        chosen_from: [C] bool, classes that may be answered; None for all.
        answers: what gives the student's answer, where that is more than its heads, such as several views of an image.

    Returns: [1] for a student with one head, else [1 + K].
    """
    by_head = all_logits(student, images)
    answer = heads.combine(by_head) if answers in (None, student) else answers(images)
    logits = answer[None] if len(by_head) == 1 else torch.cat([answer[None], by_head])
    if chosen_from is not None:
        logits = logits.masked_fill(~chosen_from, float("-inf"))
    predicted = logits.argmax(-1)  # [1 + K, B]
    if labels.ndim == 2:
        return (~labels.gather(1, predicted.mT)).sum(0)
    return (predicted != labels).sum(-1)
