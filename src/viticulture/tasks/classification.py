# SPDX-License-Identifier: Apache-2.0
"""Classification: one class an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..analysis.galleries import Gallery, Group, file_name
from ..analysis.pictures import occlusion
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.format import displayed
from ..errors import UserError
from ..evaluation.agreement import evaluate_agreement
from ..evaluation.model import EvaluatedModel, of_run
from ..evaluation.outputs import Predictions
from ..evaluation.reference import evaluate_references, read_references
from ..evaluation.saved import of_each
from ..models.similarity import BELOW, IMAGES, KEY, MIN_IMAGES, HeadInputs, K, TrainFeatures, evenly, place, vary
from ..models.weights.files import read_config
from ..outputs import csv_text
from ..scores.calibration import fit_temperature
from ..table import MAX_ROWS, Cell, Column, Table, percent, unread
from ..text import log
from ..training.run_inputs import config_of
from .classification_metrics import ClassificationResult, evaluate_predictions, most_confident_mistakes, without_copies
from .classification_page import classification_page, copies_sentence, per_class, summary
from .figures import LineChart, TaskPage, TaskSection
from .image_task import ImageTask
from .results import Evaluated, Results, named
from .task import Prediction, class_columns, weakest

MISTAKES = 24


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The class of one image."""

    name: str  # the file; bytes of its name that are no text as Python escapes
    label: str  # the most probable class; empty if the image could not be read
    probability: float
    probabilities: dict[str, float] = field(repr=False)
    error: str = ""
    # The most probable classes and their probabilities, as many as requested.
    top: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    # Whether the image is like the training images; None where that was not measured.
    known: bool | None = field(default=None, repr=False)
    # To the training images (models/similarity.py); None where it was not measured.
    similarity: float | None = field(default=None, repr=False)

    @staticmethod
    def table(predictions: "Sequence[ClassPrediction]") -> Table:
        places = range(1, max((len(each.top) for each in predictions), default=1))
        columns = [Column("name"), Column("label"), Column("probability", "percent")]
        measured = any(each.known is not None for each in predictions)
        columns += [Column(f"label {k + 1}") for k in places]
        note = unread([each.error for each in predictions])
        columns += [*[Column("known")] * measured, *[Column("error", "prose")] * bool(note)]
        rows: list[list[Cell]] = []
        for each in predictions:
            more = [f"{name} {percent(share)}" for name, share in each.top[1:]] or [""] * len(places)
            last = [*[_yes_or_no(each.known)] * measured, *[each.error] * bool(note)]
            rows.append([each.name, each.label, each.probability if each.label else None, *more, *last])
        if any(each.known is False for each in predictions):
            note = "; ".join(filter(None, (note, "known: no for images unlike the training images")))
        return Table("", columns, rows, note)

    @staticmethod
    def csv(predictions: "Sequence[ClassPrediction]", classes: Sequence[str] = ()) -> str:
        """A row an image, a column a class."""
        classes = classes or next((list(each.probabilities) for each in predictions if each.probabilities), [])
        places = range(1, max((len(each.top) for each in predictions), default=1))
        others = [f"{word} {k + 1}" for k in places for word in ("label", "probability")]
        first = ["name", "label", "probability", *others, "known", "similarity"]
        rows: list[list[object]] = [[*first, *class_columns(classes, [*first, "error"]), "error"]]
        for each in predictions:
            more = [value for k in places for value in (each.top[k] if each.top else (None, None))]
            probabilities = [each.probabilities.get(name) for name in classes]
            probability = each.probability if each.label else None
            more += [_yes_or_no(each.known), each.similarity]
            rows.append([each.name, each.label, probability, *more, *probabilities, each.error])
        return csv_text(rows)


def _yes_or_no(known: bool | None) -> str:
    return "" if known is None else "yes" if known else "no"


class Classification(ImageTask):
    """One class an image."""

    name = "classification"
    does = "classifies images"
    result = ClassificationResult
    prediction = ClassPrediction
    measure = "top-1"
    pipeline = "image-classification"
    metric = ("accuracy", "top-1")
    use = "label"
    predicts_one_class = True

    def evaluate(self, dataset: Dataset) -> Evaluated:
        evaluated = super().evaluate(dataset)
        if dataset.classes:
            for weights, features in of_each(self.run, lambda weights: self._train_features(weights, dataset)).items():
                if features is not None:
                    features.save(self.run.weights(weights))
        if counts := evaluated.results.counts:
            evaluate_agreement(self.run, config_of(self.run), counts, evaluated.images[counts])
        return evaluated

    def result_of(
        self, outputs: Mapping[str, Predictions], split: str, weights: str, dataset: Dataset | None
    ) -> ClassificationResult:
        predictions, classes = outputs[split], self.run.read("run.json")["data"]["classes"]
        copies = self.run.near_duplicates.get(split, ()) if dataset is not None else ()
        return replace(evaluate_predictions(predictions, classes), without_copies=without_copies(predictions, copies))

    def fit_temperature(self, predictions: Predictions) -> tuple[float, ...]:
        return fit_temperature(predictions.probabilities, predictions.labels)

    def _train_features(self, weights: str, dataset: Dataset) -> TrainFeatures | None:
        """Return the features by which images of other things are noticed; None for a student without any."""
        model = replace(of_run(self.run, weights), temperature=(), train_features=None)

        def features(images: Images) -> Tensor:
            images = images.part(evenly(len(images)))
            return torch.cat([inputs(batch["image"]).cpu() for batch in model.batches(images)])

        frozen, val = config_of(self.run).method_class.closed_form, dataset.val
        if val is None or len(val) < MIN_IMAGES:
            if not frozen:  # images that a network was trained on are more similar to each other than new ones are
                return None
            val = None
        try:
            with HeadInputs(model.network) as inputs, torch.inference_mode():
                made = TrainFeatures.fitted(features(dataset.train), None if val is None else features(val))
        except UserError:  # a student that classifies maps
            return None
        if not vary(made.features):
            log(
                f"note     images unlike the training images are not noticed: the {weights} weights have the same "
                "features for all"
            )
            return None
        return made if isfinite(made.threshold) else None

    def view_score(self, predictions: Predictions) -> float:
        """Accuracy."""
        return float((predictions.probabilities.argmax(-1) == predictions.labels).double().mean())

    def prediction_of(
        self, name: str, outputs: list[float], model: EvaluatedModel, weights: str, top: int
    ) -> ClassPrediction:
        every = dict(zip(model.data_spec.classes, outputs, strict=True))
        ranked = tuple(sorted(every.items(), key=lambda pair: -pair[1])[:top])
        return ClassPrediction(name, *ranked[0], every, top=ranked)

    def unreadable(self, name: str, error: str) -> ClassPrediction:
        return ClassPrediction(name, "", 0.0, {}, error)

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        first = next(iter(results.values()), None)
        few = full and first is not None and len(first.per_class) <= MAX_ROWS
        return [summary(results), *([per_class(first)] if few and first is not None else [])]

    def notes(self, results: Results[Any]) -> list[str]:
        """Near-duplicates, and a classifier without trained features that is right more often than the student."""
        result, references = results.counting, read_references(self.run)
        if result is None:
            return []
        near = copies_sentence(result, named(results.counts)[1])
        notes = [f"note: {near}"] if near else []
        if references is not None and references.accuracy:
            name, share = max(references.accuracy.items(), key=lambda item: item[1])
            if share > result.top1:
                notes.append(
                    f"note: {name} gets {percent(share)}; a student below that needs more time, or more images"
                )
        return notes

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        references = read_references(self.run) if own else None
        accuracy = dict(references.accuracy) if references is not None else {}
        trained_on = references.images.get("train", ()) if references is not None else ()
        page = classification_page(results, accuracy, trained_on, galleries.get("mistakes", ()))
        note = LineChart("", {}, "", "", self._unlike().replace("`", ""))
        unlike = TaskSection("Images unlike the training images", [note], folded=True)
        return replace(page, after=[*page.after, *[unlike] * bool(note.note)])

    def _unlike(self) -> str:
        """Return how images unlike the training images are noticed; "" where they are not."""
        which = self.run.which()
        threshold = read_config(self.run.weights(which[0])).get(KEY) if which else None
        if not isinstance(threshold, float):
            return ""
        share = ""
        if (self.run.path / "split.json").exists():  # a run from the Hub has none
            count = min(len(self.run.image_names.get("val", ())), IMAGES)
            below, new = (place(count) / (count + 1), "new") if count >= MIN_IMAGES else (BELOW, "training")
            share = f", as for {percent(below)} of {new} images"
        return (
            "It predicts one of its classes for every image, even of something else. `known` is `no` for an image "
            f"unlike the training images: the cosine between its features and those of the {K}th most similar training "
            f"image is below {threshold:.2f}{share}. A network that started from "
            "public weights notices most images of other things; one trained from scratch on a few thousand images "
            "notices few. Of similar classes, such as another flower, many pass as known."
        )

    def limits(self, results: Results[Any]) -> list[str]:
        limits = [self._unlike() or "It predicts one of its classes for every image, also for one of something else."]
        if (result := results.counting) is None:
            return limits
        if result.calibration_error > 0.05:
            error = percent(result.calibration_error)
            limits.append(f"Its probabilities are off by {error} on average: do not interpret them as frequencies.")
        return [*limits, *weakest("recall", {each.name: each.recall for each in result.per_class})]

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        evaluate_references(self.run, dataset)
        super().save_pictures(dataset, evaluated)

    def mistakes(self, evaluated: Evaluated) -> list[Gallery]:
        key, classes = evaluated.results.counts, self.run.read("run.json")["data"]["classes"]
        images = evaluated.images[key]
        groups: list[Group] = [
            (
                [images.original(mistake.number)],
                (
                    f"predicted {classes[mistake.predicted]}, {100 * mistake.probability:.0f}\u00a0%",
                    f"is {classes[mistake.label]}",
                    file_name(mistake.name),
                ),
            )
            for mistake in most_confident_mistakes(evaluated.predictions[key], MISTAKES)
        ]
        return [Gallery("", groups, channels_note(self))] if groups else []

    def attention(self, model: EvaluatedModel, images: Images) -> list[Gallery]:
        return [occlusion(model, images), *super().attention(model, images)]


def channels_note(task: ImageTask) -> str:
    """The channels that pictures display, where an image has others."""
    return displayed(config_of(task.run).images.channels).strip()
