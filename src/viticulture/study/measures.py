# SPDX-License-Identifier: Apache-2.0
"""Measures that candidates are compared by: their names, and their values as text."""

from collections.abc import Collection
from dataclasses import dataclass

from .statistics import Difference, Estimate


@dataclass(frozen=True)
class Measure:
    """A measure of which 1 is the best value."""

    title: str
    word: str
    of: str  # the number in "reaches an AP of 30 %"; "" for the fraction of images that are classified correctly
    curve: str
    curves: tuple[str, ...]  # names of these logs; the first that exists counts
    # The interval over images that is known besides Student's over seeds, with a place for the split; "" without one:
    # draws of images are saved only of the main measure of each task.
    images: str
    share: bool = True  # whether it lies in [0, 1] and is written in percent

    @property
    def factor(self) -> int:
        """Factor of the values that are written, and the highest of these."""
        return 100 if self.share else 1

    @property
    def digits(self) -> int:
        """Written decimals."""
        return 1 if self.share else 3

    @property
    def unit(self) -> str:
        """Unit of values in a heading: ", %"; "" without one."""
        return ", %" if self.share else ""

    @property
    def points(self) -> str:
        """Unit of differences: " points"; "" without one."""
        return " points" if self.share else ""

    def number(self, value: float) -> str:
        """Return a value without its unit."""
        return f"{self.factor * value:.{self.digits}f}"

    def value(self, value: float) -> str:
        """Return a value as text: 73.4 %."""
        return f"{self.number(value)}{' %' if self.share else ''}"

    def interval(self, estimate: Estimate, between: str = " to ") -> str | None:
        """Return an interval within the values that are possible; None where it is not known."""
        if estimate.low is None or estimate.high is None:
            return None
        low, high = max(0.0, estimate.low) if self.share else estimate.low, min(1.0, estimate.high)
        return f"{self.number(low)}{between}{self.number(high)}"

    def ends(self, difference: Difference) -> tuple[float, float] | None:
        """Return the ends of a difference's interval as they are written, within those that are possible."""
        if (ends := difference.interval) is None:
            return None
        low, high = (max(-1.0, ends[0]), min(1.0, ends[1])) if self.share else ends
        return self.factor * low, self.factor * high

    def difference(self, difference: Difference) -> str:
        """Return a difference as text, with its interval if that is known: 1.2 points (0.3 to 2.1)."""
        ends = self.ends(difference)
        interval = f" ({ends[0]:.{self.digits}f} to {ends[1]:.{self.digits}f})" if ends else ""
        return f"{self.number(difference.mean)}{self.points}{interval}"

    @property
    def capital(self) -> str:
        """The word at the beginning of a sentence."""
        return self.word[0].upper() + self.word[1:] if self.word.islower() else self.word


BINOMIAL, BOOTSTRAP = "the binomial interval over the {} images", "the bootstrap interval over the {} images"
CLASSIFIERS = "accuracy", ("val/accuracy", "test/accuracy")
DETECTORS = "AP50 by image", ("val/ap50", "test/ap50")
SEGMENTERS = "mIoU by image", ("val/iou", "test/iou")
LABELS = "mAP by batch", ("val/map", "test/map")
NUMBERS = "mean absolute error", ("val/mae", "test/mae")

MEASURES = {
    "accuracy": Measure("Top-1 accuracy", "accuracy", "", *CLASSIFIERS, BINOMIAL),
    "top5": Measure("Top-5 accuracy", "top-5 accuracy", "a top-5 accuracy", *CLASSIFIERS, ""),
    "ap": Measure("AP of boxes", "AP", "an AP of boxes", *DETECTORS, BOOTSTRAP),
    "ap50": Measure("AP50 of boxes", "AP50", "an AP50 of boxes", *DETECTORS, ""),
    "ap75": Measure("AP75 of boxes", "AP75", "an AP75 of boxes", *DETECTORS, ""),
    "ap_masks": Measure("AP of masks", "AP of masks", "an AP of masks", *DETECTORS, ""),
    "miou": Measure("mIoU", "mIoU", "an mIoU", *SEGMENTERS, BOOTSTRAP),
    "pixels": Measure("Correct pixels", "pixel accuracy", "a pixel accuracy", *SEGMENTERS, ""),
    "map": Measure("mAP", "mAP", "an mAP", *LABELS, BOOTSTRAP),
    "micro_f1": Measure("micro-F1", "micro-F1", "a micro-F1", *LABELS, ""),
    "macro_f1": Measure("macro-F1", "macro-F1", "a macro-F1", *LABELS, ""),
    "r2": Measure("R2", "R2", "an R2", *NUMBERS, BOOTSTRAP, share=False),
    "exact": Measure("Exact matches", "rate of exact matches", "a rate of exact matches", *LABELS, ""),
}


def measure(names: Collection[str]) -> Measure:
    """Return the measure of outcomes by what is `measured` of them; a paper's table may mix several."""
    first, *others = names
    if not others and first in MEASURES:
        return MEASURES[first]
    title = "Results, each row by its measure" if others else first
    return Measure(title, "result", "a result", *CLASSIFIERS, "")
