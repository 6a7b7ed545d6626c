# SPDX-License-Identifier: Apache-2.0
"""docs/papers.md agrees with the table files, item by item."""

import re
from types import ModuleType

import pytest
import yaml

from doc_scripts import DOCS, doc_script
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
    ours = ("default/", "combinations/", "detection/", "segmentation/", "multilabel/")
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
