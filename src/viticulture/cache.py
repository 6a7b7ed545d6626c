# SPDX-License-Identifier: Apache-2.0
"""Cached folders, written once and used by every process: complete or absent, never damaged.

A folder is made under another name and renamed when it is complete. The process that makes it holds a lock, so that
others wait and then use it; the lock ends with its process, and leftovers of a killed one are removed next time.

A folder holds checksums of its files, all of which are compared at every use: that reads as fast as memory and CRC-32
allow (a second a gigabyte and core), once before a training reads the same bytes every epoch. A folder damaged by a
power cut, the disk or the user is made again, so nothing waits for data to reach the disk.
"""

import errno
import hashlib
import inspect
import json
import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .disk import FULL, file_lock, matching
from .errors import UserError
from .parallel import cores

SEAL = "checksums.json"  # name of each other file in the folder -> CRC-32 of each of its blocks

PLACES = "VITICULTURE_CACHE (decoded images) or VITICULTURE_DATA (downloads)"  # environment variables of the folders

_BLOCK = 2**24  # bytes


def cache_folder() -> Path:
    """Folder of decoded images: the environment's VITICULTURE_CACHE, else ~/.cache/viticulture."""
    return Path(os.environ.get("VITICULTURE_CACHE") or "~/.cache/viticulture").expanduser()


def data_folder() -> Path:
    """Folder of named data sets: the environment's VITICULTURE_DATA, else ~/.cache/viticulture/data."""
    return Path(os.environ.get("VITICULTURE_DATA") or "~/.cache/viticulture/data").expanduser()


def digest(parts: Iterable[str]) -> str:
    """Hash a sequence of texts to 32 hexadecimal digits."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        hashed.update(len(raw).to_bytes(8, "little") + raw)
    return hashed.hexdigest()


def source_of(cls: type) -> str:
    """Return a digest of the file of a class that is not the package's own and may change under its name; "" for the
    package's. A class without a file, as in a notebook, never has the same digest twice.
    """
    if cls.__module__.startswith(f"{__package__}."):
        return ""
    try:
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return secrets.token_hex()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a `disk.file_lock`; wait for it."""
    with refusals(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        held = file_lock(path, fix=f"point {PLACES} at a folder on a local disk").acquire()
    with held:
        yield


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turn a full disk, a forbidden folder and one that is removed meanwhile into errors with a way out."""
    advice = f"point {PLACES} at another folder, or free some space"
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise UserError(f"no room left for {folder}: {error.strerror}; {advice}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"cannot write to {folder}: {error.strerror}; {advice}") from error
        if error.errno == errno.ENOENT and error.filename and folder.is_relative_to(error.filename):  # HOME in /proc
            raise UserError(f"cannot make {folder}: {error.strerror}; {advice}") from error
        if error.errno == errno.ENOENT and error.filename and Path(error.filename).is_relative_to(folder.parent):
            raise UserError(f"{error.filename} was removed while it was in use; run the command again") from error
        raise


def publish(
    folder: Path,
    make: Callable[[Path], None],
    outdated: Callable[[Path], bool] = lambda _: False,
    holds: Sequence[str] = (),
) -> Path:
    """Return a folder; make it where it is missing, and again where it is damaged (which is logged).

    Args:
        folder: its final path; its parent holds nothing but such folders.
        make: fills an empty folder; an error leaves no trace.
        outdated: whether an intact folder is to be made again.
        holds: files of a complete folder; one may vanish meanwhile if the cache is removed.

    Raises: UserError where the disk is full or may not be written, or the folder is removed while it is made.
    """
    if folder.is_dir() and not (_damage(folder, holds) or outdated(folder)):
        return folder
    with locked(_lock(folder)):
        if folder.is_dir():  # damaged or outdated, or made by another process meanwhile
            if damage := _damage(folder, holds):
                logging.getLogger(__name__).warning("%s is damaged (%s); it is made again", folder, damage)
            elif not outdated(folder):
                return folder
            shutil.rmtree(folder, ignore_errors=True)  # open files stay readable
        partial = folder.with_name(f"{folder.name}.partial")
        _remove_leftovers(folder.parent, but=partial)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with refusals(folder):
                partial.mkdir()
                make(partial)
                checksums = _checksums(partial)
                if lost := [name for name in holds if name not in checksums]:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(partial / lost[0]))
                (partial / SEAL).write_text(json.dumps(checksums), "utf-8")
                partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def cached() -> dict[str, int]:
    """Relative path of each cached folder -> bytes on disk."""
    return {str(folder.relative_to(cache_folder())): _size(folder) for folder in _made()}


def clear_cache() -> int:
    """Remove all decoded images, indexes and features (not downloaded data sets); return the bytes freed.

    Folders that a process is making now stay.
    """
    freed = 0
    for folder in _made():
        size = _size(folder)
        if _abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            freed += size - (_size(folder) if folder.exists() else 0)
    return freed


def _made() -> list[Path]:
    kinds = [cache_folder() / kind for kind in ("decoded", "indexes", "features", "teacher_logits")]
    return sorted(folder for kind in kinds if kind.is_dir() for folder in kind.iterdir() if folder.is_dir())


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name.removesuffix('.partial')}.lock")


def _abandoned(folder: Path) -> bool:
    """Return whether no process is making this folder. Raises: UserError on a file system without locks."""
    cure = f"stop all trainings, and remove {folder} by hand"
    try:
        with file_lock(_lock(folder), wait=False, fix=cure):
            return True
    except OSError:
        return False


def _damage(folder: Path, holds: Sequence[str]) -> str:
    """Say what is wrong with a folder; empty where it is intact."""
    try:
        made = json.loads((folder / SEAL).read_text("utf-8"))
    except FileNotFoundError:
        return "it has no checksums"
    except (OSError, ValueError, RecursionError):
        return f"{SEAL} cannot be read"
    try:
        checksums = _checksums(folder)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not isinstance(made, dict) or made.keys() != checksums.keys():
        return "its files are not those that were made"
    if lost := [name for name in holds if name not in checksums]:
        return f"it lacks {lost[0]}"
    return ", ".join(f"{name} has another checksum" for name in checksums if checksums[name] != made[name])


def _checksums(folder: Path) -> dict[str, list[int]]:
    with ThreadPoolExecutor(cores()) as pool:
        return {file.name: _blocks(file, pool) for file in matching(folder, "*") if file.name != SEAL}


def _blocks(file: Path, pool: ThreadPoolExecutor) -> list[int]:
    """CRC-32 of each block of a file."""
    handle = os.open(file, os.O_RDONLY)
    try:
        starts = range(0, os.fstat(handle).st_size, _BLOCK)
        return list(pool.map(lambda start: zlib.crc32(os.pread(handle, _BLOCK, start)), starts))
    finally:
        os.close(handle)


def _remove_leftovers(parent: Path, but: Path) -> None:
    for partial in parent.glob("*.partial"):
        if partial != but and _abandoned(partial):
            shutil.rmtree(partial, ignore_errors=True)
