# SPDX-License-Identifier: Apache-2.0
"""What a localization came to, and how it is kept: localization.json in a run's folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...keywords import rebuilt
from ...training.run_folder import RunFolder
from ..saved import read_each
from .metrics import AS_EVALUATED, PUBLISHED, BoxAccuracy, Boxes

FILE = "localization.json"


@dataclass(frozen=True, eq=False)
class Example:
    """One image as the student saw it.

    Args:
        name: of the image.
        view: [H, W, 3] uint8.
        score: [H, W] float32 in [0, 1].
        true: its boxes, pixels of the view.
        overlap: the best intersection over union of `box` and a true box.
        box: around the largest part at the threshold that is best at the middle overlap; none where nothing is left.
    """

    name: str
    view: NDArray[np.uint8]
    score: NDArray[np.float32]
    true: Boxes
    overlap: float
    box: Boxes


@dataclass(frozen=True)
class Localization:
    """MaxBoxAcc of one set of weights on one set of images.

    Args:
        weights: best, last or ema.
        images: how many were judged.
        left_out: images without a box, or whose boxes the crop cuts off.
        largest: by the box of the largest part (MaxBoxAcc).
        any_part: by the best of all parts' boxes (MaxBoxAccV2).
        everything: by a box around the whole image, which takes no student.
        examples: a few images, evenly spread; not kept with the numbers.
        protocol: published or evaluation, see `evaluate.localize`.
        checksum: of these weights, see `kept.checksum_of`.
    """

    weights: str
    images: int
    left_out: int
    largest: BoxAccuracy
    any_part: BoxAccuracy
    everything: BoxAccuracy
    examples: tuple[Example, ...] = ()
    protocol: str = PUBLISHED.name
    checksum: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {key: value for key, value in asdict(replace(self, examples=())).items() if key != "examples"}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Localization":
        """What `to_dict` gave."""
        before = {"protocol": AS_EVALUATED.name}  # of what was kept before there were two
        return rebuilt(Localization, {**before, **content})


def keep(run: RunFolder, data: str, result: Localization) -> None:
    """Write the numbers into the run's localization.json, beside those of other weights, data and protocols."""
    way = "" if result.protocol == PUBLISHED.name else f", {result.protocol}"
    every = {**read_localizations(run), f"{result.weights}/{data}{way}": result}
    run.write(FILE, {name: entry.to_dict() for name, entry in every.items()})


def read_localizations(run: RunFolder) -> dict[str, Localization]:
    """What was measured so far of the run's weights, by weights and data."""
    return read_each(run, FILE, Localization.from_dict)
