# SPDX-License-Identifier: Apache-2.0
"""Results of a run by weights and split, and the predictions behind them, in files that all tasks share.

evaluation.json    task; counts: the key, WEIGHTS/SPLIT, of the result that counts; headline: its number; results:
                   by key; checksums: of the weights
predictions.npz    counts, and by key, in the order of that split in split.json: KEY/probabilities [N, K] float16,
                   KEY/predicted and KEY/labels: classes [N] int32, labels [N, C] bool, or numbers [N] float32
predictions.json   of detection and segmentation: counts, and of each image of that split what was found
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..evaluation.saved import checksum_of, is_current, read_saved, save_arrays, saved_arrays
from ..keywords import rebuilt
from ..text import shell_word
from ..training.run_folder import RunFolder

if TYPE_CHECKING:
    from ..data.image_set import Images
    from ..evaluation.outputs import Predictions
    from .task import Task

RESULTS, PREDICTIONS, FOUND = "evaluation.json", "predictions.npz", "predictions.json"
CHECKSUMS, HEADLINE = "checksums", "headline"


class Result(Protocol):
    """The numbers of one set of weights on one split, a frozen dataclass; shares lie in [0, 1]."""

    @property
    def images(self) -> int:
        """Evaluated images."""

    @property
    def score(self) -> float:
        """The number that counts."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `score` over images."""

    @property
    def measures(self) -> Mapping[str, float | None]:
        """Numbers that networks can be compared by; the first is `score`."""

    @property
    def resampled(self) -> tuple[float, ...]:
        """`score` over images drawn with replacement; two networks on the same images get the same draws. Empty for a
        share of images."""


@dataclass(frozen=True)
class Headline:
    """The number that counts of a run."""

    name: str
    value: float  # in [0, 1] for a share
    interval: tuple[float, float]
    images: int
    split: str
    threshold: float | None = None  # of a detector, the score from which its boxes count; None for others
    share: bool = True  # whether the number is a share, written in percent

    def __str__(self) -> str:
        """Return name and value."""
        return f"{self.name} {self.written}"

    @property
    def written(self) -> str:
        """The value as text."""
        return f"{100 * self.value:.1f} %" if self.share else f"{self.value:.4g}"

    @property
    def written_interval(self) -> str:
        """The interval as text: "97.1 to 98.2"."""
        low, high = self.interval
        return f"{100 * low:.1f} to {100 * high:.1f}" if self.share else f"{low:.4g} to {high:.4g}"


R = TypeVar("R", covariant=True)


@dataclass(frozen=True, eq=False)
class Results(Mapping[str, R], Generic[R]):
    """Results of a run by WEIGHTS/SPLIT; empty where nothing could be evaluated.

    Args:
        counts: the key of the result that counts; "" where there is none.
    """

    counts: str
    results: Mapping[str, R]
    task: "type[Task]"

    def __post_init__(self) -> None:
        if self.counts not in self.results and (self.counts or self.results):
            raise ValueError(f"the result that counts, {self.counts!r}, is not among {', '.join(self.results)}")

    def __getitem__(self, key: str) -> R:
        return self.results[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def counting(self) -> R | None:
        """The result that counts."""
        return self.results.get(self.counts)

    @property
    def counting_first(self) -> dict[str, R]:
        """Return all results, the one that counts first."""
        return {key: self.results[key] for key in sorted(self.results, key=lambda key: key != self.counts)}

    def of_split(self, split: str) -> R | None:
        """That of the weights that count, on a split."""
        return self.results.get(f"{self.counts.partition('/')[0]}/{split}")

    def of_weights(self, weights: str) -> Self:
        """Results of one set of weights, empty where none were evaluated; that on the split that counts, or else the
        first, counts."""
        counts = f"{weights}/{self.counts.partition('/')[2]}"
        results = {key: result for key, result in self.items() if key.partition("/")[0] == weights}
        return replace(self, counts=counts if counts in results else next(iter(results), ""), results=results)

    @property
    def headline(self) -> Headline | None:
        """The number that counts; None without results."""
        result: Any = self.counting
        if result is None:
            return None
        threshold, share = getattr(result, "threshold", None), self.task.share
        split = named(self.counts)[1]
        return Headline(self.task.measure, result.score, result.interval, result.images, split, threshold, share)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        results = {key: each.to_dict() if hasattr(each, "to_dict") else _plain(each) for key, each in self.items()}
        headline = self.headline and asdict(self.headline)
        return {"task": self.task.name, "counts": self.counts, HEADLINE: headline, "results": results}


def _plain(result: Any) -> dict[str, Any]:
    return asdict(result)


def named(key: str) -> tuple[str, str]:
    """Split `best/val` into weights and split as users call them: best, validation."""
    weights, _, split = key.partition("/")
    return weights, "validation" if split == "val" else split


def save_results(run: RunFolder, results: Results[Any]) -> None:
    """Write evaluation.json."""
    checksums = {weights: checksum_of(run, weights) for weights in run.which()}
    run.write(RESULTS, {**results.to_dict(), CHECKSUMS: checksums})


def _of_these_weights(run: RunFolder, content: Mapping[str, Any]) -> bool:
    known = rebuilt(dict[str, str], content.get(CHECKSUMS, {}), CHECKSUMS)
    return all(is_current(run, *each) for each in known.items())


def read_results(run: RunFolder, task: "type[Task]") -> Results[Any] | None:
    """Read evaluation.json; None where there is none, or where it is of other weights.

    Raises: UserError if it is damaged.
    """

    def made(content: dict[str, Any]) -> Results[Any] | None:
        if not _of_these_weights(run, content):
            return None
        if content["task"] != task.name:
            raise ValueError(f"it holds results of {content['task']}, and the run is trained for {task.name}")
        parse = getattr(task.result, "from_dict", None)
        results = {
            key: parse(each) if parse else rebuilt(task.result, each) for key, each in content["results"].items()
        }
        return Results(content["counts"], results, task)

    return read_saved(run, RESULTS, made)


def read_headline(run: RunFolder) -> Headline | None:
    """Read the number that counts without the rest, and without importing the run's task; None before the run is
    evaluated.
    """

    def made(content: dict[str, Any]) -> Headline | None:
        headline = content[HEADLINE] if _of_these_weights(run, content) else None
        return None if headline is None else rebuilt(Headline, headline)

    return read_saved(run, RESULTS, made)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Results with the predictions and images behind them, by the same keys; empty where files hold them."""

    results: Results[Any]
    predictions: "Mapping[str, Predictions]" = field(default_factory=dict)
    images: "Mapping[str, Images]" = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class OtherImages:
    """Results on images that are not the run's: their name, results by WEIGHTS/NAME, sentences to read first."""

    name: str
    evaluated: Evaluated
    warnings: list[str]


@dataclass(frozen=True, eq=False)
class SavedPredictions:
    """Predictions for N images."""

    predicted: NDArray[Any]  # [N] classes int32, [N, C] labels bool, or [N] numbers
    labels: NDArray[Any]
    probabilities: NDArray[np.float16] | None  # [N, K] float16; None where they were not read, and of numbers


def save_predictions(run: RunFolder, counts: str, predictions: Mapping[str, SavedPredictions]) -> None:
    """Write predictions.npz."""
    arrays: dict[str, Any] = {"counts": np.array(counts)}
    for key, each in predictions.items():
        arrays |= {f"{key}/{name}": value for name, value in vars(each).items() if value is not None}
    save_arrays(run, PREDICTIONS, arrays)


def read_predictions(run: RunFolder, key: str = "", probabilities: bool = False) -> SavedPredictions:
    """Read predictions.npz. Raises: UserError if the file is missing or damaged, or holds no such predictions."""
    if not (run.path / PREDICTIONS).exists():
        raise UserError(f"{run.path} holds no predictions; to have them: viticulture evaluate {shell_word(run.path)}")
    with saved_arrays(run, PREDICTIONS) as file:
        place = key or file["counts"].item()
        return SavedPredictions(
            file[f"{place}/predicted"],
            file[f"{place}/labels"],
            file[f"{place}/probabilities"] if probabilities and f"{place}/probabilities" in file else None,
        )
