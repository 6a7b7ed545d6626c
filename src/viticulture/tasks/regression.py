# SPDX-License-Identifier: Apache-2.0
"""Regression: a number an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis.galleries import Gallery, Group, file_name
from ..data.dataset import Dataset
from ..evaluation.model import EvaluatedModel
from ..evaluation.outputs import Predictions, check_finite
from ..models.tta import describe
from ..outputs import csv_text
from ..scores.intervals import ENDS, centered, times_drawn
from ..table import Cell, Column, Table, unread
from .classification import MISTAKES, channels_note
from .figures import LineChart, Pictures, TaskPage, TaskSection
from .image_task import ImageTask
from .results import Evaluated, Results, named
from .task import Prediction, tile_of

GROUPS = 10  # of images by their numbers, in the chart
Array = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionResult:
    """The numbers of one set of weights on N images."""

    images: int  # N
    # 1 - sum of (p - y)^2 / sum of (y - mean y)^2, y true and p predicted: 1 is perfect, 0 as good as predicting the
    # mean for all; 0 where all y are equal.
    r2: float
    interval: tuple[float, float]  # 95 % interval of `r2` over images (not over seeds), by bootstrap
    mae: float  # mean of |p - y|
    mae_interval: tuple[float, float]  # that of `mae`
    rmse: float  # square root of the mean of (p - y)^2
    rmse_interval: tuple[float, float]  # that of `rmse`
    mean_mae: float | None  # `mae` of predicting the training images' mean for all; None where it is not known
    # Mean y and mean p of up to 10 groups of images, from the smallest y to the largest.
    groups: tuple[tuple[float, float], ...]
    resampled: tuple[float, ...] = field(repr=False, default=())  # `r2` over images drawn with replacement
    views: str = ""  # of an image that were averaged, in words; "" for one

    @property
    def score(self) -> float:
        """The number that counts: R2."""
        return self.r2

    @property
    def measures(self) -> dict[str, float | None]:
        """Numbers that students can be compared by, the higher the better."""
        return {"r2": self.r2}


def evaluate_numbers(predictions: Predictions, mean: float | None = None) -> RegressionResult:
    """Compute the numbers of predictions [N, 1] for labels [N]. `predictions`: of N >= 1 images. `mean`: of the
    training images' labels.
    """
    check_finite(predictions.probabilities)
    predicted, true = predictions.probabilities[:, 0].double().numpy(), predictions.labels.double().numpy()
    errors, draws = predicted - true, times_drawn(len(true))
    every = np.ones((1, len(true)))
    (r2,), (mae,), (rmse,) = measures = _measures(errors, true, every)
    drawn = [
        centered(values, float(value))
        for values, (value,) in zip(_measures(errors, true, draws), measures, strict=True)
    ]
    intervals = [tuple(np.percentile(values, ENDS).tolist()) for values in drawn]
    parts = np.array_split(np.argsort(true, kind="stable"), min(GROUPS, len(true)))
    return RegressionResult(
        images=len(true),
        r2=float(r2),
        interval=intervals[0],
        mae=float(mae),
        mae_interval=(max(intervals[1][0], 0.0), intervals[1][1]),
        rmse=float(rmse),
        rmse_interval=(max(intervals[2][0], 0.0), intervals[2][1]),
        mean_mae=None if mean is None else float(np.abs(mean - true).mean()),
        groups=tuple((float(true[part].mean()), float(predicted[part].mean())) for part in parts),
        resampled=tuple(drawn[0].round(6).tolist()),
    )


def _measures(errors: Array, true: Array, draws: Array) -> tuple[Array, Array, Array]:
    """R2, MAE and RMSE of images that each draw holds so often, [R] each from draws [R, N]."""
    count, shifted = draws.sum(1), true - true.mean()
    squares = draws @ errors**2
    spread = draws @ shifted**2 - (draws @ shifted) ** 2 / count
    varied = spread > 1e-12 * max(float((shifted**2).sum()), 1e-300)
    r2 = np.where(varied, 1 - squares / np.where(varied, spread, 1.0), 0.0)
    return r2, draws @ np.abs(errors) / count, np.sqrt(squares / count)


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of one image; None where `error` says why it could not be read."""

    name: str
    value: float | None
    error: str = ""

    @staticmethod
    def table(predictions: "Sequence[NumberPrediction]") -> Table:
        rows: list[list[Cell]] = [[each.name, _written(each.value), each.error] for each in predictions]
        columns = [Column("name"), Column("value", "decimal"), Column("error", "prose")]
        return Table("", columns, rows, unread([each.error for each in predictions]))

    @staticmethod
    def csv(predictions: "Sequence[NumberPrediction]", classes: Sequence[str] = ()) -> str:
        """A row an image."""
        return csv_text([["name", "value", "error"], *([each.name, each.value, each.error] for each in predictions)])


class Regression(ImageTask):
    """A number an image."""

    name = "regression"
    does = "predicts a number"
    result = RegressionResult
    prediction = NumberPrediction
    unit = ("number", "numbers")
    measure = "R2"
    share = False
    contents = "numbers"
    what = "Numbers"
    pipeline = ""
    metric = ("r_squared", "R2")
    use = "value"

    def view_score(self, predictions: Predictions) -> float:
        """R2."""
        return evaluate_numbers(predictions).r2

    def result_of(
        self, outputs: Mapping[str, Predictions], split: str, weights: str, dataset: Dataset | None
    ) -> RegressionResult:
        mean = None if dataset is None else float(dataset.train.records.labels.double().mean())
        return replace(evaluate_numbers(outputs[split], mean), views=outputs[split].rule)

    @classmethod
    def annotation(cls, classes: Sequence[str]) -> str:
        return "a number each"

    def limits(self, results: Results[Any]) -> list[str]:
        limits = ["It predicts a number for every image, also for a photograph of something else."]
        if (result := results.counting) is not None:
            low, high = (_written(group[0]) for group in (result.groups[0], result.groups[-1]))
            limits.append(f"Numbers far from {low} to {high} were not evaluated.")
        return limits

    def rule(self, model: EvaluatedModel, images: Any) -> str:
        """Name the views of an image, where there are several."""
        return describe(model.eval_views)

    def prediction_of(
        self, name: str, outputs: list[float], model: EvaluatedModel, weights: str, top: int
    ) -> NumberPrediction:
        return NumberPrediction(name, outputs[0])

    def unreadable(self, name: str, error: str) -> NumberPrediction:
        return NumberPrediction(name, None, error)

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        return [summary(results)]

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        result, headline, split = results.counting, results.headline, named(results.counts)[1]
        assert result is not None
        assert headline is not None
        low, high = map(_written, result.mae_interval)
        known = result.mean_mae
        mean = "" if known is None else f"; predicting the training images' mean is wrong by {_written(known)}"
        answer = (
            f"Its numbers are wrong by {_written(result.mae)} on average (95 % interval {low} to {high}) on "
            f"{result.images:,} {split} images{mean}. R2 is {headline.written} ({headline.written_interval})."
        )
        ends = [min(min(result.groups)), max(max(result.groups))]
        chart = LineChart(
            "Predicted and true numbers",
            {"this student": result.groups, "perfect prediction": [(end, end) for end in ends]},
            "true number",
            "predicted number",
            f"Means over {len(result.groups)} groups of images, from the smallest true numbers to the largest.",
        )
        mistakes = [TaskSection("Largest errors", [Pictures(galleries.get("mistakes", ()))])]
        return TaskPage(
            answer, tile_of("R2", results), [TaskSection("Results", [summary(results), chart], True)], mistakes
        )

    def mistakes(self, evaluated: Evaluated) -> list[Gallery]:
        key = evaluated.results.counts
        predictions, images = evaluated.predictions[key], evaluated.images[key]
        predicted, true = predictions.probabilities[:, 0].numpy(), predictions.labels.numpy()
        groups: list[Group] = [
            (
                [images.original(i)],
                [f"predicted {predicted[i]:.4g}", f"is {true[i]:.4g}", file_name(images.records.names[i])],
            )
            for i in np.argsort(-np.abs(predicted - true), kind="stable")[:MISTAKES].tolist()
        ]
        return [Gallery("", groups, channels_note(self))]


def summary(results: Results[RegressionResult]) -> Table:
    """One row for each set of weights and split, the one that counts first, then the mean as prediction."""
    columns = [Column("weights/split"), Column("R2", "decimal"), Column("R2, low to high"), Column("MAE", "decimal")]
    columns += [Column("MAE, low to high"), Column("RMSE", "decimal"), Column("images", "count")]
    rows: list[list[Cell]] = []
    for key, each in results.counting_first.items():
        intervals = [" to ".join(map(_written, ends)) for ends in (each.interval, each.mae_interval)]
        numbers = [_written(each.r2), intervals[0], _written(each.mae), intervals[1], _written(each.rmse)]
        rows.append([key, *numbers, each.images])
    counting = results.counting
    if counting is not None and counting.mean_mae is not None:
        rows.append(["mean of training images", "", "", _written(counting.mean_mae), "", "", counting.images])
    by_views = f" Predictions are the mean over {counting.views} of each image." if counting and counting.views else ""
    return Table(
        "Numbers", columns, rows, f"Low to high: 95 % interval over images (bootstrap), not over seeds.{by_views}"
    )


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
