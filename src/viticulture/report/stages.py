# SPDX-License-Identifier: Apache-2.0
"""The stages of a run within a budget: before it, and what each of them took and reached."""

# The stages that a budget was spent on: each one's share of the time, its score, and a link to its page.
from collections.abc import Sequence
from urllib.parse import quote

from ..budget.budget import Budget
from ..budget.lengths import MARGIN
from ..budget.plan import Plan, Stage, is_planned, read_plan
from ..budget.recipes import is_dense
from ..config.keys import STAGES
from ..config.schema import of_class
from ..table import Column, Table
from ..tasks.results import Headline, read_headline
from ..training.run_folder import RunFolder
from .html import Markup, Section, html_table

NAMES = {"mae": "MAE, no labels", "teacher": "CNN teacher", "student": "student"}

COLUMNS = [
    Column("stage"), Column("network"), Column("precision"), Column("image size", "count"), Column("epochs", "count"),
]  # fmt: skip


def _what(stage: Stage) -> tuple[str | int, ...]:
    """A stage in `COLUMNS`; the precision where it is not the device's usual one."""
    precision = stage.values["engine"]["precision"].replace("auto", "")
    return NAMES[stage.kind], stage.student, precision, stage.image_size, stage.epochs


def plan_table(plan: Plan) -> Table:
    """What is about to be trained."""
    rows = [(*_what(stage), stage.seconds / 60) for stage in plan.stages]
    kind = " of the processors' time" if Budget(plan.budget).counts_processors else ""
    given = plan.budget + " min" * plan.budget.strip()[-1:].isdigit()
    words = (
        f"{plan.planned / 60:.1f} min{kind} of the {given} are planned, the {plan.prepared / 60:.1f} until now "
        f"among them; {100 * MARGIN:.0f} % stay free for what takes longer."
    )
    free = Budget(plan.budget).seconds * (1 - MARGIN) - plan.planned
    if free > plan.stages[-1].pace.epoch:
        words += " Longer trainings than these make no sense, so it ends early."
    if is_dense(plan.stages[-1].resolved):
        words += (
            " Of detectors and segmenters a budget chooses the epochs alone: student and image size are the recipe's."
        )
    if plan.stages[-1].values["optim"]["name"] == "muon":
        words += " The student learns by Muon (optim.name)."
    if of_class(plan.stages[-1].values["augment"], "mix"):
        decay = plan.stages[-1].values["optim"]["weight_decay"]
        words += f" The student's images are mixed (augment.mix), at a decay of {decay:g} (optim.weight_decay)."
    if plan.stages[-1].resolved.images.eval_views == "best":
        words += " Validation images choose by which views of an image it answers (images.eval_views)."
    return Table("Plan", [*COLUMNS, Column("min", "significant")], rows, words)


def stages_table(plan: Plan, headlines: Sequence[Headline | None]) -> Table:
    """What became of it.

    Args:
        plan: with the times that its stages took, as far as they are known.
        headlines: of each stage the number that counts; None without labels, or where it was not measured.
    """
    columns = [
        *COLUMNS,
        Column("min planned", "significant"),
        Column("min", "significant"),
        Column("of the time", "percent"),
    ]
    columns.append(Column(next((headline.name for headline in headlines if headline), "top-1"), "percent"))
    total = plan.spent or 1.0  # a clock may not have ticked yet
    rows: list[tuple[str | int | float | None, ...]] = [
        ("choosing", "", "", None, None, None, plan.prepared / 60, plan.prepared / total, None)
    ]
    for stage, headline in zip(plan.stages, headlines, strict=True):
        minutes = None if stage.spent is None else stage.spent / 60
        share = None if stage.spent is None else stage.spent / total
        rows.append((*_what(stage), stage.seconds / 60, minutes, share, headline.value if headline else None))
    note = (
        f"Within {plan.budget}, of which {plan.spent / 60:.1f} min are spent. Lengths follow from what was measured on "
        "that machine; to train the same again, take each stage's recipe.yaml."
    )
    return Table("", columns, rows, note)


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
    return Section(title, html_table(stages_table(plan, [read_headline(place) for place in places])) + pages)
