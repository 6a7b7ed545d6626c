# SPDX-License-Identifier: Apache-2.0
"""Text that a person names is read whole, or refused in a line before it fills the memory."""

import os
from pathlib import Path

import pytest

from viticulture import disk
from viticulture.errors import UserError


def test_text_is_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    """Catches: a pipe that is waited for, bytes that become other letters, a name that no file can have."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("a: \u4e2d\r\n", encoding="utf-8", newline="")
    assert disk.read_text(good, "recipe") == "a: \u4e2d\r\n"
    bad.write_bytes(b"a: \xe9")
    os.mkfifo(tmp_path / "pipe")
    for path, words in {
        bad: "recipe .*bad.yaml is no text in UTF-8 .byte 3",
        tmp_path / "pipe": "recipe .*pipe is no file",
        tmp_path: "is no file",
        tmp_path / "none": "cannot read recipe .*none: No such file",
        Path("a\0b"): "cannot read recipe .*null",
    }.items():
        with pytest.raises(UserError, match=words):
            disk.read_text(path, "recipe")


def test_text_longer_than_anybody_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a disk image by mistake, or a file that a program still writes to, that is read until memory is full."""
    monkeypatch.setattr(disk, "MOST_TEXT", 10)
    path = tmp_path / "long.yaml"
    path.write_text("a" * 10)
    assert disk.read_text(path, "recipe") == "a" * 10
    path.write_text("a" * 11)
    with pytest.raises(UserError, match=r"recipe .*long.yaml is longer than 10 bytes"):
        disk.read_text(path, "recipe")
