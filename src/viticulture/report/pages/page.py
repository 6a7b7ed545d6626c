# SPDX-License-Identifier: Apache-2.0
"""One training on one page: a single HTML file that asks nothing of any network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...analysis.galleries import Gallery
from ...evaluation.accuracy import Evaluation
from ..charts.curves import Points
from ..charts.figures import gallery, heat_map, line_chart, table
from ..charts.marks import text
from ..document import Section, document, duration, scaled, tile, warning_box
from ..tables.results import Evaluated, confused, interval, per_class, percent, summary

MOST_CLASSES_DRAWN = 250

NAMES = {"val": "validation"}

TITLES = {
    "loss": ("Loss, all terms", "loss"),
    "accuracy": ("Accuracy, %", "%"),
    "lr": ("Learning rate", "rate"),
    "ap50": ("AP at an overlap of 50 %, mean over images", "share"),
    "iou": ("mIoU, mean over images", "share"),
    "images_per_second": ("Training speed, images/s", "images/s"),
    "attention_link_weight": ("Weight of the attention links (lambda)", "weight"),
    "teacher_entropy": ("Entropy of what the teacher says", "nats"),
    "bootstrap_gradient_cosine": ("Shared weights: cosine between the student's and the agent's gradients", "cosine"),
    "bootstrap_gradient_conflict": ("Shared weights: share of steps whose two gradients conflict", "share"),
    "bootstrap_features_left": ("Share of the feature weight that the decay has left", "share"),
}


@dataclass(frozen=True)
class Costs:
    """What the student weighs and what its training took; None is shown as n/a.

    Args:
        parameters: of the student alone.
        macs: multiply-adds for one image.
        images_per_second: seen in training, guides included.
        training_seconds: wall time.
    """

    parameters: int | None = None
    macs: int | None = None
    images_per_second: float | None = None
    training_seconds: float | None = None


@dataclass(frozen=True)
class RunPage:
    """Plain data of one run; what is empty is left out of the page.

    Args:
        title: of the page.
        sentence: the data and the student in one plain sentence.
        evaluations: the first one is the headline's, the matrix's and the class table's.
        costs: see `Costs`.
        curves: `train/loss`, `val/accuracy`, `val/GUIDE_accuracy`, `lr`, ... -> (epoch, value); accuracies as shares.
        mistakes: the most confident ones first.
        examples: of every class.
        warnings: sentences about the data.
        recipe: YAML text.
        reproduce: command, versions, seed, commit, hardware, ... by name.
        sections: further parts.
        headline: label, value and note of the number that counts, where it is no evaluation's.
    """

    title: str
    sentence: str
    evaluations: Sequence[Evaluated] = ()
    costs: Costs = Costs()
    curves: Mapping[str, Points] = field(default_factory=dict)
    mistakes: Sequence[Gallery] = ()
    examples: Sequence[Gallery] = ()
    warnings: Sequence[str] = ()
    recipe: str = ""
    reproduce: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    headline: tuple[str, str, str] | None = None


def render(page: RunPage) -> str:
    """The page as HTML text; write it as UTF-8."""
    header = f"<p>{text(page.sentence)}</p>{_tiles(page)}{warning_box('About the data', page.warnings)}"
    return document(page.title, header, _sections(page))


def _sections(page: RunPage) -> list[Section]:
    found = [Section("Results", _results(page.evaluations))]
    found.append(Section("Learning curves", _curves(page.curves)))
    if page.evaluations:
        found += _classes(page.evaluations[0].evaluation)
    found.append(Section("Most confident mistakes", "".join(map(gallery, page.mistakes))))
    found.extend(page.sections)
    found.append(Section("Images of each class", "".join(map(gallery, page.examples))))
    found.append(Section("Recipe", f"<figure><pre>{_lines(page.recipe)}</pre></figure>" if page.recipe else ""))
    rows = "".join(f"<tr><th scope=row>{text(k)}<td><pre>{_lines(v)}</pre>" for k, v in page.reproduce.items())
    found.append(Section("How to reproduce it", f"<figure><table>{rows}</table></figure>" if rows else ""))
    return found


def _tiles(page: RunPage) -> str:
    costs, tiles = page.costs, []
    if page.headline:
        tiles.append(tile(*page.headline, "wide"))
    elif page.evaluations:
        first = page.evaluations[0]
        words = f"95 % interval {interval(first.evaluation)} (Wilson, {first.evaluation.images:,} images)"
        label = f"Top-1 accuracy, {first.split}, {first.weights} weights"
        tiles.append(tile(label, percent(first.evaluation.top1), words, "wide"))
    elif any(key.endswith("/accuracy") for key in page.curves) or not page.curves.get("train/loss"):
        tiles.append(tile("Top-1 accuracy", "n/a", "this run was not evaluated yet", "wide"))
    else:
        tiles.append(tile("Loss", f"{page.curves['train/loss'][-1][1]:.4g}", "in training, last logged", "wide"))
    tiles.append(tile("Parameters", scaled(costs.parameters), "of the student"))
    tiles.append(tile("Multiply-adds", scaled(costs.macs), "for one image"))
    tiles.append(tile("Training speed", scaled(costs.images_per_second), "images/s"))
    tiles.append(tile("Training time", duration(costs.training_seconds), "wall clock"))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _curves(curves: Mapping[str, Points]) -> str:
    """Small multiples: one chart a quantity, its splits as lines; losses also with a logarithmic axis."""
    groups: dict[str, dict[str, Points]] = {}
    for key, points in curves.items():
        split, slash, quantity = key.partition("/")
        if not slash or split not in ("train", "val", "validation", "test"):
            split, quantity = "last", key
        line, scale = NAMES.get(split, split), 1
        if quantity.endswith("accuracy"):  # a guide's network shares the student's chart
            whose = quantity.removesuffix("accuracy").strip("_").replace("_", " ")
            quantity, line, scale = "accuracy", f"{line}, {whose}" if whose else line, 100
        groups.setdefault(quantity, {})[line] = [(x, scale * y) for x, y in points]
    rank = {"accuracy": 0, "loss": 1, "lr": 3, "images_per_second": 4}
    charts, any_loss = [], False
    for quantity in sorted(groups, key=lambda quantity: rank.get(quantity, 2)):
        divergence = quantity.endswith("_kl")
        usual = (f"Divergence (KL): {quantity[:-3]}", "nats") if divergence else (f"Loss term: {quantity}", "loss")
        title, unit = TITLES.get(quantity, usual)
        axes = ("epoch", unit)
        linear = line_chart(title, groups[quantity], axes)
        if unit == "loss":
            any_loss = True
            both = (("linear", linear), ("log", line_chart(title, groups[quantity], axes, log=True)))
            charts += [chart.replace("<figure", f'<figure class="{kind}"', 1) for kind, chart in both]
        else:
            charts.append(linear)
    toggle = '<label class="logs"><input type="checkbox"> logarithmic losses</label>' if any_loss else ""
    return f'<div class="curves">{toggle}<div class="grid-2">{"".join(charts)}</div></div>' if charts else ""


def _results(evaluations: Sequence[Evaluated]) -> str:
    """Every evaluation's numbers, and how far the first one's confidence can be trusted."""
    if not evaluations:
        return ""
    first = evaluations[0].evaluation
    lines = {
        "this student": [(100 * b.confidence, 100 * b.accuracy) for b in first.reliability],
        "as right as it is sure": [(0.0, 0.0), (100.0, 100.0)],
    }
    points = 100 * first.calibration_error
    gap = f"On average the two differ by {points:.1f} points (expected calibration error). Dots of few images jump."
    chart = line_chart("Calibration: is it as right as it is sure?", lines, ("confidence, %", "right, %"), note=gap)
    return f'<div class="grid-2">{table(summary(evaluations))}{chart}</div>'


def _classes(evaluation: Evaluation) -> list[Section]:
    """The confusion matrix and the pairs that matter in it, then the scores of every class."""
    names = [score.name for score in evaluation.per_class]
    pairs, parts = confused(evaluation), ""
    if len(names) <= MOST_CLASSES_DRAWN:
        note = (
            "Rows are true classes, columns are predictions. Blue: right; orange: taken for another class. The shade "
            "grows with the square root of the row's share, so that rare mistakes show. Point at a cell to read it."
        )
        parts += heat_map("Confusion matrix, images", evaluation.confusion, names, names, note)
    if pairs.rows and len(names) > 2:
        parts += table(pairs)
    kind = "grid-2" if len(names) <= 12 else ""
    return [
        Section("Confusion", f'<div class="{kind}">{parts}</div>' if parts else ""),
        Section("Classes", table(per_class(evaluation), sortable=True)),
    ]


def _lines(words: str) -> str:
    return "\n".join(text(line) for line in words.expandtabs(4).splitlines())
