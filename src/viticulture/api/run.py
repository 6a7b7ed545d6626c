# SPDX-License-Identifier: Apache-2.0
"""One training on disk, as Python and notebooks look at it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..text import shell_word

if TYPE_CHECKING:
    from torch import nn

    from ..deploy.onnx.int8 import Quantized
    from ..tasks.results import Results
    from ..training.run_folder import RunFolder


FIRST = ("name", "label", "predicted")  # first columns of `Run.predictions`


@dataclass(frozen=True)
class Run:
    """A training on disk, finished or not. Tables are pandas frames where pandas is installed, else lists of dicts.

    Args:
        path: its folder.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # a string will do

    @property
    def folder(self) -> "RunFolder":
        """The folder's files. Raises: UserError if there is no run."""
        from ..training.run_folder import RunFolder

        return RunFolder.open(self.path)

    @property
    def metadata(self) -> dict[str, Any]:
        """Content of run.json: versions, seed, data, student, status, hardware."""
        return self.folder.read("run.json")

    @property
    def recipe(self) -> dict[str, Any]:
        """Every recipe key with the value that it was trained with."""
        from ..training.run_inputs import config_of

        return {section: dict(values) for section, values in config_of(self.folder).values.items()}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in the order of the logits; empty for a run without labels."""
        return tuple(self.metadata["data"]["classes"])

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"

    @property
    def results(self) -> "Results[Any]":
        """Results by weights and split, such as `best/test`; `counting` is the one that counts, `counts` its key."""
        from ..tasks.results import RESULTS
        from ..tasks.task import task_of

        if (results := task_of(self.folder).read_results()) is None:
            raise UserError(
                f"{self.path} holds no {RESULTS} of its weights; to have it: "
                f"viticulture evaluate {shell_word(self.path)}"
            )
        return results

    @property
    def accuracy(self) -> float:
        """Top-1 in [0, 1] of the weights that count: best on validation, else the last; on test where there is one."""
        return self._counting("top1", "accuracy")

    @property
    def metrics(self) -> Any:
        """A table with a row a result: weights, split, images, and its measures (shares in [0, 1]; nll in nats)."""
        rows = []
        results = self.results
        for key, result in results.items():
            weights, _, split = key.partition("/")
            fields = {"images": result.images, **result.measures, **vars(result)}
            numbers = {k: v for k, v in fields.items() if isinstance(v, (int, float))}
            rows.append({"weights": weights, "split": split, "counts": key == results.counts, **numbers})
        return _frame(rows)

    @property
    def history(self) -> Any:
        """A table with a row an epoch, counted from 1: the last value in it of everything that was logged."""
        from ..training.metrics import read_history

        return _frame(read_history(self.path / "metrics.csv"))

    @property
    def confusion(self) -> Any:
        """A table of the result that counts: a row a true class, a column a predicted one, numbers of images."""
        names, counts = self.classes, self._counting("confusion", "confusion matrix")
        names = (*names, "background")[: len(counts)]
        return _frame([dict(zip(names, map(int, row), strict=True)) for row in counts], names)

    @property
    def predictions(self) -> Any:
        """A table of the result that counts, a row an image: name, label, predicted, and an output a column, such as a
        probability a class. Several labels are joined as `cat|dog`."""
        from ..data.sources.several import JOINT
        from ..tasks.results import read_predictions
        from ..tasks.task import class_columns

        names, images = self.classes, self._image_names(self.results.counts.partition("/")[2])
        saved = read_predictions(self.folder, probabilities=True)

        def words(value: Any) -> Any:
            if getattr(value, "ndim", 0):
                return JOINT.join(name for name, there in zip(names, value, strict=True) if there)
            return names[value] if saved.labels.dtype.kind == "i" else float(value)

        rows: list[dict[str, Any]] = [
            {"name": image, "label": words(label), "predicted": words(predicted)}
            for image, label, predicted in zip(images, saved.labels, saved.predicted, strict=True)
        ]
        if saved.probabilities is not None and saved.probabilities.shape[1] == len(names):
            columns = class_columns(names, FIRST)
            for row, probabilities in zip(rows, saved.probabilities.tolist(), strict=True):
                row.update(zip(columns, probabilities, strict=True))
        return _frame(rows)

    def predict(self, images: Any, weights: str = "", top: int = 1, every: str | float = "1s") -> list[Any]:
        """Classify images, detect their objects or segment them, as the run was trained to.

        Args:
            images: a file, a folder or a video clip, by str or Path; an image of PIL, the bytes of an image file or an
                open one, an array [H, W] or [H, W, C] or a tensor [C, H, W], of levels of 8 or 16 bits or of floats in
                [0, 1] (of any numbers where the run has a `images.range`); or a list, a batch, or a column of these, or
                a data frame with the column path. What is no image, or a damaged one, has its `error`.
            weights: best, last or ema; by default those that count.
            top: classes to name of each image, the likeliest first; of several labels an image from 2 on, as 1 names
                those from their thresholds on.
            every: time between two frames of a clip, seconds, such as 0.2 or 0.2s; 0 for every frame.
        """
        from .runs import predict

        return predict(str(self.path), images, weights, top=top, every=str(every))

    def evaluate(self, data: Any = "") -> "Results[Any]":
        """Measure on the run's own or other images; see the function of that name."""
        from .runs import evaluate

        return evaluate(str(self.path), data)

    def export(self, out: Any, weights: str = "", int8: bool = False, from_pixels: bool = False) -> "Path | Quantized":
        """Write ONNX; see the function of that name."""
        from .runs import export

        return export(str(self.path), out, weights, int8, from_pixels)

    def student(self, weights: str = "") -> "nn.Module":
        """The trained network in evaluation mode; weights: best, last or ema, by default those that count.

        It uses one view of an image; where the run uses several (`images.eval_views`), so does `predict`.
        """
        from ..tasks.task import task_of

        return task_of(self.folder).network(weights)

    def _counting(self, name: str, words: str) -> Any:
        """A number of the result that counts."""
        counting = self.results.counting
        if not hasattr(counting, name):
            why = "was trained without labels, or held out no image" if counting is None else self.results.task.does
            raise UserError(f"{self.path} {why}, so it has no {words}; see Run.metrics")
        return getattr(counting, name)

    def _image_names(self, split: str) -> list[str]:
        """Images of a split. Raises: UserError where the run knows none."""
        if split not in (names := self.folder.image_names):
            raise UserError(f"{self.path / 'split.json'} holds no images of {split or 'a result that counts'}")
        return names[split]

    def __repr__(self) -> str:
        """Folder, student, data and state; of a folder without a run, that there is none."""
        try:
            return f"<Run {self.path}: {self._summary()}>"
        except (UserError, LookupError, TypeError):
            return f"<Run {self.path}: no run>"

    def _summary(self) -> str:
        metadata = self.metadata
        return f"{metadata['student']['name']} on {metadata['data']['source']}, {metadata['status']}"

    def _repr_html_(self) -> str:
        """The head of the page, for notebooks: what was trained on what, and how well it does."""
        from ..tasks.results import read_headline

        try:
            lines = [f"<b>{escape(str(self.path))}</b>: {escape(self._summary())}"]
            if (headline := read_headline(self.folder)) is not None:
                of = f"{headline.images:,} {headline.split} images"
                lines.append(f"{headline} ({headline.written_interval}) on {of}")
        except (UserError, LookupError, TypeError) as error:
            return escape(f"{self.path}: {error}")
        link = f'<a href="{escape(self.report.as_posix())}">report</a>' if self.report.exists() else ""
        return "<br>".join([*lines, link])


def open_run(path: "str | os.PathLike[str]") -> Run:
    """A training that is on disk already, or on the Hub by hf-hub:USER/NAME. Raises: UserError if there is none."""
    from ..deploy.hub.fetch import located
    from .arguments import run_folder_of

    run = Run(Path(located(run_folder_of(path))))
    _ = run.folder
    return run


def _frame(rows: Sequence[dict[str, Any]], index: Sequence[str] | None = None) -> Any:
    if find_spec("pandas") is None:
        return list(rows)
    import pandas

    return pandas.DataFrame(rows, index=None if index is None else list(index))
