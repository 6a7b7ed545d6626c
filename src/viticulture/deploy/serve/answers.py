# SPDX-License-Identifier: Apache-2.0
"""Predictions for images that are sent: the network is loaded once, for one request at a time."""

from collections.abc import Sequence
from typing import Any

from ...evaluation.inputs import MAX_SENT_PIXELS, Item
from ...report.pictures import picture_uri
from ...tasks.task import Prediction, task_of
from ...training.run_folder import RunFolder

LONGEST = 800
"""Pixels, the longer side of a drawn picture."""


class Answerer:
    """A run's network, loaded.

    Args:
        run: a run that predicts something.
        weights: best, last or ema; by default those that count.

    Raises: UserError for a run that was trained without labels, or has no such weights.
    """

    def __init__(self, run: RunFolder, weights: str = "") -> None:
        self.task = task_of(run)
        self.predictor = self.task.predictor(weights)
        self.data_spec = self.predictor.data_spec

    def rows(self, items: Sequence[Item], look: bool = False) -> list[dict[str, Any]]:
        """The predictions of `viticulture predict` for the same images together, ready for JSON, a row an item.

        Args:
            items: no more than are fed to a network at once, or bits may differ from the command's.
            look: with each row `look`, a picture as a data URI; empty for what cannot be read or drawn.
        """
        rows = []
        for prediction, picture in self.predictor.predict(items, MAX_SENT_PIXELS, LONGEST if look else 0):
            uri = "" if picture is None else picture_uri(picture, *self.task.served_side)
            rows.append({**prediction.row(), **({"look": uri} if look else {})})
        return rows

    def csv(self, items: Sequence[Item]) -> str:
        """The same as `viticulture predict --out FILE.csv` writes it."""
        predictions: list[Prediction] = [each for each, _ in self.predictor.predict(items, MAX_SENT_PIXELS)]
        return self.task.prediction.csv(predictions, self.data_spec.classes)
