# SPDX-License-Identifier: Apache-2.0
"""docs/papers/: a page per paper, whose files, functions, tests, recipes and measurements exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from viticulture import command
from viticulture.config.load import about, load_config, shipped
from viticulture.errors import UserError
from viticulture.models.students import matching
from viticulture.study.paper_tables import tables

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
LOG = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "benchmarks" / "log").glob("*.md")))
SOURCES = (ROOT, ROOT / "src" / "viticulture")
CODE = r"`([\w/]+\.py)` `([\w.]+)`"
TEST = r"(?:`(tests/[\w/]+\.py)`: )?([\w ]+)"


def quoted(page: Path) -> list[str]:
    """Return text between single backquotes, but for names of code, which follow their file."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(CODE, r"`\1`", page.read_text("utf-8")))


def part(text: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def file_of(path: str) -> Path:
    """Find the file named by the page: below the repository or below the package."""
    found = [source / path for source in SOURCES if (source / path).exists()]
    assert found, f"there is no {path}"
    return found[0]


@cache
def names(file: Path) -> frozenset[str]:
    """Return top-level names of a module, keys of its tables, and members of its classes as `Class.member`."""
    return frozenset(_defined(ast.parse(file.read_text("utf-8")).body))


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from _defined(node.body, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (within + target.id for target in targets if isinstance(target, ast.Name))
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))


def understood(page: Path, words: str) -> bool:
    """Return True if a recipe of the page takes an option that the page names."""
    for recipe in (word for word in quoted(page) if word in shipped()):
        try:
            asked = command.parse_command(["train", "digits", "--recipe", recipe, *words.split()])
            load_config(recipe, asked.keywords["overrides"])
        except UserError:
            continue
        return True
    return False


def test_every_paper_has_a_page() -> None:
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_everything_that_a_page_names_exists(page: Path) -> None:
    for file, name in re.findall(CODE, page.read_text("utf-8")):
        assert name in names(file_of(file)), (file, name)
    for words in quoted(page):
        if words.endswith((".py", "/")):
            assert file_of(words).exists()
        elif words.startswith("--"):
            assert understood(page, words), words
        else:
            known = words.startswith("viticulture ") or words in {*shipped(), *tables(), *matching()}
            assert known, f"{words}: no file, recipe, table, student, option or command"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_equation_has_a_file_and_a_test(page: Path) -> None:
    table = part(page.read_text("utf-8"), "From equation to file")
    rows = re.findall(r"^\| (?!in the paper)(.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    assert len(rows) >= 6
    for where, code, tests in rows:
        assert re.search(r"`[\w/]+\.py`", code), where
        file = ""
        for words in tests.split("; "):
            named = re.fullmatch(TEST, words)
            assert named, words
            file = named[1] or file
            assert file, words
            assert f"test_{named[2].replace(' ', '_')}" in names(file_of(file)), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipes_of_the_papers_size_are_untested_as_documented(page: Path) -> None:
    below = part(page.read_text("utf-8"), "At the paper's size")
    recipes = {word for word in re.findall(r"[a-z_]+/[\w-]+", below) if word in shipped()}
    assert recipes
    assert "untested" in below
    for recipe in recipes:
        assert about(recipe)["Result"] == "untested", recipe


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_measurements_of_a_page_are_in_the_log(page: Path) -> None:
    text = page.read_text("utf-8")
    spreads = re.findall(r"\d+\.\d ± \d\.\d", text)
    headings = re.findall(r"benchmarks/log/[\w-]+\.md, \"([^\"]+)\"", text.replace("\n", " "))
    assert spreads
    assert headings
    for spread in spreads:
        assert spread in LOG or spread.replace("±", "+-") in LOG, spread
    for heading in headings:
        assert re.search(rf"^## {re.escape(heading)}$", LOG, re.MULTILINE), heading
