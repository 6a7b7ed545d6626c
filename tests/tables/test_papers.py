# SPDX-License-Identifier: Apache-2.0
"""docs/papers.md agrees with the table files, item by item."""

import re
from types import ModuleType

import pytest
import yaml

from doc_scripts import DOCS, doc_script
from viticulture.config.load import about as header
from viticulture.study.paper_tables import tables

PAPERS = yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """docs/papers.py."""
    return doc_script("papers")


def test_the_page_is_generated_from_the_tables(script: ModuleType) -> None:
    """After changing a table: python docs/papers.py."""
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == script.render()


def test_every_item_has_a_table_a_place_or_a_reason() -> None:
    named = set()
    for paper, about in PAPERS.items():
        for name, item in about["items"].items():
            assert item.get("tables") or item.get("place"), (paper, name)
            assert "tables" in item or item["state"] in ("built", "shown", "drawing", "measured", "missing"), name
            assert item.get("state") != "missing" or item["why"]
            named |= {f"{paper}/{file}" for file in item.get("tables", ())}
    assert named <= set(tables())
    ours = ("default/", "combinations/", "detection/", "segmentation/", "multilabel/", "regression/")
    rest = {name for name in tables() if name not in named and not name.startswith(ours)}
    assert all(name.endswith("/cpu") for name in rest), rest


def test_every_row_and_number_belongs_to_one_item(script: ModuleType) -> None:
    text = script.render()
    for about, part in zip(PAPERS.values(), text.split("\n## ")[1:], strict=False):
        rows, numbers = map(int, re.search(rf"\| {about['name']} \| \d+ \| \d+ \| (\d+) \| (\d+) \|", text).groups())  # type: ignore[union-attr]
        cells = [
            line.split(" | ") for line in part.splitlines() if line.startswith("| ") and not line.startswith("| item")
        ]
        assert sum(int(cell[3].split(";")[0]) for cell in cells if cell[3][:1].isdigit()) == rows
        assert sum(int(cell[4]) for cell in cells if cell[4].strip()) == numbers


def test_rivals_left_out_are_counted_and_named(script: ModuleType) -> None:
    """Counts by hand of DHVT's Tables 1, 8, 9 and 10. Fails if rivals are missing from the count or unnamed."""
    text = script.render()
    assert [len(PAPERS["dhvt"]["items"][name]["rivals"]) for name in ("Table 1", "Table 8", "Table 9", "Table 10")] == [
        11, 3, 33, 4,
    ]  # fmt: skip
    for about in PAPERS.values():
        rivals = [name for item in about["items"].values() for name in item.get("rivals", ())]
        counts = text.split(f"\n| {about['name']} |", 1)[1].split("\n", 1)[0].split(" | ")
        assert counts[-1].strip(" |") == str(len(rivals))
        assert all(name in text.split(f"\n## {about['name']}\n", 1)[1] for name in rivals)


def test_our_results_are_those_of_the_recipes_headers(script: ModuleType) -> None:
    """Fails if a result is made up, lost, or an untested recipe's table has one."""
    lines = {line.split(" | ")[0]: line for line in script.render().splitlines()}
    assert header("default/digits")["Result"] in lines["| `default/digits`"]
    assert "| untested |" in lines["| `default/tiny-images`"]
    for name, table in ((name, script.read_table(name)) for name in tables()):
        tested = [r for r in {row.recipe for row in table.rows} if not header(r)["Result"].startswith("untested")]
        assert all(f"`{recipe}`: " in script._ours([table]) for recipe in tested), name
        assert tested or script._ours([table]) == "untested"
