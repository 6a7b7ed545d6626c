# SPDX-License-Identifier: Apache-2.0
"""What a shell completes: read off the verbs, by the shell itself."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from viticulture import completion
from viticulture.cli import main
from viticulture.command import COMMANDS


def completed(script: Path, line: str) -> set[str]:
    """What bash offers, beside the script, for a command line that ends in a word begun."""
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


def test_bash_completes_verbs_options_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches: a verb that is not offered, short options of recipe keys left out, a verb's own option twice."""
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


def test_the_lines_that_are_shown_make_the_folders_that_they_write_into(tmp_path: Path) -> None:
    """Catches: a line that fails in a home where nothing was ever completed, as a new account's is, or in one with a
    blank in its name."""
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


def test_what_cannot_be_completed_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a traceback without shtab, help that does not say where the script belongs."""
    assert main(["completion"]) == 2
    assert "completion bash >" in capsys.readouterr().err
    assert main(["completion", "bsh"]) == 2
    assert "bash" in capsys.readouterr().err
    monkeypatch.setattr(completion, "find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'viticulture[completion]'" in capsys.readouterr().err
