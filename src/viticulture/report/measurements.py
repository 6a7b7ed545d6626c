# SPDX-License-Identifier: Apache-2.0
"""Further measurements of a run as tables and sections: teachers, links, probes, robustness, localization."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ..analysis.galleries import Gallery, Group
from ..analysis.links import TrainedLinks
from ..errors import counted
from ..evaluation.agreement import Agreement
from ..evaluation.localization.evaluate import Example, Localization
from ..evaluation.localization.metrics import OVERLAPS
from ..evaluation.model import ONE_HEAD
from ..evaluation.probe.evaluate import Probe
from ..evaluation.robustness.metrics import Robustness
from ..evaluation.robustness.strengths import BLUR, DIGITAL, EXTRA, NOISE, SEVERITIES, WEATHER
from ..models.links import LinkSet
from ..scores.intervals import ENDS, times_drawn
from ..table import Cell, Column, Table
from ..tasks.results import read_headline, read_predictions
from ..training.run_folder import RunFolder
from .html import Head, Markup, Section, document, html_table, side_by_side
from .pictures import Values, galleries, gallery, value_map
from .svg import Axes, Series, line_chart, row_chart

LINK_MAPS = 6  # epochs whose links are drawn
FEATURES = {"class": "class token", "mean": "mean over the image"}
GROUPS = {"noise": NOISE, "blur": BLUR, "weather": WEATHER, "digital": DIGITAL, "extra": EXTRA}
SIDE = 128  # pixels, the smaller side of a drawn view
TRUE, FOUND = (240, 228, 66), (0, 114, 178)  # yellow and blue, different without color vision


def agreement_section(agreement: Agreement | None) -> list[Section]:
    """Return accuracies and divergences, then pairs of networks; nothing for a run without teachers."""
    if agreement is None:
        return []
    if agreement.missing or agreement.accuracy is None:
        return [Section("Teachers", Markup("<p>The teachers could not be evaluated: {}</p>").format(agreement.missing))]
    columns = [Column(""), Column("top-1", "percent")]
    columns += [Column(f"KL from {name}", "decimal") for name in agreement.teachers]
    nothing = [""] * len(agreement.teachers)
    by_head = dict(zip(agreement.heads, agreement.divergence, strict=True))
    of_student = by_head[agreement.heads[0]] if len(agreement.heads) == 1 else nothing
    rows: list[list[Cell]] = [
        [name, share, *(of_student if name == "student" else by_head.get(name, nothing))]
        for name, share in agreement.accuracy.items()
    ]
    note = (
        f"{agreement.images:,} {agreement.split} images, {agreement.weights} weights. KL(teacher || head): nats, mean "
        f"over images. The student predicts by its {agreement.rule}."
    )
    names = list(agreement.accuracy)
    pairs = [Column(""), *(Column(name, "percent") for name in names)]
    wrong, same = (
        [list[Cell]([name, *row]) for name, row in zip(names, matrix, strict=True)]
        for matrix in (agreement.both_wrong, agreement.same_prediction)
    )
    tables = [
        Table("Accuracy of student and teachers", columns, rows, note),
        Table("Images on which both are wrong", pairs, wrong, "On the diagonal: the error of each."),
        Table("Images for which both predict the same class", pairs, same, "Correct or wrong."),
    ]
    return [Section("Teachers", Markup().join(map(html_table, tables)))]


def link_table(stages: Sequence[str], strengths: Tensor, linked: LinkSet, note: str) -> Table:
    """Draw heat maps of mean |w| by CNN block and layer, as in AAL's Figures 2 and B: at the end, and over training."""
    blocks, layers = strengths.shape
    columns = [Column("CNN block"), Column("kept"), *(Column(str(layer), "decimal") for layer in range(layers))]
    rows = [
        (f"{block} {stages[block]}", ", ".join(map(str, linked[block])) or "none", *strengths[block].tolist())
        for block in range(blocks)
    ]
    return Table("Strength of links from CNN blocks to the ViT's layers, both counted from 0", columns, rows, note)


def links_section(trained: TrainedLinks, guide: str = "") -> Section:
    """Draw heat maps of mean |w| by CNN block and layer, as in AAL's Figures 2 and B."""
    stages = [f"block {number}, {name}" for number, name in enumerate(trained.links.channels)]
    layers = [f"layer {number}" for number in range(len(trained.links.heads))]
    maps = []
    for magnitudes in trained.magnitudes:
        values: Values = np.full(tuple(magnitudes.shape), np.nan)
        for block, of_block in enumerate(trained.links.linked):
            values[block, of_block] = magnitudes[block, of_block].double().numpy()
        maps.append(values)
    last = len(maps) - 1
    moments = [f"after {counted(epoch, 'epoch')}" for epoch in range(len(maps))]
    if trained.inside:
        moments[last] = f"in epoch {last}"
    html = value_map(
        "Mean magnitude of the links from CNN blocks to layers of the ViT, both counted from 0",
        [(moments[last], maps[last])],
        stages,
        layers,
        "" if all(len(linked) == len(layers) for linked in trained.links.linked) else "Empty: not linked.",
    )
    epochs_shown = sorted({round(k * last / (LINK_MAPS - 1)) for k in range(LINK_MAPS)})
    html += value_map(
        "The same during training, CNN blocks downwards, layers to the right",
        [(moments[epoch], maps[epoch]) for epoch in epochs_shown],
        [str(number) for number in range(len(stages))],
        [str(number) for number in range(len(layers))],
    )
    return Section(f"Links to the teacher{guide and f' of {guide}'}", html)


def probe_table(probe: Probe) -> Table:
    """Return a row for each kind of features and classifier."""
    columns = [Column("features"), Column("classifier"), Column("chosen"), Column("validation", "percent")]
    columns += [Column("test", "percent"), Column("95 % interval")]
    rows: list[list[Cell]] = []
    for finding in probe.findings:
        low, high = finding.top1_interval
        setting = f"{'k' if finding.classifier == 'k-NN' else 'decay'} {finding.setting:g}"
        interval = f"{100 * low:.1f} to {100 * high:.1f} %"
        rows.append([FEATURES[finding.features], finding.classifier, setting, finding.val, finding.top1, interval])
    images = probe.images
    note = (
        f"{probe.classes} classes; {images['train']:,} training, {images['val']:,} validation and {images['test']:,} "
        f"test images. Best on validation: {probe.best.classifier} on the {FEATURES[probe.best.features]}."
    )
    weights = f", weights {probe.weights}" if probe.weights else ""
    return Table(f"Frozen features of {probe.network}{weights} on {probe.data}: top-1", columns, rows, note)


def network_table(runs: Mapping[str, RunFolder]) -> Table:
    """Return a row for each network with a new classifier, the best on held-out training or validation images first.

    The last column compares its accuracy with the first one's over the same images: the difference in points, and its
    95 % interval when images are drawn with replacement.
    """
    rows: list[list[Cell]] = []
    metadata = {name: run.read("run.json") for name, run in runs.items()}
    ranked = sorted(runs, key=lambda name: -max(metadata[name]["chosen_by"].values(), default=0.0))
    hits = {name: saved.predicted == saved.labels for name in ranked for saved in [read_predictions(runs[name])]}
    headlines = {name: read_headline(runs[name]) for name in ranked}
    for name in ranked:
        headline, known, drawn = headlines[name], metadata[name], times_drawn(len(hits[name]))
        assert headline is not None, "a probe has test images or validation images"
        gap = hits[name].astype(float) - hits[ranked[0]]
        low, high = 100 * np.percentile(drawn @ gap / len(gap), ENDS)
        compared = "" if name == ranked[0] else f"{100 * gap.mean():+.1f} ({low:+.1f} to {high:+.1f})"
        side = known["settings"]["images"]["image_size"]
        parameters, share = known["student"]["parameters"] / 1e6, max(known["chosen_by"].values(), default=None)
        interval = headline.written_interval
        rows.append([name, f"{side}", parameters, share, headline.value, interval, compared])
    chosen_by, split = next(iter(metadata[ranked[0]]["chosen_by"]), "validation"), headlines[ranked[0]]
    columns = [Column("network"), Column("pixels"), Column("parameters, M", "decimal"), Column(chosen_by, "percent")]
    columns += [Column(split.split if split else "test", "percent"), Column("95 % interval")]
    columns += [Column("against the first, points")]
    images = len(hits[ranked[0]])
    note = f"{images:,} {split.split if split else ''} images, the same for all; ordered by {chosen_by}."
    return Table("Frozen networks with a linear classifier: top-1", columns, rows, note)


def probe_section(every: Sequence[Probe]) -> list[Section]:
    """Return a table for each set of weights and images that was evaluated; nothing where none was."""
    tables = Markup().join(html_table(probe_table(probe)) for probe in every)
    return [Section("Frozen features", tables)] if every else []


def robustness_table(robustness: Robustness) -> Table:
    """Return a row per corruption: the student's error by severity and on average, and that of each of its heads."""
    tokens = list(range(1, len(robustness.heads)))
    if not robustness.errors:
        columns = [Column(""), Column("error", "percent"), Column("accuracy", "percent")]
        rows: list[list[Cell]] = [
            [head, error, 1 - error] for head, error in zip(robustness.heads, robustness.clean, strict=True)
        ]
        return Table(f"{robustness.data}", columns, rows, _robustness_note(robustness))
    columns = [Column("errors"), Column("group"), Column("mean", "percent")]
    columns += [Column(name, "percent") for name in (*map(str, SEVERITIES), *robustness.heads[1:])]
    rows, empty = [], [""] * len(SEVERITIES)
    if robustness.clean:
        rows.append(["as they are", "", robustness.clean[0], *empty, *robustness.clean[1:]])
    if (mean := robustness.mean_error()) is not None:
        of_heads = [robustness.mean_error(k) for k in tokens]
        rows.append(["mean of the 15", "all but extra", mean, *empty, *of_heads])
    for group, names in GROUPS.items():
        for name in (name for name in names if name in robustness.errors):
            by_severity = [severity[0] for severity in robustness.errors[name]]
            of_heads = [robustness.error(name, k) for k in tokens]
            rows.append([_plain(name), group, fmean(by_severity), *by_severity, *of_heads])
    of = f"the run's {robustness.data} images" if robustness.data in ("test", "validation") else robustness.data
    return Table(f"Errors on {of}, by severity", columns, rows, _robustness_note(robustness))


def robustness_section(every: Mapping[str, Robustness], shown: Sequence[Gallery]) -> list[Section]:
    """Return a table and charts for each collection of images, then examples of corruptions."""
    parts = [
        html_table(robustness_table(robustness)) + (_robustness_charts(robustness) if robustness.errors else "")
        for robustness in every.values()
    ]
    return [Section("Robustness", Markup().join([*parts, galleries(shown)]))] if parts else []


def _robustness_charts(robustness: Robustness) -> Markup:
    """Draw mean errors of each group of corruptions over severity (0 is the clean image), and of each corruption."""
    lines = []
    for style, (group, names) in enumerate(GROUPS.items()):
        present = [robustness.errors[name] for name in names if name in robustness.errors]
        if present:
            clean = [(0.0, 100 * robustness.clean[0])] if robustness.clean else []
            rest = [(float(s), 100 * fmean(errors[s - 1][0] for errors in present)) for s in SEVERITIES]
            lines.append(Series(group, style, [*clean, *rest]))
    of = {name: style for style, names in enumerate(GROUPS.values()) for name in names}
    means = [Series(_plain(name), of[name], [(100 * robustness.error(name), 0)]) for name in robustness.errors]
    by_severity = line_chart("Errors by severity", lines, Axes("severity", "wrong, %"))
    return side_by_side(by_severity, row_chart("Mean errors", means, "wrong, %"))


def _robustness_note(robustness: Robustness) -> str:
    note = f"{robustness.images:,} images{' of each' if robustness.errors else ''}, {robustness.weights} weights."
    if robustness.rule != ONE_HEAD:
        note += f" The student predicts by its {robustness.rule}."
    if any(name in robustness.errors for name in EXTRA):
        note += " Extra: reserved for validation, not in the mean of the 15."
    if robustness.corrupted_by:
        note += f" Strengths of {robustness.corrupted_by}."
    if robustness.classes < robustness.trained_classes:
        note += f" It chose between the {robustness.classes} classes in them, of {robustness.trained_classes:,}."
    if (mce := robustness.mean_corruption_error()) is not None:
        note += f" Mean corruption error relative to AlexNet: {100 * mce:.1f} %."
    return note


def _plain(corruption: str) -> str:
    """jpeg_compression -> JPEG compression."""
    return corruption.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def localization_table(localization: Localization) -> Table:
    """Return a row for each way to draw the box; thresholds in the note."""
    columns = [Column("box"), *(Column(f"IoU {overlap:g}", "percent") for overlap in OVERLAPS)]
    columns.append(Column("mean", "percent"))
    rows: list[list[Cell]] = [
        [name, *way.accuracies, way.mean]
        for name, way in (
            ("largest part (MaxBoxAcc)", localization.largest),
            ("best of all parts (MaxBoxAccV2)", localization.any_part),
            ("whole image, without a student", localization.everything),
        )
    ]
    thresholds = ", ".join(f"{threshold:g}" for threshold in localization.largest.thresholds)
    note = f"{localization.images} images, weights {localization.weights}, protocol {localization.protocol}. "
    note += f"Best thresholds of the largest part: {thresholds}."
    if localization.left_out:
        note += f" {localization.left_out} images have no box in view and are left out."
    return Table("Images whose box is found", columns, rows, note)


def localization_section(every: Mapping[str, Localization]) -> list[Section]:
    """Return a table for each set of images that was evaluated; nothing where none was."""
    tables = [
        replace(localization_table(localization), title=f"Images whose box is found: {data}")
        for data, localization in every.items()
    ]
    return [Section("Localization", Markup().join(map(html_table, tables)))] if tables else []


def localization_page(localization: Localization, run: RunFolder, data: str) -> str:
    """Return the table and the examples as HTML text."""
    metadata = run.read("run.json")
    sentence = (
        f"{metadata['student']['name']} of run {run.path} (recipe {metadata['recipe']}, seed {metadata['seed']}, "
        f"trained on {metadata['data']['name']}, begun {metadata['started']}), {localization.weights} weights, on "
        f"{data}; measured on {date.today().isoformat()}."
    )
    groups: list[Group] = [
        ([_with_boxes(example), example.score], [example.name, f"IoU {example.overlap:.2f}"])
        for example in localization.examples
    ]
    threshold = localization.largest.thresholds[len(OVERLAPS) // 2]
    note = (
        f"Yellow: true boxes. Blue: the largest part of the map at threshold {threshold:g}, which is best at "
        f"IoU {OVERLAPS[len(OVERLAPS) // 2]:g}. Right: mean attention of the class token, bright is high."
    )
    parts = [
        Section("Accuracy", html_table(localization_table(localization))),
        Section("Pictures", gallery(Gallery("Examples of the student's input images", groups, note))),
    ]
    return document(Head("Localization of objects", sentence=sentence), parts)


def _with_boxes(example: Example) -> NDArray[np.uint8]:
    """Draw a view with its boxes; the found one is inset, so that equal boxes are both visible."""
    block = max(1, SIDE // min(example.view.shape[:2]))
    picture = Image.fromarray(example.view.repeat(block, 0).repeat(block, 1))
    draw = ImageDraw.Draw(picture)
    for boxes, color, inset in ((example.true, TRUE, 0), (example.box, FOUND, 2)):
        for left, top, right, bottom in (boxes * block).tolist():
            corner, far = (left + inset, top + inset), (right - 1 - inset, bottom - 1 - inset)
            if far[0] >= corner[0] and far[1] >= corner[1]:
                draw.rectangle((corner, far), outline=color, width=2)
    return np.asarray(picture)
