# SPDX-License-Identifier: Apache-2.0
"""Completion in the shell itself; commands in README, docs and headers of recipes and tables are valid."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from viticulture import completion
from viticulture.cli import main
from viticulture.command import ALIASES, COMMANDS, parse_command
from viticulture.config.load import load_config, shipped
from viticulture.config.start import with_teacher
from viticulture.study.paper_tables import read_table, tables


def completed(script: Path, line: str) -> set[str]:
    """Return bash's completions, and the script, for a command line that ends in part of a word."""
    words = line.split(" ")
    program = (
        f"source {shlex.quote(str(script))}; "
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
        f'COMP_LINE="{line}"; COMP_POINT={len(line)}; '
        "$(complete -p viticulture | sed 's/.*-F \\([^ ]*\\).*/\\1/') viticulture; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in done.stdout.split("\n") if word.strip()}


def test_bash_completes_commands_options_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="the extra `completion`")
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "viticulture pre") == {"predict"}
    assert completed(script, "viticulture ") >= COMMANDS.keys()
    assert completed(script, "viticulture train --ep") == {"--epochs"}
    assert completed(script, "viticulture predict --t") == {"--top"}
    assert "default/photos" in completed(script, "viticulture train --recipe default/")
    assert {"--table", "--row"} <= completed(script, "viticulture train --")
    assert "dhvt/table1" in completed(script, "viticulture compare --table dhvt/")
    assert completed(script, "viticulture predict run --weights ") == {"best", "last", "ema"}
    assert script.name in completed(script, "viticulture compare resume comp")
    assert script.name in completed(script, "viticulture train comp")
    for shell in completion.WAYS:
        assert main(["completion", shell]) == 0
        assert "checkpoint_minutes" not in (text := capsys.readouterr().out), "keys without a short name are thousands"
        assert "skip-unreadable" in text


def test_documented_lines_create_their_folders(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (command := programs / "viticulture").write_text("#!/bin/sh\necho script of $2\n")
    command.chmod(0o755)
    for shell, way in completion.WAYS.items():
        if shutil.which(shell) is None:
            continue
        home = tmp_path / f"{shell} user"
        home.mkdir()
        environment = {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        typed = subprocess.run([shell, "-c", way.split("; and ")[0]], env=environment, capture_output=True, text=True)
        assert typed.returncode == 0, typed.stderr
        assert f"script of {shell}\n" in [file.read_text() for file in home.rglob("*viticulture*") if file.is_file()]


def test_missing_completion_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["completion"]) == 2
    assert "completion bash >" in capsys.readouterr().err
    assert main(["completion", "bsh"]) == 2
    assert "bash" in capsys.readouterr().err
    monkeypatch.setattr(completion, "find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'viticulture[completion]'" in capsys.readouterr().err


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
        chosen = [("default/photos" if name in ("", "default") else name, given.get("overrides", {})) for name in names]
    for name, overrides in chosen:
        load_config(name, with_teacher(name, overrides))
