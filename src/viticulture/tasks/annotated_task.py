# SPDX-License-Identifier: Apache-2.0
"""Tasks on images with annotations, boxes or masks: what their evaluation, predictions and pictures share."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ..analysis.galleries import FILE, MAX_SIDE, Gallery, Group, save_galleries, shrunk
from ..data.annotated import prepare_annotated_test
from ..data.batches.loader import CPU
from ..data.dataset import Dataset
from ..data.image_set import CachedImages, Images, Records
from ..data.images.decode import DECODED, DecodedImage, Unreadable
from ..data.images.format import displayed
from ..data.images.video import check_video, is_clip, writing_clip
from ..data.open import open_source
from ..data.sources.source import Source
from ..data.target_checks import counts as counts_of
from ..data.targets.objects import Annotations
from ..data.transforms.resample import resize_to_square
from ..disk import replacing
from ..errors import UserError, counted, received
from ..evaluation.inputs import ImageInput, Item, decoded
from ..evaluation.model import device_for
from ..evaluation.saved import name_of, of_each, weights_for
from ..methods.method import Method
from ..models.data_spec import DataSpec
from ..models.detection.networks import load_network
from ..models.weights.checksum import FILES
from ..models.weights.files import read_config, save
from ..outputs import check_out, write_out
from ..text import log, readable, shell_word
from ..training.progress import showing
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from .drawing import Picture, color_of
from .image_task import trained_on
from .results import FOUND, Evaluated, OtherImages, Results, save_results
from .task import ENDINGS, Exported, Frames, Predictor, Task, check_readable, items_of

BATCH = 16
CLIP = ".mp4"
MAX_IMAGES = 12  # on a page
MAX_PICTURE_SIDE = 2 * MAX_SIDE


@dataclass(frozen=True, eq=False)
class AnnotatedModel:
    """A detector or a segmenter under evaluation."""

    network: nn.Module
    data_spec: DataSpec
    device: torch.device = CPU


def model_of(run: RunFolder, weights: str = "") -> AnnotatedModel:
    """Load a run's network; weights: best, last or ema, by default those that count."""
    network, data_spec = load_network(run.weights(weights or run.which()[0]))
    device = device_for(config_of(run))
    return AnnotatedModel(network.to(device), data_spec, device)


Found = tuple[Any, list[Any]]  # the numbers of a split, and the entry of each image in predictions.json


class AnnotatedTask(Task):
    """A task on images with annotations."""

    draws_predictions = True
    use = "counts()"

    @staticmethod
    def colors(classes: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        return {name: color_of(label) for label, name in enumerate(classes)}

    @classmethod
    @abstractmethod
    def evaluate_images(
        cls,
        model: AnnotatedModel,
        images: Images,
        true: Annotations,
        baseline: Any = None,
        threshold: float | None = None,
    ) -> Found:
        """Evaluate a network on images. `baseline`: of `baseline`; None leaves it out. `threshold`: score from which
        boxes count; None takes the best of these images.
        """

    @abstractmethod
    def baseline(self, dataset: Dataset) -> Any:
        """Return a baseline without training."""

    @classmethod
    @abstractmethod
    def raw_predictions(cls, model: AnnotatedModel, images: Images) -> Iterator[Any]:
        """Predict for every image, in order."""

    @abstractmethod
    def prediction_of(
        self, name: str, raw: Any, classes: tuple[str, ...], threshold: float, size: tuple[int, int]
    ) -> Any:
        """Make the prediction for one image."""

    @abstractmethod
    def unreadable(self, name: str, classes: tuple[str, ...], error: str) -> Any:
        """Make the prediction for an image that could not be read."""

    @abstractmethod
    def gallery(self, images: Images, true: Annotations, result: Any, saved: list[Any]) -> Gallery:
        """Pictures of the images, from the worst to the best."""

    def thresholds(self, results: Mapping[str, Any]) -> dict[str, float]:
        """The score from which boxes count, by weights."""
        return {}

    def evaluate(self, dataset: Dataset) -> Evaluated:
        """Evaluate as `Task`; the score threshold for boxes is the best of the same weights on validation images.

        A split without an object, or without a labeled pixel, is left out.
        """
        splits = {
            name: images
            for name, images in dataset.held_out.items()
            if counts_of(dataset.classes, dataset.annotations[name]).any()
        }
        baseline = self.baseline(dataset)
        by_split: dict[str, dict[str, Found]] = {}
        thresholds: dict[str, float] = {}
        for split in reversed(splits):  # validation first
            true, which = dataset.annotations[split], weights_for(self.run, split, splits)
            by_split[split] = self._by_weights(splits[split], true, baseline, thresholds, which)
            thresholds = self.thresholds({weights: result for weights, (result, _) in by_split[split].items()})
        every = {f"{weights}/{split}": by_split[split][weights] for split in splits for weights in by_split[split]}
        counts = next(iter(every), "")
        if counts:
            self.run.write(FOUND, json.dumps({"counts": counts, "images": every[counts][1]}) + "\n")
        results = Results(counts, {key: result for key, (result, _) in every.items()}, type(self))
        save_results(self.run, results)
        return Evaluated(results)

    def evaluate_other(self, data: str | Source) -> OtherImages:
        """Evaluate as `Task`; boxes count from the score that the run's validation images chose.

        Raises: UserError where nothing in them is of the run's classes.
        """
        if not isinstance(data, str):
            raise UserError(f"{self.run.path} is evaluated on files with annotations: name them, got {received(data)}")
        config, classes = config_of(self.run), model_of(self.run).data_spec.classes
        source = open_source(data, config.method_class.batch_spec.contents)
        with showing("reading images") as progress:
            skip, masks = config.data.skip_unreadable, config.values["method"].get("masks", False)
            images, true, notes = prepare_annotated_test(source, classes, config.images, skip, progress, masks)
        if not counts_of(classes, true).any():
            raise UserError(f"nothing in {data} is of the run's classes, so there is nothing to evaluate on")
        by_weights = self._by_weights(images, true, None, self.thresholds(self.read_results() or {}))
        results = {f"{weights}/{name_of(data)}": result for weights, (result, _) in by_weights.items()}
        warnings = [*notes, *trained_on(self.run, images)]
        return OtherImages(name_of(data), Evaluated(Results(next(iter(results)), results, type(self))), warnings)

    def _by_weights(
        self,
        images: Images,
        true: Annotations,
        baseline: Any,
        thresholds: Mapping[str, float],
        which: Sequence[str] = (),
    ) -> dict[str, Found]:
        def evaluated(weights: str) -> Found:
            return self.evaluate_images(model_of(self.run, weights), images, true, baseline, thresholds.get(weights))

        return of_each(self.run, evaluated, which)

    def network(self, weights: str = "") -> nn.Module:
        return load_network(self.run.weights(weights or self.run.which()[0]))[0]

    def exported(self, weights: str) -> Exported:
        model, value_range = model_of(self.run, weights), config_of(self.run).images.range
        return Exported(model.network, model.data_spec, {} if value_range is None else {"range": value_range})

    def for_timm(self, weights: str) -> dict[str, bytes]:
        """Return the student's files; none where windows changed it."""
        network, data_spec = load_network(self.run.weights(weights))
        described = read_config(self.run.weights(weights))["network"]
        if described.get("window") or described.get("relative_positions"):
            return {}
        with TemporaryDirectory() as folder:
            save(network.backbone.student, Path(folder), replace(data_spec, classes=()))
            return {name: Path(folder, name).read_bytes() for name in FILES}

    def predictor(self, weights: str = "", top: int = 1) -> "AnnotatedPredictor":
        if top != 1:
            raise UserError(f"{self.run.path} {self.does} and ranks no classes; leave top out")
        return AnnotatedPredictor(self, weights)

    def predict(
        self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = "", every: float = 1.0
    ) -> list[Any]:
        """Predict as `Task`; `out` may also be a folder of pictures, NUMBER-NAME.png each, or of a clip an .mp4."""
        predictor, ending = self.predictor(weights, top), Path(out).suffix.lower()
        if ending in (*ENDINGS, CLIP):
            check_out(out, *ENDINGS, CLIP)
        elif out and (ending or Path(out).is_file()):
            raise UserError(
                f"--out must be a .json or .csv file, an {CLIP} of one clip or a folder of pictures, got {out}"
            )
        listed, images = self.listed(images, predictor.data_spec.classes, out)
        items, drawn = items_of(images, clips=True), bool(out) and ending not in ENDINGS
        if ending == CLIP:
            check_one_clip(items, out)
        frames, predictions = Frames(items, every), list[Any]()
        with writing_clip(Path(out)) if ending == CLIP else nullcontext() as add:
            for number, (prediction, picture) in enumerate(frames.predict(predictor, None if drawn else 0), 1):
                predictions.append(prediction)
                if picture is not None and add is not None:
                    add(picture, frames.times[prediction.name][1])
                elif picture is not None:
                    name = Path(prediction.name)
                    stem = name.name if prediction.name in frames.times else name.stem  # of a frame, "at 0.200 s"
                    self.draw(Path(out), f"{number:04}-{stem}", prediction, picture)
            check_readable(predictions)
        if ending == ".json":
            write_out(out, self.json(predictions, listed))
        elif ending == ".csv":
            write_out(out, frames.csv(self.prediction.csv(predictions, predictor.data_spec.classes)))
        elif out:
            log(f"written  {out}" if ending else f"written  pictures into {out}")
        return predictions

    def listed(
        self, images: Sequence[ImageInput], classes: Sequence[str], out: str
    ) -> tuple[Any, Sequence[ImageInput]]:
        """The numbers of a list that stands for its images, and the images."""
        return None, images

    def json(self, predictions: Sequence[Any], listed: Any) -> str:
        """Predictions as JSON text."""
        return json.dumps([prediction.row() for prediction in predictions], indent=1) + "\n"

    def draw(self, folder: Path, stem: str, prediction: Any, picture: Picture) -> None:
        """Write the pictures of a prediction into a folder."""
        save_picture(folder / f"{stem}.png", Image.fromarray(picture))

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        results = evaluated.results
        split = results.counts.partition("/")[2]
        if (images := dataset.held_out.get(split)) is None or results.counting is None:
            return
        try:
            saved = list(self.run.read(FOUND)["images"])
            gallery = self.gallery(images, dataset.annotations[split], results.counting, saved)
        except (LookupError, TypeError, ValueError) as error:
            anew = f"make it anew: viticulture evaluate {shell_word(self.run.path)}"
            raise UserError(f"{self.run.path / FOUND} is damaged; {anew}") from error
        gallery = replace(gallery, note=gallery.note + displayed(dataset.image_settings.channels))
        save_galleries(self.run.path / FILE, {"annotated": [gallery]}, max_side=MAX_PICTURE_SIDE)

    @classmethod
    def final_evaluation(cls, method: Method, images: Images, annotations: Any) -> Callable[[], object]:
        model = AnnotatedModel(method.student, method.data_spec, next(method.parameters()).device)
        return lambda: cls.evaluate_images(model, images, annotations.first(len(images)))


def check_one_clip(items: Sequence[Item], out: str) -> None:
    """Raises: UserError unless the images are one clip, which is another file than the output."""
    if len(items) != 1 or not is_clip(items[0][0]):
        raise UserError(
            f"{out} would show one clip, got {counted(len(items), 'image')}; name one clip, or another --out"
        )
    if Path(out).resolve() == Path(items[0][0]).resolve():
        raise UserError(f"{out} is the clip itself; choose another --out")
    check_video()


class AnnotatedPredictor(Predictor):
    """A run's detector or segmenter for predictions."""

    draws = True

    def __init__(self, task: AnnotatedTask, weights: str = "") -> None:
        self.task, self.model = task, model_of(task.run, weights)
        self.data_spec = self.model.data_spec
        images = config_of(task.run).images
        assert images.cache_size is not None, "a run's recipe says it"
        self.side, self.pixel_format = images.cache_size, images.pixel_format
        headline = task.headline(weights)
        self.threshold = 0.5 if headline is None or headline.threshold is None else headline.threshold

    def predict(
        self, items: Sequence[Item], max_pixels: int | None = None, longest: int | None = 0
    ) -> Iterator[tuple[Any, Picture | None]]:
        """Predict as `Predictor`; a picture is the upright image with the prediction drawn over it."""
        for start in range(0, len(items), BATCH):
            yield from self._predict(items[start : start + BATCH], max_pixels, longest)

    def _predict(
        self, items: Sequence[Item], max_pixels: int | None, longest: int | None
    ) -> Iterator[tuple[Any, Picture | None]]:
        opened: list[Image.Image | str | None] = []
        squeezed: list[Tensor] = []
        sizes: list[tuple[int, int]] = []
        for name, image in items:
            try:
                seen = decoded(name, image, self.side, self.pixel_format, max_pixels)
                picture = None if longest == 0 else self._whole(name, image, seen, max_pixels).image
            except Unreadable as error:
                opened.append(error.reason)
            except OSError as error:
                opened.append(error.strerror or str(error))
            else:
                squeezed.append(torch.from_numpy(resize_to_square(seen.pixels, self.side)).permute(2, 0, 1))
                sizes.append((seen.height, seen.width))
                if picture is not None and longest:
                    picture.thumbnail((longest, longest))
                opened.append(picture)
        raw, classes = zip(sizes, self._raw(squeezed, sizes), strict=True), self.data_spec.classes
        for (name, _), seen_as in zip(items, opened, strict=True):
            if isinstance(seen_as, str):
                yield self.task.unreadable(readable(name), classes, seen_as), None
                continue
            size, each = next(raw)
            prediction = self.task.prediction_of(readable(name), each, classes, self.threshold, size)
            yield prediction, None if seen_as is None else prediction.drawn(np.asarray(seen_as))

    def _whole(self, name: str, image: ImageInput, seen: DecodedImage, max_pixels: int | None) -> DecodedImage:
        """The same in all its pixels: for a network a JPEG may be decoded at a fraction of them."""
        if seen.pixels.shape[:2] == (seen.height, seen.width):
            return seen
        if not isinstance(image, (Path, Unreadable, *DECODED)):
            image.seek(0)
        return decoded(name, image, 1 << 20, self.pixel_format, max_pixels)

    def _raw(self, squeezed: list[Tensor], sizes: list[tuple[int, int]]) -> Iterator[Any]:
        if not squeezed:
            return iter(())
        count = len(squeezed)
        records = Records(torch.full((count,), -1), torch.tensor(sizes), [""] * count)
        images = CachedImages(torch.stack(squeezed), torch.arange(count), records)
        return self.task.raw_predictions(self.model, images)


def image_sizes(images: Images) -> NDArray[np.int64]:
    """Height and width of every original, [N, 2]."""
    sizes: NDArray[np.int64] = images.sizes(torch.arange(len(images))).numpy().astype(np.int64)
    return sizes


def save_picture(path: Path, picture: Image.Image) -> None:
    """Write a PNG, whole or not at all."""
    with replacing(path) as part:
        picture.save(part, format="PNG")


def thinned(values: NDArray[np.uint8], size: tuple[int, ...]) -> NDArray[np.uint8]:
    """Take [H, W] values in the middle of each pixel of a picture of another height and width."""
    rows, columns = ((np.arange(out) + 0.5) * side // out for side, out in zip(values.shape, size, strict=True))
    return values[rows.astype(int)][:, columns.astype(int)]


def spread(order: list[int]) -> list[int]:
    """Return up to `MAX_IMAGES` of them, evenly spaced."""
    places = np.unique(np.linspace(0, len(order) - 1, min(MAX_IMAGES, len(order))).round().astype(int))
    return [order[place] for place in places]


def original(images: Images, i: int) -> Picture:
    """Return an image in the size that its boxes and masks refer to."""
    (height, width), image = images.extent(i), images.original(i)
    return image if image.shape[:2] == (height, width) else np.asarray(Image.fromarray(image).resize((width, height)))


def picture_group(images: Images, i: int, pictures: Sequence[Picture], caption: str) -> Group:
    """Pictures of an image with its name and a caption."""
    return [shrunk(picture, MAX_PICTURE_SIDE) for picture in pictures], [images.records.names[i], caption]
