# SPDX-License-Identifier: Apache-2.0
"""Weakly supervised localization as a table, and as a page of pictures with boxes."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...analysis.galleries import Gallery, Group
from ...evaluation.localization.metrics import OVERLAPS, BoxAccuracy
from ...evaluation.localization.results import Example, Localization
from ...table import Cell, Column, Table
from ...training.run_folder import RunFolder
from ..charts.pictures import gallery
from ..document import Head, Section, document, table
from ..html import Markup

SHOWN = 128  # pixels, the smaller side of a drawn view
TRUE, FOUND = (240, 228, 66), (0, 114, 178)  # yellow and blue, told apart without color vision


def localization_table(localization: Localization) -> Table:
    """A row for each way to draw the box; thresholds in the note."""
    ways: list[tuple[str, BoxAccuracy]] = [
        ("largest part (MaxBoxAcc)", localization.largest),
        ("best of all parts (MaxBoxAccV2)", localization.any_part),
        ("whole image, without a student", localization.everything),
    ]
    columns = [
        Column("box"),
        *(Column(f"IoU {overlap:g}", "percent") for overlap in OVERLAPS),
        Column("mean", "percent"),
    ]
    rows: list[tuple[Cell, ...]] = [(name, *way.accuracies, way.mean) for name, way in ways]
    thresholds = ", ".join(f"{threshold:g}" for threshold in localization.largest.thresholds)
    note = f"{localization.images} images, weights {localization.weights}, protocol {localization.protocol}. "
    note += f"Best thresholds of the largest part: {thresholds}."
    if localization.left_out:
        note += f" {localization.left_out} images have no box in view and are left out."
    return Table("Images whose box is found", columns, rows, note)


def localization_section(every: Mapping[str, Localization]) -> list[Section]:
    """A table for each set of images that was judged; nothing where none was."""
    tables = [
        replace(localization_table(localization), title=f"Images whose box is found: {data}")
        for data, localization in every.items()
    ]
    return [Section("Localization", Markup().join(map(table, tables)))] if tables else []


def localization_page(localization: Localization, run: RunFolder, data: str) -> str:
    """The table and the examples as HTML text; write it as UTF-8.

    Args:
        localization: the numbers and pictures.
        run: whose student was asked.
        data: what the images are called.
    """
    facts = run.read("run.json")
    sentence = (
        f"{facts['student']['name']} of run {run.path} (recipe {facts['recipe']}, seed {facts['seed']}, trained on "
        f"{facts['data']['name']}, begun {facts['started']}), {localization.weights} weights, on {data}; measured on "
        f"{date.today().isoformat()}."
    )
    groups: list[Group] = [
        ([_drawn(example), example.score], [example.name, f"IoU {example.overlap:.2f}"])
        for example in localization.examples
    ]
    threshold = localization.largest.thresholds[len(OVERLAPS) // 2]
    note = (
        f"Yellow: true boxes. Blue: the largest part of the map at threshold {threshold:g}, which is best at "
        f"IoU {OVERLAPS[len(OVERLAPS) // 2]:g}. Right: mean attention of the class token, light is much."
    )
    parts = [
        Section("Accuracy", table(localization_table(localization))),
        Section("Pictures", gallery(Gallery("Some images as the student sees them", groups, note))),
    ]
    return document(Head("Where it looks for objects", sentence=sentence), parts)


def _drawn(example: Example) -> NDArray[np.uint8]:
    """The view with its boxes; the found one is drawn inside, so that equal boxes are both seen."""
    block = max(1, SHOWN // min(example.view.shape[:2]))
    picture = Image.fromarray(example.view.repeat(block, 0).repeat(block, 1))
    draw = ImageDraw.Draw(picture)
    for boxes, color, inset in ((example.true, TRUE, 0), (example.box, FOUND, 2)):
        for left, top, right, bottom in (boxes * block).tolist():
            corner, far = (left + inset, top + inset), (right - 1 - inset, bottom - 1 - inset)
            if far[0] >= corner[0] and far[1] >= corner[1]:
                draw.rectangle((corner, far), outline=color, width=2)
    return np.asarray(picture)
