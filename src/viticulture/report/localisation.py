# SPDX-License-Identifier: Apache-2.0
"""Weakly supervised localisation as a table."""

from ..evaluation.localisation import OVERLAPS, BoxAccuracy
from ..evaluation.localise import Localisation
from .sheet import Cell, Column, Sheet


def localisation_table(found: Localisation) -> Sheet:
    """A row for each way to draw the box; thresholds in the note."""
    ways: list[tuple[str, BoxAccuracy]] = [
        ("largest part (MaxBoxAcc)", found.largest),
        ("best of all parts (MaxBoxAccV2)", found.any_part),
        ("whole image, without a student", found.everything),
    ]
    columns = [Column("box"), *(Column(f"IoU {one:g}", "percent") for one in OVERLAPS), Column("mean", "percent")]
    rows: list[tuple[Cell, ...]] = [(name, *way.shares, way.mean) for name, way in ways]
    thresholds = ", ".join(f"{threshold:g}" for threshold in found.largest.thresholds)
    note = f"{found.images} images, weights {found.weights}. Best thresholds of the largest part: {thresholds}."
    if found.left_out:
        note += f" {found.left_out} images have no box in view and are left out."
    return Sheet("Images whose box is found", columns, rows, note)
