# SPDX-License-Identifier: Apache-2.0
"""Write docs/papers.md: every table and figure of the five papers, what trains or shows it, and what is left out.

    python docs/papers.py

The items are listed in papers.yaml; rows, published numbers and what is left out are counted in the table files.
"""

from pathlib import Path
from typing import Any

import yaml

from viticulture.training.references import GIVEN, references
from viticulture.training.table import Table, read_table, tables

HERE = Path(__file__).parent
STATES = {"built": "built, tested", "shown": "drawn", "drawing": "no experiment", "measured": "benchmark"}
HEAD = """# The five papers, item by item

What trains or shows every table and figure. A row is trained with all others, as by
`viticulture compare --table co_advise/table7`, or by itself, as by
`viticulture train imagenet100 --table co_advise/table7 --row "1 token"`; published numbers stand beside ours on the
study's page. Which recipes have been trained here, and what they gave, stands in their headers. Made by
`python docs/papers.py`.
"""
TABLE = "| item | shows | table file | command or place | state |\n|---|---|---|---|---|\n"


def render() -> str:
    """The page as Markdown."""
    papers = yaml.safe_load((HERE / "papers.yaml").read_text(encoding="utf-8"))
    parts = [HEAD, _counts(papers)]
    for paper, about in papers.items():
        parts.append(f"\n## {about['title']}\n\n{TABLE}")
        parts += [_line(paper, name, item) for name, item in about["items"].items()]
    own = sorted(name for name in tables() if not _shown(papers, name))
    parts.append("\n## Our own comparisons\n\n| table file | shows | rows |\n|---|---|---|\n")
    parts += [f"| `{name}` | {read_table(name).title} | {len(read_table(name).rows)} |\n" for name in own]
    return "".join(parts)


def _counts(papers: dict[str, Any]) -> str:
    """Items, rows and published numbers of every paper."""
    lines = ["\n| paper | items | table files | rows | published numbers | left out |\n|---|---|---|---|---|---|\n"]
    for paper, about in papers.items():
        files = dict.fromkeys(name for item in about["items"].values() for name in item.get("tables", ()))
        made = [read_table(f"{paper}/{name}") for name in files]
        rows = [row for table in made for row in table.rows]
        numbers = sum(row.published is not None for row in rows)
        missing = [name for name, item in about["items"].items() if item.get("state") == "missing"]
        left = len(missing) + sum(len(table.left_out) for table in made)
        name = about["title"].partition(":")[0]
        lines.append(f"| {name} | {len(about['items'])} | {len(files)} | {len(rows)} | {numbers} | {left} |\n")
    return "".join(lines)


def _line(paper: str, name: str, item: dict[str, Any]) -> str:
    made = [read_table(f"{paper}/{file}") for file in item.get("tables", ())]
    files = ", ".join(f"`{table.name}`" for table in made)
    commands = [f"`viticulture compare --table {table.name}`" for table in made[:1]]
    commands += [item["place"]] if "place" in item else []
    state = "; ".join(filter(None, (_state(table) for table in made))) or STATES.get(item.get("state", ""), "")
    if item.get("state") == "missing":
        state = f"not yet: {item['why']}"
    return f"| {name} | {item['shows']} | {files} | {'; '.join(commands)} | {state} |\n"


def _state(table: Table) -> str:
    """Rows and numbers, what a person must name first, and what no row trains."""
    numbers = sum(row.published is not None for row in table.rows)
    words = f"{len(table.rows)} rows, {numbers} published numbers"
    asking = sorted({recipe for row in table.rows for recipe in _asks(row.recipe, row.overrides)})
    words += f"; asks for {asking[0]}" if asking else ""
    return words + "".join(f"; left out: {what}, {why}" for what, why in table.left_out.items())


def _asks(recipe: str, overrides: dict[str, Any]) -> list[str]:
    """Weights that a row needs a person to name."""
    from viticulture.training.recipe import read

    student = read(recipe).get("student")
    values = {"student.init": student.get("init") if isinstance(student, dict) else None, **overrides}
    return list(references(values, GIVEN).values())


def _shown(papers: dict[str, Any], table: str) -> bool:
    paper, _, name = table.partition("/")
    return any(name in item.get("tables", ()) for item in papers.get(paper, {"items": {}})["items"].values())


if __name__ == "__main__":
    (HERE / "papers.md").write_text(render(), encoding="utf-8")
