# SPDX-License-Identifier: Apache-2.0
"""How far a student's answers move when an image is prepared by other hands than `predict`'s.

`predict` shows a student what it was evaluated on: an image decoded (large JPEGs at a fraction of their size), squeezed
to the store's size, then cropped and resized. timm's transform, which programs around timm use, resizes the original
once. Both are sound, and they are not equal.
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

MOST = 64  # images


@dataclass(frozen=True)
class Moved:
    """Probabilities by `predict` beside those by timm's transform, of the same images.

    Args:
        images: how many.
        largest: change of any probability.
        mean: over images, of the largest change of a probability.
        same: share of the images that keep their class.
    """

    images: int
    largest: float
    mean: float
    same: float

    @property
    def matters(self) -> bool:
        """Whether anything moves, by the digits that are told."""
        return round(self.largest, 3) > 0 or self.same < 1

    def __str__(self) -> str:
        return (
            f"fed by timm's transform instead, a probability moves by {self.largest:.3f} at most, {self.mean:.3f} on "
            f"average, and {self.same:.1%} of {self.images} images keep their class"
        )


def by_timms_transform(run: RunFolder, weights: str = "") -> Moved | None:
    """Compare on images that did not teach, or on training images where there are no others.

    Args:
        run: a run that learnt classes.
        weights: best, last or ema; by default those that count.

    Returns: what was found; None where the run's images are not here any more, or never were, as of one on the Hub or
        one that learnt from an object of a Python program, whose name may be another set's; or where they are no
        pictures in color, which alone timm's transform reads.
    """
    if not (run.path / "split.json").exists():
        return None
    recipe, data = config_of(run), run.read("run.json")["data"]
    if data.get("given") is not None or recipe.images.pixel_format != RGB:
        return None
    try:
        source = open_for(recipe, own_data(run))
    except UserError:
        return None
    if not isinstance(source, Source):
        return None
    names = run.image_names
    of_split = names.get("test") or names.get("val") or names["train"]
    known = {name: i for i, name in enumerate(source.names)}
    places = [known[name] for name in of_split[:: max(1, len(of_split) // MOST)][:MOST] if name in known]
    if not places:
        return None
    weights = weights or run.which()[0]
    subject = of_run(run, weights)
    ours, theirs = _ours(subject, source, places), _theirs(subject, run, weights, source, places)
    change = (ours - theirs).abs().amax(1)
    same = (ours.argmax(1) == theirs.argmax(1)).float().mean()
    return Moved(len(places), float(change.max()), float(change.mean()), float(same))


def _ours(subject: EvaluatedModel, source: Source, places: list[int]) -> torch.Tensor:
    """Probabilities [N, C] by `predict`."""
    with ExitStack() as opened:
        items = []
        for i in places:
            image = source.reader.open(i)
            if not isinstance(image, DECODED):
                opened.callback(image.close)
            items.append((source.names[i], image))
        decoded = open_items(subject, items)
    if any(decoded.errors):
        raise UserError(f"{source.name} holds test images that cannot be read any more; bring them back")
    return torch.tensor(outputs_of(subject, decoded))


@torch.inference_mode()
def _theirs(subject: EvaluatedModel, run: RunFolder, weights: str, source: Source, places: list[int]) -> torch.Tensor:
    """Probabilities [N, C] by timm's transform, as config.json describes it."""
    described = read_config(run.weights(weights))["pretrained_cfg"]
    transform = create_transform(**resolve_data_config(described))  # type: ignore[no-untyped-call]
    images = torch.stack([torch.as_tensor(transform(source.read(i))) for i in places])
    return subject.tta_network(images.to(subject.device)).float().softmax(1).cpu()
