# SPDX-License-Identifier: Apache-2.0
"""The contract of a task: how its runs are evaluated, predict, and display their results.

A method names its task (`Method.task`), and `task_of` returns a run's. Commands and pages call this object and name no
kind of task. A task of the user's code is a subclass of `Task`, or of `ImageTask` where a network has one output
vector an image (image_task.py).
"""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..analysis.galleries import Gallery
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.video import frames, is_clip
from ..data.sources.source import Source
from ..errors import UserError, counted
from ..evaluation.inputs import ImageInput, Item, named
from ..evaluation.saved import of_each
from ..methods.method import Method
from ..models.data_spec import DataSpec
from ..outputs import check_out, csv_cell, write_out
from ..table import Table, percent
from ..text import readable
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from .figures import TaskPage
from .results import Evaluated, Headline, OtherImages, Results, read_results

ENDINGS = (".csv", ".json")
FRAMES = 16  # of a clip that are held decoded

__all__ = ["Evaluated", "Headline", "OtherImages", "Prediction", "Predictor", "Results", "Task", "of_each", "task_of"]


class Prediction(ABC):
    """A prediction for one image, a frozen dataclass; `error` says why an image could not be read."""

    name: str
    error: str

    @staticmethod
    @abstractmethod
    def table(predictions: Sequence[Any]) -> Table:
        """Predictions as a table for the terminal."""

    @staticmethod
    @abstractmethod
    def csv(predictions: Sequence[Any], classes: Sequence[str] = ()) -> str:
        """Predictions as CSV text; the classes are those of the first prediction where none are named."""

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)  # type: ignore[call-overload]


class Predictor(ABC):
    """A run's network that predicts for images, once or often.

    Attributes:
        data_spec: its classes.
        draws: whether it draws pictures of its predictions.
    """

    data_spec: DataSpec
    draws: bool = False

    @abstractmethod
    def predict(
        self, items: Sequence[Item], max_pixels: int | None = None, longest: int | None = 0
    ) -> Iterator[tuple[Any, NDArray[np.uint8] | None]]:
        """Yield one prediction an item with its picture, in their order; a few images are held at once.

        Args:
            max_pixels: as for `inputs.open_items`.
            longest: pixels of a picture's longer side; None for the image's, 0 for no picture.
        """


@dataclass(frozen=True, eq=False)
class Exported:
    """A network for an ONNX file."""

    network: nn.Module
    data_spec: DataSpec
    metadata: dict[str, Any]  # of the file, besides those of its graph


class Task(ABC):
    """A task that runs are trained for.

    Attributes:
        name: of the task.
        does: what its runs do, for messages: "RUN finds objects".
        result: the class of its results, see `results.Result`.
        prediction: the class of its predictions.
        unit: singular and plural of what the run's classes name.
        measure: name of the number that counts.
        share: whether that number is a share in [0, 1], written in percent.
        pipeline: the Hub's word for the network's task; "" where it has none.
        metric: the Hub's word for the number that counts, and its name on a card.
        contents: annotation of an image, as in `BatchSpec`.
        caption: a note on what a served page displays.
        json_note: a note on a prediction's JSON.
        draws_predictions: whether pictures draw predictions rather than attention.
        what: of the predictions, for a served page.
        use: attribute or call of a prediction that an example prints; "" where nothing is predicted.
        predicts_one_class: whether a prediction is the most probable class, which int8 and other ways to prepare images
            are compared by.
        graph: path of the class of the ONNX file's computation.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    result: ClassVar[type]
    prediction: ClassVar[type[Prediction]]
    unit: ClassVar[tuple[str, str]] = ("class", "classes")
    measure: ClassVar[str]
    share: ClassVar[bool] = True
    pipeline: ClassVar[str] = "image-feature-extraction"
    metric: ClassVar[tuple[str, str]] = ("", "")
    contents: ClassVar[str] = "classes"
    caption: ClassVar[str] = ""
    json_note: ClassVar[str] = ""
    draws_predictions: ClassVar[bool] = False
    what: ClassVar[str] = "Classes"
    use: ClassVar[str] = ""
    predicts_one_class: ClassVar[bool] = False
    graph: ClassVar[str] = "viticulture.deploy.onnx.graph.StudentGraph"

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @abstractmethod
    def evaluate(self, dataset: Dataset) -> Evaluated:
        """Evaluate every saved set of weights on every held-out split, and write the results into the run's folder.

        The result that counts: the best weights (the last, where no validation chose), on test (on validation, where
        there is no test).
        """

    @abstractmethod
    def evaluate_other(self, data: str | Source) -> OtherImages:
        """Evaluate every saved set of weights on other images: their test split where they declare one, else all of
        them. Write nothing."""

    @abstractmethod
    def predictor(self, weights: str = "", top: int = 1) -> Predictor:
        """Load the network for predictions.

        Args:
            weights: best, last or ema; by default those that count.
            top: classes to name of each image, where the task names some.
        """

    @abstractmethod
    def network(self, weights: str = "") -> nn.Module:
        """Load the trained network in evaluation mode."""

    @abstractmethod
    def exported(self, weights: str) -> "Exported":
        """Load the network of an ONNX file, in evaluation mode, with what the file says of it."""

    def for_timm(self, weights: str) -> dict[str, bytes] | None:
        """Return the files of the student alone as timm reads them, empty where it cannot; None where the weights' own
        are such files."""
        return None

    def limits(self, results: Results[Any]) -> list[str]:
        """Sentences of a model card on what the network cannot do; there may be no results."""
        return []

    @property
    def extra(self) -> str:
        """The extra of the package that predictions need; "" for none."""
        return ""

    @classmethod
    @abstractmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        """Results as tables for the terminal; `full` with those of classes where they are few."""

    @abstractmethod
    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        """The parts of a page that show results.

        Args:
            results: with one that counts.
            galleries: pictures by part, as `save_pictures` wrote them.
            own: whether the images are the run's.
        """

    @abstractmethod
    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        """Write the pictures of the run's page into its folder."""

    @classmethod
    def annotation(cls, classes: Sequence[str]) -> str:
        """Name what images are annotated with: "3 classes"."""
        return counted(len(classes), cls.unit[0]) if classes else "labels unused"

    @staticmethod
    def colors(classes: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """The color of each class in pictures; empty where they have none."""
        return {}

    def mistakes(self, evaluated: Evaluated) -> list[Gallery]:
        """The most wrong images of the result that counts."""
        return []

    def notes(self, results: Results[Any]) -> list[str]:
        """Sentences that the terminal prints below the run's tables."""
        return []

    def read_results(self) -> Results[Any] | None:
        """Return what `evaluate` wrote; None before it. Raises: UserError if the file is damaged."""
        return read_results(self.run, type(self))

    def headline(self, weights: str = "") -> Headline | None:
        """Return the number that counts, of the weights that count or of others; None before they were evaluated."""
        results = self.read_results()
        return None if results is None else (results.of_weights(weights) if weights else results).headline

    def predict(
        self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = "", every: float = 1.0
    ) -> list[Any]:
        """Predict for images, in their order, and write a file where one is named.

        Args:
            images: files, folders, clips, or what `inputs.as_images` makes of objects, named `image 0` by their place.
            weights: best, last or ema; by default those that count.
            top: classes to name of each image, at least 1; all where there are fewer.
            out: a .csv or .json file; "" writes nothing.
            every: seconds between two frames of a clip; 0 for every frame.

        Raises: UserError if a path does not exist, there is no image among them, or none can be read.
        """
        if out:
            check_out(out, *ENDINGS)
        if top < 1:
            raise UserError(f"top is how many classes to name, at least 1, got {top}")
        predictor, items = self.predictor(weights, top), Frames(items_of(images, clips=True), every)
        predictions = [prediction for prediction, _ in items.predict(predictor)]
        check_readable(predictions)
        if out.lower().endswith(".json"):
            write_out(out, json.dumps(items.rows(predictions), indent=1, ensure_ascii=False) + "\n")
        elif out:
            write_out(out, items.csv(self.prediction.csv(predictions)))
        return predictions

    @classmethod
    def final_evaluation(cls, method: Method, images: Images, annotations: Any) -> Callable[[], object] | None:
        """The work on held-out images once a training has ended, to be timed; None for the method's own metrics."""
        return None


class Frames:
    """Images in which a clip stands for its frames by time step.

    Args:
        every: length of a time step, seconds; 0 for every frame.

    Attributes:
        times: a frame's name -> the clip's name, and seconds from its start; of those read so far.
    """

    def __init__(self, items: Sequence[Item], every: float) -> None:
        self.items, self.every = items, every
        self.times: dict[str, tuple[str, float]] = {}

    def predict(self, predictor: Predictor, longest: int | None = 0) -> Iterator[tuple[Any, NDArray[np.uint8] | None]]:
        """Predict as `Predictor.predict` does."""
        for clips, group in groupby(self.items, lambda item: isinstance(item[1], Path) and is_clip(item[0])):
            items = list(group)
            for part in self._frames(items) if clips else [items]:
                yield from predictor.predict(part, longest=longest)

    def _frames(self, clips: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield frames, a few at once."""
        for name, clip in clips:
            assert isinstance(clip, Path)
            decoded = frames(clip, self.every)
            while part := list(islice(decoded, FRAMES)):
                named_as = [name if seconds is None else f"{name} at {seconds:.3f} s" for seconds, _ in part]
                for frame, (seconds, _) in zip(named_as, part, strict=True):
                    if seconds is not None:
                        self.times[readable(frame)] = readable(name), round(seconds, 3)
                yield [(frame, pixels) for frame, (_, pixels) in zip(named_as, part, strict=True)]

    def rows(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        """Predictions ready for JSON; a frame's has the clip's name and `seconds`."""
        rows = [prediction.row() for prediction in predictions]
        for row in rows:
            if row["name"] in self.times:
                row["name"], row["seconds"] = self.times[row["name"]]
        return rows

    def csv(self, text: str) -> str:
        """Insert the column `seconds` into predictions as CSV, if there are frames of clips."""
        if not self.times:
            return text
        times = {csv_cell(frame): (csv_cell(clip), seconds) for frame, (clip, seconds) in self.times.items()}
        heading, *rows = csv.reader(io.StringIO(text))
        rows = [[*map(str, times.get(name, (name, ""))), *rest] for name, *rest in rows]
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([[heading[0], "seconds", *heading[1:]], *rows])
        return file.getvalue()


def items_of(images: Sequence[ImageInput], clips: bool = False) -> list[Item]:
    """Name images one by one; `clips`: with the clips in folders. Raises: UserError where there are none."""
    items = list(named(images, clips))
    if not items:
        places = ", ".join(map(str, images))  # folders: all else is an item
        raise UserError(f"no images in {places}; name image files, or folders that hold some")
    return items


def check_readable(predictions: Sequence[Prediction]) -> None:
    """Raises: UserError if no image could be read."""
    if all(prediction.error for prediction in predictions):
        raise UserError(f"no image could be read; {predictions[0].name}: {predictions[0].error}")


def class_columns(classes: Sequence[str], others: Sequence[str], value: str = "probability") -> list[str]:
    """A column a class under its name, or as `probability of NAME` (its `value`) where another column has it."""
    return [f"{value} of {name}" if name in others else name for name in classes]


def compared(values: Mapping[str, float | None]) -> list[str]:
    """Baselines as words, the best first."""
    known = {name: value for name, value in values.items() if value is not None}
    return [f"{name} {percent(value)}" for name, value in sorted(known.items(), key=lambda item: -item[1])]


def weakest(measure: str, scores: Mapping[str, float | None]) -> list[str]:
    """A sentence on the five classes with the lowest numbers; none where none is known."""
    known = {name: score for name, score in scores.items() if score is not None}
    lowest = sorted(known, key=known.__getitem__)[:5]
    return [f"Lowest {measure}: {', '.join(f'{name} ({percent(known[name])})' for name in lowest)}."] if lowest else []


def tile_of(name: str, results: Results[Any], interval: str = "bootstrap") -> tuple[str, str, str] | None:
    """Label, value and note of the number that counts; None without results."""
    if (headline := results.headline) is None:
        return None
    weights = results.counts.partition("/")[0]
    unit = " %" if headline.share else ""
    note = f"95 % interval {headline.written_interval}{unit} ({interval}, {headline.images:,} images)"
    return f"{name}, {headline.split}, {weights} weights", headline.written, note


def task_class(method: type[Method]) -> type[Task]:
    """Return the task of a method; classification or representation where the method names none."""
    default = "classification.Classification" if method.batch_spec.labels else "representation.Representation"
    task = method.task or f"viticulture.tasks.{default}"
    return cast("type[Task]", at_path(task) if isinstance(task, str) else task)


def at_path(path: str) -> Any:
    """Import what a dotted path of this package names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def task_of(run: RunFolder) -> Task:
    """Return the task of a run, by the method of its recipe."""
    return task_class(config_of(run).method_class)(run)
