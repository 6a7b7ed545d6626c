# SPDX-License-Identifier: Apache-2.0
"""A network's outputs for many images, and the choice of the views of an image over which they are averaged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.image_set import Images
from ..errors import UserError
from ..models.tta import ALL_VIEWS, TTA_KEY, TTA_VIEWS, TTAMode, tta_mode
from ..models.weights.files import note, read_config
from ..text import log
from ..training.run_folder import RunFolder
from .model import ONE_HEAD, of_run


@dataclass(frozen=True)
class Predictions:
    """A network's predictions for N images.

    Args:
        probabilities: [N, C] float32, rows sum to 1; or other outputs [N, K].
        labels: [N] int64, the true class; -1 without a label. Of several labels an image [N, C], as rows of
            probabilities, which then are float64 and need no sum.
        rule: which heads and views made them, see `OutputHeads.rule_with`.
        temperature: by which they are calibrated; () where they are not.
        uncalibrated: the same before; None where they are not calibrated.
    """

    probabilities: Tensor
    labels: Tensor
    names: Sequence[str]
    rule: str = ONE_HEAD
    temperature: tuple[float, ...] = ()
    uncalibrated: Tensor | None = None


def softmax(logits: Tensor) -> Tensor:
    """Probabilities of classes of which an image shows one, [B, C] float32."""
    return logits.float().softmax(-1)


@torch.inference_mode()
def collect(
    student: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    names: Sequence[str],
    probabilities: Callable[[Any], Tensor] = softmax,
) -> Predictions:
    """Compute a student's outputs for every image of a split, once; its mode is restored.

    Args:
        student: [B, 3, H, W] -> [B, C] in eval mode (a student with several token heads returns their mean).
        batches: `image`, `label`, `index` on the student's device; together every image of the split, in any order.
    """
    modes = [(module, module.training) for module in student.modules()]
    student.eval()
    collected: Tensor | None = None
    labels, seen = torch.empty(0), torch.zeros(len(names), dtype=torch.bool)
    try:
        for batch in batches:
            predicted, label = probabilities(student(batch["image"])).cpu(), batch["label"].cpu()
            if collected is None:
                collected = predicted.new_zeros(len(names), predicted.shape[-1])
                labels = label.new_zeros(len(names), *label.shape[1:])
            index = batch["index"].cpu()
            collected[index], labels[index], seen[index] = predicted, label, True
    finally:
        for module, training in modes:
            module.training = training
    if collected is None or not seen.all():
        missing = len(names) if collected is None else int((~seen).sum())
        raise ValueError(f"batches must hold every image of the split; {missing} of {len(names)} did not come")
    return Predictions(collected, labels, names)


def check_finite(probabilities: Tensor) -> None:
    """Raises: UserError unless outputs [N, C] are finite."""
    if broken := int((~probabilities.isfinite()).any(1).sum()):
        counted = f"{broken} of {len(probabilities)} images"
        raise UserError(f"the student's outputs are not finite for {counted}; were its weights trained?")


class EachView(nn.Module):
    """A network's logits of every view, one after the other: [B, C, H, W] -> [B, V K]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.network(view.of(images)) for view in ALL_VIEWS], 1)


def choose_views(run: RunFolder, images: Images, score: Callable[[Predictions], float], share: bool = True) -> None:
    """Choose the views of the weights that count, once, and write their name to all weights of a run.

    The choice stays, as exported files contain it. A resumed run writes its last weights again, with the same choice.

    Args:
        score: of predictions; the highest is chosen, among equals the fewest views.
        share: the score is one, written in percent.
    """
    which = run.which()
    chosen = read_config(run.weights(which[0])).get(TTA_KEY) or _best_views(run, images, score, share)
    for weights in reversed(which):  # those that count last: with them it is settled
        if TTA_KEY not in read_config(run.weights(weights)):
            note(run.weights(weights), {TTA_KEY: chosen})


def _best_views(run: RunFolder, images: Images, score: Callable[[Predictions], float], share: bool) -> TTAMode:
    model = of_run(run)

    def probabilities(logits: Tensor) -> Tensor:
        return torch.cat([model.data_spec.probabilities(each) for each in logits.chunk(len(ALL_VIEWS), 1)], 1)

    predictions = collect(EachView(model.network), model.batches(images), images.records.names, probabilities)
    single = dict(zip(ALL_VIEWS, predictions.probabilities.chunk(len(ALL_VIEWS), 1), strict=True))

    def worth(name: TTAMode) -> float:
        return score(
            replace(predictions, probabilities=torch.stack([single[view] for view in TTA_VIEWS[name]]).mean(0))
        )

    scores = {name: worth(name) for name in TTA_VIEWS}
    best = max(scores, key=lambda name: scores[name])
    listed = ", ".join(
        f"{name} {100 * value:.1f} %" if share else f"{name} {value:.4g}" for name, value in scores.items()
    )
    log(f"views    {best}: test-time augmentation chosen on {len(images):,} validation images ({listed})")
    return best


def save_num_views(run: RunFolder) -> None:
    """Write into run.json how many views of an image the weights that count see, where it was or is not one."""
    times = len(TTA_VIEWS[tta_mode(read_config(run.weights(run.which()[0])))])
    if times != run.read("run.json").get("views", 1):
        run.update(views=times)
