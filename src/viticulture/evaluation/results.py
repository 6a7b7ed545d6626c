# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of being measured, read back by its types.

evaluation.json    counts: the key, WEIGHTS/SPLIT, of the result that counts; results: every result by its key;
                   checksums: of the weights that they are of
predictions.npz    counts, and by key the student's predictions of all images, in the order of that split in split.json:
                   KEY/probabilities [N, C] float16; KEY/predicted [N] int32, their argmax before they were rounded;
                   KEY/labels [N] int32
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..data.image_set import Images
from ..errors import UserError
from ..text import shell_word
from ..training.run_folder import RunFolder
from .accuracy import Evaluation
from .outputs import Predictions
from .saved import Results, read_results, save_arrays, saved_arrays

RESULTS, PREDICTIONS = "evaluation.json", "predictions.npz"
Numbers = TypeVar("Numbers")


@dataclass(frozen=True, eq=False)
class Result(Generic[Numbers]):
    """One set of weights on one split, at the moment of its evaluation.

    Args:
        evaluation: the numbers.
        predictions: probabilities behind them.
        images: the split.
    """

    evaluation: Numbers
    predictions: Predictions
    images: Images


class Evaluations(Results[Evaluation]):
    """Of a classifier; empty for a run without labels."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"counts": self.counts, "results": {key: result.to_dict() for key, result in self.items()}}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Evaluations":
        """What `to_dict` gave, or what was kept before the result that counts had a name: it was the first."""
        results = content["results"] if "counts" in content else content
        counts = content["counts"] if "counts" in content else next(iter(content), "")
        return Evaluations(counts, {key: Evaluation.from_dict(result) for key, result in results.items()})


def read_evaluations(run: RunFolder) -> Evaluations | None:
    """What was measured; None where nothing was yet. Raises: UserError if it is damaged."""
    return read_results(run, RESULTS, Evaluations.from_dict)


def keep_predictions(run: RunFolder, counts: str, predictions: Mapping[str, Predictions]) -> None:
    """Write predictions.npz.

    Args:
        run: whose.
        counts: the key of the result that counts.
        predictions: by key.
    """
    arrays: dict[str, Any] = {"counts": np.array(counts)}
    for key, of_split in predictions.items():
        arrays[f"{key}/probabilities"] = of_split.probabilities.numpy().astype(np.float16)
        arrays[f"{key}/predicted"] = of_split.probabilities.argmax(-1).numpy().astype(np.int32)
        arrays[f"{key}/labels"] = of_split.labels.numpy().astype(np.int32)
    save_arrays(run, PREDICTIONS, arrays)


@dataclass(frozen=True, eq=False)
class KeptPredictions:
    """Predictions for N images, as they are kept.

    Args:
        predicted: [N] int32, the likeliest class.
        labels: [N] int32, the true class.
        probabilities: [N, C] float16; None in files of an earlier layout, which kept the largest alone.
    """

    predicted: NDArray[np.int32]
    labels: NDArray[np.int32]
    probabilities: NDArray[np.float16] | None


def read_predictions(run: RunFolder, key: str = "", probabilities: bool = False) -> KeptPredictions:
    """What `keep_predictions` wrote.

    Args:
        run: whose.
        key: WEIGHTS/SPLIT; by default the result that counts.
        probabilities: read them too.

    Raises: UserError if the file is missing or damaged, or holds no such predictions.
    """
    if not (run.path / PREDICTIONS).exists():
        raise UserError(f"{run.path} keeps no predictions; to have them: viticulture evaluate {shell_word(run.path)}")
    with saved_arrays(run, PREDICTIONS) as file:
        where = "" if "predicted" in file else f"{key or file['counts'].item()}/"  # earlier: the counting ones alone
        chances = file[f"{where}probabilities"] if probabilities and where else None
        return KeptPredictions(file[f"{where}predicted"], file[f"{where}labels"], chances)
