# SPDX-License-Identifier: Apache-2.0
"""Changes of a student's predictions when images are prepared by timm's transform instead of `predict`'s.

`predict` prepares images as in evaluation: decoded (large JPEGs at a fraction of their size), resized to the size of
the cache, then cropped and resized. timm's transform, which programs around timm use, resizes the original once. Both
are sound, and they are not equal.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform

from ...data.images.decode import DECODED
from ...data.images.format import RGB
from ...data.sources.source import Source
from ...errors import UserError
from ...evaluation.inputs import open_items
from ...evaluation.model import EvaluatedModel, of_run
from ...models.weights.files import read_config
from ...tasks.image_task import outputs_of
from ...training.data import open_for
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of, own_data

MAX_IMAGES = 64


@dataclass(frozen=True)
class PreparationGap:
    """Differences between probabilities by `predict` and by timm's transform, for the same images."""

    images: int
    largest: float
    mean: float
    same: float

    @property
    def visible(self) -> bool:
        """True if there is any difference in the printed digits."""
        return round(self.largest, 3) > 0 or self.same < 1

    def __str__(self) -> str:
        return (
            f"with timm's transform instead, a probability changes by {self.largest:.3f} at most, {self.mean:.3f} on "
            f"average, and {self.same:.1%} of {self.images} images have the same class"
        )


def compare_preparations(run: RunFolder, weights: str = "") -> PreparationGap | None:
    """Compare on held-out images, or on training images if there are no others.

    Returns: the differences; None without the run's images (moved, on the Hub, or an object of a Python program, whose
        name may be that of another set), or if they are not color pictures, which alone timm's transform reads.
    """
    if not (run.path / "split.json").exists():
        return None
    recipe, data = config_of(run), run.read("run.json")["data"]
    if data.get("given") is not None or recipe.images.pixel_format != RGB:
        return None
    try:
        source = open_for(recipe, own_data(run), unlabeled=False)
    except UserError:
        return None
    if not isinstance(source, Source):
        return None
    names = run.image_names
    of_split = names.get("test") or names.get("val") or names["train"]
    place_of = {name: i for i, name in enumerate(source.names)}
    selected = of_split[:: max(1, len(of_split) // MAX_IMAGES)][:MAX_IMAGES]
    places = [place_of[name] for name in selected if name in place_of]
    if not places:
        return None
    weights = weights or run.which()[0]
    model = of_run(run, weights)
    ours, theirs = _by_predict(model, source, places), _by_timm(model, run, weights, source, places)
    change = (ours - theirs).abs().amax(1)
    same = (ours.argmax(1) == theirs.argmax(1)).float().mean()
    return PreparationGap(len(places), float(change.max()), float(change.mean()), float(same))


def _by_predict(model: EvaluatedModel, source: Source, places: list[int]) -> torch.Tensor:
    """Return probabilities [N, C] by `predict`."""
    with ExitStack() as opened:
        items = []
        for i in places:
            image = source.reader.open(i)
            if not isinstance(image, DECODED):
                opened.callback(image.close)
            items.append((source.names[i], image))
        decoded = open_items(model, items)
    if any(decoded.errors):
        raise UserError(f"{source.name} holds test images that can no longer be read; restore them")
    return torch.tensor(outputs_of(model, decoded))


@torch.inference_mode()
def _by_timm(model: EvaluatedModel, run: RunFolder, weights: str, source: Source, places: list[int]) -> torch.Tensor:
    """Return probabilities [N, C] by timm's transform, as config.json describes it."""
    described = read_config(run.weights(weights))["pretrained_cfg"]
    transform = create_transform(**resolve_data_config(described))  # type: ignore[no-untyped-call]
    images = torch.stack([torch.as_tensor(transform(source.read(i))) for i in places])
    return model.tta_network(images.to(model.device)).float().softmax(1).cpu()
