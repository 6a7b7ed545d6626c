# SPDX-License-Identifier: Apache-2.0
"""A detector's or a segmenter's numbers as tables."""

from collections.abc import Sequence

from ...errors import comma_separated
from ...evaluation.dense.objects import BACKGROUND, ObjectsEvaluation, Precisions
from ...evaluation.dense.pixels import PixelsEvaluation
from ...evaluation.dense.prediction import DensePrediction
from ...evaluation.dense.results import DenseEvaluations
from ...scores.confusion import most_confused
from ...table import Cell, Column, Table, unread

LEAST_SHARE = 0.005  # of an image's pixels, below which a class is not told: it would read 0 %
OVERLAPS = tuple(f"AP at {50 + 5 * step} %" for step in range(10))


def dense_summary(evaluations: DenseEvaluations) -> Table:
    """One row for each set of weights and split, the one that counts first; last what needs no learning."""
    keys = sorted(evaluations.results, key=lambda key: key != evaluations.counts)
    if evaluations.kind == "objects":
        return _objects([(key, evaluations.results[key]) for key in keys])
    return _pixels([(key, evaluations.results[key]) for key in keys])


def _objects(results: Sequence[tuple[str, object]]) -> Table:
    forms = [
        Column("weights/split"),
        Column("of"),
        *(Column(n, "percent") for n in ("AP", "low", "high", "AP50", "AP75")),
    ]
    columns = [
        *forms,
        *(Column(f"AP {size}", "percent") for size in ("small", "medium", "large")),
        Column("images", "count"),
    ]
    rows: list[list[Cell]] = []
    first = None
    for key, result in results:
        assert isinstance(result, ObjectsEvaluation)
        first = first or result
        parts: list[tuple[str, Precisions | None]] = [("boxes", result.boxes), ("masks", result.masks)]
        for what, each in parts:
            if each is not None:
                sizes = [each.by_size[size] for size in ("small", "medium", "large")]
                rows.append([key, what, each.ap, *each.interval, each.ap50, each.ap75, *sizes, result.images])
    if first is not None:
        rows += [[name, "boxes", ap, *[None] * 7, first.images] for name, ap in first.baselines.items()]
    note = (
        "Average precision as COCO counts it, mean over overlaps of 50 to 95 %. Low and high: 95 % interval over "
        "images (bootstrap), not over seeds. Small: up to 32x32 pixels of the original, medium: up to 96x96, by the "
        "area that COCO's annotations say, else by that of the box, or of the mask where masks are judged."
    )
    return Table("Objects found", columns, rows, note)


def _pixels(results: Sequence[tuple[str, object]]) -> Table:
    columns = [
        Column("weights/split"),
        *(Column(n, "percent") for n in ("mIoU", "low", "high", "pixels right")),
        Column("images", "count"),
    ]
    rows: list[list[Cell]] = []
    first = None
    for key, result in results:
        assert isinstance(result, PixelsEvaluation)
        first = first or result
        rows.append([key, result.miou, *result.interval, result.accuracy, result.images])
    if first is not None:
        rows += [[name, share, None, None, None, first.images] for name, share in first.baselines.items()]
    note = "Mean over classes of intersection over union of all pixels. Low and high: 95 % interval over images."
    return Table("Classes of pixels", columns, rows, note)


def dense_classes(result: ObjectsEvaluation | PixelsEvaluation) -> Table:
    """One row a class."""
    if isinstance(result, PixelsEvaluation):
        columns = [Column("class"), Column("pixels", "count"), Column("IoU", "percent")]
        return Table("Classes", columns, [[each.name, each.pixels, each.iou] for each in result.per_class])
    columns = [
        Column("class"),
        Column("objects", "count"),
        *(Column(name, "percent") for name in ("AP", "AP50", "recall")),
    ]
    rows: list[list[Cell]] = [
        [each.name, each.objects, each.ap, each.ap50, each.recall] for each in result.boxes.per_class
    ]
    if result.masks is not None:
        columns += [Column("AP of masks", "percent")]
        rows = [[*row, each.ap] for row, each in zip(rows, result.masks.per_class, strict=True)]
    return Table("Classes", columns, rows)


def dense_overlaps(result: ObjectsEvaluation) -> Table:
    """AP at every overlap."""
    columns = [Column("overlap"), Column("AP of boxes", "percent")]
    rows: list[list[Cell]] = [[name, share] for name, share in zip(OVERLAPS, result.boxes.by_overlap, strict=True)]
    if result.masks is not None:
        columns.append(Column("AP of masks", "percent"))
        rows = [[*row, share] for row, share in zip(rows, result.masks.by_overlap, strict=True)]
    return Table("By overlap", columns, rows)


def dense_confusion(result: ObjectsEvaluation | PixelsEvaluation) -> Table:
    """What is taken for what, most often first: 20 pairs at most."""
    names = [
        each.name for each in (result.boxes.per_class if isinstance(result, ObjectsEvaluation) else result.per_class)
    ]
    what = "objects" if isinstance(result, ObjectsEvaluation) else "pixels"
    names += [BACKGROUND] if what == "objects" else []
    rows: list[list[Cell]] = [
        [names[true], names[predicted], result.confusion[true][predicted]]
        for true, predicted in most_confused(result.confusion, 20)
    ]
    note = ""
    if isinstance(result, ObjectsEvaluation):
        note = (
            f"Boxes with a score of at least {result.threshold:.2f}, the best on validation images where there are any."
        )
    return Table("Taken for another", [Column("is"), Column("taken for"), Column(what, "count")], rows, note)


def dense_predictions(predictions: Sequence[DensePrediction]) -> Table:
    """What is found in each image."""

    def words(each: DensePrediction) -> str:
        if each.objects is None:
            shares = sorted(each.counts().items(), key=lambda item: -item[1])
            return comma_separated(f"{name} {share:.0%}" for name, share in shares if share >= LEAST_SHARE)
        return comma_separated(f"{int(count)} {name}" for name, count in each.counts().items()) or "nothing"

    rows: list[list[Cell]] = [[each.name, "" if each.error else words(each), each.error] for each in predictions]
    least = next((each.least for each in predictions if each.objects is not None), 0.0)
    below = f"objects with a score of at least {least:.2f}; a .json or .csv holds all" if least else ""
    note = "; ".join(filter(None, [unread([each.error for each in predictions]), below]))
    return Table("", [Column("name"), Column("found", "prose"), Column("error", "prose")], rows, note)
