# SPDX-License-Identifier: Apache-2.0
"""Measure every set of weights of a run of several labels an image, on every split that did not teach it."""

import warnings
from dataclasses import replace

import numpy as np

from ...data.dataset import Dataset, warnings_on_test
from ...data.image_set import CachedImages, Images
from ...data.sources.source import Source
from ...errors import UserError
from ...models.tta import describe
from ...scores.labels import UNDECIDED, best_thresholds, mean_average_precision
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..inputs import read_unseen
from ..model import of_run
from ..other import taught_by
from ..outputs import Predictions, choose_views, collect, save_num_views
from ..reference import MAX_IMAGES, raw_pixels
from ..results import Result
from ..saved import Results, keep_results, name_of, of_each
from .labels import LabelsEvaluation, evaluate_labels
from .results import RESULTS, LabelEvaluations, keep_answers, thresholds_of


class EvaluatedLabels(Results[Result[LabelsEvaluation]]):
    """A run's results with the predictions behind them."""

    @property
    def evaluations(self) -> LabelEvaluations:
        """The numbers."""
        return LabelEvaluations(self.counts, {key: result.evaluation for key, result in self.items()})


def judge_labels(run: RunFolder, dataset: Dataset) -> EvaluatedLabels:
    """Results by WEIGHTS/SPLIT, kept in multilabel.json; predictions in multilabel.npz.

    Thresholds are those of the best F1 on validation images, by label; one half without any. The result that counts:
    the best weights (the last, where no validation chose), on test (on validation, without test). A split none of whose
    images shows a label is left out: there is no average precision of it.
    """
    splits = {split: images for split, images in dataset.held_out.items() if _shows_labels(images)}
    learnt_from = dataset.train.records.labels.sum(0).int().tolist()
    plain = {name: _plain(dataset.train, images) for name, images in splits.items()}
    if config_of(run).images.eval_views == "best" and "val" in splits:
        choose_views(run, splits["val"], _precision)
    results: dict[str, Result[LabelsEvaluation]] = {}
    views = describe(of_run(run).eval_views)
    said_by = of_each(run, lambda weights: {name: _asked(run, weights, images) for name, images in splits.items()})
    for weights, predictions in said_by.items():
        thresholds = [UNDECIDED] * len(dataset.classes)
        if "val" in predictions:
            thresholds = best_thresholds(
                predictions["val"].probabilities.numpy(), predictions["val"].labels.numpy()
            ).tolist()
        for name, images in splits.items():
            evaluation = evaluate_labels(predictions[name], dataset.classes, thresholds, learnt_from, plain[name])
            results[f"{weights}/{name}"] = Result(replace(evaluation, asked=views), predictions[name], images)
    counts = f"{run.which()[0]}/{next(iter(splits))}" if results else ""
    save_num_views(run)
    evaluated = EvaluatedLabels(counts, results)
    keep_results(run, RESULTS, evaluated.evaluations)
    chosen = {key: [score.threshold for score in result.evaluation.per_label] for key, result in results.items()}
    keep_answers(run, {key: (result.predictions, chosen[key]) for key, result in results.items()})
    return evaluated


def judge_other(run: RunFolder, source: Source) -> tuple[EvaluatedLabels, list[str]]:
    """The same for images that the run has never seen, by WEIGHTS/DATA, at the thresholds that the run chose; and what
    a person should know of them. Nothing is kept.

    Raises: UserError if they have labels that the run does not know, or show none.
    """
    classes = run.read("run.json")["data"]["classes"]
    if not source.classes:
        raise UserError(f"{source.name} has no labels to judge by")
    images, skipped = read_unseen(config_of(run), source, classes)
    if not _shows_labels(images):
        raise UserError(f"no image of {source.name} shows a label, so there is no average precision to measure by it")
    results = {}
    views = describe(of_run(run).eval_views)
    for weights, predictions in of_each(run, lambda weights: _asked(run, weights, images)).items():
        evaluation = evaluate_labels(predictions, classes, thresholds_of(run, weights, len(classes)))
        results[f"{weights}/{name_of(source)}"] = Result(replace(evaluation, asked=views), predictions, images)
    notes = [*warnings_on_test(source, skipped), *taught_by(run, images)]
    return EvaluatedLabels(f"{run.which()[0]}/{name_of(source)}", results), notes


def _shows_labels(images: Images) -> bool:
    return bool((images.records.labels > 0).any())


def _precision(predictions: Predictions) -> float:
    return mean_average_precision(predictions.probabilities.numpy(), predictions.labels.numpy())


def _asked(run: RunFolder, weights: str, images: Images) -> Predictions:
    subject = of_run(run, weights)
    return collect(subject.tta_network, subject.batches(images), images.records.names, subject.data_spec.probabilities)


def _plain(train: Images, held: Images) -> dict[str, float]:
    """mAP of what learns no features: logistic regression on pixels, a label at a time; {} for many images."""
    small = len(train) <= MAX_IMAGES and isinstance(train, CachedImages) and isinstance(held, CachedImages)
    labels, true = train.records.labels.numpy() > 0, held.records.labels.numpy() > 0
    varied = labels.any(0) & ~labels.all(0)
    if not small or not varied.any():
        return {}
    from sklearn.linear_model import LogisticRegression

    seen, held_pixels = raw_pixels(train), raw_pixels(held)
    scores = np.zeros(true.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged concerns a yardstick little
        for label in np.flatnonzero(varied):
            classifier = LogisticRegression(max_iter=200).fit(seen, labels[:, label])
            scores[:, label] = classifier.predict_proba(held_pixels)[:, 1]
    return {"logistic regression on pixels": mean_average_precision(scores, true)}
