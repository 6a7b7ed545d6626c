# SPDX-License-Identifier: Apache-2.0
"""One training on one page: a single HTML file that asks nothing of any network."""

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

TRAIN = "train: means over an epoch's batches as the student met them, augmented and each before its step."

SHARES = ("ap50", "iou", "balanced_accuracy", "accuracy", "map")
"""Of what is right, in [0, 1]; drawn first, as percent."""

TITLES = {
    "loss": ("Loss, all terms", "loss"),
    "accuracy": ("Accuracy, %", "%"),
    "lr": ("Learning rate", "rate"),
    "ap50": ("AP at an overlap of 50 %, mean over images, %", "%"),
    "iou": ("mIoU, mean over images, %", "%"),
    "map": ("mAP, mean over batches of up to 256 images, %", "%"),
    "images_per_second": ("Training speed, images/s", "images/s"),
    "attention_link_weight": ("Weight of the attention links (lambda)", "weight"),
    "teacher_entropy": ("Entropy of what the teacher says", "nats"),
    "bootstrap_gradient_cosine": ("Shared weights: cosine between the student's and the agent's gradients", "cosine"),
    "bootstrap_gradient_conflict": ("Shared weights: share of steps whose two gradients conflict", "share"),
    "bootstrap_feature_scale": ("Factor of the feature weight by its decay", "factor"),
}


@dataclass(frozen=True)
class Costs:
    """What the student weighs and what its training took; None is shown as n/a.

    Args:
        parameters: of the student alone.
        macs: multiply-adds for one image, or one view of it.
        images_per_second: seen in training, guides included.
        training_seconds: wall time.
        views: of an image that the student is asked about.
    """

    parameters: int | None = None
    macs: int | None = None
    images_per_second: float | None = None
    training_seconds: float | None = None
    views: int = 1


@dataclass(frozen=True)
class RunPage:
    """Plain data of one run; what is empty is left out of the page.

    Args:
        title: of the page.
        sentence: the data and the student in one plain sentence.
        state: what the run does, where it is not finished; the page then renews itself.
        costs: see `Costs`.
        best_epoch: whose weights are kept as the best, from 1; None where none are.
        curves: `train/loss`, `val/accuracy`, `val/GUIDE_accuracy`, `lr`, ... -> (epoch, value); accuracies as shares.
        examples: of every class.
        warnings: sentences about the data.
        recipe: YAML text.
        reproduce: command, versions, seed, commit, hardware, ... by name.
        task: what the run's task adds: conclusion, headline, results.
        sections: further parts.
    """

    title: str
    sentence: str
    state: str = ""
    costs: Costs = Costs()
    best_epoch: int | None = None
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
    head = Head(page.title, answer, page.sentence, page.warnings, _tiles(page), renews=bool(page.state))
    sections = [
        *map(section_of, page.task.before),
        Section("Learning curves", _curves(page)),
        *map(section_of, page.task.after),
        *page.sections,
        Section("Images of each class", galleries(page.examples)),
        Section("Recipe", fill("recipe.html", title="", note="", recipe=page.recipe) if page.recipe else ""),
        Section("How to reproduce it", properties(page.reproduce)),
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
            return line_chart(part.title, lines, Axes(part.x, part.y, most=part.max_y), part.note)
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
    return Section(section.title, side_by_side(*parts) if section.side_by_side else Markup().join(parts))


def _tiles(page: RunPage) -> list[Tile]:
    costs = page.costs
    if page.task.tile:
        leading = Tile(*page.task.tile, wide=True)
    elif losses := page.curves.get("train/loss_epoch") or page.curves.get("train/loss"):
        leading = Tile("Loss", f"{losses[-1][1]:.4g}", "in training, last logged", wide=True)
    else:
        leading = Tile("Top-1 accuracy", "n/a", "this run was not evaluated yet", wide=True)
    return [
        leading,
        Tile("Parameters", scaled(costs.parameters), "of the student"),
        Tile(
            "Multiply-adds",
            scaled(costs.macs),
            "for one image" if costs.views == 1 else f"a view, {costs.views} an image",
        ),
        Tile("Training speed", scaled(costs.images_per_second), "images/s"),
        Tile("Training time", duration(costs.training_seconds), "wall clock"),
    ]


def _curves(page: RunPage) -> Markup:
    """Small multiples: one chart a quantity, its splits as lines; losses also with a logarithmic axis."""
    groups: dict[str, dict[str, Points]] = {}
    for key, points in _means(page.curves).items():
        split, slash, quantity = key.partition("/")
        if not slash or split not in ("train", "val", "validation", "test"):
            split, quantity = "last", key
        line, scale = "validation" if split == "val" else split, 1
        if quantity.endswith("accuracy"):  # a guide's network shares the student's chart
            whose = quantity.removesuffix("accuracy").strip("_").replace("_", " ")
            quantity, line = "accuracy", f"{line}, {whose}" if whose else line
        if quantity in SHARES:
            scale = 100
        groups.setdefault(quantity, {})[line] = [(x, scale * y) for x, y in points]
    rank = {**dict.fromkeys(SHARES, 0), "loss": 1, "lr": 3, "images_per_second": 4}
    charts, any_loss = [], False
    moments = [] if page.best_epoch is None else [("best", page.best_epoch)]
    for quantity in sorted(groups, key=lambda quantity: rank.get(quantity, 2)):
        divergence = quantity.endswith("_kl")
        usual = (f"Divergence (KL): {quantity[:-3]}", "nats") if divergence else (f"Loss term: {quantity}", "loss")
        title, unit = TITLES.get(quantity, usual)
        if quantity == "accuracy" and "iou" in groups:
            title = "Pixels right, %"
        lines = _lines(groups[quantity])
        axes = Axes("epoch", unit, moments=moments if quantity in (*SHARES, "loss") else ())
        note = TRAIN if "train" in groups[quantity] and quantity in ("accuracy", "loss") else ""
        if quantity == "accuracy":
            levels = [(name, 100 * share) for name, share in page.task.levels.items()]
            axes = replace(axes, levels=levels)
            note += " Lines across: on the images that count, not on these." if levels else ""
            if page.costs.views > 1:
                note += f" Measured with one view an image; the results above with {page.costs.views}."
        charts.append(line_chart(title, lines, axes, note, kind="linear" if unit == "loss" else ""))
        if unit == "loss":
            any_loss = True
            charts.append(line_chart(title, lines, replace(axes, log_y=True), note, kind="log"))
    return fill("curves.html", charts=charts, any_loss=any_loss) if charts else Markup()


def _means(curves: Mapping[str, Points]) -> dict[str, Points]:
    """Means over epochs in place of single batches, where there are any; a term that is all of the loss is the loss."""
    means = {key.removesuffix("_epoch"): points for key, points in curves.items() if key.endswith("_epoch")}
    kept = {**{key: points for key, points in curves.items() if not key.endswith("_epoch")}, **means}
    same = [key for key in means if key != "train/loss" and kept[key] == means.get("train/loss")]
    return {key: points for key, points in kept.items() if key not in same}


def _lines(lines: Mapping[str, Points]) -> list[Series]:
    """Lines over epochs; the legend tells their last values."""
    styles = _styles(lines)
    return [
        Series(name, styles[name], points, said=number(float(f"{points[-1][1]:.4g}")) if _ends(points) else "")
        for name, points in lines.items()
    ]


def _ends(points: Points) -> bool:
    return bool(points) and isfinite(points[-1][1])


def _styles(names: Iterable[str]) -> dict[str, int]:
    """A number for each line: splits look the same in every chart, other lines take what is left in turn."""
    names, fixed = list(names), {"train": 0, "validation": 1, "test": 2}
    free = itertools.cycle(k for k in range(6) if k not in {fixed.get(name) for name in names})
    return {name: fixed[name] if name in fixed else next(free) for name in names}
