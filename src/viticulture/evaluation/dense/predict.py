# SPDX-License-Identifier: Apache-2.0
"""Find objects in images that a person names, holds or sent, or tell their pixels apart."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ...data.image_set import CachedImages, Records
from ...data.images.decode import DECODED, DecodedImage, Unreadable, image_size
from ...data.images.format import PixelFormat
from ...data.sources.coco import Numbering, numbering
from ...data.transforms.resample import resize_to_square
from ...disk import replacing
from ...errors import UserError, some
from ...models.detection.segmenter import Segmenter
from ...outputs import check_out, write_out
from ...text import readable, tell
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..inputs import ImageInput, Item, decoded, named
from .prediction import ClassMap, DensePrediction, coco_results, drawn, indexed, objects_csv, pixels_csv
from .results import read_dense
from .subject import BATCH, DenseSubject, Found, classify_pixels, find, of_run

LEAST = 0.5  # score of what is drawn, where the weights were not judged
ENDINGS = (".json", ".csv")


def predict_dense(run: RunFolder, weights: str, images: Sequence[ImageInput], out: str) -> list[DensePrediction]:
    """Look at files, folders' images and pixels, in the order given.

    Args:
        run: a run of a detector or a segmenter.
        weights: best, last or ema.
        images: as for `predict.classify`; or one list of COCO's (.json), which stands for its images and numbers the
            results.
        out: a .json file of COCO's results (objects), a .csv, or a folder of pictures; "" writes nothing.

    Raises: UserError if there is nothing to look at or to write to, or a list lacks a class that the run learnt.
    """
    predictor, ending = DensePredictor(run, weights), Path(out).suffix.lower()
    segments = isinstance(predictor.subject.network, Segmenter)
    if ending == ".json" and segments:
        raise UserError(f"a segmenter's answers are pictures; name a folder or a .csv file, got --out {out}")
    if ending in ENDINGS:
        check_out(out, *ENDINGS)
    elif out and (ending or Path(out).is_file()):
        raise UserError(f"--out must be a .json or .csv file or a folder of pictures, got {out}")
    listed = _listed(images, predictor.subject.data_spec.classes)
    if listed and ending == ".json":
        _check_sizes(listed)
    items: list[Item] = list(named([*listed.images] if listed else images))
    if not items:
        raise UserError("no images in what was named; name image files, or folders that hold some")
    pictures = bool(out) and not ending
    predictions: list[DensePrediction] = []
    for number, (prediction, picture) in enumerate(predictor.predict(items, longest=None if pictures else 0), 1):
        predictions.append(prediction)
        if pictures and picture is not None:
            _draw(Path(out), number, prediction, picture)
    if all(prediction.error for prediction in predictions):
        raise UserError(f"no image could be read; {predictions[0].name}: {predictions[0].error}")
    if ending == ".json":
        write_out(out, json.dumps(coco_results(predictions, listed), indent=1) + "\n")
    elif ending == ".csv":
        classes = predictor.subject.data_spec.classes
        write_out(out, pixels_csv(predictions, classes) if segments else objects_csv(predictions))
    elif out:
        tell(f"written  pictures into {out}")
    return predictions


def _listed(images: Sequence[ImageInput], classes: Sequence[str]) -> Numbering | None:
    """The numbers of a list of COCO's where it alone is named; None for images."""
    if len(images) != 1 or not isinstance(images[0], Path) or images[0].suffix.lower() != ".json":
        return None
    numbers = numbering(images[0])
    if unknown := [name for name in classes if name not in numbers.categories]:
        raise UserError(
            f"{images[0]} has no number for {some(unknown, 3)}, which this network learnt; add it to `categories`, or "
            "name the images"
        )
    return numbers


def _check_sizes(listed: Numbering) -> None:
    """Raises: UserError where an image does not lie as its list says: results would not lie where its objects do."""
    for path, (height, width) in listed.sizes.items():
        with suppress(Unreadable, OSError), path.open("rb") as file:  # told with the results
            size = image_size(file, str(path))
            if None not in (height, width) and size != (height, width):
                raise UserError(
                    f"{path} is {size[1]}x{size[0]} pixels upright, and its list says {width}x{height}, so results "
                    "would not lie where its objects do; save it as it is listed, or name images in place of the list"
                )


class DensePredictor:
    """A run's network that is asked about images, once or often.

    Args:
        run: whose.
        weights: best, last or ema, with the score from which their objects count; by default those that count.
    """

    def __init__(self, run: RunFolder, weights: str = "") -> None:
        self.subject: DenseSubject = of_run(run, weights)
        images = config_of(run).images
        assert images.cache_size is not None, "a run's recipe says it"
        self.side: int = images.cache_size
        self.pixel_format: PixelFormat = images.pixel_format
        evaluations = read_dense(run)
        evaluations = evaluations.of_weights(weights) if evaluations and weights else evaluations
        result = evaluations.counting if evaluations else None
        self.least: float = getattr(result, "threshold", LEAST)

    def predict(
        self, items: Sequence[Item], most: int | None = None, longest: int | None = 0
    ) -> Iterator[tuple[DensePrediction, Image.Image | None]]:
        """One prediction an item with its upright image, in their order; a few images are held at once.

        Args:
            items: the images.
            most: as for `opening.open_items`.
            longest: pixels to which the longer side of the image is shrunk; None keeps it whole, 0 gives none.
        """
        for start in range(0, len(items), BATCH):
            yield from self._predict(items[start : start + BATCH], most, longest)

    def _predict(
        self, items: Sequence[Item], most: int | None, longest: int | None
    ) -> Iterator[tuple[DensePrediction, Image.Image | None]]:
        opened: list[Image.Image | str | None] = []
        squeezed: list[torch.Tensor] = []
        sizes: list[tuple[int, int]] = []
        for name, image in items:
            try:
                seen = decoded(name, image, self.side, self.pixel_format, most)
                picture = None if longest == 0 else self._whole(name, image, seen, most).image
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
        answers = zip(sizes, self._answers(squeezed, sizes), strict=True)
        for (name, _), shown in zip(items, opened, strict=True):
            readable_name, classes = readable(name), self.subject.data_spec.classes
            if isinstance(shown, str):
                yield DensePrediction(readable_name, None, None, classes, shown), None
                continue
            size, answer = next(answers)
            objects, class_map = (answer, None) if isinstance(answer, Found) else (None, ClassMap.of(answer))
            yield DensePrediction(readable_name, objects, class_map, classes, least=self.least, size=size), shown

    def _whole(self, name: str, image: ImageInput, seen: DecodedImage, most: int | None) -> DecodedImage:
        """The same in all its pixels: for a network, as for a store, a JPEG may be decoded at a fraction of them."""
        if seen.pixels.shape[:2] == (seen.height, seen.width):
            return seen
        if not isinstance(image, (Path, Unreadable, *DECODED)):
            image.seek(0)
        return decoded(name, image, 1 << 20, self.pixel_format, most)

    def _answers(self, squeezed: list[torch.Tensor], sizes: list[tuple[int, int]]) -> Iterator[Any]:
        if not squeezed:
            return iter(())
        count = len(squeezed)
        records = Records(torch.full((count,), -1), torch.tensor(sizes), [""] * count)
        images = CachedImages(torch.stack(squeezed), torch.arange(count), records)
        if isinstance(self.subject.network, Segmenter):
            return classify_pixels(self.subject, images)
        return find(self.subject, images)


def _draw(folder: Path, number: int, prediction: DensePrediction, picture: Image.Image) -> None:
    """NUMBER-NAME.png a picture; of a segmenter NUMBER-NAME-classes.png besides, indexed by class."""
    path = folder / f"{number:04}-{Path(prediction.name).stem}.png"
    _save(path, Image.fromarray(drawn(prediction, np.asarray(picture))))
    if prediction.class_map is not None:
        _save(path.with_name(f"{path.stem}-classes.png"), indexed(prediction))


def _save(path: Path, picture: Image.Image) -> None:
    with replacing(path) as part:
        picture.save(part, format="PNG")
