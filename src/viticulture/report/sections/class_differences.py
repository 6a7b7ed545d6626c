# SPDX-License-Identifier: Apache-2.0
"""Where two methods differ: classes and confused pairs. The page's script lets a person choose the two."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...evaluation.results import read_evaluations
from ...scores.confusion import most_confused
from ...study.conclude.disagreement import opponents
from ...study.conclude.verdict import Verdict, subject
from ...study.study import Study
from ...table import Cell, Column, Table
from ...text import clean
from ..document import table
from ..html import Markup, fill
from ..written import number

PAIRS = 8  # a candidate
MOST_PAIRS = 40


def confusions(study: Study, verdict: Verdict) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
    """The classes, and for every candidate the mean over seeds of its confusion matrix, [C, C], counts."""
    names: list[str] = []
    means = {}
    for standing in verdict.standings:
        matrices = []
        for outcome in standing.outcomes:
            results = read_evaluations(study.folder.run(outcome.cell))
            if results is not None and results.counting is not None:
                names = names or [score.name for score in results.counting.per_class]
                matrices.append(results.counting.confusion)
        means[standing.candidate.name] = np.mean(matrices, axis=0)
    return names, means


def class_section(study: Study) -> Markup:
    """Recall of every class by two methods and the difference, the greatest first; other methods can be chosen."""
    verdict, unit = study.verdicts[-1], study.folder.grid.unit
    pair = opponents(verdict, study.folder.grid.baseline)
    if pair is None:
        return Markup()
    names, matrices = confusions(study, verdict)
    support = next(iter(matrices.values())).sum(1)
    shown = np.flatnonzero(support)  # of a class without images there is no share
    classes, images = [names[c] for c in shown], [number(round(float(support[c]), 1)) for c in shown]
    recall = {who: 100 * _shares(m).diagonal()[shown] for who, m in matrices.items()}
    first, second = (standing.candidate.name for standing in pair)
    order = np.argsort(-np.abs(recall[first] - recall[second]), kind="stable")
    rows = [(classes[c], images[c], recall[first][c], recall[second][c]) for c in order]
    content = {
        "classes": [clean(name) for name in classes],
        "images": images,
        "names": [clean(name) for name in recall],
        "recall": [[round(float(value), 2) for value in values] for values in recall.values()],
        "shown": [list(recall).index(first), list(recall).index(second)],
    }
    note = (
        f"Share of each class's {verdict.reported} images that is recognized, %, means over {unit}s; "
        f"{subject(verdict.data)}, {verdict.subset.name}. Few images of a class make large differences by chance."
    )
    chooser = fill(
        "differences.html", title="Difference by class", note=note, content=content, pair=(first, second), rows=rows
    )
    return chooser + confused_pairs(names, matrices, (first, second), verdict.reported)


def confused_pairs(
    names: Sequence[str], matrices: dict[str, NDArray[np.float64]], first: tuple[str, str], reported: str
) -> Markup:
    """The pairs that any of the methods confuses most often, and how often each of them does."""
    shares = {who: _shares(m) for who, m in matrices.items()}
    wanted: dict[tuple[int, int], float] = {}
    for matrix in shares.values():
        for pair in most_confused(matrix, PAIRS):
            wanted[pair] = max(wanted.get(pair, 0.0), float(matrix[pair]))
    pairs = sorted(wanted, key=lambda pair: -wanted[pair])[:MOST_PAIRS]
    if not pairs or len(names) < 3:
        return Markup()
    ordered = [*dict.fromkeys([*first, *shares])]
    columns = [Column("true class"), Column("taken for"), *(Column(who, "percent") for who in ordered)]
    rows: list[list[Cell]] = [
        [names[row], names[column], *(float(shares[who][row, column]) for who in ordered)] for row, column in pairs
    ]
    note = f"Share of the true class's {reported} images, mean over trainings. A click on a heading sorts."
    return table(Table("Most confused pairs", columns, rows, note), sortable=True)


def _shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each true class's images, which in folds may be below one on average; [C, C], 0 for classes without any."""
    images = counts.sum(1, keepdims=True)
    return np.divide(counts, images, out=np.zeros_like(counts), where=images > 0)
