"""A task in a file of the user's: one number an image, by its own method and its own results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from viticulture.plugins import (
    Batch,
    BatchSpec,
    Column,
    EvaluatedModel,
    ImageTask,
    Method,
    Prediction,
    Predictions,
    Results,
    Table,
    TaskPage,
    TaskSection,
)


@dataclass(frozen=True)
class AgeResult:
    """Numbers of one set of weights on N images."""

    images: int  # N
    error: float  # mean absolute error, years
    resampled: tuple[float, ...] = field(repr=False, default=())

    @property
    def score(self) -> float:
        """Minus the error: higher is better."""
        return -self.error

    @property
    def interval(self) -> tuple[float, float]:
        """From draws of the images."""
        low, high = torch.tensor(self.resampled).quantile(torch.tensor([0.025, 0.975])).tolist()
        return low, high

    @property
    def measures(self) -> dict[str, float | None]:
        """The score alone."""
        return {"negative_error": self.score}


@dataclass(frozen=True)
class AgePrediction(Prediction):
    """The number of one image."""

    name: str
    age: float | None = None
    error: str = ""

    @staticmethod
    def table(predictions: "Sequence[AgePrediction]") -> Table:
        return Table("", [Column("name"), Column("age", "decimal")], [[each.name, each.age] for each in predictions])

    @staticmethod
    def csv(predictions: "Sequence[AgePrediction]", classes: Sequence[str] = ()) -> str:
        return "name,age\n" + "".join(f"{each.name},{each.age}\n" for each in predictions)


class Age(ImageTask):
    """One number an image."""

    name = "age"
    does = "predicts an age"
    result = AgeResult
    prediction = AgePrediction
    unit = ("number", "numbers")
    measure = "negative MAE"
    share = False
    contents = "numbers"

    def result_of(self, outputs: Mapping[str, Predictions], split: str, weights: str, dataset: Any) -> AgeResult:
        errors = (outputs[split].probabilities[:, 0] - outputs[split].labels).abs()
        drawn = torch.randint(len(errors), (200, len(errors)), generator=torch.Generator().manual_seed(0))
        return AgeResult(len(errors), float(errors.mean()), tuple((-errors[drawn].mean(1)).tolist()))

    def prediction_of(
        self, name: str, outputs: list[float], model: EvaluatedModel, weights: str, top: int
    ) -> AgePrediction:
        return AgePrediction(name, outputs[0])

    def unreadable(self, name: str, error: str) -> AgePrediction:
        return AgePrediction(name, None, error)

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        columns = [Column("weights/split"), Column("MAE", "decimal"), Column("images", "count")]
        rows = [[key, f"{each.error:.3g}", each.images] for key, each in results.counting_first.items()]
        return [Table("Ages", columns, rows)]

    def page(self, results: Results[Any], galleries: Mapping[str, Any], own: bool = True) -> TaskPage:
        assert results.counting is not None
        return TaskPage(
            f"It errs by {results.counting.error:.3g} years.", before=[TaskSection("Ages", self.tables(results))]
        )


class AgeMethod(Method):
    """Smooth L1 of the standardized number."""

    task = Age
    provides = frozenset()
    batch_spec = BatchSpec(contents="numbers")
    best_metric = "negative_error"

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        mean, deviation = self.data_spec.scale or (0.0, 1.0)
        (outputs,) = self.taps(batch["image"]).outputs
        return {"age": F.smooth_l1_loss(outputs[:, 0], (batch["label"] - mean) / deviation)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        predicted = self.data_spec.probabilities(self.student(batch["image"]))[:, 0]
        return {"negative_error": -(predicted - batch["label"]).abs().mean(), "loss": self.losses(batch)["age"]}
