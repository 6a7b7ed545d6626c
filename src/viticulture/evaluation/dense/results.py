# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its detector or segmenter being measured, read back by its types.

dense.json     kind: "objects" or "pixels"; counts: the key, WEIGHTS/SPLIT, of the result that counts; results: by key;
               checksums: of the weights
found.json     of the split that counts: what was found in each image, beside what is there (objects), or the mIoU of
               each image by itself (pixels); for pages and comparisons
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...keywords import rebuilt
from ...training.run_folder import RunFolder
from ..saved import Results, read_results
from .objects import ObjectsEvaluation
from .pixels import PixelsEvaluation

RESULTS, FOUND = "dense.json", "found.json"

Evaluation = ObjectsEvaluation | PixelsEvaluation


@dataclass(frozen=True, eq=False)
class DenseEvaluations(Results[Evaluation]):
    """Of a detector or segmenter.

    Args:
        kind: "objects" or "pixels".
    """

    kind: str


def from_dict(content: Mapping[str, Any]) -> DenseEvaluations:
    """What `to_dict` gave."""
    kind = {"objects": ObjectsEvaluation, "pixels": PixelsEvaluation}[content["kind"]]
    results: dict[str, Evaluation] = {key: rebuilt(kind, result) for key, result in content["results"].items()}
    return DenseEvaluations(content["counts"], results, content["kind"])


def read_dense(run: RunFolder) -> DenseEvaluations | None:
    """What was measured; None where nothing was yet, or the run classifies. Raises: UserError if it is damaged."""
    return read_results(run, RESULTS, from_dict)
