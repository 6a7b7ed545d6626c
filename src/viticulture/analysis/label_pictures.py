# SPDX-License-Identifier: Apache-2.0
"""What a page shows of images with several labels: the most wrong ones, examples of each label, where a ViT looks."""

from collections.abc import Sequence

import numpy as np

from ..data.dataset import Dataset
from ..data.images.format import displayed
from ..evaluation.multilabel.judge import EvaluatedLabels
from ..evaluation.multilabel.labels import LabelsEvaluation
from ..evaluation.results import Result
from ..evaluation.subject import of_run
from ..training.run_folder import RunFolder
from .galleries import FILE, Gallery, Group, keep_galleries
from .pictures import MISTAKES, examples, fine_attention

NAMED = 4  # labels below an image


def gather_label_pictures(run: RunFolder, dataset: Dataset, evaluated: EvaluatedLabels) -> None:
    """Write pictures.npz: `mistakes`, `examples` and `attention`."""
    note = displayed(len(dataset.mean))
    galleries: dict[str, Sequence[Gallery]] = {"examples": examples(dataset.train, dataset.classes, note.strip())}
    if evaluated.counts:
        counting = evaluated.results[evaluated.counts]
        galleries["mistakes"] = label_mistakes(counting, dataset.classes, note)
        galleries["attention"] = fine_attention(of_run(run, evaluated.counts.partition("/")[0]), counting.images)
    keep_galleries(run.path / FILE, galleries)


def label_mistakes(result: Result[LabelsEvaluation], classes: Sequence[str], more: str = "") -> list[Gallery]:
    """Images with a wrong label at the thresholds, those first whose labels were held least likely; `more` is below."""
    probabilities, truth = result.predictions.probabilities.numpy(), result.predictions.labels.numpy() > 0
    predicted = probabilities >= np.array([score.threshold for score in result.evaluation.per_label])
    likelihood = np.where(truth, probabilities, 1 - probabilities).clip(1e-30)
    order = np.argsort(np.log(likelihood).sum(1), kind="stable")
    wrong = [int(i) for i in order if (predicted[i] != truth[i]).any()][:MISTAKES]
    groups: list[Group] = []
    for i in wrong:
        lines = []
        for word, labels in (("says", predicted[i] & ~truth[i]), ("misses", truth[i] & ~predicted[i])):
            named = [f"{classes[c]} {100 * probabilities[i, c]:.0f}\u00a0%" for c in np.flatnonzero(labels).tolist()]
            rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
            lines += [f"{word} {', '.join(named[:NAMED])}{rest}"] if named else []
        groups.append(([result.images.original(i)], [*lines, result.images.records.names[i].rsplit("/", 1)[-1]]))
    note = "Said or missed at each label's threshold, with its probability; labels that are right are left out."
    return [Gallery("", groups, note + more)] if groups else []
