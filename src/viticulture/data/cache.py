# SPDX-License-Identifier: Apache-2.0
"""Folders that are made once and used by every process: complete or absent, never half.

A folder is made under another name and renamed when it is complete. Whoever makes it holds a lock, so that others wait
and then use it; the lock falls with its process, and what a killed process left behind is removed at the next making.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def cache_folder() -> Path:
    """Where decoded images are kept: the environment's VITICULTURE_CACHE, else ~/.cache/viticulture."""
    return Path(os.environ.get("VITICULTURE_CACHE") or "~/.cache/viticulture").expanduser()


def data_folder() -> Path:
    """Where named data sets lie: the environment's VITICULTURE_DATA, else ~/.cache/viticulture/data."""
    return Path(os.environ.get("VITICULTURE_DATA") or "~/.cache/viticulture/data").expanduser()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that no other process holds; wait for it. It falls with the process, also after kill -9."""
    with refusals(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turn a full disk and a forbidden folder into errors that say what to do."""
    advice = "point VITICULTURE_CACHE (decoded images) or VITICULTURE_DATA (downloads) at another folder, or make room"
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"no room left for {folder}: {error.strerror}; {advice}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"cannot write to {folder}: {error.strerror}; {advice}") from error
        if error.errno == errno.ENOENT and error.filename and folder.is_relative_to(error.filename):  # HOME in /proc
            raise UserError(f"cannot make {folder}: {error.strerror}; {advice}") from error
        raise


def publish(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, having it made where it is missing.

    Args:
        folder: its final path; its parent holds nothing but such folders.
        make: fills an empty folder; what it raises leaves no trace.

    Raises: UserError where the disk is full or may not be written.
    """
    if folder.is_dir():
        return folder
    with locked(_lock(folder)):
        if folder.is_dir():  # made by another process meanwhile
            return folder
        partial = folder.with_name(f"{folder.name}.partial")
        _remove_leftovers(folder.parent, but=partial)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with refusals(folder):
                partial.mkdir()
                make(partial)
                _flush(partial)
                partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def cached(root: Path | None = None) -> dict[str, int]:
    """What the cache holds: relative path of each folder -> bytes on disk."""
    root = root or cache_folder()
    return {str(folder.relative_to(root)): _size(folder) for folder in _made(root)}


def clear_cache(root: Path | None = None) -> int:
    """Remove all stores, indexes and features (not downloaded data sets); return the bytes that this freed.

    Folders that a process is making at this moment stay.
    """
    freed = 0
    for folder in _made(root or cache_folder()):
        size = _size(folder)
        if _abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            freed += size - (_size(folder) if folder.exists() else 0)
    return freed


def _made(root: Path) -> list[Path]:
    kinds = [root / kind for kind in ("stores", "indexes", "features", "answers")]
    return sorted(folder for kind in kinds if kind.is_dir() for folder in kind.iterdir() if folder.is_dir())


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name.removesuffix('.partial')}.lock")


def _abandoned(folder: Path) -> bool:
    """Whether no process is making this folder."""
    try:
        handle = os.open(_lock(folder), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _remove_leftovers(parent: Path, but: Path) -> None:
    for partial in parent.glob("*.partial"):
        if partial != but and _abandoned(partial):
            shutil.rmtree(partial, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Have the files on disk before their name is, so that a power cut leaves none half."""
    for file in folder.iterdir():
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
