# SPDX-License-Identifier: Apache-2.0
"""A student, its heads and its teachers side by side, as a part of a run's page."""

from ...evaluation.agreement.metrics import Agreement
from ..document import Section, table
from ..html import Markup
from ..tables.sheet import Cell, Column, Sheet


def agreement_section(found: Agreement | None) -> list[Section]:
    """Accuracies and divergences, then the pairs; nothing for a run without teachers."""
    if found is None:
        return []
    if found.missing:
        return [Section("Teachers", Markup("<p>{}</p>").format(f"The teachers could not be asked: {found.missing}"))]
    left, right = pairs(found)
    return [Section("Teachers", table(advice(found)) + table(left) + table(right))]


def advice(found: Agreement) -> Sheet:
    """Accuracy of everyone, and of each head the divergence from each teacher."""
    assert found.accuracy is not None
    columns = [
        Column(""),
        Column("top-1", "percent"),
        *(Column(f"KL from {name}", "decimal") for name in found.teachers),
    ]
    nothing = [""] * len(found.teachers)
    by_head = dict(zip(found.heads, found.divergence, strict=True))
    own = by_head[found.heads[0]] if len(found.heads) == 1 else nothing
    rows: list[list[Cell]] = [
        [name, share, *(own if name == "student" else by_head.get(name, nothing))]
        for name, share in found.accuracy.items()
    ]
    note = (
        f"{found.images:,} {found.split} images, {found.weights} weights. KL(teacher || head): nats, mean over "
        f"images. The student answers by its {found.rule}."
    )
    return Sheet("The student, its heads and its teachers", columns, rows, note)


def pairs(found: Agreement) -> tuple[Sheet, Sheet]:
    """Images on which both of a pair are wrong, and on which both say the same."""
    assert found.accuracy is not None
    names = list(found.accuracy)
    columns = [Column(""), *(Column(name, "percent") for name in names)]
    left, right = (
        [list[Cell]([name, *row]) for name, row in zip(names, matrix, strict=True)]
        for matrix in (found.both_wrong, found.same_prediction)
    )
    return (
        Sheet("Both wrong, images", columns, left, "On the diagonal: the error of each."),
        Sheet("Same answer, images", columns, right, "Right or wrong."),
    )
