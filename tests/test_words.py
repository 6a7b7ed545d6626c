# SPDX-License-Identifier: Apache-2.0
"""Names in the package are words of the field: those that stood for them are gone."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
# fmt: off
GONE = {
    "answerer", "asked", "asks", "borrowed", "climb", "conduct", "deal", "judge", "judged", "ladder", "loan",
    "looks", "oblong", "pace", "remark", "remarks", "settled", "sheet", "standing", "straddling", "tells", "told",
    "verb", "verbs", "verdict", "watched", "wish", "workshop",
}
# fmt: on


def words_of(tree: ast.AST) -> set[str]:
    """Return the words of all names that a module defines or uses: run and folder of `RunFolder`."""
    names = {
        name
        for node in ast.walk(tree)
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        if isinstance(name, str)
    }
    return {word for name in names for word in re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())}


def test_names_are_words_of_the_field() -> None:
    assert words_of(ast.parse("def tell_all(x): return Answerer().asked")) & GONE == {"answerer", "asked"}
    found = {str(file): words_of(ast.parse(file.read_text("utf-8"))) & GONE for file in SOURCE.rglob("*.py")}
    assert {file: words for file, words in found.items() if words} == {}
