# SPDX-License-Identifier: Apache-2.0
"""A run's student seen from inside: a page of its own, explain.html, and sections of the run's report."""

from pathlib import Path

from ...analysis.explanation import Explanation
from ...training.rundir import RunDir
from ..charts.pictures import galleries
from ..document import Head, Section, document
from ..html import Markup
from ..sections.inside import features_section, inside_sections, likeness_section


def write_explanation(run: RunDir, found: Explanation) -> Path:
    """Draw explain.html."""
    title = f"Inside {run.read('run.json')['student']['name']}: {run.path.name}"
    return run.write("explain.html", explanation_page(title, run.path.name, found))


def explanation_page(title: str, name: str, found: Explanation) -> str:
    """The page as HTML text; the network is called by `name`."""
    looks = Section("Where it looks", galleries(found.attention))
    return document(Head(title, sentence=_basis(found)), [*_sections(name, found), looks])


def explanation_sections(run: RunDir, found: Explanation | None) -> list[Section]:
    """The same for the report, which shows where it looks in a section of its own; nothing where the run was not
    explained."""
    if found is None:
        return []
    first, *others = _sections(run.path.name, found)
    return [Section(first.title, Markup("<p>{}</p>{}").format(_basis(found), first.html)), *others]


def _sections(name: str, found: Explanation) -> list[Section]:
    sections = [*inside_sections(found.inside), features_section(found.features)]
    if found.cka is not None:
        sections.append(likeness_section(found.cka, name, found.beside, found.inside.reading))
    return sections


def _basis(found: Explanation) -> str:
    layer = {
        "norms": "what a block's first norm makes of its input, from the embedded patches (layer 0) to what leaves the "
        "last norm",
        "blocks": "what a block gives, as it is",
    }[found.inside.reading]
    basis = f"Means over {found.inside.images:,} {found.split} images, {found.weights} weights."
    return f"{basis} In similarity and smoothing, a layer is {layer}."
