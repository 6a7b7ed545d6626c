# SPDX-License-Identifier: Apache-2.0
"""One training on one self-contained page."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from ..analysis.galleries import Gallery
from ..table import Table, duration, number, scaled
from ..tasks.figures import ColorKey, HeatMap, LineChart, Part, Pictures, RowChart, TaskPage, TaskSection
from .html import Head, Markup, Section, Tile, document, fill, html_table, properties, side_by_side
from .pictures import galleries, heat_map
from .svg import Axes, Points, Series, line_chart, row_chart

TRAIN = "train: mean over an epoch's augmented batches, each before its optimizer step."

FRACTIONS = ("ap50", "iou", "balanced_accuracy", "accuracy", "map")  # measures in [0, 1]; drawn first, in percent

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
    """Size of the student and cost of its training; None prints as n/a."""

    parameters: int | None = None
    macs: int | None = None
    images_per_second: float | None = None
    training_seconds: float | None = None
    views: int = 1


@dataclass(frozen=True)
class RunPage:
    """Plain data of one run; empty parts are left out of the page."""

    title: str
    sentence: str
    state: str = ""  # what the run does, where it is not finished; the page then renews itself
    costs: Costs = Costs()
    best_epoch: int | None = None  # whose weights are kept as the best, from 1; None where none are
    # `train/loss`, `val/accuracy`, `val/GUIDE_accuracy`, `lr`, ... -> (epoch, value); accuracies as shares.
    curves: Mapping[str, Points] = field(default_factory=dict)
    examples: Sequence[Gallery] = ()
    warnings: Sequence[str] = ()
    recipe: str = ""
    reproduce: Mapping[str, str] = field(default_factory=dict)
    task: TaskPage = field(default_factory=TaskPage)
    sections: Sequence[Section] = ()


def render(page: RunPage) -> str:
    """The page as HTML text; write it as UTF-8."""
    answer = page.state or page.task.answer
    head = Head(page.title, answer, page.sentence, page.warnings, _tiles(page), reloads=bool(page.state))
    sections = [
        *map(section_of, page.task.before),
        Section("Learning curves", _curves(page)),
        *map(section_of, page.task.after),
        *page.sections,
        Section("Images of each class", galleries(page.examples)),
        Section("Recipe", fill("recipe.html", title="", note="", recipe=page.recipe) if page.recipe else ""),
        Section("How to reproduce it", properties(page.reproduce), folded=True),
    ]
    return document(head, sections)


def section_of(section: TaskSection) -> Section:
    """A section as HTML."""

    def drawn(part: Part | Sequence[Part]) -> Markup:
        if isinstance(part, Table):
            return html_table(part, section.sortable)
        if isinstance(part, LineChart):
            lines = [Series(name, number, points) for number, (name, points) in enumerate(part.lines.items())]
            if not lines:
                return fill("figure.html", title=part.title, note=part.note, kind="")
            return line_chart(part.title, lines, Axes(part.x, part.y, max_y=part.max_y), part.note)
        if isinstance(part, RowChart):
            series = [Series(name, i, [(100 * share, 0)]) for i, (name, share) in enumerate(part.values.items())]
            return row_chart(part.title, series, part.label)
        if isinstance(part, HeatMap):
            return heat_map(part.title, part.counts, part.names, part.names, part.note)
        if isinstance(part, Pictures):
            return galleries(part.galleries, part.max_side)
        if isinstance(part, ColorKey):
            colors = [(name, "rgb({}, {}, {})".format(*color)) for name, color in part.colors.items()]
            return fill("colors.html", classes=colors)
        return Markup("<div>{}</div>").format(Markup().join(map(drawn, part)))

    parts = [drawn(part) for part in section.parts]
    html = side_by_side(*parts) if section.side_by_side else Markup().join(parts)
    return Section(section.title, html, section.folded)


def _tiles(page: RunPage) -> list[Tile]:
    costs = page.costs
    if page.task.tile:
        main = Tile(*page.task.tile, wide=True)
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
            levels = [(name, 100 * share) for name, share in page.task.levels.items()]
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
