# SPDX-License-Identifier: Apache-2.0
"""Tasks whose networks have one output vector an image: what their evaluation, predictions and pictures share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..analysis.attention import class_map
from ..analysis.galleries import FILE, Gallery, overlay, save_galleries
from ..analysis.pictures import examples, fine_attention
from ..analysis.reconstruction import reconstruction_gallery, reconstructs
from ..data.dataset import Dataset, warnings_on_test
from ..data.image_set import Images
from ..data.images.format import displayed
from ..data.open import open_source
from ..data.sources.source import UNLABELED, Source
from ..errors import UserError, counted
from ..evaluation.inputs import Item, OpenedItems, open_items, pixel_digests, read_unseen, run_digests
from ..evaluation.localization.metrics import score_maps
from ..evaluation.model import EvaluatedModel, check_classes, heads_of, of_run, pictures
from ..evaluation.outputs import Predictions, check_finite, choose_views, collect, save_num_views
from ..evaluation.saved import name_of, of_each, weights_for
from ..models.taps import Taps
from ..models.tta import TEMPERATURE_KEY, TTA_KEY
from ..models.weights.files import load, note, read_config
from ..scores.calibration import calibrated
from ..training.data import labeled_for
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from .results import Evaluated, OtherImages, Results, SavedPredictions, save_predictions, save_results
from .task import Exported, Prediction, Predictor, Task

BATCH = 64  # images that are held decoded
FEW = 8  # images that tell which heads make the output


class ImageTask(Task):
    """A task with one output vector an image."""

    @abstractmethod
    def result_of(self, outputs: Mapping[str, Predictions], split: str, weights: str, dataset: Dataset | None) -> Any:
        """Compute the numbers of a split."""

    @abstractmethod
    def prediction_of(
        self, name: str, outputs: list[float], model: EvaluatedModel, weights: str, top: int
    ) -> Prediction:
        """Make the prediction for one image of its outputs."""

    @abstractmethod
    def unreadable(self, name: str, error: str) -> Prediction:
        """Make the prediction for an image that could not be read."""

    def activation(self, model: EvaluatedModel) -> Callable[[Tensor], Tensor]:
        """Outputs of logits."""
        return model.data_spec.probabilities

    def can_evaluate(self, images: Images) -> bool:
        """Return whether images hold anything to evaluate on."""
        return True

    def view_score(self, predictions: Predictions) -> float:
        """The number by which validation images choose the views of `images.eval_views best`."""
        return 0.0

    def saved(self, predictions: Predictions, result: Any) -> SavedPredictions:
        """Predictions as predictions.npz holds them."""
        outputs = predictions.probabilities
        if self.contents == "numbers":
            return SavedPredictions(outputs[:, 0].numpy(), predictions.labels.numpy(), None)
        return SavedPredictions(
            outputs.argmax(-1).numpy().astype(np.int32),
            predictions.labels.numpy().astype(np.int32),
            outputs.numpy().astype(np.float16),
        )

    def evaluate(self, dataset: Dataset) -> Evaluated:
        held_out = dataset.held_out if dataset.classes else {}
        splits = {split: images for split, images in held_out.items() if self.can_evaluate(images)}
        if config_of(self.run).images.eval_views == "best" and "val" in splits:
            choose_views(self.run, splits["val"], self.view_score, self.share)
        evaluated = self._evaluated(splits, dataset)
        temperatures = {key.partition("/")[0]: [*made.temperature] for key, made in evaluated.predictions.items()}
        if not temperatures:  # without held-out images
            temperatures = dict.fromkeys(self.run.which(), self.run.read("run.json").get("temperature", []))
        for weights, temperature in temperatures.items():
            folder = self.run.weights(weights)
            if (read_config(folder).get(TEMPERATURE_KEY) or []) != temperature:
                note(folder, {TEMPERATURE_KEY: temperature})
        save_num_views(self.run)
        results = evaluated.results
        save_results(self.run, results)
        if results:
            predictions = {key: self.saved(each, results[key]) for key, each in evaluated.predictions.items()}
            save_predictions(self.run, results.counts, predictions)
        return evaluated

    def evaluate_other(self, data: str | Source) -> OtherImages:
        """Evaluate as `Task`. Raises: UserError for classes unknown to the run, or nothing to evaluate on."""
        classes = tuple(self.run.read("run.json")["data"]["classes"])
        check_classes(self.run, classes)
        source = labeled_for(config_of(self.run), data if isinstance(data, Source) else open_source(data))
        if not source.has_labels:
            raise UserError(f"{source.name} has no labels to evaluate on")
        images, skipped = read_unseen(config_of(self.run), source, classes)
        if not self.can_evaluate(images):
            raise UserError(f"no image of {source.name} shows a {self.unit[0]}, so there is nothing to evaluate on")
        name = name_of(data)
        warnings = [*warnings_on_test(source, skipped), *trained_on(self.run, images)]
        return OtherImages(name, self._evaluated({name: images}, None), warnings)

    def _evaluated(self, splits: Mapping[str, Images], dataset: Dataset | None) -> Evaluated:
        fit = dataset is not None

        def outputs(weights: str) -> dict[str, Predictions]:
            evaluated = [name for name in splits if not fit or weights in weights_for(self.run, name, splits)]
            return self.outputs(weights, {name: splits[name] for name in evaluated}, fit)

        every = of_each(self.run, outputs) if splits else {}
        keys = [(f"{each}/{split}", each, split) for split in splits for each in every if split in every[each]]
        results = {key: self.result_of(every[weights], split, weights, dataset) for key, weights, split in keys}
        return Evaluated(
            Results(keys[0][0] if keys else "", results, type(self)),
            {key: every[weights][split] for key, weights, split in keys},
            {key: splits[split] for key, _, split in keys},
        )

    def outputs(self, weights: str, splits: Mapping[str, Images], fit: bool = False) -> dict[str, Predictions]:
        """Outputs of one set of weights for the images of each split, calibrated.

        Args:
            fit: fit the temperature on the split val rather than take that of the weights; where it has too few images
                take that of the training (training/linear_head.py), if any.
        """
        saved, predictions = of_run(self.run, weights), {}
        model = replace(saved, temperature=())
        for split, images in splits.items():
            made = collect(model.tta_network, model.batches(images), images.records.names, self.activation(model))
            predictions[split] = replace(made, rule=self.rule(model, images))
        val = predictions.get("val")
        temperature = saved.temperature
        if fit:
            temperature = () if val is None else self.fit_temperature(val)
            temperature = temperature or tuple(self.run.read("run.json").get("temperature", ()))
        if not temperature:
            return predictions
        return {split: self._calibrated(each, temperature) for split, each in predictions.items()}

    def fit_temperature(self, predictions: Predictions) -> tuple[float, ...]:
        """Return the temperature of validation images' outputs (scores/calibration.py); () for none."""
        return ()

    def _calibrated(self, predictions: Predictions, temperature: tuple[float, ...]) -> Predictions:
        before = predictions.probabilities
        after = calibrated(before, temperature, self.contents == "labels")
        return replace(predictions, probabilities=after, temperature=temperature, uncalibrated=before)

    def rule(self, model: EvaluatedModel, images: Images) -> str:
        """Name the heads and views of an image that make the outputs."""
        few = next(model.batches(images.part(torch.arange(min(FEW, len(images))))))
        return heads_of(model.network, few["image"], config_of(self.run)).rule_with(model.eval_views)

    def predictor(self, weights: str = "", top: int = 1) -> "ImagePredictor":
        return ImagePredictor(self, weights or self.run.which()[0], top)

    def network(self, weights: str = "") -> nn.Module:
        config_of(self.run)  # imports what a student of the user's code needs
        return load(self.run.weights(weights or self.run.which()[0]))[0]

    def exported(self, weights: str) -> Exported:
        model = of_run(self.run, weights)
        metadata: dict[str, Any] = self.file_metadata(weights, model)
        if (value_range := model.image_settings.range) is not None:
            metadata["range"] = value_range
        if model.eval_views != "one":
            metadata[TTA_KEY] = model.eval_views
        if model.temperature:
            metadata[TEMPERATURE_KEY] = model.temperature
        return Exported(model.similarity_network or model.tta_network, model.data_spec, metadata)

    def file_metadata(self, weights: str, model: EvaluatedModel) -> dict[str, Any]:
        """What an ONNX file says of these outputs."""
        return {}

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        note, results = displayed(len(dataset.mean)).strip(), evaluated.results
        galleries: dict[str, Sequence[Gallery]] = {"examples": examples(dataset.train, dataset.classes, note)}
        if results:
            galleries["mistakes"] = self.mistakes(evaluated)
            model = of_run(self.run, results.counts.partition("/")[0])
            galleries["attention"] = self.attention(model, evaluated.images[results.counts])
        if reconstructs(config_of(self.run)):
            galleries["reconstruction"] = [reconstruction_gallery(self.run, dataset)]
        save_galleries(self.run.path / FILE, galleries)

    def attention(self, model: EvaluatedModel, images: Images) -> list[Gallery]:
        """Pictures of where the network attends."""
        return fine_attention(model, images)


class ImagePredictor(Predictor):
    """A run's student for predictions.

    Attributes:
        model: the student.
        taps: on its attention; None for a network without any.
    """

    def __init__(self, task: ImageTask, weights: str, top: int = 1) -> None:
        self.task, self.weights, self.top = task, weights, top
        self.model = of_run(task.run, weights, BATCH)
        self.data_spec = self.model.data_spec
        check_classes(task.run, self.data_spec.classes)
        try:
            self.taps: Taps | None = Taps(self.model.network, frozenset({"attention"}))
        except UserError:  # a CNN
            self.taps = None
        self.draws = self.taps is not None

    def predict(
        self, items: Sequence[Item], max_pixels: int | None = None, longest: int | None = 0
    ) -> Iterator[tuple[Any, NDArray[np.uint8] | None]]:
        """Predict as `Predictor`; a picture is the mean attention of the class token over all layers and heads.

        Without a class token it is that of the mean patch. It lies over the student's input.
        """
        for start in range(0, len(items), BATCH):
            opened = open_items(self.model, items[start : start + BATCH], max_pixels)
            rows = iter(self._outputs(opened))
            drawn = iter([] if longest == 0 else self._pictures(opened))
            for name, error in zip(opened.names, opened.errors, strict=True):
                if error:
                    yield self.task.unreadable(name, error), None
                else:
                    outputs, similarity = next(rows)
                    prediction = self.task.prediction_of(name, outputs, self.model, self.weights, self.top)
                    if similarity is not None and self.model.train_features is not None:
                        known = similarity >= self.model.train_features.threshold
                        prediction = replace(prediction, known=known, similarity=similarity)  # type: ignore[type-var]
                    yield prediction, next(drawn, None)

    def _outputs(self, opened: OpenedItems) -> list[tuple[list[float], float | None]]:
        """Return the outputs for each image that could be read, and its similarity where that is known."""
        model, activation = self.model, self.task.activation(self.model)
        if (network := model.similarity_network) is None:
            return [(row, None) for row in outputs_of(model, opened, activation)]

        def joined(outputs: tuple[Tensor, Tensor]) -> Tensor:
            return torch.cat([activation(outputs[0]), outputs[1][:, None]], 1)

        return [(row[:-1], row[-1]) for row in outputs_of(model, opened, joined, network)]

    @torch.inference_mode()
    def _pictures(self, opened: OpenedItems) -> list[NDArray[np.uint8]]:
        if self.taps is None or opened.images is None:
            return []
        drawn: list[NDArray[np.uint8]] = []
        for _, pixels in self.model.views(opened.images):
            readings = self.taps(self.model.normalized(pixels)).attention
            maps = [class_map(reading, reading.grid)[:, None] for reading in readings]
            rows, columns = max(layer.shape[-2:] for layer in maps)
            scores = score_maps(maps, (rows, columns)).cpu().numpy()
            drawn += [overlay(view, score) for view, score in zip(pictures(pixels), scores, strict=True)]
        return drawn


def outputs_of(
    model: EvaluatedModel,
    opened: OpenedItems,
    activation: Callable[[Any], Tensor] | None = None,
    network: nn.Module | None = None,
) -> list[list[float]]:
    """Outputs for each image that could be read; probabilities by default."""
    if (images := opened.images) is None:
        return []
    network, activation = network or model.tta_network, activation or model.data_spec.probabilities
    outputs = collect(network, model.batches(images), images.records.names, activation).probabilities
    check_finite(outputs)
    rows: list[list[float]] = outputs.tolist()
    return rows


def trained_on(run: RunFolder, images: Images) -> list[str]:
    """A sentence where decoded images are among those that a run was trained on, or where that is not known."""
    try:
        trained, marks = run_digests(run, ["train", UNLABELED]), pixel_digests(images)
    except UserError as error:
        return [f"whether {run.path} was trained on some of these images is not known: {error}"]
    same = [name for name, mark in zip(images.records.names, marks, strict=True) if mark in trained]
    if not same:
        return []
    share = f"{counted(len(same), 'image')} of {len(images):,}"
    return [f"this run was trained on {share}, pixel by pixel the same, such as {same[0]}: the results are too good"]
