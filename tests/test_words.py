# SPDX-License-Identifier: Apache-2.0
"""Names and texts of the package are in words of the field."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
# fmt: off
GONE = {
    "answerer", "answers", "asked", "asks", "beside", "borrowed", "climb", "conduct", "deal", "heir", "judge", "judged",
    "ladder", "learnt", "loan", "look", "looked", "looking", "looks", "mend", "nobody", "oblong", "pace", "paint",
    "painted", "person", "remark", "remarks", "room", "rooms", "settled", "sheet", "standing", "straddling", "stranger",
    "subject", "tells", "told", "verb", "verbs", "verdict", "watched", "whoever", "wish", "workshop",
}
# fmt: on
GONE_FROM_TEXTS = re.compile(
    r"\b(answerer|judged?|judges|learnt|mend|nobody|oblong|painted|remarks?|told|verdict|whoever|workshop)\b",
    re.IGNORECASE,
)


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


def test_messages_and_help_are_in_words_of_the_field() -> None:
    """Docstrings of the API are its help."""
    assert GONE_FROM_TEXTS.search("the run learnt from it")
    texts = [(file, file.read_text("utf-8")) for kind in ("yaml", "j2", "html") for file in SOURCE.rglob(f"*.{kind}")]
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append((file, node.value))
    assert [(str(file), match[0]) for file, text in texts if (match := GONE_FROM_TEXTS.search(text))] == []
