# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its detector or segmenter being measured, read back by its types.

dense.json     kind: "objects" or "pixels"; counts: the key, WEIGHTS/SPLIT, of the result that counts; results: by key
found.json     of the split that counts: what was found in each image, beside what is there (objects), or the mIoU of
               each image by itself (pixels); for pages and comparisons
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...training.rundir import RunDir
from ..kept import read_kept
from .objects import ClassPrecision, ObjectsEvaluation, Precisions
from .pixels import ClassIoU, PixelsEvaluation

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

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "kind": self.kind,
            "counts": self.counts,
            "results": {key: asdict(result) for key, result in self.results.items()},
        }


def from_dict(content: Mapping[str, Any]) -> DenseEvaluations:
    """What `to_dict` gave."""
    kinds: dict[str, Callable[[Mapping[str, Any]], Evaluation]] = {"objects": _objects, "pixels": _pixels}
    made = kinds[content["kind"]]
    results = {key: made(result) for key, result in content["results"].items()}
    if content["counts"] not in results and (content["counts"] or results):
        raise ValueError(f"the result that counts, {content['counts']!r}, is not there")
    return DenseEvaluations(content["kind"], content["counts"], results)


def read_dense(run: RunDir) -> DenseEvaluations | None:
    """What was measured; None where nothing was yet, or the run classifies. Raises: UserError if it is damaged."""
    return read_kept(run, RESULTS, from_dict, None)


def _objects(found: Mapping[str, Any]) -> ObjectsEvaluation:
    def precisions(part: Mapping[str, Any]) -> Precisions:
        classes = tuple(
            ClassPrecision(**{**each, "curve": None if each["curve"] is None else tuple(each["curve"])})
            for each in part["per_class"]
        )
        low, high = part["interval"]
        drawn = tuple(part.get("resampled", ()))  # runs of earlier versions have none
        changed = {
            "interval": (low, high),
            "resampled": drawn,
            "by_overlap": tuple(part["by_overlap"]),
            "per_class": classes,
        }
        return Precisions(**{**part, **changed})

    masks = None if found["masks"] is None else precisions(found["masks"])
    cells = tuple(tuple(row) for row in found["confusion"])
    return ObjectsEvaluation(**{**found, "boxes": precisions(found["boxes"]), "masks": masks, "confusion": cells})


def _pixels(found: Mapping[str, Any]) -> PixelsEvaluation:
    low, high = found["interval"]
    classes = tuple(ClassIoU(**each) for each in found["per_class"])
    cells = tuple(tuple(row) for row in found["confusion"])
    drawn = tuple(found.get("resampled", ()))
    changed = {"interval": (low, high), "per_class": classes, "confusion": cells, "resampled": drawn}
    return PixelsEvaluation(**{**found, **changed})
