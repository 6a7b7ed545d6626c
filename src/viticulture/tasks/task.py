# SPDX-License-Identifier: Apache-2.0
"""The contract of a task: how the runs that are trained for it are evaluated, predict, and show their results.

A method names its task (`Method.task`), and `task_of` gives a run's. Everything above asks this object: no command and
no page names a kind of task.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

from torch import nn

from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.sources.source import Source
from ..evaluation.headline import Headline, named
from ..evaluation.inputs import ImageInput
from ..evaluation.saved import Results
from ..methods.method import Method
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of


class Evaluation(Protocol):
    """What every task's numbers of one set of weights on one split hold; shares lie in [0, 1]."""

    @property
    def images(self) -> int:
        """Evaluated images."""
        ...

    @property
    def score(self) -> float:
        """The number that counts."""
        ...

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `score` over images."""
        ...

    @property
    def measures(self) -> Mapping[str, float | None]:
        """Numbers that networks can be compared by; the first is `score`."""
        ...


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Results of a run with what its page draws besides.

    Args:
        results: numbers by WEIGHTS/SPLIT.
        predictions: by the same keys; empty where files hold them.
        images: by the same keys.
    """

    results: Results[Any]
    predictions: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Images] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class OtherImages:
    """Results on images that are not the run's.

    Args:
        name: of the images.
        evaluated: by WEIGHTS/NAME.
        warnings: sentences to read before believing them.
    """

    name: str
    evaluated: Evaluated
    warnings: list[str]


class Task(ABC):
    """What a run is trained for.

    Args:
        run: the run.

    Attributes:
        name: of the task.
        does: what its runs do, for messages: "RUN finds objects".
        unit: singular and plural of what the run's classes name.
        measure: name of the number that counts.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    unit: ClassVar[tuple[str, str]] = ("class", "classes")
    measure: ClassVar[str]

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @abstractmethod
    def evaluate(self, dataset: Dataset) -> Evaluated:
        """Evaluate every saved set of weights on every held-out split, and write the results into the run's folder."""

    @abstractmethod
    def evaluate_other(self, data: str | Source) -> OtherImages:
        """Evaluate every saved set of weights on other images; write nothing."""

    @abstractmethod
    def read_results(self) -> Results[Any] | None:
        """Return what `evaluate` wrote; None before it. Raises: UserError if the file is damaged."""

    @abstractmethod
    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        """Write the pictures of the run's page into its folder."""

    @abstractmethod
    def predict(self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = "") -> list[Any]:
        """Predict for images, in their order, and write a file where one is named.

        Args:
            images: files, folders, or what `given.as_images` makes of objects.
            weights: best, last or ema; by default those that count.
            top: classes to name of each image.
            out: a .csv or .json file; "" writes nothing.
        """

    @abstractmethod
    def network(self, weights: str = "") -> nn.Module:
        """Load the trained network in evaluation mode."""

    def headline(self, weights: str = "") -> Headline | None:
        """Return the number that counts, of the weights that count or of others; None before they were evaluated."""
        results = self.read_results()
        if results is not None and weights:
            results = results.of_weights(weights)
        if results is None or (result := results.counting) is None:
            return None
        split, threshold = named(results.counts)[1], getattr(result, "threshold", None)
        return Headline(self.measure, result.score, result.interval, result.images, split, threshold)


def task_class(method: type[Method]) -> type[Task]:
    """Return the task of a method; classification or representation where the method names none."""
    default = "classification.Classification" if method.batch_spec.labels else "representation.Representation"
    task = method.task or f"viticulture.tasks.{default}"
    if isinstance(task, str):
        module, _, name = task.rpartition(".")
        task = getattr(import_module(module), name)
    return cast("type[Task]", task)


def task_of(run: RunFolder) -> Task:
    """Return the task of a run, by the method of its recipe."""
    return task_class(config_of(run).method_class)(run)
