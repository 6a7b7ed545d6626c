# SPDX-License-Identifier: Apache-2.0
"""The tables that the verbs print and the page shows, made from plain data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...evaluation.accuracy import Evaluation
from ...evaluation.model import ONE_HEAD
from ...scores.confusion import most_confused
from ...table import Cell, Column, Table

LONGEST_LIST = 60


@dataclass(frozen=True)
class Evaluated:
    """An evaluation and what was evaluated.

    Args:
        weights: which of a run's weights: `last`, `best`, `ema`.
        split: which images: `validation`, `test`, or a name.
        evaluation: the numbers.
    """

    weights: str
    split: str
    evaluation: Evaluation


def together(evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    """Evaluations whose numbers are the same on a split, such as of the best weights that are the last, as one."""
    groups: dict[str, list[Evaluated]] = {}
    for each in evaluated:
        groups.setdefault(json.dumps([each.split, each.evaluation.to_dict()]), []).append(each)
    return [
        Evaluated(" = ".join(each.weights for each in group), group[0].split, group[0].evaluation)
        for group in groups.values()
    ]


def summary(evaluated: Sequence[Evaluated]) -> Table:
    """One column an evaluation, one row a number."""
    evaluated = together(evaluated)
    evaluations = [each.evaluation for each in evaluated]
    k = max((each.k for each in evaluations), default=1)
    rows: list[list[Cell]] = [
        ["images", *(f"{each.images:,}" for each in evaluations)],
        ["top-1 accuracy", *(percent(each.top1) for each in evaluations)],
        ["  95 % interval", *(interval(each) for each in evaluations)],
        [f"top-{k} accuracy", *(percent(each.topk) for each in evaluations)],
        ["balanced accuracy", *(percent(each.balanced_accuracy) for each in evaluations)],
        ["macro-F1", *(percent(each.macro_f1) for each in evaluations)],
        ["NLL, nats", *(f"{each.nll:.3f}" for each in evaluations)],
        ["calibration error", *(percent(each.calibration_error) for each in evaluations)],
    ]
    if evaluations and k >= len(evaluations[0].per_class):  # true of any guess
        del rows[3]
    if any(each.rule != ONE_HEAD for each in evaluations):
        rows.insert(1, ["answered by", *(each.rule for each in evaluations)])
    rest = [each.without_copies for each in evaluations]
    if any(rest):
        at = next(i for i, row in enumerate(rows) if row[0] == "  95 % interval") + 1
        rows[at:at] = [
            [
                "  without near-duplicates",
                *("" if each is None or each.top1 is None else percent(each.top1) for each in rest),
            ],
            ["  near-duplicates", *("0" if each is None else f"{each.copies:,}" for each in rest)],
        ]
    splits = [each.split for each in evaluated]
    heads = [s if splits.count(s) == 1 else f"{s}, {e.weights} weights" for s, e in zip(splits, evaluated, strict=True)]
    columns = [Column(""), *(Column(head, "decimal") for head in heads)]
    return Table("Evaluation", columns, rows)


def copies_sentence(evaluation: Evaluation, split: str) -> str:
    """Return the number of images with near-duplicates among the training images, and the accuracy without them."""
    rest = evaluation.without_copies
    if rest is None:
        return ""
    have = "has" if rest.copies == 1 else "have"
    words = f"{rest.copies:,} of {evaluation.images:,} {split} images {have} near-duplicates among the training images"
    if rest.top1 is None or rest.top1_interval is None:
        return f"{words}; no others are left to measure"
    low, high = rest.top1_interval
    return f"{words}; without them {percent(rest.top1)} (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def per_class(evaluation: Evaluation, learnt_from: Sequence[int] = ()) -> Table:
    """Images, precision, recall and F1 of every class.

    Args:
        evaluation: the scores.
        learnt_from: training images of each class, as far as known.
    """
    columns = [Column("class"), *([Column("learnt from", "count")] if learnt_from else []), Column("images", "count")]
    columns += [Column(name, "percent") for name in ("precision", "recall", "F1")]
    rows = [
        (each.name, *learnt_from[i : i + 1], each.support, each.precision, each.recall, each.f1)
        for i, each in enumerate(evaluation.per_class)
    ]
    return Table("Per class", columns, rows)


def confused(evaluation: Evaluation) -> Table:
    """The 20 pairs of classes that are taken for one another most often, in one direction."""
    scores, rows = evaluation.per_class, []
    for true, predicted in most_confused(evaluation.confusion, 20):
        images = int(evaluation.confusion[true, predicted])
        rows.append((scores[true].name, scores[predicted].name, images, images / scores[true].support))
    columns = [Column("true class"), Column("taken for"), Column("images", "count"), Column("of the class", "percent")]
    return Table("Most confused", columns, rows)


def percent(share: float) -> str:
    """0.7344 -> 73.4 %."""
    return f"{100 * share:.1f} %"


def interval(evaluation: Evaluation) -> str:
    """The interval of top-1 accuracy in words."""
    low, high = evaluation.top1_interval
    return f"{100 * low:.1f}–{100 * high:.1f} %"
