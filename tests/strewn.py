# SPDX-License-Identifier: Apache-2.0
"""Files that operating systems leave in a user's folders."""

import shutil
from pathlib import Path

import pytest

LEFT = (
    *("__MACOSX", ".ipynb_checkpoints", ".Trash-1000", "lost+found", "System Volume Information", "$RECYCLE.BIN"),
    *("#recycle", "@Recycle", "@eaDir", "#snapshot", "LOST.DIR", "found.000"),
)
"""Folders that systems make; case does not matter to some."""
JUNK = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(range(128, 200))
"""What macOS writes beside a file, under its name after `._`."""

every_left_behind = pytest.mark.parametrize("name", [*LEFT, "._NAME", "thumbs.db", "Desktop.ini"])


def strew(root: Path, name: str) -> None:
    """Put one thing of that name into every folder: a copy of the folder, a file, or ._NAME for each file."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        files = [path for path in folder.iterdir() if path.is_file()]
        if name == "._NAME":
            for file in files:
                file.with_name(f"._{file.name}").write_bytes(JUNK)
        elif name in LEFT:
            (folder / name).mkdir()
            for file in files:
                shutil.copy(file, folder / name / f"{file.stem}-checkpoint{file.suffix}")
        else:
            (folder / name).write_bytes(JUNK)
