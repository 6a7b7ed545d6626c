# SPDX-License-Identifier: Apache-2.0
"""Write docs/papers.md: every table and figure of the five papers, what trains or shows it, and what is left out.

    python docs/papers.py

The items, and what is left out of them, are in papers.yaml; rows and published numbers are counted in the table files,
our results are those of the recipes' headers.
"""

from pathlib import Path
from typing import Any

import yaml

from viticulture.config.load import about as header
from viticulture.config.references import GIVEN, references
from viticulture.study.paper_tables import PaperTable, read_table, tables

HERE = Path(__file__).parent
STATES = {
    "built": "part of the package",
    "shown": "drawn",
    "drawing": "the method itself",
    "measured": "a benchmark",
    "missing": "**not here** (see below)",
}
HEAD = """# The five papers, item by item

What trains or shows every table and figure. A *table file* holds the rows of a published table, each with its number:

    viticulture compare --table co_advise/table7                              # all rows, ours beside theirs
    viticulture train imagenet100 --table co_advise/table7 --row "1 token"    # one row

Where no published number stands, the paper draws and prints none. *Ours* is what the recipes of a table file have given
here, with seeds and hardware, as their headers say (`viticulture recipes`); "untested" means that no training of that
size has been run. Rivals left out are networks of other papers, whose numbers the authors cite; they are named below
each table. `bash benchmarks/gpu.sh cifar100 OUT` trains six rows of DHVT and Bootstrapping ViTs on a GPU, in calls of
any length. Made by `python docs/papers.py`.
"""
TABLE = """| item | shows | table file | rows | published numbers | ours | command or place |
|---|---|---|---|---|---|---|
"""
COUNTS = (
    "\n| paper | items | table files | rows | published numbers | items left out | rivals left out |\n"
    "|---|---|---|---|---|---|---|\n"
)
OWN = """
## Our own comparisons

Unpublished; `viticulture compare --table TABLE`, most of them at CPU size.

| table file | shows | rows | ours |
|---|---|---|---|
"""


def render() -> str:
    """The page as Markdown."""
    papers = yaml.safe_load((HERE / "papers.yaml").read_text(encoding="utf-8"))
    parts = [HEAD, COUNTS, *(_counts(paper, about) for paper, about in papers.items())]
    for paper, about in papers.items():
        link = f"[arXiv:{about['arxiv']}](https://arxiv.org/abs/{about['arxiv']})"
        page = f"[What it is worth, equation by equation](papers/{about['page']}.md)."
        parts.append(f"\n## {about['name']}\n\n{about['title']}, {link}. {page}\n\n{TABLE}")
        owners = _owners(about["items"])
        parts += [_line(paper, name, item, owners) for name, item in about["items"].items()]
        notes = [f"- {note}\n" for note in _notes(paper, about)]
        parts += ["\n", *notes] if notes else []
    own = [read_table(name) for name in sorted(tables()) if not _shown(papers, name)]
    lines = (f"| `{table.name}` | {table.title} | {len(table.rows)} | {_ours([table])} |\n" for table in own)
    return "".join([*parts, OWN, *lines])


def _counts(paper: str, about: dict[str, Any]) -> str:
    """Items, rows and published numbers of a paper; a row that two items share counts once."""
    made = _tables(paper, about)
    items = about["items"].values()
    left = sum(item.get("state") == "missing" for item in items), sum(len(item.get("rivals", ())) for item in items)
    cells = [about["name"], len(items), len(made), *_rows(made), *left]
    return f"| {' | '.join(map(str, cells))} |\n"


def _owners(items: dict[str, Any]) -> dict[str, str]:
    """PaperTable file -> the item that tells its counts: the one of its name, else the first that names it."""
    owners: dict[str, str] = {}
    for name, item in items.items():
        for file in item.get("tables", ()):
            if file not in owners or file == name.lower().replace(" ", ""):
                owners[file] = name
    return owners


def _line(paper: str, name: str, item: dict[str, Any], owners: dict[str, str]) -> str:
    """An item; for the counts of another item's table files that item's name stands."""
    files = item.get("tables", [])
    made = [read_table(f"{paper}/{file}") for file in files if owners[file] == name]
    rows, numbers = _rows(made) if made else ("", "")
    others = dict.fromkeys(owners[file] for file in files if owners[file] != name)
    if others:
        rows = "; ".join(filter(None, [str(rows), f"those of {' and '.join(others)}"]))
    place = ": ".join(filter(None, [STATES.get(item.get("state", ""), ""), item.get("place", "")]))
    files_cell = ", ".join(f"`{paper}/{file}`" for file in files)
    cells = [name, item["shows"], files_cell, rows, numbers or "", _ours(made), place]
    return f"| {' | '.join(map(str, cells))} |\n"


def _rows(made: list[PaperTable]) -> tuple[int, int]:
    """How many rows tables have, and how many published numbers."""
    rows = [row for table in made for row in table.rows]
    return len(rows), sum(row.published is not None for row in rows)


def _ours(made: list[PaperTable]) -> str:
    """Return results and hardware of the tables' recipes, as their headers say; those without are untested."""
    results = []
    for recipe in dict.fromkeys(row.recipe for table in made for row in table.rows):
        head = header(recipe)
        if not head["Result"].startswith("untested"):
            where = head.get("Hardware", "untested")
            results.append(f"`{recipe}`: {head['Result']}" + ("" if where.startswith("untested") else f"; {where}"))
    return "<br>".join(results).replace("|", "\\|") or ("untested" if made else "")


def _notes(paper: str, about: dict[str, Any]) -> list[str]:
    """Return the notes below a table: weights to name first, rivals left out, and items that are not here."""
    made, asking = _tables(paper, about), dict[str, list[str]]()
    for table in made:
        for weights in dict.fromkeys(weights for row in table.rows for weights in _asks(row.recipe, row.overrides)):
            asking.setdefault(weights, []).append(f"`{table.name}`")
    notes = [
        f"{' and '.join(names)}: rows start from {weights}, which you name by `--init ROW=WEIGHTS`."
        for weights, names in asking.items()
    ]
    items = about["items"]
    notes += [
        f"{name} has {len(item['rivals'])} further rows of other papers' networks: {', '.join(item['rivals'])}."
        for name, item in items.items()
        if "rivals" in item
    ]
    missing = {name: item["why"] for name, item in items.items() if item.get("state") == "missing"}
    return [*notes, *(f"{name} is not here: {why}." for name, why in missing.items())]


def _tables(paper: str, about: dict[str, Any]) -> list[PaperTable]:
    """Every table file of a paper once, in the order of its items."""
    files = dict.fromkeys(file for item in about["items"].values() for file in item.get("tables", ()))
    return [read_table(f"{paper}/{file}") for file in files]


def _asks(recipe: str, overrides: dict[str, Any]) -> list[str]:
    """Weights that a row needs a person to name."""
    from viticulture.config.load import read

    student = read(recipe).get("student")
    values = {"student.init": student.get("init") if isinstance(student, dict) else None, **overrides}
    return list(references(values, GIVEN).values())


def _shown(papers: dict[str, Any], table: str) -> bool:
    paper, _, name = table.partition("/")
    return any(name in item.get("tables", ()) for item in papers.get(paper, {"items": {}})["items"].values())


if __name__ == "__main__":
    (HERE / "papers.md").write_text(render(), encoding="utf-8")
