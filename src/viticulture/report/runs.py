# SPDX-License-Identifier: Apache-2.0
"""Every run below a folder as a row of a table, and on one page with links."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..config.keys import STAGES
from ..disk import read_json
from ..errors import UserError
from ..table import Cell, Column, Table
from ..tasks.results import read_headline
from ..training.run_folder import PLAN, RunFolder
from .html import Head, Section, document, html_table

UNREADABLE, STOPPED = "unreadable", "interrupted"


@dataclass(frozen=True)
class Runs:
    """Runs below a folder."""

    folder: Path
    table: Table
    pages: tuple[str, ...]  # report.html of each row, relative to the folder; empty without one


def find_runs(folder: Path) -> Runs:
    """Search a folder; a run that cannot be read has a row that says so, and the note holds the reason.

    Raises: UserError if it is not a folder.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; runs are made by `viticulture train`, usually under runs/")
    rows: list[tuple[list[Cell], str]] = []
    problems = []
    for path in _folders(folder):
        name, page = path.relative_to(folder), path / "report.html"
        try:
            row = _row(str(name), path)
        except UserError as error:
            row = [str(name), "", "", "", UNREADABLE, "", "", "", ""]
            problems.append(str(error))
        rows.append((row, str(name / page.name) if page.exists() else ""))
    rows.sort(key=lambda row: str(row[0][-1]), reverse=True)
    columns = [Column("run", "prose"), *map(Column, ("data", "student", "recipe", "state"))]
    columns += [Column("top-1", "percent"), Column("95 % interval", "decimal"), Column("images")]
    columns += [Column("begun", "decimal")]
    notes = [] if rows else ["none yet"]
    if any(str(row[4]).startswith(STOPPED) for row, _ in rows):
        notes.append("`viticulture resume RUN` continues an interrupted run")
    if problems:
        notes.append(f"{len(problems):,} cannot be read, the first because of: {problems[0]}")
    note = "; ".join(notes)
    return Runs(folder, Table(f"Runs in {folder}", columns, [row for row, _ in rows], note), tuple(p for _, p in rows))


def _folders(folder: Path) -> Iterator[Path]:
    """Yield run folders; nothing is searched inside them."""
    for place, names, files in os.walk(folder):
        names.sort()
        if {"run.json", PLAN}.intersection(files):
            names.clear()
            yield Path(place)


def _row(name: str, path: Path) -> list[Cell]:
    if (path / PLAN).is_file() and not (path / "run.json").exists():
        return _early_row(name, path)
    run = RunFolder.open(path)
    metadata = run.read("run.json")
    measured: list[Cell] = ["", "", ""]
    if (headline := read_headline(run)) is not None:
        value = headline.value if headline.name == "top-1" else str(headline)
        interval = headline.written_interval.replace(" to ", "–") + (" %" if headline.share else "")
        measured = [value, interval, f"{headline.images:,} {headline.split}"]
    begun = metadata["started"][:16].replace("T", " ")
    state = STOPPED if metadata["status"] == "running" and not run.in_use else metadata["status"]
    return [name, metadata["data"]["name"], metadata["student"]["name"], metadata["recipe"], state, *measured, begun]


def _early_row(name: str, path: Path) -> list[Cell]:
    """Return the row of a run within a budget whose earlier stages are being trained."""
    from ..budget.plan import read_plan  # imports PyTorch

    plan = read_plan(path)
    last, done = plan.stages[-1], sum(stage.spent is not None for stage in plan.stages)
    state = "running" if RunFolder(path / STAGES).in_use else STOPPED
    first, begun = plan.place(path, 0) / "run.json", ""
    if first.exists():
        begun = str(read_json(first).get("started"))[:16].replace("T", " ")
    where = f"{state} (stage {done + 1} of {len(plan.stages)})"
    return [name, Path(plan.data).name, last.student, last.recipe, where, "", "", "", begun]


def render_index(runs: Runs, out: Path) -> str:
    """Return the page as HTML text, with links relative to `out`."""
    way = os.path.relpath(runs.folder.absolute(), out.absolute().parent)
    links = [f"./{quote(str(Path(way, page)))}" if page else "" for page in runs.pages]
    sentence = f"{len(runs.pages):,} runs, the most recent first. Click on a heading to sort."
    return document(
        Head(runs.table.title, sentence=sentence), [Section("Runs", html_table(runs.table, True, links=links))]
    )
