# SPDX-License-Identifier: Apache-2.0
"""Which views of an image a trained classifier is asked about, where validation images are to tell."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ..data.images import Images
from ..models.views import EVERY, NAMED, VIEWS, SeveralViews, Views
from ..models.weights.files import note
from ..training.rundir import RunDir
from .accuracy import Predictions, collect
from .subject import of_run


def settle_views(run: RunDir, images: Images, score: Callable[[Predictions], float]) -> Views:
    """Choose the views of the weights that count, and write their name beside all weights of a run.

    Args:
        run: with weights.
        images: its validation images.
        score: of predictions; the highest is chosen, of equals the fewest views.
    """
    subject = of_run(run)
    alone = {
        view: collect(
            SeveralViews(subject.network, [view], subject.task.several), subject.batches(images),
            images.records.names, subject.task.probabilities,
        )
        for view in EVERY
    }  # fmt: skip

    def worth(name: Views) -> float:
        said = [alone[view] for view in NAMED[name]]
        return score(replace(said[0], probabilities=torch.stack([each.probabilities for each in said]).mean(0)))

    chosen = max(NAMED, key=worth)
    for weights in run.which():
        note(run.weights(weights), {VIEWS: chosen})
    return chosen
