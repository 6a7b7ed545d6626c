# SPDX-License-Identifier: Apache-2.0
"""Multilabel classification: any number of labels an image."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..analysis.galleries import Gallery, Group, file_name
from ..data.dataset import Dataset
from ..data.image_set import CachedImages, Images
from ..data.sources.several import JOINT
from ..errors import comma_separated
from ..evaluation.model import EvaluatedModel
from ..evaluation.outputs import Predictions
from ..evaluation.reference import MAX_IMAGES, raw_pixels
from ..models.tta import describe
from ..outputs import csv_text
from ..scores.calibration import MIN_OF_LABEL, fit_temperatures
from ..scores.labels import UNDECIDED, best_thresholds, mean_average_precision
from ..table import MAX_ROWS, Cell, Column, Table, unread
from ..training.run_folder import RunFolder
from .classification import MISTAKES, channels_note
from .figures import Pictures, RowChart, TaskPage, TaskSection
from .image_task import ImageTask
from .multilabel_metrics import MultilabelResult, evaluate_labels
from .results import Evaluated, Results, SavedPredictions, named
from .task import Prediction, Task, class_columns, compared, tile_of

CAPTION_LABELS = 4  # below an image
CHOSEN = (
    "Low and high: 95 % interval of mAP over images (bootstrap), not over seeds. F1 and exact (all labels of an image "
    "right) at each label's threshold: the best on validation images, which it therefore flatters; 0.5 without any."
)


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The labels of one image."""

    name: str  # the file; bytes of its name that are no text as Python escapes
    labels: tuple[str, ...]  # the most probable first: those from their thresholds on, or as many as requested
    probabilities: dict[str, float] = field(repr=False)
    error: str = ""

    @staticmethod
    def table(predictions: "Sequence[LabelsPrediction]") -> Table:
        def words(each: LabelsPrediction) -> str:
            return comma_separated(f"{name} {each.probabilities[name]:.1%}" for name in each.labels) or "none"

        rows: list[list[Cell]] = [[each.name, "" if each.error else words(each), each.error] for each in predictions]
        columns = [Column("name"), Column("label", "prose"), Column("error", "prose")]
        return Table("", columns, rows, unread([each.error for each in predictions]))

    @staticmethod
    def csv(predictions: "Sequence[LabelsPrediction]", classes: Sequence[str] = ()) -> str:
        """A row an image: its labels, joined as in a list of training images, their probabilities, then a column a
        class."""
        classes = classes or next((list(each.probabilities) for each in predictions if each.probabilities), [])
        first = ["name", "label", "probability"]
        rows: list[list[object]] = [[*first, *class_columns(classes, [*first, "error"]), "error"]]
        for each in predictions:
            probable = JOINT.join(f"{each.probabilities[label]:.4f}" for label in each.labels)
            every = [each.probabilities.get(name) for name in classes]
            rows.append([each.name, JOINT.join(each.labels), probable, *every, each.error])
        return csv_text(rows)


class Multilabel(ImageTask):
    """Any number of labels an image. Thresholds are those of the best F1 on validation images, by label; one half
    without any. A split none of whose images shows a label is left out, as it has no average precision.
    """

    name = "multilabel"
    does = "predicts several labels an image"
    result = MultilabelResult
    prediction = LabelsPrediction
    unit = ("label", "labels")
    measure = "mAP"
    pipeline = "image-classification"
    metric = ("mAP", "mAP")
    contents = "labels"
    caption = "bold: labels from their thresholds on"
    use = "labels"

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self._baselines: dict[str, dict[str, float]] = {}
        self._thresholds: dict[str, list[float]] = {}

    def file_metadata(self, weights: str, model: EvaluatedModel) -> dict[str, Any]:
        """The threshold of each label."""
        return {"thresholds": thresholds_of(self, weights, len(model.data_spec.classes))}

    def limits(self, results: Results[Any]) -> list[str]:
        return [
            "It predicts only labels that it was trained on. Thresholds were chosen on validation images; if there "
            "were few, choose new ones by the probabilities."
        ]

    def can_evaluate(self, images: Images) -> bool:
        """Return whether an image shows a label."""
        return bool((images.records.labels > 0).any())

    def fit_temperature(self, predictions: Predictions) -> tuple[float, ...]:
        return fit_temperatures(predictions.probabilities, predictions.labels)

    def view_score(self, predictions: Predictions) -> float:
        """mAP."""
        return mean_average_precision(predictions.probabilities.numpy(), predictions.labels.numpy())

    def result_of(
        self, outputs: Mapping[str, Predictions], split: str, weights: str, dataset: Dataset | None
    ) -> MultilabelResult:
        classes, predictions = self.run.read("run.json")["data"]["classes"], outputs[split]
        if dataset is None:
            result = evaluate_labels(predictions, classes, thresholds_of(self, weights, len(classes)))
        else:
            thresholds = [UNDECIDED] * len(classes)
            if (val := outputs.get("val")) is not None:
                thresholds = best_thresholds(val.probabilities.numpy(), val.labels.numpy()).tolist()
            if split not in self._baselines:
                self._baselines[split] = baselines(dataset.train, dataset.held_out[split])
            shown = dataset.train.records.labels.sum(0).int().tolist()
            result = evaluate_labels(predictions, classes, thresholds, shown, self._baselines[split])
        return replace(result, views=predictions.rule)

    def rule(self, model: EvaluatedModel, images: Images) -> str:
        """Name the views of an image, where there are several."""
        return describe(model.eval_views)

    def saved(self, predictions: Predictions, result: MultilabelResult) -> SavedPredictions:
        shares = predictions.probabilities.numpy()
        thresholds = np.array([score.threshold for score in result.per_label])
        return SavedPredictions(shares >= thresholds, predictions.labels.numpy() > 0, shares.astype(np.float16))

    def prediction_of(
        self, name: str, outputs: list[float], model: EvaluatedModel, weights: str, top: int
    ) -> LabelsPrediction:
        """Return a prediction with `top` labels; with 1, those at or above their thresholds."""
        classes = model.data_spec.classes
        if weights not in self._thresholds:
            self._thresholds[weights] = thresholds_of(self, weights, len(classes))
        thresholds = self._thresholds[weights]
        order = sorted(range(len(classes)), key=lambda c: -outputs[c])
        chosen = order[:top] if top > 1 else [c for c in order if outputs[c] >= thresholds[c]]
        return LabelsPrediction(name, tuple(classes[c] for c in chosen), dict(zip(classes, outputs, strict=True)))

    def unreadable(self, name: str, error: str) -> LabelsPrediction:
        return LabelsPrediction(name, (), {}, error)

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        counting = results.counting
        few = full and counting is not None and len(counting.per_label) <= MAX_ROWS
        return [summary(results), *([per_label(counting)] if few and counting is not None else [])]

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        result, headline, split = results.counting, results.headline, named(results.counts)[1]
        assert result is not None
        assert headline is not None
        others = ", ".join(compared(result.baselines))
        answer = (
            f"Its mAP is {headline.written} (95 % interval {headline.written_interval}) on {result.images:,} "
            f"{split} images{f'; {others}' if others else ''}."
        )
        values = {"this student": result.map, **result.baselines}
        rows = RowChart("Compared with methods that learn no features", values, f"mAP on {split}, %")
        sections = [
            TaskSection("Results", [summary(results), rows]),
            TaskSection("Labels", [per_label(result)], sortable=True),
        ]
        mistakes = [TaskSection("Most confident mistakes", [Pictures(galleries.get("mistakes", ()))])]
        return TaskPage(answer, tile_of("mAP", results), sections, mistakes)

    def mistakes(self, evaluated: Evaluated) -> list[Gallery]:
        """Return images with a wrong label at the thresholds, those with the least likely true labels first."""
        key = evaluated.results.counts
        predictions, images = evaluated.predictions[key], evaluated.images[key]
        classes = [score.name for score in evaluated.results[key].per_label]
        probabilities, truth = predictions.probabilities.numpy(), predictions.labels.numpy() > 0
        predicted = probabilities >= np.array([score.threshold for score in evaluated.results[key].per_label])
        likelihood = np.where(truth, probabilities, 1 - probabilities).clip(1e-30)
        order = np.argsort(np.log(likelihood).sum(1), kind="stable")
        wrong = [int(i) for i in order if (predicted[i] != truth[i]).any()][:MISTAKES]
        groups: list[Group] = []
        for i in wrong:
            lines = []
            for word, labels in (("wrong", predicted[i] & ~truth[i]), ("missed", truth[i] & ~predicted[i])):
                names = [
                    f"{classes[c]} {100 * probabilities[i, c]:.0f}\u00a0%" for c in np.flatnonzero(labels).tolist()
                ]
                rest = f" and {len(names) - CAPTION_LABELS} more" if len(names) > CAPTION_LABELS else ""
                lines += [f"{word}: {', '.join(names[:CAPTION_LABELS])}{rest}"] if names else []
            groups.append(([images.original(i)], [*lines, file_name(images.records.names[i])]))
        note = "Wrong or missed at each label's threshold, with its probability; labels that are right are left out."
        return [Gallery("", groups, f"{note} {channels_note(self)}".strip())] if groups else []


def thresholds_of(task: Task, weights: str, classes: int) -> list[float]:
    """Thresholds that validation images chose for a run's weights; one half where the run is not evaluated yet."""
    for key, result in (task.read_results() or {}).items():
        if key.partition("/")[0] == weights and len(result.per_label) == classes:
            return [score.threshold for score in result.per_label]
    return [UNDECIDED] * classes


def baselines(train: Images, held: Images) -> dict[str, float]:
    """mAP of logistic regression on pixels, a label at a time; empty for many images."""
    small = len(train) <= MAX_IMAGES and isinstance(train, CachedImages) and isinstance(held, CachedImages)
    labels, true = train.records.labels.numpy() > 0, held.records.labels.numpy() > 0
    varied = labels.any(0) & ~labels.all(0)
    if not small or not varied.any():
        return {}
    from sklearn.linear_model import LogisticRegression

    pixels, held_pixels = raw_pixels(train), raw_pixels(held)
    scores = np.zeros(true.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence matters little for a baseline
        for label in np.flatnonzero(varied):
            classifier = LogisticRegression(max_iter=200).fit(pixels, labels[:, label])
            scores[:, label] = classifier.predict_proba(held_pixels)[:, 1]
    return {"logistic regression on pixels": mean_average_precision(scores, true)}


def summary(results: Results[MultilabelResult]) -> Table:
    """One row for each set of weights and split, the one that counts first, then the baselines."""
    columns = [Column("weights/split")]
    columns += [Column(name, "percent") for name in ("mAP", "low", "high", "micro-F1", "macro-F1", "exact")]
    columns += [Column("NLL", "decimal"), Column("images", "count")]
    rows: list[list[Cell]] = []
    for key, each in results.counting_first.items():
        shares = each.map, *each.interval, each.micro_f1, each.macro_f1, each.exact
        rows.append([key, *shares, f"{each.nll:.3f}", each.images])
    if (counting := results.counting) is not None:
        rows += [[name, share, *[None] * 5, "", counting.images] for name, share in counting.baselines.items()]
    by_views = f" Predictions are the mean over {counting.views} of each image." if counting and counting.views else ""
    before = counting and counting.nll_uncalibrated
    calibration = (
        f" Calibrated per label on validation images; NLL before: {before:.3f}."
        if before is not None
        else (
            f" Not calibrated: that takes {MIN_OF_LABEL} validation images with a label and {MIN_OF_LABEL} without it."
        )
    )
    return Table("Labels", columns, rows, CHOSEN + by_views + calibration)


def per_label(result: MultilabelResult) -> Table:
    """One row a label."""
    known = any(score.training_images is not None for score in result.per_label)
    columns = [Column("label"), *([Column("training images", "count")] if known else []), Column("images", "count")]
    columns += [Column(name, "percent") for name in ("AP", "threshold", "precision", "recall", "F1")]
    rows: list[list[Cell]] = []
    for score in result.per_label:
        counts: list[Cell] = [*([score.training_images] if known else []), score.images]
        rows.append([score.name, *counts, score.ap, score.threshold, score.precision, score.recall, score.f1])
    return Table("Per label", columns, rows, "Precision, recall and F1 from the threshold on.")
