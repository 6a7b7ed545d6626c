# SPDX-License-Identifier: Apache-2.0
"""Find objects in images that a person names or holds, or tell their pixels apart."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ...data.decode import Unreadable
from ...data.images import Records, StoredImages
from ...data.resample import squeeze
from ...data.sources.source import readable
from ...disk import replacing
from ...errors import UserError
from ...models.dense.segmenter import Segmenter
from ...outputs import check_out
from ...training.rundir import RunDir
from ...training.session import recipe_of
from ..given import Pixels
from ..predict import _decoded, _items
from .asked import BATCH, Found, Looker, classify_pixels, find, looker_of
from .draw import draw_classes, draw_found, palette
from .results import read_dense

LEAST = 0.5  # score of what is drawn, where the run was not judged


@dataclass(frozen=True, eq=False)
class DensePrediction:
    """What is found in one image.

    Args:
        name: the file; bytes of its name that are no text as Python escapes.
        objects: of a detector; None of a segmenter, or where the image could not be read.
        pixels: classes [H, W] of a segmenter; None of a detector.
        classes: names.
        error: why the image could not be read.
        least: score from which an object counts and is drawn; `objects` holds the uncertain ones, too.
    """

    name: str
    objects: Found | None
    pixels: NDArray[np.uint8] | None
    classes: tuple[str, ...]
    error: str = ""
    least: float = 0.0

    def counts(self) -> dict[str, float]:
        """Objects of each class that occurs, with a score of at least `least`, or shares of the pixels."""
        if self.objects is not None:
            certain = self.objects.labels[self.objects.scores >= self.least]
            numbers = np.bincount(certain, minlength=len(self.classes))
            return {name: int(number) for name, number in zip(self.classes, numbers, strict=True) if number}
        if self.pixels is None:
            return {}
        shares = np.bincount(self.pixels.ravel(), minlength=len(self.classes)) / self.pixels.size
        return {name: float(share) for name, share in zip(self.classes, shares, strict=True) if share}


def predict_dense(run: RunDir, weights: str, images: Sequence[Path | Pixels], out: str = "") -> list[DensePrediction]:
    """Look at files, folders' images and pixels, in the order given.

    Args:
        run: a run of a detector or a segmenter.
        weights: best, last or ema.
        images: as for `predict.classify`.
        out: a .json file of COCO's results (objects), or a folder of pictures; "" writes nothing.

    Raises: UserError if there is nothing to look at or to write to.
    """
    looker = looker_of(run, weights)
    if out.endswith(".json") and isinstance(looker.network, Segmenter):
        raise UserError(f"a segmenter's answers are pictures; name a folder, got --out {out}")
    if out.endswith(".json"):
        check_out(out, ".json")
    elif out and (Path(out).suffix or Path(out).is_file()):
        raise UserError(f"--out must be a .json file or a folder of pictures, got {out}")
    items = [item for i, image in enumerate(images) for item in _items(i, image)]
    if not items:
        raise UserError("no images in what was named; name image files, or folders that hold some")
    side = recipe_of(run).section("images").store_size
    judged = read_dense(run)
    least = getattr(judged.counting, "threshold", LEAST) if judged and judged.counting else LEAST
    found: list[DensePrediction] = []
    for start in range(0, len(items), BATCH):
        part = items[start : start + BATCH]
        seen = _looked(looker, part, side, least)
        found += [prediction for prediction, _ in seen]
        if out and not out.endswith(".json"):
            _draw(Path(out), start, seen)
    if all(prediction.error for prediction in found):
        raise UserError(f"no image could be read; {found[0].name}: {found[0].error}")
    if out.endswith(".json"):
        with replacing(Path(out)) as unfinished:
            unfinished.write_text(json.dumps(coco_results(found), indent=1) + "\n", encoding="utf-8")
    return found


def coco_results(found: Sequence[DensePrediction]) -> list[dict[str, Any]]:
    """Objects as COCO lists results. Images and classes are numbered from 1 in their order, and named besides."""
    rows = []
    for number, prediction in enumerate(found, 1):
        if prediction.objects is None:
            continue
        objects = prediction.objects
        for i, (box, score, label) in enumerate(
            zip(objects.boxes.tolist(), objects.scores.tolist(), objects.labels.tolist(), strict=True)
        ):
            left, top, right, bottom = box
            row: dict[str, Any] = {
                "image_id": number,
                "file_name": prediction.name,
                "category_id": label + 1,
                "category": prediction.classes[label],
                "bbox": [round(value, 2) for value in (left, top, right - left, bottom - top)],
                "score": round(score, 5),
            }
            rows.append(row if objects.outlines is None else {**row, "segmentation": objects.outlines[i]})
    return rows


def _looked(
    looker: Looker, items: Sequence[tuple[str, Path | Pixels]], side: int, least: float
) -> list[tuple[DensePrediction, Pixels]]:
    """One prediction an item with its upright image, in their order."""
    opened: list[Image.Image | str] = []
    for name, image in items:
        try:
            opened.append(_decoded(name, image, 1 << 20).image)  # as large as it is
        except Unreadable as error:
            opened.append(error.reason)
        except OSError as error:
            opened.append(error.strerror or str(error))
    pictures = [picture for picture in opened if not isinstance(picture, str)]
    answers: Iterator[Any] = iter(())
    if pictures:
        pixels = torch.stack([torch.from_numpy(squeeze(np.array(p), side)).permute(2, 0, 1) for p in pictures])
        sizes = torch.tensor([[picture.height, picture.width] for picture in pictures])
        count = len(pictures)
        images = StoredImages(pixels, torch.arange(count), Records(torch.full((count,), -1), sizes, [""] * count))
        answers = classify_pixels(looker, images) if isinstance(looker.network, Segmenter) else find(looker, images)
    rows = []
    for (name, _), picture in zip(items, opened, strict=True):
        shown, classes = readable(name), looker.task.classes
        if isinstance(picture, str):
            rows.append((DensePrediction(shown, None, None, classes, picture), np.zeros((1, 1, 3), np.uint8)))
            continue
        answer = next(answers)
        objects, said = (answer, None) if isinstance(answer, Found) else (None, answer)
        rows.append((DensePrediction(shown, objects, said, classes, least=least), np.asarray(picture)))
    return rows


def _draw(folder: Path, start: int, seen: Sequence[tuple[DensePrediction, Pixels]]) -> None:
    """NUMBER-NAME.png a picture; of a segmenter NUMBER-NAME-classes.png besides, indexed by class."""
    for number, (prediction, image) in enumerate(seen, start + 1):
        path = folder / f"{number:04}-{Path(prediction.name).stem}.png"
        if prediction.objects is not None:
            _save(path, Image.fromarray(draw_found(image, prediction.objects, prediction.classes, prediction.least)))
        elif prediction.pixels is not None:
            _save(path, Image.fromarray(draw_classes(image, prediction.pixels)))
            indexed = Image.fromarray(prediction.pixels, mode="P")
            indexed.putpalette(palette(len(prediction.classes)))
            _save(path.with_name(f"{path.stem}-classes.png"), indexed)


def _save(path: Path, picture: Image.Image) -> None:
    with replacing(path) as part:
        picture.save(part, format="PNG")
