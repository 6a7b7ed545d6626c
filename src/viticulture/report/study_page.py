# SPDX-License-Identifier: Apache-2.0
"""A study on one page, and its tables as Markdown, CSV and LaTeX."""

from html import escape
from pathlib import Path

from ..errors import UserError
from ..study.cell import command
from ..study.comparison import Comparison, record, subject
from ..study.disagreement import disagreements
from ..study.outcomes import Outcome
from ..study.study import Study
from ..table import Cell, Column, Table, duration, latex
from ..text import clean
from .html import Head, Markup, Section, Tile, document, html_table, properties
from .pictures import galleries
from .study_charts import accuracy_charts, class_section, cost_charts, curve_charts, sums_section, teaching_section
from .study_tables import failures, few_steps, full_table, plan_note, results_table

FOLDS = (
    "Folds share images that they learn from, so that their results are not independent: intervals over folds are "
    "corrected for it (Nadeau and Bengio), and still rest on one division of the images."
)
"""What a reader of a cross-validation must know."""


def write_study(study: Study) -> Path:
    """Write report.html, summary.md, summary.csv and summary.tex into the study's folder; the page's path."""
    folder, table = study.folder, results_table(study)
    record(folder, study.verdicts)
    every = full_table(study)
    answer = escape(clean(study.conclusion), quote=False)
    folder.write("summary.md", f"{answer}\n\n{table.markdown()}\n{every.markdown()}")
    folder.write("summary.csv", table.csv())
    folder.write("summary.tex", f"{latex(table)}\n{latex(every)}")
    return folder.write("report.html", render_study(study))


def render_study(study: Study) -> str:
    """The page as HTML text."""
    grid = study.folder.grid
    title = f"Which method grows the best ViT on {subject(grid.data)}?"
    if grid.table:
        title = f"{grid.table}: published and ours" if grid.published else f"{grid.table} on {subject(grid.data)}"
    head = Head(title, answer=study.conclusion, warnings=study_notes(study), tiles=_tiles(study))
    verdicts = study.verdicts
    sections = [
        Section(
            verdicts[-1].measure.capital if verdicts else "Accuracy",
            accuracy_charts(study) + html_table(results_table(study)) if verdicts else "",
        ),
        *teaching_section(study),
        *sums_section(study),
        Section("Cost", cost_charts(study) if verdicts else ""),
        Section("Learning curves", curve_charts(study) if verdicts else ""),
        Section("Classes", class_section(study) if verdicts and not verdicts[-1].measure.of else ""),
        Section("Images they disagree about", _disagreement(study) if verdicts else ""),
        Section("All results", html_table(full_table(study), sortable=True) if verdicts else ""),
        Section("Failed", Markup().join(map(html_table, failures(study)))),
        Section("Conditions", _conditions(study)),
        Section("How to reproduce each row", _commands(study)),
    ]
    return document(head, sections)


def _disagreement(study: Study) -> Markup:
    """Pictures for both directions; a sentence where there are none, and why."""
    try:
        return galleries(disagreements(study.folder, study.verdicts[-1]))
    except UserError as error:
        return Markup('<p class="note">{}</p>').format(str(error))


def _tiles(study: Study) -> list[Tile]:
    (done, wanted), grid = study.counts, study.folder.grid
    spent = sum(float((outcome.facts or {}).get("seconds") or 0) for outcome in _single(study.outcomes))
    verdict = study.verdicts[-1] if study.verdicts else None
    tiles = [Tile("Trainings", f"{done} of {wanted}", "finished")]
    tiles.append(Tile("Candidates", str(len(grid.candidates)), "recipes"))
    tiles.append(Tile(f"{grid.unit.capitalize()}s", str(len(grid.seeds)), "trainings of everything"))
    tiles.append(Tile("Training time", duration(spent), "of all cells together"))
    if verdict:
        facts = verdict.leader.outcomes[0].facts or {}
        images = facts.get("data", {}).get("images", {})
        classes = len(facts.get("data", {}).get("classes", []))
        number = images.get("val" if verdict.reported == "validation" else "test", 0)
        each = " a fold" if grid.overlap else ""
        tiles.append(Tile(f"{verdict.reported.capitalize()} images{each}", f"{number:,}", f"of {classes:,} classes"))
    return tiles


def study_notes(study: Study) -> list[str]:
    """What a reader must know before the numbers."""
    unit = study.folder.grid.unit
    failed = study.failed
    named = study.winner is not None or study.folder.grid.published
    kept = "" if named else ", and no winner is named"
    notes = [f"{failed} training{'s' * (failed > 1)} failed, by the errors under Failed{kept}."] if failed else []
    notes += few_steps(study.plan, unit) if study.plan else []
    notes += [FOLDS] if study.folder.grid.overlap else []
    notes += study.folder.facts.get("warnings", [])
    if study.verdicts and study.verdicts[-1].by == "test" and not study.folder.grid.published:
        notes.append("Nothing is held out for validation, so test images rank, which favors the first.")
    if study.verdicts and study.verdicts[-1].reported == "validation" and not study.folder.grid.published:
        notes.append("Nothing is held out as test: results are of the images that rank, which favors the first.")
    if study.verdicts and all(len(standing.outcomes) == 1 for standing in study.verdicts[-1].standings):
        notes.append(f"One {unit} tells nothing about chance; train three or more.")
    data = [str(warning) for warning in ((study.outcomes[0].facts or {}).get("warnings") or [])]
    return [*notes, *data]


def _conditions(study: Study) -> Markup:
    """What was the same for all, and what was decided on the way."""
    grid, plan, known = study.folder.grid, study.plan, study.folder.facts
    lines = {"terms": plan_note(grid, plan) if plan else "not planned yet"}
    lines["the same for all"] = "\n".join(f"{key}: {value}" for key, value in grid.conditions.items()) or "nothing"
    verdict = study.verdicts[-1] if study.verdicts else None
    reported = verdict.reported if verdict else "test"
    lines["ranked by"] = "test" if verdict and verdict.by == "test" else f"validation; {reported} is reported"
    if verdict and not grid.published:
        lines["a winner"] = _rule(verdict, grid.unit)
    if grid.overlap:
        lines["folds"] = (
            f"{grid.subsets.folds}, stratified by class, the same for all; a fold's test images are those that its "
            "training left out, unless the data has its own test. Images of one group stay together. Student's "
            "intervals take Nadeau and Bengio's correction: variance times 1 / folds + tested / learnt images, "
            f"1/{grid.subsets.folds} + 1/{grid.subsets.folds - 1} of all folds."
        )
    if decisions := known.get("decisions"):
        lines["dropped on the way"] = "\n".join(decisions)
    lines["begun"] = f"{known['began']} by viticulture {known['version']}"
    whole = (
        outcome.facts for outcome in study.outcomes if outcome.facts and {"hardware", "versions"} <= set(outcome.facts)
    )
    if run := next(whole, None):
        hardware = run["hardware"]
        gpus = ", ".join(hardware["gpus"]) or "no GPU"
        lines["hardware"] = f"{hardware['cpu']}, {hardware['cores']} cores, {gpus}"
        lines["versions"] = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return properties(lines)


def _rule(verdict: Comparison, unit: str) -> str:
    """What it takes to be named, at this look."""
    over = f"the one over {verdict.reported} images" if unit == "fold" else "the bootstrap's over seeds and images"
    intervals = f"interval over {unit}s and {over} lie" if verdict.images else f"interval over {unit}s lies"
    return (
        f"beats every rival on the same {unit}s: Student's {intervals} above zero at {100 * verdict.level:.4g} %. "
        "Studies that grow are looked at several times; every look spends a part of 5 %, so that all of them together "
        "name a wrong winner in 5 % of studies at most."
    )


def _commands(study: Study) -> Markup:
    """One command a candidate and subset, for the first seed or fold, and the one for the whole study."""
    plan = study.plan
    rows: list[list[Cell]] = [["the whole study", "", str(study.folder.facts["command"])]]
    first, unit = study.folder.grid.seeds[0], study.folder.grid.unit
    for cell in study.folder.grid.cells():
        if plan is not None and cell.seed == first:
            rows.append([cell.candidate.name, cell.subset.name, command(study.folder, cell, plan)])
    columns = [Column("candidate"), Column("training data"), Column("command", "prose")]
    another = "--data.fold, and its weights and order by --seed" if unit == "fold" else "--seed"
    table = Table("", columns, rows, f"{unit.capitalize()} {first}; another {unit} by {another}.")
    return html_table(table, frame="commands")


def _single(outcomes: list[Outcome]) -> list[Outcome]:
    """Outcomes without the doubles that share a training."""
    return list({outcome.cell.name: outcome for outcome in outcomes}.values())
