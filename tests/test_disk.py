# SPDX-License-Identifier: Apache-2.0
"""Text files are read whole or refused; a lock belongs to one process."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from photographs import pictures
from refusals import refused
from viticulture import disk
from viticulture.cache import clear_cache
from viticulture.data.dataset import prepare
from viticulture.errors import UserError
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.terms import Subsets
from viticulture.training.run_folder import RunFolder


def test_text_is_read_and_other_files_are_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("a: \u4e2d\r\n", encoding="utf-8", newline="")
    assert disk.read_text(good, "recipe") == "a: \u4e2d\r\n"
    bad.write_bytes(b"a: \xe9")
    os.mkfifo(tmp_path / "pipe")
    for path, words in {
        bad: "recipe .*bad.yaml is not UTF-8 text .byte 3",
        tmp_path / "pipe": "recipe .*pipe is not a file",
        tmp_path: "is not a file",
        tmp_path / "none": "cannot read recipe .*none: No such file",
        Path("a\0b"): "cannot read recipe .*null",
    }.items():
        refused(words, disk.read_text, path, "recipe")


def test_overlong_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MAX_TEXT", 10)
    path = tmp_path / "long.yaml"
    path.write_text("a" * 10)
    assert disk.read_text(path, "recipe") == "a" * 10
    path.write_text("a" * 11)
    refused(r"recipe .*long.yaml is longer than 10 bytes", disk.read_text, path, "recipe")


def test_partial_files_are_removed_where_no_process_writes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    left, written, ahead, own = (tmp_path / "deep" / name for name in (".a.1.part", ".b.2.part", ".c.3.part", "d.part"))
    now = time.time()
    for path, age in {left: disk.ABANDONED + 1, written: 0, ahead: -9999, own: 99999}.items():
        path.write_text("half")
        os.utime(path, (now - age, now - age))
    disk.sweep(tmp_path)
    assert [path.exists() for path in (left, written, ahead, own)] == [False, True, True, True]
    disk.sweep(tmp_path, idle=0)
    assert [path.exists() for path in (written, ahead, own)] == [False, False, True]


@pytest.mark.parametrize("name", ["x" * 251 + ".csv", "\u4e2d" * 85], ids=["letters", "signs"])
def test_a_file_may_have_the_longest_name_of_the_disk(tmp_path: Path, name: str) -> None:
    other = tmp_path / f"y{name[1:]}"
    with disk.replacing(tmp_path / name) as part, disk.replacing(other) as second:
        part.write_text("one")
        second.write_text("two")
        (tmp_path / part.name.replace(str(os.getpid()), "77")).write_text("of a killed one")
    assert ((tmp_path / name).read_text(), other.read_text()) == ("one", "two")
    disk.sweep(tmp_path, idle=0)
    assert {path.name for path in tmp_path.iterdir()} == {name, other.name}


WRITER = """
import sys
from pathlib import Path
from viticulture.disk import replacing, partial_path
path = Path(sys.argv[1])
partial_path(path).mkdir()
with replacing(path) as part:
    part.write_text("half")
    print("writes", flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "report.html")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writes\n"
        disk.write_whole(tmp_path / "run.json", "one")
        disk.sweep(tmp_path)
        assert len(list(tmp_path.glob(".report.html.*.part"))) == 2
        writer.kill()
        writer.wait()
    disk.write_whole(tmp_path / "run.json", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_two_machines_have_separate_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of two containers are both number 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "a.json"
    assert len({disk.partial_path(path) for _ in range(100)}) == 100
    monkeypatch.setattr(disk, "_machine", lambda: "0123abcd")
    monkeypatch.setattr(os, "getpid", lambda: 999999999)  # more than there are
    there = disk.partial_path(path)
    there.write_text("half")
    monkeypatch.undo()
    disk.write_whole(path, "whole")
    disk.sweep(tmp_path)
    assert there.exists()
    os.utime(there, (0, 0))
    disk.sweep(tmp_path)
    assert not there.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_locks_is_named_with_a_fix(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, locking, data = tmp_path / "nfs", fcntl.flock, tmp_path / "data"
    without.mkdir()

    def flock(handle: int, how: int) -> None:
        if os.fstat(handle).st_ino in {path.stat().st_ino for path in without.rglob("*")}:
            raise OSError(code, os.strerror(code))
        locking(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    pictures(data, {"a": 12, "b": 12})
    monkeypatch.setenv("VITICULTURE_CACHE", str(without / "cache"))
    refused(r"without locks .*VITICULTURE_CACHE .* at a folder on a local disk", prepare, data)
    (without / "cache" / "decoded" / "x.partial").mkdir(parents=True)
    refused(r"without locks .* remove .*x.partial by hand", clear_cache)
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))
    prepare(data)
    refused(r"without locks .*local disk \(another --out\)", RunFolder.create, without / "run")
    assert RunFolder(without / "run").in_use
    RunFolder.create(tmp_path / "run").unlock()
    grid = Grid("digits", (Candidate("a", "default/digits", {}),), Subsets(), (0,))
    study = StudyFolder.create(without / "study", grid, "viticulture compare digits")
    with pytest.raises(UserError, match="without locks"), study.locked("plan"):
        pass
    with pytest.raises(UserError, match="without locks"), study.claim(grid.cells()[0]):
        pass


HOLDER = """
import os, sys
from pathlib import Path
from viticulture.disk import file_lock
told, tells = os.pipe()
with file_lock(Path(sys.argv[1])):
    if os.fork() == 0:
        os.write(tells, b"forked")  # what a fork does to locks is done now
        sys.stdin.read()
        os._exit(0)
    os.read(told, 6)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError):
            disk.file_lock(path, wait=False).acquire()
        holder.kill()
        holder.wait()  # its child is still there: it ends with the pipe
        with disk.file_lock(path, wait=False) as lock:
            assert lock.is_locked
