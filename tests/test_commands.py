# SPDX-License-Identifier: Apache-2.0
"""Commands in README, docs and headers of recipes and tables are valid."""

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from viticulture.command import ALIASES, COMMANDS, parse_command
from viticulture.config.load import load_config, shipped
from viticulture.config.start import with_teacher
from viticulture.study.paper_tables import read_table, tables

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES = {str(path.relative_to(ROOT)): path for path in PAGES}
FILES |= {f"recipe {name}": path for name, path in shipped().items()}
FILES |= {f"table {name}": path for name, path in tables().items()}


def commands(text: str) -> Iterator[str]:
    """Find the commands of a page or a comment, continued on lines that begin with an option."""
    joined = re.sub(r"\n#?\s+(?=--[a-z])", " ", text)
    for match in re.finditer(r"\bviticulture ([a-z]+) [^\n`;]+", joined):
        if match[1] in {*COMMANDS, *ALIASES}:
            yield re.split(r"\s+#|\s+\(|\.(?:\s+[A-Z]|$)", match[0])[0]


SHOWN = sorted({(source, words) for source, path in FILES.items() for words in commands(path.read_text("utf-8"))})


def test_commands_are_found_in_every_kind_of_file() -> None:
    found = {source: [command for name, command in SHOWN if name == source] for source in FILES}
    assert {"viticulture data ./photos", "viticulture export runs/photos --out vines.onnx"} <= set(found["README.md"])
    assert all(found[f"recipe {name}"] for name in shipped() if not name.startswith("default/"))
    assert found["recipe co_advise/cifar100-cpu-teacher"][0].endswith("--out runs/cifar100-cpu-teacher-inv")


@pytest.mark.parametrize(("source", "command"), SHOWN)
def test_a_documented_command_is_valid(source: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "plugins")
    words = shlex.split(command, comments=True)[1:]
    if {"--help", "--help-all", "TABLE"} & set(words):  # TABLE stands for any
        return
    asked = parse_command(words)
    given = asked.keywords
    if "table" in given:
        rows = read_table(given["table"]).rows
        assert "row" not in given or given["row"] in [row.name for row in rows]
        weights = given["overrides"].pop("student.init", {})  # row -> what it starts from
        assert all(any(fnmatchcase(row.name, pattern) for row in rows) for pattern in weights)
        chosen = [(row.recipe, {**row.overrides, **given["overrides"]}) for row in rows[:1]]
    else:
        names = given.get("recipes", (given.get("recipe", "default"),))
        chosen = [("default/photos" if name == "default" else name, given.get("overrides", {})) for name in names]
    for name, overrides in chosen:
        load_config(name, with_teacher(name, overrides))
