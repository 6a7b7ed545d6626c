# SPDX-License-Identifier: Apache-2.0
"""The stages of a run within a budget: the plan before it; time and score of each, with a link to its page."""

from collections.abc import Sequence
from urllib.parse import quote

from ..budget.budget import TimeBudget
from ..budget.lengths import MARGIN
from ..budget.plan import BudgetPlan, Stage, is_planned, read_plan
from ..budget.recipes import is_dense
from ..config.keys import STAGES
from ..config.schema import of_class
from ..table import Column, Table
from ..tasks.results import Headline, read_headline
from ..training.run_folder import RunFolder
from .html import Markup, Section, html_table

NAMES = {"mae": "MAE, no labels", "teacher": "teacher", "student": "student"}

COLUMNS = [
    Column("stage"), Column("network"), Column("precision"), Column("image size", "count"), Column("epochs", "count"),
]  # fmt: skip


def _stage(stage: Stage) -> tuple[str | int, ...]:
    """Return a stage in `COLUMNS`; the precision only where it is not the device's default."""
    precision = stage.values["engine"]["precision"].replace("auto", "")
    return NAMES[stage.kind], stage.student, precision, stage.image_size, stage.epochs


def plan_table(plan: BudgetPlan) -> Table:
    """Return the stages before training."""
    rows = [(*_stage(stage), stage.seconds / 60) for stage in plan.stages]
    unit = TimeBudget(plan.budget).unit
    budget = plan.budget + " min" * plan.budget.strip()[-1:].isdigit()
    note = (
        f"{plan.planned / 60:.1f} {unit} of the {budget} are planned, including the {plan.prepared / 60:.1f} {unit} so "
        f"far; {100 * MARGIN:.0f} % are a reserve."
    )
    free = TimeBudget(plan.budget).seconds * (1 - MARGIN) - plan.planned
    if free > plan.stages[-1].step_times.epoch:
        note += " Longer trainings are not useful, so that it ends early."
    if is_dense(plan.stages[-1].config):
        note += (
            " Of detectors and segmenters a budget chooses only the epochs: student and image size are the recipe's."
        )
    if plan.stages[-1].values["optim"]["name"] == "muon":
        note += " The student is trained with Muon (optim.name)."
    if of_class(plan.stages[-1].values["augment"], "mix"):
        decay = plan.stages[-1].values["optim"]["weight_decay"]
        note += f" The student's images are mixed (augment.mix), with a weight decay of {decay:g} (optim.weight_decay)."
    if plan.stages[-1].config.images.eval_views == "best":
        note += " Validation images choose its test-time augmentation (images.eval_views)."
    return Table("Plan", [*COLUMNS, Column(unit, "significant")], rows, note)


def stages_table(plan: BudgetPlan, headlines: Sequence[Headline | None]) -> Table:
    """Return the stages after training."""
    unit = TimeBudget(plan.budget).unit
    columns = [
        *COLUMNS,
        Column(f"{unit} planned", "significant"),
        Column(unit, "significant"),
        Column("share of time", "percent"),
    ]
    first = next((headline for headline in headlines if headline), None)
    columns.append(Column(first.name if first else "result", "percent" if first is None or first.share else "decimal"))
    total = plan.spent or 1.0  # a clock may not have ticked yet
    rows: list[tuple[str | int | float | None, ...]] = [
        ("choosing", "", "", None, None, None, plan.prepared / 60, plan.prepared / total, None)
    ]
    for stage, headline in zip(plan.stages, headlines, strict=True):
        minutes = None if stage.spent is None else stage.spent / 60
        share = None if stage.spent is None else stage.spent / total
        rows.append((*_stage(stage), stage.seconds / 60, minutes, share, headline.value if headline else None))
    note = (
        f"Within {plan.budget}, of which {plan.spent / 60:.1f} {unit} are spent. Lengths follow from what was measured "
        "on that machine; to train the same again, take each stage's recipe.yaml."
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
    table = html_table(stages_table(plan, [read_headline(place) for place in places]))
    return Section(title, table + pages, folded=True)
