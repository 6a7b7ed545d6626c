# SPDX-License-Identifier: Apache-2.0
"""What a run of several labels an image keeps of being measured, read back by its types.

multilabel.json    counts: the key, WEIGHTS/SPLIT, of the result that counts; results: by key; checksums: of the weights
multilabel.npz     by key, in the order of split.json: KEY/probabilities [N, C] float16, KEY/labels [N, C] bool, and
                   KEY/predicted [N, C] bool, those from their thresholds on before they were rounded
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...keywords import rebuilt
from ...scores.labels import UNDECIDED
from ...training.run_folder import RunFolder
from ..outputs import Predictions
from ..saved import Results, read_results, save_arrays, saved_arrays
from .labels import LabelsEvaluation

RESULTS, ANSWERS = "multilabel.json", "multilabel.npz"


class LabelEvaluations(Results[LabelsEvaluation]):
    """Of a classifier of several labels an image."""


def read_labels(run: RunFolder) -> LabelEvaluations | None:
    """What was measured; None where nothing was yet, or the run learns something else. Raises: UserError if damaged."""
    return read_results(run, RESULTS, _from_dict)


def _from_dict(content: Mapping[str, Any]) -> LabelEvaluations:
    results = {key: rebuilt(LabelsEvaluation, result) for key, result in content["results"].items()}
    return LabelEvaluations(content["counts"], results)


def thresholds_of(run: RunFolder, weights: str, classes: int) -> list[float]:
    """Thresholds that validation images chose for a run's weights; one half where nothing was measured yet."""
    results = read_labels(run)
    for key, result in (results.results if results else {}).items():
        if key.partition("/")[0] == weights and len(result.per_label) == classes:
            return [score.threshold for score in result.per_label]
    return [UNDECIDED] * classes


@dataclass(frozen=True, eq=False)
class LabelAnswers:
    """What is said of N images.

    Args:
        probabilities: [N, C] float16.
        labels: [N, C] bool, the true ones.
        predicted: [N, C] bool.
    """

    probabilities: NDArray[np.float16]
    labels: NDArray[np.bool_]
    predicted: NDArray[np.bool_]


def keep_answers(run: RunFolder, answers: Mapping[str, tuple[Predictions, Sequence[float]]]) -> None:
    """Write multilabel.npz, of every result its predictions and the labels' thresholds."""
    arrays: dict[str, Any] = {}
    for key, (predictions, thresholds) in answers.items():
        shares = predictions.probabilities.numpy()
        arrays[f"{key}/probabilities"] = shares.astype(np.float16)
        arrays[f"{key}/labels"] = predictions.labels.numpy() > 0
        arrays[f"{key}/predicted"] = shares >= np.array(thresholds)
    save_arrays(run, ANSWERS, arrays)


def read_answers(run: RunFolder, key: str) -> LabelAnswers:
    """Of a result. Raises: UserError if they are missing or damaged."""
    with saved_arrays(run, ANSWERS) as file:
        shares = file[f"{key}/probabilities"]
        predicted = file.get(f"{key}/predicted")  # not in files of an earlier layout
        if predicted is None:
            predicted = shares >= np.array(thresholds_of(run, key.partition("/")[0], shares.shape[1]))
        return LabelAnswers(shares, file[f"{key}/labels"], predicted)
