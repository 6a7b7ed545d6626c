# SPDX-License-Identifier: Apache-2.0
"""Analysis of a run's student: a page, explain.html, and sections of the run's report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..analysis.attention import default_layers
from ..analysis.explanation import Explanation
from ..analysis.galleries import Gallery
from ..analysis.layers import LayerAnalysis
from ..training.run_folder import RunFolder
from .html import Head, Markup, Section, document, side_by_side
from .pictures import Values, galleries, gallery, value_map
from .svg import Axes, Points, Series, line_chart

DISTANCE = (
    "Mean distance from a patch to the patches it attends to, weighted by its attention. Low: the layer attends "
    "nearby. Uniform attention goes to all patches equally."
)
ENTROPY = (
    "Entropy of a patch's attention to all patches. Low: the layer attends to few patches. Uniform attention goes to "
    "all patches equally."
)
ALIKE = (
    "CKA of patch features, unbiased: 1 for layers that are equal up to rotation and scale, about 0 for unrelated ones."
)
SMOOTH = "Log amplitude (natural logarithm) of diagonal frequencies, relative to frequency 0. Low: the layer smooths."
HELD = (
    "Each image, then a map for each layer: how far the features of a place are from their mean over the image (root "
    "mean square over channels). Bright is far; each map has its own scale. A layer is a block, in a CNN a stage."
)


def inside_sections(inside: LayerAnalysis) -> list[Section]:
    """Draw a `LayerAnalysis` as charts over layers and maps of heads."""
    distance, entropy = zip(*inside.uniform, strict=True)
    heads = _over_layers("Attention distance, pixels", "pixels", inside.distance, distance, DISTANCE)
    heads += _over_layers("Attention entropy, nats", "nats", inside.entropy, entropy, ENTROPY)
    names = _layers("layer", len(inside.cka), inside.reading)
    alike = value_map("Similarity of layers", [("CKA", inside.cka.double().cpu().numpy())], names, names, ALIKE)
    sections = [Section("Attention distance and entropy", heads), Section("Similarity of layers", alike)]
    return [*sections, Section("Smoothing by the layers", _smoothing(inside))]


def likeness_section(cka: Tensor, first: str, second: str, reading: str) -> Section:
    """CKA between the layers of two students, by their names, and their layers with the same number as a line."""
    rows, columns = _layers(first, cka.shape[0], reading), _layers(second, cka.shape[1], reading)
    maps = [(f"{first}: down, {second}: to the right", cka.double().cpu().numpy())]
    alike = value_map("Similarity of layers", maps, rows, columns, ALIKE)
    if len(rows) != len(columns):
        return Section(f"Compared with {second}", alike)
    line = {"CKA": list(enumerate(cka.diag().tolist(), _first(reading)))}
    same = line_chart("Similarity of layers with the same number", _lines(line), Axes("layer", "CKA"))
    return Section(f"Compared with {second}", side_by_side(alike, same))


def features_section(drawings: Sequence[Gallery]) -> Section:
    """Draw the feature maps of one or more networks, image by image; empty if there are none."""
    drawn = side_by_side(*map(gallery, drawings))
    return Section("Features of the layers", Markup("<p>{}</p>{}").format(HELD, drawn) if drawings else Markup())


def _over_layers(title: str, unit: str, values: Sequence[Tensor], uniform: Sequence[float], note: str) -> Markup:
    """A chart of the heads' mean and range over layers, and a map of every head."""
    lines = {
        "mean of heads": [(float(i), layer.mean().item()) for i, layer in enumerate(values, 1)],
        "lowest head": [(float(i), layer.min().item()) for i, layer in enumerate(values, 1)],
        "highest head": [(float(i), layer.max().item()) for i, layer in enumerate(values, 1)],
        "uniform attention": [(float(i), value) for i, value in enumerate(uniform, 1)],
    }
    every: Values = np.full((max(len(layer) for layer in values), len(values)), np.nan)
    for i, layer in enumerate(values):
        every[: len(layer), i] = layer.sort().values.double().cpu().numpy()
    rows, columns = _names("rank", len(every)), _names("layer", len(values))
    by_head = value_map(f"{title}, every head", [("heads of each layer from low to high", every)], rows, columns)
    return side_by_side(line_chart(title, _lines(lines), Axes("layer", unit), note), by_head)


def _smoothing(inside: LayerAnalysis) -> Markup:
    if not inside.frequencies:
        return Markup()
    begin = _first(inside.reading)
    last = {"last frequency": [(float(i), value) for i, value in enumerate(inside.amplitude[:, -1].tolist(), begin)]}
    title = f"Delta log amplitude, at {inside.frequencies[-1]:.2f} pi a patch"
    by_frequency = {
        f"layer {layer + begin}": list(zip(inside.frequencies, inside.amplitude[layer].tolist(), strict=True))
        for layer in default_layers(len(inside.amplitude))
    }
    axes = Axes("frequency, pi a patch", "log amplitude")
    over_layers = line_chart(title, _lines(last), Axes("layer", "log amplitude"), SMOOTH)
    return side_by_side(over_layers, line_chart("Relative log amplitude", _lines(by_frequency), axes, SMOOTH))


def _lines(lines: Mapping[str, Points]) -> list[Series]:
    return [Series(name, number, points) for number, (name, points) in enumerate(lines.items())]


def _first(reading: str) -> int:
    """Return the number of the first layer."""
    return 0 if reading == "norms" else 1


def _layers(word: str, count: int, reading: str) -> list[str]:
    return [f"{word} {number}" for number in range(_first(reading), count + _first(reading))]


def _names(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(1, count + 1)]


def write_explanation(run: RunFolder, explanation: Explanation) -> Path:
    """Draw explain.html."""
    title = f"Inside {run.read('run.json')['student']['name']}: {run.path.name}"
    return run.write("explain.html", explanation_page(title, run.path.name, explanation))


def explanation_page(title: str, name: str, explanation: Explanation) -> str:
    """The page as HTML text; the network is called by `name`."""
    attention = Section("What it attends to", galleries(explanation.attention))
    head = Head(title, _conclusion(explanation.analysis), _basis(explanation))
    return document(head, [*_explained(name, explanation), attention])


def explanation_sections(run: RunFolder, explanation: Explanation | None) -> list[Section]:
    """Return the sections for the report, which has a separate one for attention; empty without an explanation."""
    if explanation is None:
        return []
    first, *others = _explained(run.path.name, explanation)
    return [Section(first.title, Markup("<p>{}</p>{}").format(_basis(explanation), first.html)), *others]


def _explained(name: str, explanation: Explanation) -> list[Section]:
    sections = [*inside_sections(explanation.analysis), features_section(explanation.features)]
    if explanation.cka is not None:
        sections.append(
            likeness_section(explanation.cka, name, explanation.compared_with, explanation.analysis.reading)
        )
    return sections


def _conclusion(inside: LayerAnalysis) -> str:
    """Return how far the first and the last layer attend, and which layers differ most."""
    first, last = (inside.distance[i].mean().item() for i in (0, -1))
    row, column = divmod(int(inside.cka.argmin()), inside.cka.shape[1])
    begin = _first(inside.reading)
    return (
        f"A patch attends to patches {first:.1f} pixels away on average in the first layer and {last:.1f} in the last; "
        f"uniform attention reaches {inside.uniform[0][0]:.1f}. Features of layers {row + begin} and {column + begin} "
        f"differ most (CKA {inside.cka[row, column].item():.2f})."
    )


def _basis(explanation: Explanation) -> str:
    layer = {
        "norms": "the output of a block's first norm, from the embedded patches (layer 0) to that of the last norm",
        "blocks": "the output of a block",
    }[explanation.analysis.reading]
    basis = f"Means over {explanation.analysis.images:,} {explanation.split} images; {explanation.weights} weights."
    return f"{basis} In similarity and smoothing, a layer is {layer}."
