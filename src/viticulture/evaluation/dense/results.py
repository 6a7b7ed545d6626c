# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its detector or segmenter being measured, read back by its types.

dense.json     kind: "objects" or "pixels"; counts: the key, WEIGHTS/SPLIT, of the result that counts; results: by key
found.json     of the split that counts: what was found in each image, beside what is there (objects), or the mIoU of
               each image by itself (pixels); for pages and comparisons
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...keywords import rebuilt
from ...training.rundir import RunDir
from ..kept import read_kept
from .objects import ObjectsEvaluation
from .pixels import PixelsEvaluation

RESULTS, FOUND = "dense.json", "found.json"

Evaluation = ObjectsEvaluation | PixelsEvaluation


@dataclass(frozen=True)
class DenseEvaluations:
    """Evaluations by WEIGHTS/SPLIT.

    Args:
        kind: "objects" or "pixels".
        counts: the key of the one that counts; "" without any.
        results: by key.
    """

    kind: str
    counts: str
    results: Mapping[str, Evaluation]

    @property
    def counting(self) -> Evaluation | None:
        """The one that counts."""
        return self.results.get(self.counts)

    def of_split(self, split: str) -> Evaluation | None:
        """That of the weights that count, on a split."""
        return self.results.get(f"{self.counts.partition('/')[0]}/{split}")

    def of_weights(self, weights: str) -> "DenseEvaluations":
        """Those of one set of weights; that on the split that counts, counts. Empty where these were not measured."""
        key = f"{weights}/{self.counts.partition('/')[2]}"
        results = {each: result for each, result in self.results.items() if each.partition("/")[0] == weights}
        return DenseEvaluations(self.kind, key, results) if key in results else DenseEvaluations(self.kind, "", {})

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "kind": self.kind,
            "counts": self.counts,
            "results": {key: asdict(result) for key, result in self.results.items()},
        }


def from_dict(content: Mapping[str, Any]) -> DenseEvaluations:
    """What `to_dict` gave."""
    kind = {"objects": ObjectsEvaluation, "pixels": PixelsEvaluation}[content["kind"]]
    results: dict[str, Evaluation] = {key: rebuilt(kind, result) for key, result in content["results"].items()}
    if content["counts"] not in results and (content["counts"] or results):
        raise ValueError(f"the result that counts, {content['counts']!r}, is not there")
    return DenseEvaluations(content["kind"], content["counts"], results)


def read_dense(run: RunDir) -> DenseEvaluations | None:
    """What was measured; None where nothing was yet, or the run classifies. Raises: UserError if it is damaged."""
    return read_kept(run, RESULTS, from_dict, None)
