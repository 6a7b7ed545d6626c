# SPDX-License-Identifier: Apache-2.0
"""Pages and lists of images to look at: those of a reviewed data set, and unlabeled ones to label next."""

from collections.abc import Sequence
from pathlib import Path

from ..analysis.galleries import Gallery, Group
from ..data.sources.several import JOINT
from ..errors import counted
from ..evaluation.label_next import NextLabels, Unlabeled
from ..evaluation.review import REASONS, Review, Suspect
from ..outputs import csv_text
from ..table import Cell, Column, Table, percent
from .html import Head, Section, document
from .pictures import galleries

MAX_DRAWN = 60  # images of a reason on the page
MAX_LISTED = 15  # images to label next in the terminal
COLUMNS = ("image", "label", "suggested", "reason", "score", "detail", "split")


def summary(review: Review) -> Table:
    """Count the images by reason."""
    counts = {reason: sum(each.reason == reason for each in review.suspects) for reason in REASONS}
    rows: list[list[Cell]] = [[REASONS[reason], count] for reason, count in counts.items()]
    return Table(f"{review.data}: {review.images:,} images", [Column("to look at"), Column("images", "count")], rows)


def review_csv(review: Review) -> str:
    """Return a row for each image and reason; Label Studio imports it (`$image`), `data.leave_out` reads it."""
    rows: list[Sequence[object]] = [COLUMNS]
    for each in review.suspects:
        score = None if each.score is None else round(each.score, 4)
        rows.append([each.name, each.label, each.suggested, each.reason, score, each.detail, each.split])
    return csv_text(rows)


def review_page(review: Review, file: str) -> str:
    """Return the page as HTML text. `file`: name of the list."""
    found = len({each.name for each in review.suspects})
    sentence = (
        f"Each image was classified from features of {review.network}, by a classifier trained on other images: "
        f"{percent(review.accuracy)} of the predictions agree with the label. The lower this share, the more of the "
        f"images below are mistakes of the classifier rather than of the labels. {file} lists all of them. Delete the "
        f"rows of images whose label is right, and train without the others (held-out images stay): viticulture train "
        f"DATA --data.leave_out {file}"
    )
    conclusion = f"Of {review.images:,} images {found:,} deserve{'s' * (found == 1)} a second look."
    head = Head(f"Review of {review.data}", conclusion, sentence, review.warnings)
    return document(head, [_section(review, reason) for reason in REASONS])


def _section(review: Review, reason: str) -> Section:
    suspects = [each for each in review.suspects if each.reason == reason]
    if not suspects:
        return Section("")
    note = "The most suspect come first."
    if len(suspects) > MAX_DRAWN:
        note += f" The first {MAX_DRAWN} of {len(suspects):,}."
    groups: list[Group] = [([each.images.original(each.number)], _lines(each)) for each in suspects[:MAX_DRAWN]]
    return Section(f"{REASONS[reason]} ({len(suspects):,})", galleries([Gallery("", groups, note)]))


def _lines(each: Suspect) -> list[str]:
    """Return the text below a picture."""
    suggested = [f"perhaps {each.suggested}?"] if each.suggested else []
    return [f"labeled {each.label}", *suggested, *([each.detail] if each.detail else []), each.name]


def next_summary(result: NextLabels, file: str) -> Table:
    """List the first images to label next; `file` lists all."""
    columns = [Column("image", "name"), Column("predicted"), Column("probability", "decimal")]
    rows: list[list[Cell]] = [[each.name, each.predicted, _percent(each)] for each in result.chosen[:MAX_LISTED]]
    note = f"{file} lists all {len(result.chosen):,}." if len(result.chosen) > MAX_LISTED else ""
    return Table(f"{_of(result)} to label next", columns, rows, note)


def next_csv(result: NextLabels) -> str:
    """Return a row for each image in the order of choice; Label Studio imports it (`$image`)."""
    return csv_text([("image", "suggested", "score"), *((i.name, i.predicted, i.probability) for i in result.chosen)])


def next_page(result: NextLabels, file: str) -> str:
    """Return the page as HTML text. `file`: name of the list."""
    sentence = (
        f"{result.run} is uncertain about them, and they differ from each other. {file} lists them; label them, add "
        "them to the training images, and train again."
    )
    drawn = result.chosen[:MAX_DRAWN]
    more = f" The first {MAX_DRAWN} of {len(result.chosen):,}." if len(result.chosen) > MAX_DRAWN else ""
    note = f"In the order of choice. Below an image: the prediction and its probability.{more}"
    groups: list[Group] = [
        ([each.picture], [f"{each.predicted or 'none'} {_percent(each)}".rstrip(), Path(each.name).name])
        for each in drawn
    ]
    head = Head("Images to label next", f"{_of(result)} are worth labeling first.", sentence, result.warnings)
    return document(head, [Section("Images", galleries([Gallery("", groups, note)]))])


def _percent(each: Unlabeled) -> str:
    """Return the probabilities of an image's classes, such as 73.4 %."""
    return ", ".join(percent(float(value)) for value in each.probability.split(JOINT) if value)


def _of(result: NextLabels) -> str:
    return f"{counted(len(result.chosen), 'image')} of {result.images:,}"
