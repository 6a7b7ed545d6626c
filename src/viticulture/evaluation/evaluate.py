# SPDX-License-Identifier: Apache-2.0
"""Measure every set of weights that a run keeps, on every split that did not teach it."""

from collections.abc import Collection, Sized
from dataclasses import replace

import torch

from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..text import shell_word
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from .accuracy import Evaluation, evaluate_predictions, without_copies
from .agreement import evaluate_agreement
from .model import heads_of, of_run
from .outputs import Predictions, choose_views, collect, save_num_views
from .results import RESULTS, Evaluations, Result, keep_predictions
from .saved import Results, keep_results, of_each

FEW = 8  # images that tell which heads make the output


class EvaluatedRun(Results[Result[Evaluation]]):
    """A run's results with the predictions behind them."""

    @property
    def evaluations(self) -> Evaluations:
        """The numbers."""
        return Evaluations(self.counts, {key: result.evaluation for key, result in self.items()})


def evaluate_run(run: RunFolder, dataset: Dataset) -> EvaluatedRun:
    """Evaluate every kept set of weights on every split that did not teach.

    The numbers are kept in evaluation.json, the predictions behind them in predictions.npz. The result that counts is
    that of the best weights (the last, where no validation chose), on test (on validation, where there is no test).
    Weights that were learnt without labels tell no classes apart: no results.
    """
    config = config_of(run)
    if config.images.eval_views == "best" and dataset.val is not None and dataset.classes:
        choose_views(run, dataset.val, right)
    results = dict[str, Result[Evaluation]]()
    if dataset.classes:
        for split, images in dataset.held_out.items():
            results |= results_of(run, config, split, images, run.near_duplicates.get(split, ()))
    counts = f"{run.which()[0]}/{next(iter(dataset.held_out))}" if results else ""
    save_num_views(run)
    evaluated = EvaluatedRun(counts, results)
    keep_results(run, RESULTS, evaluated.evaluations)
    if counts:
        keep_predictions(run, counts, {key: result.predictions for key, result in results.items()})
        evaluate_agreement(run, config, counts, results[counts].images)
    return evaluated


def check_classes(run: RunFolder, classes: tuple[str, ...]) -> None:
    """Raises: UserError for a run that learnt without labels."""
    if not classes:
        student = run.read("run.json")["student"]["name"]
        raise UserError(
            f"{run.path} learnt without labels, so it tells no classes apart; teach it some first: "
            f"viticulture train DATA --student {student} --init {shell_word(run.path)}"
        )


def check_held_out(run: RunFolder, results: Sized) -> None:
    """Raises: UserError for a run that kept no image back, so that there is nothing to measure on."""
    if not results:
        raise UserError(
            f"{run.path} held out none of its images; name others to measure on: "
            f"viticulture evaluate {shell_word(run.path)} DATA"
        )


def check_one_class(run: RunFolder, data_spec: DataSpec) -> None:
    """Raises: UserError for a run that learnt without labels, or several an image."""
    check_classes(run, data_spec.classes)
    if data_spec.multilabel:
        raise UserError(
            f"{run.path} tells several labels an image, and this measures one; on other images it can be measured by "
            f"viticulture evaluate {shell_word(run.path)} DATA"
        )


def right(predictions: Predictions) -> float:
    """Share of images whose likeliest class is the true one."""
    return float((predictions.probabilities.argmax(-1) == predictions.labels).double().mean())


def results_of(
    run: RunFolder, config: Config, name: str, images: Images, copies: Collection[str] = ()
) -> dict[str, Result[Evaluation]]:
    """Every kept set of weights on some images, by WEIGHTS/NAME; `copies` names those of them that have near-duplicates
    among the training images."""
    results = of_each(run, lambda weights: _result(run, config, weights, images, copies))
    return {f"{weights}/{name}": result for weights, result in results.items()}


def _result(
    run: RunFolder, config: Config, weights: str, images: Images, copies: Collection[str]
) -> Result[Evaluation]:
    subject = of_run(run, weights)
    predictions = collect(subject.tta_network, subject.batches(images), images.records.names)
    few = next(subject.batches(images.part(torch.arange(min(FEW, len(images))))))
    rule = heads_of(subject.network, few["image"], config).rule_with(subject.eval_views)
    evaluation = evaluate_predictions(predictions, subject.data_spec.classes)
    rest = without_copies(predictions, copies)
    return Result(replace(evaluation, rule=rule, without_copies=rest), predictions, images)
