# SPDX-License-Identifier: Apache-2.0
"""Analysis of a run's student: a page, explain.html, and sections of the run's report."""

from pathlib import Path

from ...analysis.explanation import Explanation
from ...training.run_folder import RunFolder
from ..charts.pictures import galleries
from ..document import Head, Section, document
from ..html import Markup
from ..sections.inside import features_section, inside_sections, likeness_section


def write_explanation(run: RunFolder, explanation: Explanation) -> Path:
    """Draw explain.html."""
    title = f"Inside {run.read('run.json')['student']['name']}: {run.path.name}"
    return run.write("explain.html", explanation_page(title, run.path.name, explanation))


def explanation_page(title: str, name: str, explanation: Explanation) -> str:
    """The page as HTML text; the network is called by `name`."""
    attention = Section("What it attends to", galleries(explanation.attention))
    return document(Head(title, sentence=_basis(explanation)), [*_sections(name, explanation), attention])


def explanation_sections(run: RunFolder, explanation: Explanation | None) -> list[Section]:
    """Return the sections for the report, which has a separate one for attention; empty without an explanation."""
    if explanation is None:
        return []
    first, *others = _sections(run.path.name, explanation)
    return [Section(first.title, Markup("<p>{}</p>{}").format(_basis(explanation), first.html)), *others]


def _sections(name: str, explanation: Explanation) -> list[Section]:
    sections = [*inside_sections(explanation.analysis), features_section(explanation.features)]
    if explanation.cka is not None:
        sections.append(
            likeness_section(explanation.cka, name, explanation.compared_with, explanation.analysis.reading)
        )
    return sections


def _basis(explanation: Explanation) -> str:
    layer = {
        "norms": "the output of a block's first norm, from the embedded patches (layer 0) to that of the last norm",
        "blocks": "the output of a block",
    }[explanation.analysis.reading]
    basis = f"Means over {explanation.analysis.images:,} {explanation.split} images, {explanation.weights} weights."
    return f"{basis} In similarity and smoothing, a layer is {layer}."
