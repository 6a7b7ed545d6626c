# SPDX-License-Identifier: Apache-2.0
"""One training on one self-contained page."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from ..analysis.galleries import Gallery
from ..evaluation.accuracy import Evaluation, joined
from ..table import duration, number, scaled
from .html import Head, Markup, Section, Tile, document, fill, html_table, properties, side_by_side
from .pictures import galleries, heat_map
from .svg import Axes, Points, Series, line_chart, row_chart
from .tables.results import Evaluated, confused, copies_sentence, interval, per_class, percent, summary

MAX_CLASSES_DRAWN = 250
MIN_IMAGES = 10
"""Of a dot of the calibration curve; of fewer images it is not reliable."""
TRAIN = "train: means over the batches of an epoch, of augmented images, each before its optimizer step."

FRACTIONS = ("ap50", "iou", "balanced_accuracy", "accuracy", "map")
"""Measures in [0, 1]; drawn first, in percent."""

TITLES = {
    "loss": ("Loss, all terms", "loss"),
    "accuracy": ("Accuracy, %", "%"),
    "lr": ("Learning rate", "rate"),
    "ap50": ("AP at an overlap of 50 %, mean over images, %", "%"),
    "iou": ("mIoU, mean over images, %", "%"),
    "map": ("mAP, mean over batches of up to 256 images, %", "%"),
    "images_per_second": ("Training speed, images/s", "images/s"),
    "attention_link_weight": ("Weight of the attention links (lambda)", "weight"),
    "teacher_entropy": ("Entropy of the teacher's predictions", "nats"),
    "bootstrap_gradient_cosine": ("Shared weights: cosine between the student's and the agent's gradients", "cosine"),
    "bootstrap_gradient_conflict": ("Shared weights: fraction of steps with conflicting gradients", "fraction"),
    "bootstrap_feature_scale": ("Factor of the feature weight by its decay", "factor"),
}


@dataclass(frozen=True)
class Costs:
    """Size of the student and cost of its training; None is shown as n/a.

    Args:
        parameters: of the student alone.
        macs: for one image, or one view of it.
        images_per_second: of the training, guides included.
        training_seconds: wall time.
        views: of an image, by test-time augmentation.
    """

    parameters: int | None = None
    macs: int | None = None
    images_per_second: float | None = None
    training_seconds: float | None = None
    views: int = 1


@dataclass(frozen=True)
class RunPage:
    """Plain data of one run; empty parts are left out of the page.

    Args:
        title: of the page.
        sentence: the data and the student.
        state: of a run that is not finished; the page then reloads itself.
        evaluations: the first one is the headline's, the matrix's and the class table's.
        costs: see `Costs`.
        references: accuracies of chance and of simple classifiers on the first evaluation's images, by name.
        learnt_from: training images of each class.
        best_epoch: of the best weights, from 1; None without.
        curves: `train/loss`, `val/accuracy`, `val/GUIDE_accuracy`, `lr`, ... -> (epoch, value); accuracies in [0, 1].
        mistakes: the most confident first.
        examples: of every class.
        warnings: sentences about the data.
        recipe: YAML text.
        reproduce: command, versions, seed, commit, hardware, ... by name.
        leading: sections above the learning curves.
        sections: further sections.
        headline: label, value and note of the main number, where no evaluation holds it.
        answer: the result in a sentence, where no evaluation holds it.
    """

    title: str
    sentence: str
    state: str = ""
    evaluations: Sequence[Evaluated] = ()
    costs: Costs = Costs()
    references: Mapping[str, float] = field(default_factory=dict)
    learnt_from: Sequence[int] = ()
    best_epoch: int | None = None
    curves: Mapping[str, Points] = field(default_factory=dict)
    mistakes: Sequence[Gallery] = ()
    examples: Sequence[Gallery] = ()
    warnings: Sequence[str] = ()
    recipe: str = ""
    reproduce: Mapping[str, str] = field(default_factory=dict)
    leading: Sequence[Section] = ()
    sections: Sequence[Section] = ()
    headline: tuple[str, str, str] | None = None
    answer: str = ""


def render(page: RunPage) -> str:
    """Return the page as HTML text."""
    head = Head(page.title, _conclusion(page), page.sentence, page.warnings, _tiles(page), reloads=bool(page.state))
    sections = [
        Section("Results", _results(page.evaluations, page.references)),
        *page.leading,
        Section("Learning curves", _curves(page)),
        *(_classes(page.evaluations[0].evaluation, page.learnt_from) if page.evaluations else []),
        Section("Most confident mistakes", galleries(page.mistakes)),
        *page.sections,
        Section("Images of each class", galleries(page.examples)),
        Section("Recipe", fill("recipe.html", title="", note="", recipe=page.recipe) if page.recipe else ""),
        Section("How to reproduce it", properties(page.reproduce)),
    ]
    return document(head, sections)


def _conclusion(page: RunPage) -> str:
    """Return the result in a sentence, with the accuracy of chance and of simple classifiers."""
    if page.state or not page.evaluations:
        return page.state or page.answer
    first, split = page.evaluations[0].evaluation, page.evaluations[0].split
    low, high = first.top1_interval
    words = (
        f"It classifies {percent(first.top1)} (95 % interval {100 * low:.1f} to {100 * high:.1f}) of {first.images:,} "
        f"{split} images correctly"
    )
    others = [f"{name} {percent(share)}" for name, share in sorted(page.references.items(), key=lambda item: -item[1])]
    words += f"; {', '.join(others)}." if others else "."
    duplicates = copies_sentence(first, split)
    return f"{words} {duplicates}." if duplicates else words


def _tiles(page: RunPage) -> list[Tile]:
    costs = page.costs
    if page.headline:
        main = Tile(*page.headline, wide=True)
    elif page.evaluations:
        first = page.evaluations[0]
        note = f"95 % interval {interval(first.evaluation)} (Wilson, {first.evaluation.images:,} images)"
        label = f"Top-1 accuracy, {first.split}, {first.weights} weights"
        main = Tile(label, percent(first.evaluation.top1), note, wide=True)
    elif losses := page.curves.get("train/loss_epoch") or page.curves.get("train/loss"):
        main = Tile("Loss", f"{losses[-1][1]:.4g}", "in training, last logged", wide=True)
    else:
        main = Tile("Top-1 accuracy", "n/a", "this run was not evaluated yet", wide=True)
    views = "for one image" if costs.views == 1 else f"per view, {costs.views} views an image"
    return [
        main,
        Tile("Parameters", scaled(costs.parameters), "of the student"),
        Tile("MACs", scaled(costs.macs), views),
        Tile("Training speed", scaled(costs.images_per_second), "images/s"),
        Tile("Training time", duration(costs.training_seconds), "wall clock"),
    ]


def _curves(page: RunPage) -> Markup:
    """Draw one chart per quantity with its splits as lines; losses also with a logarithmic axis."""
    groups: dict[str, dict[str, Points]] = {}
    for key, points in _means(page.curves).items():
        split, slash, quantity = key.partition("/")
        if not slash or split not in ("train", "val", "validation", "test"):
            split, quantity = "last", key
        line = "validation" if split == "val" else split
        if quantity.endswith("accuracy"):  # a guide's network shares the student's chart
            network = quantity.removesuffix("accuracy").strip("_").replace("_", " ")
            quantity, line = "accuracy", f"{line}, {network}" if network else line
        factor = 100 if quantity in FRACTIONS else 1
        groups.setdefault(quantity, {})[line] = [(x, factor * y) for x, y in points]
    rank = {**dict.fromkeys(FRACTIONS, 0), "loss": 1, "lr": 3, "images_per_second": 4}
    charts, any_loss = [], False
    moments = [] if page.best_epoch is None else [("best", page.best_epoch)]
    for quantity in sorted(groups, key=lambda quantity: rank.get(quantity, 2)):
        usual = (f"Loss term: {quantity}", "loss")
        if quantity.endswith("_kl"):
            usual = (f"Divergence (KL): {quantity[:-3]}", "nats")
        title, unit = TITLES.get(quantity, usual)
        if quantity == "accuracy" and "iou" in groups:
            title = "Correct pixels, %"
        lines = _lines(groups[quantity])
        axes = Axes("epoch", unit, moments=moments if quantity in (*FRACTIONS, "loss") else ())
        note = TRAIN if "train" in groups[quantity] and quantity in ("accuracy", "loss") else ""
        if quantity == "accuracy":
            levels = [(name, 100 * share) for name, share in page.references.items()]
            axes = replace(axes, levels=levels)
            note += " Horizontal lines: measured on the images of the results above." if levels else ""
            if page.costs.views > 1:
                note += f" Measured with one view an image; the results above with {page.costs.views}."
        charts.append(line_chart(title, lines, axes, note, kind="linear" if unit == "loss" else ""))
        if unit == "loss":
            any_loss = True
            charts.append(line_chart(title, lines, replace(axes, log_y=True), note, kind="log"))
    return fill("curves.html", charts=charts, any_loss=any_loss) if charts else Markup()


def _means(curves: Mapping[str, Points]) -> dict[str, Points]:
    """Replace single batches by means over epochs, if there are any; leave out a term that equals the loss."""
    means = {key.removesuffix("_epoch"): points for key, points in curves.items() if key.endswith("_epoch")}
    every = {**{key: points for key, points in curves.items() if not key.endswith("_epoch")}, **means}
    same = [key for key in means if key != "train/loss" and every[key] == means.get("train/loss")]
    return {key: points for key, points in every.items() if key not in same}


def _lines(lines: Mapping[str, Points]) -> list[Series]:
    """Return lines over epochs, with their last values in the legend."""
    styles = _styles(lines)
    return [
        Series(name, styles[name], points, legend=number(float(f"{points[-1][1]:.4g}")) if _is_known(points) else "")
        for name, points in lines.items()
    ]


def _is_known(points: Points) -> bool:
    return bool(points) and isfinite(points[-1][1])


def _styles(names: Iterable[str]) -> dict[str, int]:
    """Number the lines: splits have the same style in every chart, other lines take the remaining ones in turn."""
    names, fixed = list(names), {"train": 0, "validation": 1, "test": 2}
    free = itertools.cycle(k for k in range(6) if k not in {fixed.get(name) for name in names})
    return {name: fixed[name] if name in fixed else next(free) for name in names}


def _results(evaluations: Sequence[Evaluated], references: Mapping[str, float]) -> Markup:
    """Return every evaluation's numbers, simple classifiers for reference, and the calibration of the first one."""
    if not evaluations:
        return Markup()
    first = evaluations[0].evaluation
    rows = {f"this student, {evaluations[0].weights} weights": first.top1, **references}
    series = [Series(name, style, [(100 * share, 0)]) for style, (name, share) in enumerate(rows.items())]
    dots = joined(first.reliability, MIN_IMAGES)
    lines = [
        Series("this student", 0, [(100 * dot.confidence, 100 * dot.accuracy) for dot in dots]),
        Series("perfect calibration", 1, [(0.0, 0.0), (100.0, 100.0)]),
    ]
    gap = f"On average confidence and accuracy differ by {100 * first.calibration_error:.1f} points (expected "
    gap += "calibration error). "
    title = "Calibration: is it as accurate as it is confident?"
    if len(dots) > 1:
        gap += f"Each dot represents at least {MIN_IMAGES} images."
        chart = line_chart(title, lines, Axes("confidence, %", "accuracy, %"), gap)
    else:
        gap += f"{first.images:,} images of this confidence are too few for a curve."
        chart = fill("figure.html", title=title, note=gap, kind="")
    label = f"top-1 accuracy on {evaluations[0].split}, %"
    yardsticks = row_chart("Compared with methods that learn no features", series, label) if references else ""
    return side_by_side(html_table(summary(evaluations)), Markup("<div>{}{}</div>").format(yardsticks, chart))


def _classes(evaluation: Evaluation, learnt_from: Sequence[int]) -> list[Section]:
    """Return the confusion matrix and its most confused pairs, then the scores of every class."""
    names, pairs, parts = [score.name for score in evaluation.per_class], confused(evaluation), []
    if len(names) <= MAX_CLASSES_DRAWN:
        note = (
            "Rows are true classes, columns are predictions. The shade grows with the square root of the row's share, "
            "so that rare mistakes are visible. Point at a cell to read it."
        )
        parts.append(heat_map("Confusion matrix, images", evaluation.confusion, names, names, note))
    if pairs.rows and len(names) > 2:
        parts.append(html_table(pairs))
    return [
        Section("Confusion", side_by_side(*parts) if len(names) <= 12 else Markup().join(parts)),
        Section("Classes", html_table(per_class(evaluation, learnt_from), sortable=True)),
    ]
