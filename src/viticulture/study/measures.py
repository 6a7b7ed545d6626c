# SPDX-License-Identifier: Apache-2.0
"""Names of the measures that candidates are compared by, in tables and sentences."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """Words for a measure in [0, 1].

    Args:
        of: the number in "reaches an AP of 30 %"; "" for the fraction of images that are classified correctly.
        curves: names of these logs; the first that exists counts.
        images: the interval over images that is known besides Student's over seeds, with a place for the split; ""
            without one: draws of images are saved only of the main measure of each task.
    """

    title: str
    word: str
    of: str
    curve: str
    curves: tuple[str, ...]
    images: str

    @property
    def capital(self) -> str:
        """The word at the beginning of a sentence."""
        return self.word[0].upper() + self.word[1:] if self.word.islower() else self.word


BINOMIAL, BOOTSTRAP = "the binomial interval over the {} images", "the bootstrap interval over the {} images"
CLASSIFIERS = "accuracy", ("val/accuracy", "test/accuracy")
DETECTORS = "AP50 by image", ("val/ap50", "test/ap50")
SEGMENTERS = "mIoU by image", ("val/iou", "test/iou")
LABELS = "mAP by batch", ("val/map", "test/map")

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
    "exact": Measure("Exact matches", "rate of exact matches", "a rate of exact matches", *LABELS, ""),
}


def measure(names: Collection[str]) -> Measure:
    """Return the measure of outcomes by what is `measured` of them; a paper's table may mix several."""
    first, *others = names
    if not others and first in MEASURES:
        return MEASURES[first]
    title = "Results, each row by its measure" if others else first
    return Measure(title, "result", "a result", *CLASSIFIERS, "")
