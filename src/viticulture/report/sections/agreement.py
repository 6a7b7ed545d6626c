# SPDX-License-Identifier: Apache-2.0
"""A student, its heads and its teachers side by side, as a part of a run's page."""

from ...evaluation.agreement.metrics import Agreement
from ...table import Cell, Column, Table
from ..document import Section, table
from ..html import Markup


def agreement_section(agreement: Agreement | None) -> list[Section]:
    """Accuracies and divergences, then the pairs; nothing for a run without teachers."""
    if agreement is None:
        return []
    if agreement.missing:
        return [
            Section("Teachers", Markup("<p>{}</p>").format(f"The teachers could not be asked: {agreement.missing}"))
        ]
    left, right = pairs(agreement)
    return [Section("Teachers", table(advice(agreement)) + table(left) + table(right))]


def advice(agreement: Agreement) -> Table:
    """Accuracy of everyone, and of each head the divergence from each teacher."""
    assert agreement.accuracy is not None
    columns = [
        Column(""),
        Column("top-1", "percent"),
        *(Column(f"KL from {name}", "decimal") for name in agreement.teachers),
    ]
    nothing = [""] * len(agreement.teachers)
    by_head = dict(zip(agreement.heads, agreement.divergence, strict=True))
    own = by_head[agreement.heads[0]] if len(agreement.heads) == 1 else nothing
    rows: list[list[Cell]] = [
        [name, share, *(own if name == "student" else by_head.get(name, nothing))]
        for name, share in agreement.accuracy.items()
    ]
    note = (
        f"{agreement.images:,} {agreement.split} images, {agreement.weights} weights. KL(teacher || head): nats, mean "
        f"over images. The student answers by its {agreement.rule}."
    )
    return Table("The student, its heads and its teachers", columns, rows, note)


def pairs(agreement: Agreement) -> tuple[Table, Table]:
    """Images on which both of a pair are wrong, and on which both say the same."""
    assert agreement.accuracy is not None
    names = list(agreement.accuracy)
    columns = [Column(""), *(Column(name, "percent") for name in names)]
    left, right = (
        [list[Cell]([name, *row]) for name, row in zip(names, matrix, strict=True)]
        for matrix in (agreement.both_wrong, agreement.same_prediction)
    )
    return (
        Table("Both wrong, images", columns, left, "On the diagonal: the error of each."),
        Table("Same answer, images", columns, right, "Right or wrong."),
    )
