# SPDX-License-Identifier: Apache-2.0
"""Tables of an inspected data set: its properties, its classes, and what to check before training on it."""

from collections import Counter
from collections.abc import Sequence

from ..data.inspect import Inspection
from ..data.open import ANNOTATED
from ..data.sources.source import RECIPES
from ..errors import counted
from ..table import MAX_ROWS, Cell, Column, Table, percent
from ..text import command_line


def inspected(inspection: Inspection) -> list[Table]:
    """Return properties, images (or objects) by class, and warnings."""
    splits = list(inspection.counts)
    rows: list[list[Cell]] = [
        [name, *(inspection.counts[split][c] for split in splits)] for c, name in enumerate(inspection.classes)
    ]
    undivided = splits == ["train"] and inspection.annotations is None and not inspection.several
    headings = ["images"] if undivided else splits  # the splits are still to be drawn
    sums = [sum(inspection.counts[split]) for split in splits]
    totals = ", ".join(f"{total:,} {split}" for total, split in zip(sums, splits, strict=True))
    totals = counted(sums[0], "image") if undivided else totals
    kind, kinds = ("label", "labels") if inspection.several else ("class", "classes")
    note = (
        f"{counted(len(rows), kind)}; {totals}{', an image once for each of its labels' if inspection.several else ''}"
    )
    if len(rows) > MAX_ROWS:
        note += f" (the first {MAX_ROWS} {kinds} are shown)"
    columns = [Column(kind), *(Column(heading, "count") for heading in headings)]
    properties = list(_properties(inspection).items())
    tables = [Table("Data", [Column(""), Column("", "prose")], properties, _command(inspection))]
    if rows:
        annotated = ANNOTATED.get(inspection.contents)
        title = annotated.title if annotated else f"Images by {kind}"
        tables.append(Table(title, columns, rows[:MAX_ROWS], note))
    if warnings := _warnings(inspection):
        tables.append(Table("", [Column("Please look at", "prose")], [[warning] for warning in warnings]))
    return tables


def _command(inspection: Inspection) -> str:
    """Return the command that trains on objects or masks; nothing for other data."""
    if inspection.annotations is None:
        return ""
    trains = any(inspection.counts.get("train", ()))
    recipe, needed = RECIPES[inspection.contents], ANNOTATED[inspection.contents].needed
    line = command_line(["viticulture", "train", inspection.data, "--recipe", recipe if trains else "mae/photos"])
    return f"{'To train on it' if trains else f'No training image has {needed}; to train on the images alone'}: {line}"


def _properties(inspection: Inspection) -> dict[str, str]:
    properties = {"data": inspection.name, "images": f"{inspection.images:,}"}
    if (objects := inspection.annotations) is not None:
        properties["holds"] = ANNOTATED[inspection.contents].held
        properties |= {f"{split} images": f"{count:,}" for split, count in inspection.splits.items()}
        if objects.sizes is not None:
            properties |= {
                f"{size} objects": f"{objects.sizes.get(size, 0):,}" for size in ("small", "medium", "large")
            }
            properties["masks of objects"] = "yes" if objects.masks else "no"
            properties["images without objects"] = f"{objects.empty:,}"
    for name, spread in (("height", inspection.height), ("width", inspection.width)):
        if spread is not None:
            properties[f"{name}, pixels"] = f"{spread.least} to {spread.greatest}, median {spread.median:g}"
    if inspection.smallest:
        properties["smallest, largest"] = f"{inspection.smallest}, {inspection.largest}"
    if inspection.planned:
        words = {"train": "training", "val": "validation", "test": "test"}
        parts = [f"{inspection.planned[kind]:,} {words[kind]}" for kind in words if kind in inspection.planned]
        keys = [
            f"data.{kind}_fraction"
            for kind in ("val", "test")
            if kind in inspection.planned and kind not in inspection.counts
        ]
        properties["splits"] = ", ".join(parts) + (f" (set by {' and '.join(keys)})" if keys else "")
    if inspection.several:
        properties["labels an image"] = inspection.several
    properties["colors"] = ", ".join(f"{mode}: {count:,}" for mode, count in Counter(inspection.modes).most_common())
    if inspection.values:
        properties["channels, values"] = inspection.values
    return properties


def _warnings(inspection: Inspection) -> list[str]:
    warnings = [
        *([f"`viticulture train` refuses these: {inspection.refused}"] if inspection.refused else []),
        *inspection.warnings,
    ]
    if (objects := inspection.annotations) is not None:
        warnings += [f"{counted(objects.crowds, 'crowd')}, not trained on"] if objects.crowds else []
        warnings += (
            [f"{counted(objects.outside, 'box')} empty or reaching outside the image"] if objects.outside else []
        )
    elif not inspection.classes and inspection.contents not in RECIPES:
        warnings.append("no labels: `--recipe mae/photos` trains without; with a folder per class, any recipe does")
    elif inspection.unlabeled and not inspection.planned:  # else a note says how many each split leaves out
        warnings.append(f"{counted(inspection.unlabeled, 'image')} without a label")
    if inspection.uneven:
        sizes = dict(zip(inspection.classes, inspection.counts["train"], strict=True))
        most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        warnings.append(
            f"classes are uneven: {most} has {sizes[most]:,} images, {least} {sizes[least]:,}; {inspection.uneven}"
        )
    if inspection.near:
        listed = "; ".join(" ~ ".join(pair) for pair in inspection.near[:3])
        listed += f"; and {len(inspection.near) - 3:,} more" if len(inspection.near) > 3 else ""
        warnings.append(
            f"{counted(len(inspection.near), 'pair')} of images in different splits that look the same, though not "
            f"pixel by pixel (a copy shrunk or saved again?): {listed}; --data.near_duplicates leave_out trains "
            "without them"
        )
    if inspection.pairs:
        other = sum(pair.first_class != pair.second_class for pair in inspection.pairs)
        differ = f", {other:,} of them of different classes" if other else ""
        warnings.append(
            f"{counted(len(inspection.pairs), 'pair')} of near-duplicates in all{differ}; splits that are drawn keep "
            "them together; --out pairs.csv lists them"
        )
    warnings += [f"unreadable: {name} ({reason})" for name, reason in list(inspection.unreadable.items())[:20]]
    if len(inspection.unreadable) > 20:
        warnings.append(f"... and {len(inspection.unreadable) - 20:,} more unreadable images")
    for kind, groups in (("in several splits", inspection.across), ("under several labels", inspection.contradicting)):
        if groups:
            listed = "; ".join(_equal(group) for group in groups[:5])
            listed += f"; and {len(groups) - 5:,} more" if len(groups) > 5 else ""
            warnings.append(f"{counted(len(groups), 'image')} {kind}, pixel by pixel the same: {listed}")
    if inspection.repeated:
        share = percent(inspection.repeated / max(inspection.images, 1))
        warnings.append(f"{counted(inspection.repeated, 'image')} ({share}) equal to another one, pixel by pixel")
    if inspection.ignored:
        warnings.append(f"no images: {counted(len(inspection.ignored), 'file')}, {', '.join(inspection.ignored[:5])}")
    return warnings


def _equal(group: Sequence[str]) -> str:
    """The first names of equal images, and how many there are."""
    return " = ".join(group[:3]) + (f" and {len(group) - 3:,} more" if len(group) > 3 else "")
