# SPDX-License-Identifier: Apache-2.0
"""Tables and curves of what a detector finds; those of confusions and of predictions are a segmenter's, too."""

from collections.abc import Sequence
from typing import Any

from ..scores.confusion import most_confused
from ..table import Cell, Column, Table, unread
from .detection_metrics import BACKGROUND, DetectionResult
from .figures import LineChart
from .results import Results

MAX_CURVES = 8  # classes whose precision is drawn: those with most objects


def found_table(predictions: Sequence[Any], words: Any, below: str) -> Table:
    """One row an image: what is found in it."""
    rows: list[list[Cell]] = [[each.name, "" if each.error else words(each), each.error] for each in predictions]
    note = "; ".join(filter(None, [unread([each.error for each in predictions]), below]))
    return Table("", [Column("name"), Column("found", "prose"), Column("error", "prose")], rows, note)


def curves(result: DetectionResult) -> list[LineChart]:
    """Precision over recall of the classes with most objects; nothing where none has a curve."""
    known = [each for each in result.boxes.per_class if each.curve]
    drawn = sorted(known, key=lambda each: -each.objects)[:MAX_CURVES]
    lines = {each.name: [(float(step), 100 * share) for step, share in enumerate(each.curve or ())] for each in drawn}
    more = len(known) - len(drawn)
    note = f"{more} classes with fewer objects are left out." if more > 0 else ""
    return (
        [LineChart("Precision at an overlap of 50 %", lines, "recall, %", "precision, %", note, 100.0)] if lines else []
    )


def summary(results: Results[DetectionResult]) -> Table:
    """One row for each set of weights and split, the one that counts first, then the baselines."""
    columns = [Column("weights/split"), Column("of")]
    columns += [Column(name, "percent") for name in ("AP", "low", "high", "AP50", "AP75")]
    columns += [Column(f"AP {size}", "percent") for size in ("small", "medium", "large")]
    columns.append(Column("images", "count"))
    rows: list[list[Cell]] = []
    for key, result in results.counting_first.items():
        for what, each in (("boxes", result.boxes), ("masks", result.masks)):
            if each is not None:
                sizes = [each.by_size[size] for size in ("small", "medium", "large")]
                rows.append([key, what, each.ap, *each.interval, each.ap50, each.ap75, *sizes, result.images])
    if (first := results.counting) is not None:
        rows += [[name, "boxes", ap, *[None] * 7, first.images] for name, ap in first.baselines.items()]
    note = (
        "Average precision as COCO defines it, mean over overlaps of 50 to 95 %. Low and high: 95 % interval over "
        "images (bootstrap), not over seeds. Small: up to 32x32 pixels of the original, medium: up to 96x96. "
        "Areas are those of COCO's annotations, else of the box (for masks, of the mask)."
    )
    return Table("Objects found", columns, rows, note)


def class_table(result: DetectionResult) -> Table:
    """One row a class."""
    columns = [Column("class"), Column("objects", "count")]
    columns += [Column(name, "percent") for name in ("AP", "AP50", "recall")]
    rows: list[list[Cell]] = [
        [each.name, each.objects, each.ap, each.ap50, each.recall] for each in result.boxes.per_class
    ]
    if result.masks is not None:
        columns += [Column("AP of masks", "percent")]
        rows = [[*row, each.ap] for row, each in zip(rows, result.masks.per_class, strict=True)]
    return Table("Classes", columns, rows)


def overlaps_table(result: DetectionResult) -> Table:
    """AP at every overlap."""
    columns = [Column("overlap"), Column("AP of boxes", "percent")]
    rows: list[list[Cell]] = [[f"AP at {50 + 5 * i} %", share] for i, share in enumerate(result.boxes.by_overlap)]
    if result.masks is not None:
        columns.append(Column("AP of masks", "percent"))
        rows = [[*row, share] for row, share in zip(rows, result.masks.by_overlap, strict=True)]
    return Table("By overlap", columns, rows)


def confusion_table(result: DetectionResult) -> Table:
    """The most frequent confusions: 20 pairs at most."""
    names = [*(each.name for each in result.boxes.per_class), BACKGROUND]
    note = f"Boxes with a score of at least {result.threshold:.2f}, chosen on validation images if there are any."
    return pairs_table(names, result.confusion, "objects", note)


def pairs_table(names: Sequence[str], counts: Sequence[Sequence[int]], unit: str, note: str = "") -> Table:
    """The 20 pairs of classes that are confused most often."""
    rows: list[list[Cell]] = [[names[i], names[j], counts[i][j]] for i, j in most_confused(counts, 20)]
    return Table("Most confused", [Column("true class"), Column("predicted as"), Column(unit, "count")], rows, note)
