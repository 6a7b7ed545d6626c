# SPDX-License-Identifier: Apache-2.0
"""Curves of a training, read from the table of its measurements."""

import csv
from pathlib import Path

from ..training.metrics import damaged
from .svg import Points


def read_curves(metrics: Path) -> dict[str, Points]:
    """Name -> (epochs done, value) for every number that was logged, in the order of the file.

        epochs done = (step + 1) / steps an epoch;  steps an epoch = max over rows of (step + 1) / (epoch + 1)

    A row written at the end of an epoch attains the maximum. Where a resumed run repeats steps, the later row counts.
    Reads rows of `step, epoch, name, value`, and Lightning's CSVLogger, where each name is a column with gaps.
    A value may be NaN or infinite.

    Raises: UserError if the file holds no such table.
    """
    try:
        return _curves(metrics)
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise damaged(metrics, error) from error


def _curves(metrics: Path) -> dict[str, Points]:
    with metrics.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("step") and row.get("epoch")]
    steps = max(((float(row["step"]) + 1) / (float(row["epoch"]) + 1) for row in rows), default=1.0)
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        for name, text in [(row["name"], row["value"])] if "name" in row else row.items():
            if name not in ("epoch", "step") and text:
                curves.setdefault(name, {})[(float(row["step"]) + 1) / steps] = float(text)
    return {name: sorted(points.items()) for name, points in curves.items()}
