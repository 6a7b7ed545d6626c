# SPDX-License-Identifier: Apache-2.0
"""What a student says of several labels an image, as parts of a run's page."""

from ...evaluation.headline import named
from ...evaluation.multilabel.results import LabelEvaluations
from ..html import Section, html_table
from ..svg import Series, row_chart
from ..tables.multilabel import labels_summary, per_label
from ..tables.results import percent


def labels_answer(evaluations: LabelEvaluations | None) -> str:
    """What was found in a sentence, beside what learns no features."""
    result = evaluations.counting if evaluations else None
    if evaluations is None or result is None:
        return ""
    low, high = result.interval
    beside = sorted(result.baselines.items(), key=lambda pair: -pair[1])
    others = ", ".join(f"{name} {percent(share)}" for name, share in beside)
    return (
        f"Its mAP is {percent(result.map)} (95 % interval {100 * low:.1f} to {100 * high:.1f}) on {result.images:,} "
        f"{named(evaluations.counts)[1]} images{f'; {others}' if others else ''}."
    )


def labels_sections(evaluations: LabelEvaluations | None) -> list[Section]:
    """Results beside what learns no features, then every label; nothing for another run."""
    if evaluations is None:
        return []
    sections = [Section("Results", html_table(labels_summary(evaluations)))]
    if (result := evaluations.counting) is None:
        return sections
    split = named(evaluations.counts)[1]
    values = {"this student": result.map, **result.baselines}
    series = [Series(name, number, [(100 * share, 0)]) for number, (name, share) in enumerate(values.items())]
    beside = row_chart("Beside what learns no features", series, f"mAP on {split}, %")
    sections[0] = Section("Results", html_table(labels_summary(evaluations)) + beside)
    return [*sections, Section("Labels", html_table(per_label(result), sortable=True))]
