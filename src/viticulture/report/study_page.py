# SPDX-License-Identifier: Apache-2.0
"""A study on one page, and its tables as Markdown, CSV and LaTeX."""

from html import escape
from pathlib import Path

from ..errors import UserError
from ..study.cell import command
from ..study.comparison import Comparison, record_analyses
from ..study.disagreement import disagreements
from ..study.search import FOLDER
from ..study.study import Study, data_name
from ..table import Cell, Column, Table, duration, latex
from ..text import clean, yaml_word
from .html import Head, Markup, Section, Tile, document, html_table, properties
from .pictures import galleries
from .study_charts import accuracy_charts, class_section, cost_charts, curve_charts, sums_section, teaching_section
from .study_tables import all_results_table, failures, few_steps, plan_note, results_table

FOLDS = (
    "Folds share training images, so that their results are not independent: intervals over folds are corrected for it "
    "(Nadeau and Bengio), and still depend on one division of the images."
)


def write_study(study: Study) -> Path:
    """Write report.html, summary.md, summary.csv and summary.tex into the study's folder; return the page's path."""
    folder, results = study.folder, results_table(study)
    record_analyses(folder, study.comparisons)
    every = all_results_table(study)
    conclusion = escape(clean(study.conclusion), quote=False)
    folder.write("summary.md", f"{conclusion}\n\n{results.markdown()}\n{every.markdown()}")
    folder.write("summary.csv", results.csv())
    folder.write("summary.tex", f"{latex(results)}\n{latex(every)}")
    return folder.write("report.html", render_study(study))


def render_study(study: Study) -> str:
    """Return the page as HTML text."""
    grid, comparisons = study.folder.grid, study.comparisons
    title = f"Which method trains the best ViT on {data_name(grid.data)}?"
    if grid.table:
        title = f"{grid.table}: published and ours" if grid.published else f"{grid.table} on {data_name(grid.data)}"
    if grid.search:
        title = f"Which settings of {grid.baseline.recipe} are best on {data_name(grid.data)}?"
    head = Head(title, conclusion=study.conclusion, warnings=study_warnings(study), tiles=_tiles(study))
    results = []
    if comparisons:
        last = comparisons[-1]
        results = [
            Section(last.measure.capital, accuracy_charts(study) + html_table(results_table(study))),
            *teaching_section(study),
            *sums_section(study),
            Section("Cost", cost_charts(study)),
            Section("Learning curves", curve_charts(study)),
            Section("Classes", "" if last.measure.of else class_section(study)),
            Section("Images with different predictions", _disagreement(study)),
            Section("All results", html_table(all_results_table(study), sortable=True), folded=True),
        ]
    sections = [
        *results,
        Section("Search", Markup().join(map(html_table, _search(study)))),
        Section("Failed", Markup().join(map(html_table, failures(study)))),
        Section("Conditions", _conditions(study), folded=True),
        Section("How to reproduce each row", _commands(study), folded=True),
    ]
    return document(head, sections)


def _search(study: Study) -> list[Table]:
    """Return the importance of the searched keys, and the results of the proposals on validation images."""
    if not (study.path / FOLDER / "study.json").is_file():
        return []
    trials, keys = Study(study.path / FOLDER, study.data).outcomes, [*study.folder.grid.search]
    importance = study.folder.metadata.get("importance", {})
    note = "Share of the differences between the best proposals and all (PED-ANOVA); of few trainings it is rough."
    rows: list[list[Cell]] = [[key, study.folder.grid.search[key], importance.get(key)] for key in keys]
    searched = Table("", [Column("key"), Column("searched"), Column("importance", "percent")], rows, note)
    ranked = sorted(trials, key=lambda each: -1 if each.val is None else each.val, reverse=True)
    results: list[list[Cell]] = [
        [*(yaml_word(each.cell.candidate.overrides[key]) for key in keys), each.val, each.error or each.status]
        for each in ranked
    ]
    columns = [*map(Column, keys), Column("validation", "percent"), Column("status", "prose")]
    note = "One training each, shorter than those above; the first ones above were the best here."
    return [searched, Table("Proposals", columns, results, note)]


def _disagreement(study: Study) -> Markup:
    """Return pictures for both directions; the reason where they cannot be drawn."""
    try:
        return galleries(disagreements(study.folder, study.comparisons[-1]))
    except UserError as error:
        return Markup('<p class="note">{}</p>').format(str(error))


def _tiles(study: Study) -> list[Tile]:
    (done, planned), grid = study.counts, study.folder.grid
    trainings = {outcome.cell.name: outcome for outcome in study.outcomes}.values()  # candidates may share them
    seconds = sum(float((outcome.metadata or {}).get("seconds") or 0) for outcome in trainings)
    tiles = [
        Tile("Trainings", f"{done} of {planned}", "finished"),
        Tile("Candidates", str(len(grid.candidates)), "recipes"),
        Tile(f"{grid.unit.capitalize()}s", str(len(grid.seeds)), "trainings of everything"),
        Tile("Training time", duration(seconds), "of all cells together"),
    ]
    if study.comparisons:
        last = study.comparisons[-1]
        data = (last.leader.outcomes[0].metadata or {}).get("data", {})
        number = data.get("images", {}).get("val" if last.reported == "validation" else "test", 0)
        fold = " per fold" if grid.overlap else ""
        classes = f"of {len(data.get('classes', [])):,} classes"
        tiles.append(Tile(f"{last.reported.capitalize()} images{fold}", f"{number:,}", classes))
    return tiles


def study_warnings(study: Study) -> list[str]:
    """Return what a reader must know before the numbers."""
    grid, failed = study.folder.grid, study.failed
    decided = "" if study.winner is not None or grid.published else ", so that there is no winner"
    plural, errors = "s" * (failed > 1), "errors are" if failed > 1 else "error is"
    warnings = [f"{failed} training{plural} failed{decided}; the {errors} listed under Failed."] if failed else []
    warnings += few_steps(study.plan, grid.unit) if study.plan else []
    warnings += [FOLDS] if grid.overlap else []
    warnings += study.folder.metadata.get("warnings", [])
    last = study.comparisons[-1] if study.comparisons else None
    if last and last.ranked_by == "test" and not grid.published:
        warnings.append("There are no validation images, so that test images rank, which favors the first.")
    if last and last.reported == "validation" and not grid.published:
        warnings.append(
            "All held-out images are validation images: results are of the images that rank, which favors the first."
        )
    if last and all(len(entry.outcomes) == 1 for entry in last.ranking):
        warnings.append(f"One {grid.unit} cannot show the effect of chance; train three or more.")
    return [*warnings, *map(str, (study.outcomes[0].metadata or {}).get("warnings") or [])]


def _conditions(study: Study) -> Markup:
    """Return what was the same for all, and what was decided during the study."""
    grid, plan, metadata = study.folder.grid, study.plan, study.folder.metadata
    last = study.comparisons[-1] if study.comparisons else None
    reported = last.reported if last else "test"
    rows = {
        "terms": plan_note(grid, plan) if plan else "not planned yet",
        "the same for all": "\n".join(f"{key}: {value}" for key, value in grid.conditions.items()) or "nothing",
        "ranked by": "test" if last and last.ranked_by == "test" else f"validation; results are of {reported} images",
    }
    if last and not grid.published:
        rows["winner"] = _rule(last, grid.unit)
    if grid.overlap:
        rows["folds"] = (
            f"{grid.subsets.folds}, stratified by class, the same for all; a fold's test images are those that its "
            "training left out, unless the data has a test split. Images of one group stay together. Student's "
            "intervals are corrected by Nadeau and Bengio: variance times 1 / folds + test / training images, "
            f"1/{grid.subsets.folds} + 1/{grid.subsets.folds - 1} of all folds."
        )
    if decisions := metadata.get("decisions"):
        rows["dropped by halving"] = "\n".join(decisions)
    rows["begun"] = f"{metadata['began']} by viticulture {metadata['version']}"
    runs = (outcome.metadata or {} for outcome in study.outcomes)
    if run := next((each for each in runs if {"hardware", "versions"} <= each.keys()), None):
        hardware = run["hardware"]
        gpus = ", ".join(hardware["gpus"]) or "no GPU"
        rows["hardware"] = f"{hardware['cpu']}, {hardware['cores']} cores, {gpus}"
        rows["versions"] = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return properties(rows)


def _rule(comparison: Comparison, unit: str) -> str:
    """Describe the conditions of a winner, in this analysis."""
    images = f"{comparison.reported} images" if unit == "fold" else "seeds and images"
    second = f"the interval over {images}" if unit == "fold" else f"the bootstrap interval over {images}"
    intervals = f"Student's interval over {unit}s lies"
    if comparison.images_interval:
        intervals = f"Student's interval over {unit}s and {second} lie"
    return (
        f"beats every rival on the same {unit}s: {intervals} above zero at {100 * comparison.level:.4g} %. A study "
        "that grows is analyzed several times; each interim analysis spends a part of 5 %, so that all of them "
        "together name a wrong winner in at most 5 % of studies."
    )


def _commands(study: Study) -> Markup:
    """Return the command of the whole study, and one per candidate and subset, for the first seed or fold."""
    plan, grid = study.plan, study.folder.grid
    rows: list[list[Cell]] = [["the whole study", "", str(study.folder.metadata["command"])]]
    first = grid.seeds[0]
    for cell in grid.cells():
        if plan is not None and cell.seed == first:
            rows.append([cell.candidate.name, cell.subset.name, command(study.folder, cell, plan)])
    columns = [Column("candidate"), Column("training data"), Column("command", "prose")]
    another = "--data.fold, and its weights and order by --seed" if grid.unit == "fold" else "--seed"
    note = f"{grid.unit.capitalize()} {first}; another {grid.unit} by {another}."
    return html_table(Table("", columns, rows, note), frame="commands")
