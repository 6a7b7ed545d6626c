# SPDX-License-Identifier: Apache-2.0
"""The page of a classifier's results: its answer, charts and tables."""

import json
from collections.abc import Mapping, Sequence

from ..analysis.galleries import Gallery
from ..evaluation.model import ONE_HEAD
from ..scores.calibration import MIN_IMAGES as MIN_FITTED
from ..scores.confusion import most_confused
from ..table import Cell, Column, Table, percent
from .classification_metrics import ClassificationResult, ReliabilityBin, Uncalibrated, joined
from .figures import HeatMap, LineChart, Part, Pictures, RowChart, TaskPage, TaskSection
from .results import Results, named
from .task import compared

MAX_DRAWN_CLASSES = 250
MIN_IMAGES = 10  # of a dot of the calibration curve


def classification_page(
    results: Results[ClassificationResult],
    references: Mapping[str, float],
    trained_on: Sequence[int] = (),
    mistakes: Sequence[Gallery] = (),
) -> TaskPage:
    """The parts of a page."""
    result, (weights, split) = results.counting, named(results.counts)
    assert result is not None
    low, high = result.top1_interval
    words = (
        f"It classifies {percent(result.top1)} (95 % interval {100 * low:.1f} to {100 * high:.1f}) of "
        f"{result.images:,} {split} images correctly"
    )
    others, near = compared(references), copies_sentence(result, split)
    answer = f"{words}; {', '.join(others)}." if others else f"{words}."
    rows = RowChart(
        "Compared with methods that learn no features",
        {f"this student, {weights} weights": result.top1, **references},
        f"top-1 accuracy on {split}, %",
    )
    first = TaskSection("Results", [summary(results), [*([rows] if references else []), _calibration(result)]], True)
    interval = f"{100 * low:.1f}–{100 * high:.1f} %"
    tile = f"Top-1 accuracy, {split}, {weights} weights", percent(result.top1)
    return TaskPage(
        f"{answer} {near}." if near else answer,
        (*tile, f"95 % interval {interval} (Wilson, {result.images:,} images)"),
        [first],
        [*_classes(result, trained_on), TaskSection("Most confident mistakes", [Pictures(mistakes)])],
        references,
    )


def _calibration(result: ClassificationResult) -> LineChart:
    dots, before = joined(result.reliability, MIN_IMAGES), result.uncalibrated
    note = f"On average confidence and accuracy differ by {_error(result)} points (expected calibration error). "
    if before is None:
        note += f"Not calibrated: that takes {MIN_FITTED} validation images. "
    else:
        note += (
            f"Calibrated by temperature {result.temperature:.2f}, fitted on images not trained on; before, by "
            f"{_error(before)} points. "
        )
    title = "Calibration: is it as accurate as it is confident?"
    if len(dots) < 2:
        return LineChart(
            title, {}, "", "", f"{note}{result.images:,} images of this confidence are too few for a curve."
        )
    lines = {"this student": _percents(dots), "perfect calibration": [(0.0, 0.0), (100.0, 100.0)]}
    if before is not None:
        lines["before calibration"] = _percents(joined(before.reliability, MIN_IMAGES))
    return LineChart(
        title, lines, "confidence, %", "accuracy, %", f"{note}Each dot represents at least {MIN_IMAGES} images."
    )


def _percents(dots: Sequence[ReliabilityBin]) -> list[tuple[float, float]]:
    return [(100 * dot.confidence, 100 * dot.accuracy) for dot in dots]


def _error(result: ClassificationResult | Uncalibrated) -> str:
    """Return a calibration error in points with its interval."""
    ends = result.calibration_interval
    interval = f" (95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else ""
    return f"{100 * result.calibration_error:.1f}{interval}"


def _classes(result: ClassificationResult, trained_on: Sequence[int]) -> list[TaskSection]:
    """The confusion matrix and its most frequent pairs, then the scores of every class."""
    names, pairs = [score.name for score in result.per_class], confused(result)
    parts: list[Part] = []
    if len(names) <= MAX_DRAWN_CLASSES:
        note = (
            "Rows are true classes, columns are predictions. The shade grows with the square root of the row's share, "
            "so that rare mistakes are visible. Point at a cell to read it."
        )
        parts.append(HeatMap("Confusion matrix, images", result.confusion, names, note))
    if pairs.rows and len(names) > 2:
        parts.append(pairs)
    return [
        TaskSection("Confusion", parts, side_by_side=len(names) <= 12),
        TaskSection("Classes", [per_class(result, trained_on)], sortable=True),
    ]


def summary(results: Results[ClassificationResult]) -> Table:
    """One column a result, the one that counts first, one row a number; results that are equal share a column."""
    groups: dict[str, list[str]] = {}
    for key, result in results.counting_first.items():
        groups.setdefault(json.dumps([named(key)[1], result.to_dict()]), []).append(key)
    heads = [(" = ".join(named(key)[0] for key in keys), named(keys[0])[1]) for keys in groups.values()]
    every = [results[keys[0]] for keys in groups.values()]
    k = max((each.k for each in every), default=1)
    rows: list[list[Cell]] = [["images", *(f"{each.images:,}" for each in every)]]
    if any(each.rule != ONE_HEAD for each in every):
        rows.append(["predicted by", *(each.rule for each in every)])
    rows += [
        ["top-1 accuracy", *(percent(each.top1) for each in every)],
        ["  95 % interval", *(_interval(each.top1_interval) for each in every)],
    ]
    if any(rest := [each.without_copies for each in every]):
        shares = ["" if each is None or each.top1 is None else percent(each.top1) for each in rest]
        rows.append(["  without near-duplicates", *shares])
        rows.append(["  near-duplicates", *("0" if each is None else f"{each.copies:,}" for each in rest)])
    if not every or k < len(every[0].per_class):  # else true of any guess
        rows.append([f"top-{k} accuracy", *(percent(each.topk) for each in every)])
    rows += [
        ["balanced accuracy", *(percent(each.balanced_accuracy) for each in every)],
        ["macro-F1", *(percent(each.macro_f1) for each in every)],
        ["NLL, nats", *(f"{each.nll:.3f}" for each in every)],
        ["calibration error", *(percent(each.calibration_error) for each in every)],
    ]
    if all(ends := [each.calibration_interval for each in every]):
        rows.append(["  95 % interval", *(_interval(each) for each in ends)])
    if any(raw := [each.uncalibrated for each in every]):
        rows.append(["NLL before calibration", *("" if each is None else f"{each.nll:.3f}" for each in raw)])
        rows.append(["  calibration error", *("" if each is None else percent(each.calibration_error) for each in raw)])
    splits = [split for _, split in heads]
    names = [split if splits.count(split) == 1 else f"{split}, {weights} weights" for weights, split in heads]
    return Table("Evaluation", [Column(""), *(Column(name, "decimal") for name in names)], rows)


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else "{:.1f}–{:.1f} %".format(*(100 * end for end in ends))


def copies_sentence(result: ClassificationResult, split: str) -> str:
    """Count the near-duplicates of training images, and report the accuracy without them; "" for none."""
    rest = result.without_copies
    if rest is None:
        return ""
    have = "has" if rest.copies == 1 else "have"
    words = f"{rest.copies:,} of {result.images:,} {split} images {have} near-duplicates among the training images"
    if rest.top1 is None or rest.top1_interval is None:
        return f"{words}; no others are left to measure"
    low, high = rest.top1_interval
    return f"{words}; without them {percent(rest.top1)} (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def per_class(result: ClassificationResult, trained_on: Sequence[int] = ()) -> Table:
    """Images, precision, recall and F1 of every class, and its training images if known."""
    counted = ["training images", "images"] if trained_on else ["images"]
    columns = [Column("class"), *(Column(name, "count") for name in counted)]
    columns += [Column(name, "percent") for name in ("precision", "recall", "F1")]
    rows: list[list[Cell]] = [
        [each.name, *trained_on[i : i + 1], each.support, each.precision, each.recall, each.f1]
        for i, each in enumerate(result.per_class)
    ]
    return Table("Per class", columns, rows)


def confused(result: ClassificationResult) -> Table:
    """The 20 pairs of classes that are confused most often, in one direction."""
    scores = result.per_class
    rows: list[list[Cell]] = []
    for true, predicted in most_confused(result.confusion, 20):
        images = int(result.confusion[true, predicted])
        rows.append([scores[true].name, scores[predicted].name, images, images / scores[true].support])
    columns = [
        Column("true class"),
        Column("predicted as"),
        Column("images", "count"),
        Column("of the class", "percent"),
    ]
    return Table("Most confused", columns, rows)
