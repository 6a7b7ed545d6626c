# SPDX-License-Identifier: Apache-2.0
"""What a detector finds, or a segmenter says of pixels, as parts of a run's page."""

from collections.abc import Sequence

import numpy as np

from ...analysis.annotated_pictures import MAX_PICTURE_SIDE
from ...analysis.galleries import Gallery
from ...evaluation.dense.draw import color_of
from ...evaluation.dense.objects import ObjectsEvaluation
from ...evaluation.dense.pixels import PixelsEvaluation
from ...evaluation.dense.results import DenseEvaluations
from ...evaluation.headline import named
from ..html import Markup, Section, fill, html_table
from ..pictures import galleries
from ..svg import Axes, Series, line_chart
from ..tables.dense import dense_classes, dense_confusion, dense_overlaps, dense_summary
from ..tables.results import percent

MOST_CURVES = 8
"""Classes whose precision is drawn: those with most objects."""


def dense_answer(evaluations: DenseEvaluations | None) -> str:
    """Say in a sentence what a detector or a segmenter gets right, compared with what needs no training."""
    result = evaluations.counting if evaluations else None
    if evaluations is None or result is None:
        return ""
    low, high = result.interval
    of = f"{result.images:,} {named(evaluations.counts)[1]} images"
    known = {name: share for name, share in result.baselines.items() if share is not None}
    others = "".join(f"; {name} {percent(share)}" for name, share in sorted(known.items(), key=lambda each: -each[1]))
    score = f"{percent(result.score)} (95 % interval {100 * low:.1f} to {100 * high:.1f}){others}"
    if isinstance(result, PixelsEvaluation):
        return (
            f"It assigns {percent(result.accuracy)} of the labeled pixels of {of} to the right class. Its mean IoU "
            f"over the classes is {score}."
        )
    said = np.array(result.confusion)
    right, objects, boxes = int(np.trace(said[:-1, :-1])), int(said[:-1].sum()), int(said[:, :-1].sum())
    return (
        f"It finds {right:,} of {objects:,} objects in {of}; {boxes - right:,} of its {boxes:,} boxes are wrong. "
        f"Its average precision (AP) is {score}."
    )


def dense_sections(evaluations: DenseEvaluations | None, pictures: Sequence[Gallery]) -> list[Section]:
    """Pictures, results, curves, classes and confusion; nothing for a run of a classifier."""
    if evaluations is None:
        return []
    result = evaluations.counting
    key = _key(result) if isinstance(result, PixelsEvaluation) and pictures else Markup()
    sections = [
        Section("Pictures", key + galleries(pictures, MAX_PICTURE_SIDE)),
        Section("Results", html_table(dense_summary(evaluations))),
    ]
    if result is None:
        return sections
    parts = html_table(dense_classes(result), sortable=True)
    if isinstance(result, ObjectsEvaluation):
        sections.append(Section("Precision and recall", _curves(result) + html_table(dense_overlaps(result))))
    return [*sections, Section("Classes", parts), Section("Confusion", html_table(dense_confusion(result)))]


def _key(result: PixelsEvaluation) -> Markup:
    """Which color is which class in the pictures."""
    classes = [(each.name, "rgb({}, {}, {})".format(*color_of(label))) for label, each in enumerate(result.per_class)]
    return fill("colors.html", classes=classes)


def _curves(result: ObjectsEvaluation) -> Markup:
    known = [each for each in result.boxes.per_class if each.curve]
    drawn = sorted(known, key=lambda each: -each.objects)[:MOST_CURVES]
    lines = [
        Series(each.name, number, [(float(step), 100 * share) for step, share in enumerate(each.curve or ())])
        for number, each in enumerate(drawn)
    ]
    more = len(known) - len(drawn)
    note = f"{more} classes with fewer objects are left out." if more > 0 else ""
    axes = Axes("recall, %", "precision, %", max_y=100.0)
    return line_chart("Precision at an overlap of 50 %", lines, axes, note) if lines else Markup()
