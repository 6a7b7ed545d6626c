# SPDX-License-Identifier: Apache-2.0
"""Generated pages of the site agree with the code, and links lead to existing files."""

import re
import tomllib
from types import ModuleType

import pytest

import viticulture
from doc_scripts import DOCS, doc_script
from viticulture.config.load import shipped

ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Load docs/reference.py."""
    return doc_script("reference")


def test_the_pages_are_generated_from_the_code(script: ModuleType) -> None:
    """After changes of signatures, docstrings or recipes' headers: python docs/reference.py."""
    assert (REFERENCE / "python.md").read_text("utf-8") == script.render_api()
    assert (REFERENCE / "config.md").read_text("utf-8") == script.render_config()
    assert (REFERENCE / "recipes.md").read_text("utf-8") == script.render_recipes()


def test_benchmarks_are_generated_from_their_tables() -> None:
    """After changes of benchmarks/*.csv: python docs/benchmarks.py."""
    assert (DOCS / "benchmarks.md").read_text("utf-8") == doc_script("benchmarks").render()


def test_every_name_of_the_package_and_every_recipe_is_documented() -> None:
    api, recipes = (REFERENCE / "python.md").read_text("utf-8"), (REFERENCE / "recipes.md").read_text("utf-8")
    for name in set(viticulture.__all__) - {"__version__", "data"}:
        assert re.search(rf"^## {name}$", api, re.MULTILINE), name
    assert "\ncache(clear=False)\n" in api
    assert "### Run.predict()" in api
    assert not re.search(r"^##+ .*\n+(?=##|\Z)", api, re.MULTILINE), "a heading without words"
    assert all(f"| `{name}` |" in recipes for name in shipped())


def test_every_page_is_in_the_contents_and_its_links_exist() -> None:
    contents = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    listed = set(re.findall(r"'([\w/-]+\.md)'", str(contents)))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES}
    for page in [*PAGES, *ROOT.glob("*.md"), *(ROOT / "benchmarks" / "log").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://|#|../../actions/)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
