# SPDX-License-Identifier: Apache-2.0
"""What would be read from a data set of classes or labels, and what a person should look at before training on it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..data.inspect import Inspection
from ..data.inspect_dense import DenseInspection
from ..errors import counted
from ..table import MAX_ROWS, Cell, Column, Table, percent
from ..text import command_line


def inspected(inspection: Inspection) -> list[Table]:
    """Facts, images by class, and sentences."""
    counts = {
        name: {split: numbers[c] for split, numbers in inspection.counts.items()}
        for c, name in enumerate(inspection.classes)
    }
    return inspection_tables(_facts(inspection), counts, _warnings(inspection, counts), bool(inspection.several))


def inspection_tables(
    facts: Mapping[str, str], counts: Mapping[str, Mapping[str, int]], warnings: Sequence[str], several: bool = False
) -> list[Table]:
    """What would be read from a data set.

    Args:
        facts: a few properties by name, such as the source and the sizes.
        counts: class -> split -> images; long lists are cut, and say so.
        warnings: sentences.
        several: whether an image may have several labels.
    """
    splits = list(dict.fromkeys(split for each in counts.values() for split in each))
    rows: list[list[Cell]] = [[name, *(each.get(split, 0) for split in splits)] for name, each in counts.items()]
    totals = ", ".join(f"{sum(each.get(split, 0) for each in counts.values()):,} {split}" for split in splits)
    kind, kinds = ("label", "labels") if several else ("class", "classes")
    note = f"{counted(len(rows), kind)}; {totals}{', an image once for each of its labels' if several else ''}"
    if len(rows) > MAX_ROWS:
        note += f" (the first {MAX_ROWS} {kinds} are shown)"
    columns = [Column(kind), *(Column(split, "count") for split in splits)]
    tables = [Table("Data", [Column(""), Column("", "prose")], list(facts.items()))]
    if rows:
        tables.append(Table(f"Images by {kind}", columns, rows[:MAX_ROWS], note))
    if warnings:
        tables.append(Table("", [Column("Please look at", "prose")], [[warning] for warning in warnings]))
    return tables


def _facts(inspection: Inspection) -> dict[str, str]:
    facts = {"data": inspection.name, "images": f"{inspection.images:,}"}
    for name, spread in (("height", inspection.height), ("width", inspection.width)):
        if spread is not None:
            facts[f"{name}, pixels"] = f"{spread.least} to {spread.greatest}, median {spread.median:g}"
    if inspection.smallest:
        facts["smallest, largest"] = f"{inspection.smallest}, {inspection.largest}"
    if inspection.planned:
        words = {"train": "learn from", "val": "choose by", "test": "report on"}
        parts = [f"{words[kind]} {inspection.planned[kind]:,}" for kind in words if kind in inspection.planned]
        keys = [
            f"data.{kind}_fraction"
            for kind in ("val", "test")
            if kind in inspection.planned and kind not in inspection.counts
        ]
        facts["train would"] = ", ".join(parts) + (
            f" ({' and '.join(keys)} {'say' if len(keys) > 1 else 'says'} how many)" if keys else ""
        )
    if inspection.several:
        facts["labels an image"] = inspection.several
    facts["colors"] = ", ".join(f"{mode}: {count:,}" for mode, count in Counter(inspection.modes).most_common())
    if inspection.values:
        facts["channels, values"] = inspection.values
    return facts


def _warnings(inspection: Inspection, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    warnings = [
        *([f"`viticulture train` refuses these: {inspection.refused}"] if inspection.refused else []),
        *inspection.notes,
    ]
    if not inspection.classes:
        warnings.append("no labels: `--recipe mae/photos` learns without; with a folder a class, any recipe does")
    elif inspection.unlabeled and not inspection.planned:  # else a note says how many each split leaves out
        warnings.append(f"{counted(inspection.unlabeled, 'image')} without a label")
    if inspection.uneven:
        sizes = {name: each["train"] for name, each in counts.items() if "train" in each}
        most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        warnings.append(
            f"classes are uneven: {most} has {sizes[most]:,} images, {least} {sizes[least]:,}; {inspection.uneven}"
        )
    if inspection.near:
        shown = "; ".join(" ~ ".join(pair) for pair in inspection.near[:3])
        shown += f"; and {len(inspection.near) - 3:,} more" if len(inspection.near) > 3 else ""
        warnings.append(
            f"{counted(len(inspection.near), 'pair')} of images in different splits that look the same, though not "
            f"pixel by pixel (a copy shrunk or saved again?): {shown}; --data.near_duplicates leave_out trains without "
            "them"
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
            shown = "; ".join(_equal(group) for group in groups[:5])
            shown += f"; and {len(groups) - 5:,} more" if len(groups) > 5 else ""
            warnings.append(f"{counted(len(groups), 'image')} {kind}, pixel by pixel the same: {shown}")
    if inspection.repeated:
        share = percent(inspection.repeated / max(inspection.images, 1))
        warnings.append(f"{counted(inspection.repeated, 'image')} ({share}) equal to another one, pixel by pixel")
    if inspection.ignored:
        warnings.append(f"no images: {counted(len(inspection.ignored), 'file')}, {', '.join(inspection.ignored[:5])}")
    return warnings


def _equal(group: Sequence[str]) -> str:
    """The first names of equal images, and how many there are."""
    return " = ".join(group[:3]) + (f" and {len(group) - 3:,} more" if len(group) > 3 else "")


def annotated_tables(inspection: DenseInspection) -> list[Table]:
    """Facts about the set, then objects (or images that show it) of each class by split, then what is wrong."""
    facts: list[list[Cell]] = [
        ["data", inspection.name],
        ["holds", "objects" if inspection.kind == "objects" else "classes of pixels"],
    ]
    facts += [[f"{split} images", f"{count:,}"] for split, count in inspection.images.items()]
    if inspection.kind == "objects":
        facts += [[f"{size} objects", f"{inspection.sizes.get(size, 0):,}"] for size in ("small", "medium", "large")]
        facts.append(["masks of objects", "yes" if inspection.masks else "no"])
        facts.append(["images without objects", f"{inspection.bare:,}"])
    columns = [Column("class"), *(Column(split, "count") for split in inspection.images)]
    rows: list[list[Cell]] = [
        [name, *(inspection.counts[split][label] for split in inspection.images)]
        for label, name in enumerate(inspection.classes)
    ]
    warnings = [*inspection.notes]
    warnings += [f"{counted(inspection.crowds, 'crowd')}, not trained on"] if inspection.crowds else []
    warnings += (
        [f"{counted(inspection.outside, 'box')} empty or reaching outside the image"] if inspection.outside else []
    )
    warnings += [f"{name}: {why}" for name, why in list(inspection.unreadable.items())[:20]]
    trainable = any(inspection.counts.get("train", ()))
    recipe = "detection/photos" if inspection.kind == "objects" else "segmentation/photos"
    line = command_line(["viticulture", "train", inspection.data, "--recipe", recipe if trainable else "mae/photos"])
    shown = "an object that is no crowd" if inspection.kind == "objects" else "a labeled pixel"
    way = "To train on it" if trainable else f"No training image has {shown}; to train on the images alone"
    more = len(rows) > MAX_ROWS
    what = "Objects of each class" if inspection.kind == "objects" else "Images that show each class"
    return [
        Table("", [Column(""), Column("")], facts, f"{way}: {line}"),
        Table(what, columns, rows[:MAX_ROWS], f"The first {MAX_ROWS} of {len(rows):,}." if more else ""),
        *([Table("Look at", [Column("", "prose")], [[line] for line in warnings])] if warnings else []),
    ]
