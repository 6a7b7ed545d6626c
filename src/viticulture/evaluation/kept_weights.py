# SPDX-License-Identifier: Apache-2.0
"""A measure of every set of weights that a run keeps; of equal sets, which best and last ones often are, only once."""

import filecmp
from collections.abc import Callable
from typing import TypeVar

from ..models.weights.files import FILES
from ..training.run_folder import RunFolder

Measured = TypeVar("Measured")


def of_each(run: RunFolder, measure: Callable[[str], Measured]) -> dict[str, Measured]:
    """Name of the weights -> what is measured of them, those that count first.

    Args:
        run: with weights.
        measure: takes their name; is asked once for sets whose files are the same, byte by byte.
    """
    measured: dict[str, Measured] = {}
    for weights in run.which():
        twin = next((known for known in measured if _same(run, known, weights)), None)
        measured[weights] = measure(weights) if twin is None else measured[twin]
    return measured


def _same(run: RunFolder, weights: str, others: str) -> bool:
    """Whether the files are there and the same; what is missing is told where it is read."""
    places = run.weights(weights), run.weights(others)
    return not any(filecmp.cmpfiles(*places, FILES, shallow=False)[1:])
