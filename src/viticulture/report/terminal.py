# SPDX-License-Identifier: Apache-2.0
"""The terminal output of the commands: what is about to be trained, and their results."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from timm.models import get_pretrained_cfg

from ..budget.budget import TimeBudget
from ..budget.choices import PUBLIC
from ..budget.plan import BudgetPlan, is_planned
from ..budget.recipes import learns_classes
from ..data.image_settings import shape_of
from ..data.inspect import Inspection
from ..errors import counted
from ..models.catalog import Entry
from ..study.folder import StudyFolder
from ..study.plan import StudyPlan
from ..study.study import Study
from ..table import Cell, Column, Table, duration, print_table, scaled
from ..tasks.results import Results
from ..tasks.task import Prediction, task_class, task_of
from ..text import clean, command_line, log
from ..training.progress import ProgressBar
from ..training.session import Session
from ..waiting import STDERR, is_silent
from .inspection import inspected
from .stages import plan_table
from .study_page import study_warnings
from .study_tables import failures, results_table
from .study_tables import plan_table as study_plan_table

LONG = 20 * 60.0  # seconds from which a training without a budget is reported as long
PROPOSED = ("10m", "30m", "2h", "1night")
"""Budgets that are proposed then: the largest that takes no more than half the time."""


def introduce(session: Session) -> None:
    """Print the training that is about to begin, with its warnings, on standard error."""
    metadata = session.run.read("run.json")
    console = Console(file=STDERR, highlight=False, quiet=is_silent())
    data, student, side = metadata["data"], metadata["student"], shape_of(session.dataset.image_size)
    counts = ", ".join(f"{count:,} {split}" for split, count in data["images"].items())
    epochs = counted(session.config.train.epochs, "epoch")
    parameters, macs = scaled(student["parameters"]), scaled(student["macs"])
    classes = task_class(session.config.method_class).annotation(data["classes"])
    channels = session.method.data_spec.channels
    bands = "" if channels == 3 else f" with {counted(channels, 'channel')}"
    lines = [
        f"data     {data['name']}: {counts} images, {classes}, {side[0]} x {side[1]} pixels{bands}",
        f"student  {student['name']}: {parameters} parameters, {macs} MACs per image",
        f"recipe   {session.config.name}: {epochs}, seed {session.seed}",
        f"run      {session.run.path}",
        *(f"weights  {sentence}" for sentence in session.method.loaded),
        *(f"note     {warning}" for warning in session.warnings),
    ]
    for line in lines:
        console.print(clean(line), markup=False, soft_wrap=not console.is_terminal)


def bar(session: Session) -> ProgressBar:
    """Return a training's progress bar, with a hint where a new, long training could be shortened by a budget."""
    planned = any(map(is_planned, (session.run.path, *session.run.path.absolute().parents[1:2])))
    epochs, side = session.config.train.epochs, max(shape_of(session.dataset.image_size))
    forecast = None if planned or session.begun else partial(long_training, epochs, side)
    return ProgressBar(session.plan.batch_size, forecast=forecast)


def long_training(epochs: int, side: int, seconds: float) -> str:
    """Return the cost of a long training and what would fit; nothing for a short one."""
    if seconds < LONG:
        return ""
    fitting = [words for words in PROPOSED if TimeBudget(words).seconds <= seconds / 2]
    return (
        f"note     {counted(epochs, 'epoch')} at {side} px take about {duration(seconds)} on this machine; "
        f"`--budget {fitting[-1]}` chooses what fits into that"
    )


def introduce_budget(run: Path | None, plan: BudgetPlan) -> None:
    """Say on standard error what is going to be trained within a budget."""
    if is_silent():
        return
    print_table(plan_table(plan), file=STDERR)
    config = plan.stages[-1].config
    if learns_classes(config) and not any(stage.config.student.init for stage in plan.stages):
        cfg = get_pretrained_cfg(PUBLIC)
        terms = cfg.license if cfg else "unknown"
        log(
            f"note     with few images a public network is often ahead: --init {PUBLIC} downloads one (license {terms})"
        )


def introduce_study(study: StudyFolder, plan: StudyPlan) -> None:
    """Say on standard error what a study is about to train, and how long that takes here."""
    print_table(study_plan_table(study.grid, plan), file=STDERR)
    print(clean(f"study    {study.path}"), file=STDERR, flush=True)


def say(result: Any) -> None:
    """Print what a verb returned; a Run says its results on standard output."""
    if isinstance(result, Study):
        print_table(*([results_table(result)] if result.comparisons else []), *failures(result))
        print(clean(result.conclusion))
        for note in study_warnings(result):
            print(clean(f"note: {note}"))
        _print_report(result.path)
    elif hasattr(result, "folder") and isinstance(results := result.results, Results):
        task = task_of(result.folder)
        if results:
            print_table(*task.tables(results))
        for note in task.notes(results):
            print(clean(note))
        _print_report(result.path)
    elif isinstance(result, Results):
        print_table(*result.task.tables(result, full=True))
    elif isinstance(result, Inspection):
        print_table(*inspected(result))
    elif isinstance(result, list) and result and isinstance(result[0], Prediction):
        print_table(result[0].table(result))


def _print_report(folder: Path) -> None:
    """Print where the page is, unless drawing it failed."""
    if (page := folder / "report.html").is_file():
        print(clean(f"report: {page}"))


def student_list(entries: Sequence[Entry]) -> Table:
    """Students by name, what they cost, and what they are for."""
    columns = [Column("student"), Column("images, pixels", "count"), Column("parameters, M", "significant")]
    columns += [Column("MACs, M", "significant"), Column("what for", "prose")]
    rows: list[list[Cell]] = [
        [entry.name, entry.side, _millions(entry.parameters), _millions(entry.macs), entry.purpose] for entry in entries
    ]
    note = "Counted for 10 classes and images of that size; those of 32 pixels take others, too."
    if any(entry.parameters is None for entry in entries):
        note += " n/a: not counted; a narrower pattern counts up to 20."
    return Table("", columns, rows, note)


def _millions(number: int | None) -> float | None:
    return None if number is None else number / 1e6


def table_list(tables: dict[str, Any]) -> Table:
    """Return papers' tables, row by row; names as --row takes them, in quotes where a shell needs them."""
    columns = [*(Column(name, "prose") for name in ("table", "row", "recipe")), Column("published", "decimal")]
    rows = [
        (name, command_line([row.name]), row.recipe, "" if row.published is None else f"{row.published:g}")
        for name, table in tables.items()
        for row in table.rows
    ]
    return Table("", columns, rows)
