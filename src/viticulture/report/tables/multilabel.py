# SPDX-License-Identifier: Apache-2.0
"""Numbers of several labels an image as tables."""

from collections.abc import Sequence

from ...errors import comma_separated
from ...evaluation.multilabel.labels import LabelsEvaluation
from ...evaluation.multilabel.predict import LabelsPrediction
from ...evaluation.multilabel.results import LabelEvaluations
from ...table import Cell, Column, Table, unread

CHOSEN = (
    "Low and high: 95 % interval of mAP over images (bootstrap), not over seeds. F1 and exact (all labels of an image "
    "right) at each label's threshold: the best on validation images, which it therefore flatters; 0.5 without any."
)


def labels_summary(evaluations: LabelEvaluations) -> Table:
    """One row for each set of weights and split, the one that counts first; last what learns no features."""
    columns = [Column("weights/split")]
    columns += [Column(name, "percent") for name in ("mAP", "low", "high", "micro-F1", "macro-F1", "exact")]
    columns += [Column("NLL", "decimal"), Column("images", "count")]
    rows: list[list[Cell]] = []
    for key in sorted(evaluations.results, key=lambda key: key != evaluations.counts):
        each = evaluations.results[key]
        shares = each.map, *each.interval, each.micro_f1, each.macro_f1, each.exact
        rows.append([key, *shares, f"{each.nll:.3f}", each.images])
    if (counting := evaluations.counting) is not None:
        rows += [[name, share, *[None] * 5, "", counting.images] for name, share in counting.baselines.items()]
    by_views = f" Answers are the mean over {counting.asked} of each image." if counting and counting.asked else ""
    return Table("Labels", columns, rows, CHOSEN + by_views)


def per_label(result: LabelsEvaluation) -> Table:
    """One row a label."""
    learnt = any(score.learnt_from is not None for score in result.per_label)
    columns = [Column("label"), *([Column("learnt from", "count")] if learnt else []), Column("images", "count")]
    columns += [Column(name, "percent") for name in ("AP", "threshold", "precision", "recall", "F1")]
    rows: list[list[Cell]] = []
    for score in result.per_label:
        counts: list[Cell] = [*([score.learnt_from] if learnt else []), score.images]
        rows.append([score.name, *counts, score.ap, score.threshold, score.precision, score.recall, score.f1])
    return Table("Per label", columns, rows, "Precision, recall and F1 from the threshold on.")


def labels_predictions(predictions: Sequence[LabelsPrediction]) -> Table:
    """What is said of each image."""

    def words(each: LabelsPrediction) -> str:
        return comma_separated(f"{name} {each.probabilities[name]:.1%}" for name in each.labels) or "none"

    rows: list[list[Cell]] = [[each.name, "" if each.error else words(each), each.error] for each in predictions]
    note = unread([each.error for each in predictions])
    return Table("", [Column("name"), Column("label", "prose"), Column("error", "prose")], rows, note)
