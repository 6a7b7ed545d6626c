# SPDX-License-Identifier: Apache-2.0
"""The stages that a budget was spent on: each one's share of the time, its score, and a link to its page."""

from urllib.parse import quote

from ...budget.plan import is_planned, read_plan
from ...config.keys import STAGES
from ...evaluation.headline import read_headline
from ...training.run_folder import RunFolder
from ..document import Section, table
from ..html import Markup
from ..tables.stages import NAMES, stages_sheet


def stages_section(run: RunFolder) -> Section:
    """Empty for a run without a budget."""
    title = "Stages"
    if not is_planned(run.path):
        return Section(title, "")
    plan = read_plan(run.path)
    places = [RunFolder(plan.place(run.path, number)) for number in range(len(plan.stages))]
    links = Markup(", ").join(
        Markup('<a href="{}/{}/report.html">{}</a>').format(STAGES, quote(stage.name), NAMES[stage.kind])
        for stage in plan.stages[:-1]
    )
    pages = Markup("<p>Reports of the stages before this one: {}.</p>").format(links) if links else Markup()
    return Section(title, table(stages_sheet(plan, [read_headline(place) for place in places])) + pages)
