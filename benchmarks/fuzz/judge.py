# SPDX-License-Identifier: Apache-2.0
"""What we promise of any command: it works, or says in a line or two what to mend, and leaves nothing half-made."""

import json
import re
from pathlib import Path

from .child import Ending

QUICKLY = 5.0
"""Processor seconds within which a mistake is told."""

LINES = 4
"""Lines that an error may take, long words wrapped by nobody."""

CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\x1b(?!\[[0-9;?]*[A-Za-z])")
COLOR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def complaint(ending: Ending, run: Path | None) -> str:
    """What is wrong with an ending, or nothing.

    Args:
        ending: of one command.
        run: the folder that the command was to make.
    """
    output = ending.output
    if b"Traceback (most recent call last)" in output:
        return f"traceback: {_last(output)}"
    if ending.outlasted:
        return "" if _training(run) else "neither an answer nor a training in time"
    if ending.code < 0:
        return f"ended by signal {-ending.code}"
    if ending.code not in (0, 2):
        return f"exit status {ending.code}: {_last(output)}"
    if ending.code == 0:
        return "" if run is None or not run.exists() or _status(run) == "finished" else "exit status 0, not finished"
    message = output[output.rfind(b"error: ") :]
    if not message.startswith(b"error: "):
        return "exit status 2 without an error"
    if len(message.strip().splitlines()) > LINES:
        return f"an error of {len(message.splitlines())} lines"
    if CONTROL.search(message) or COLOR.search(message):
        return "an error with control characters"
    if ending.seconds > QUICKLY:
        return f"an error after {ending.seconds:.0f} s of work: {_last(output)}"
    if run is not None and run.is_dir() and _status(run) not in ("finished", "running"):
        return f"an error that leaves a folder without a run: {_last(output)}"
    return ""


def _last(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "(silent)"


def _status(run: Path) -> str:
    try:
        return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _training(run: Path | None) -> bool:
    return run is not None and _status(run) in ("running", "finished")
