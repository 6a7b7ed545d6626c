# SPDX-License-Identifier: Apache-2.0
"""Which views of an image a trained classifier is asked about, where validation images are to tell."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..data.image_set import Images
from ..models.views import EVERY, NAMED, VIEWS, Views, views_in
from ..models.weights.files import note, read_config
from ..text import tell
from ..training.run_folder import RunFolder
from .accuracy import Predictions, collect
from .subject import of_run


class EachView(nn.Module):
    """What a network says of every view by itself, one after the other: [B, C, H, W] -> [B, V K]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.network(view.of(images)) for view in EVERY], 1)


def settle_views(run: RunFolder, images: Images, score: Callable[[Predictions], float]) -> None:
    """Choose the views of the weights that count, once, and write their name beside all weights of a run.

    What is settled stays: files that were exported since answer so. A run that is resumed writes its last weights anew,
    which then get the same.

    Args:
        run: with weights.
        images: its validation images.
        score: of predictions, a share; the highest is chosen, of equals the fewest views.
    """
    which = run.which()
    settled = read_config(run.weights(which[0])).get(VIEWS) or _best_views(run, images, score)
    for weights in reversed(which):  # those that count last: with them it is settled
        if VIEWS not in read_config(run.weights(weights)):
            note(run.weights(weights), {VIEWS: settled})


def _best_views(run: RunFolder, images: Images, score: Callable[[Predictions], float]) -> Views:
    subject = of_run(run)

    def probabilities(logits: Tensor) -> Tensor:
        return torch.cat([subject.data_spec.probabilities(each) for each in logits.chunk(len(EVERY), 1)], 1)

    predictions = collect(EachView(subject.network), subject.batches(images), images.records.names, probabilities)
    alone = dict(zip(EVERY, predictions.probabilities.chunk(len(EVERY), 1), strict=True))

    def worth(name: Views) -> float:
        return score(replace(predictions, probabilities=torch.stack([alone[view] for view in NAMED[name]]).mean(0)))

    scores = {name: worth(name) for name in NAMED}
    best = max(scores, key=lambda name: scores[name])
    listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in scores.items())
    tell(f"views    {best}, by {len(images):,} validation images: {listed}")
    return best


def keep_times_asked(run: RunFolder) -> None:
    """Write into run.json how often the weights that count are asked about an image, where it was or is not once."""
    times = len(NAMED[views_in(read_config(run.weights(run.which()[0])))])
    if times != run.read("run.json").get("views", 1):
        run.update(views=times)
