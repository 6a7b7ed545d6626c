# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name only when they are whole, and locks that one process holds at a time."""

import codecs
import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError, as_named

if TYPE_CHECKING:
    from filelock import BaseFileLock

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ABANDONED = 3600.0
"""Seconds after which a half-written file has no writer: one that is whole is renamed at once."""
MOST_TEXT = 2**28
"""Bytes of the longest text that is read; what is longer, or grows while it is read, was not written by hand."""
MOST_LIST = 2**34
"""The same of lists of images, which programs write."""
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, which begins alike
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What Excel's and Windows' editors put before a text -> its encoding; else it is UTF-8."""

LONG_NAME = 128
"""Bytes of a file's name beyond which some file system takes no more than a few others."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, that takes the place of `path` once the block ends well.

    The data is flushed to the disk before the rename, so a kill or a full disk leaves the old file as it was.

    Raises: UserError if the disk is full or may not be written.
    """
    part = _part(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """Where a file is written before it has its name, as `sweep` knows it; a long name, which may be the longest that
    the disk takes, is told by a digest."""
    own = os.fsencode(path.name)
    word = path.name if len(own) <= LONG_NAME else hashlib.sha256(own).hexdigest()[:16]
    return path.with_name(f".{word}.{os.getpid()}.part")


def sweep(folder: Path, idle: float = ABANDONED) -> None:
    """Remove what killed processes left half-written, however deep.

    Args:
        folder: that holds it.
        idle: seconds since it was last written to; 0 where nobody else may write.
    """
    for part in folder.rglob(".*.part"):
        with suppress(OSError):  # another process sweeps, too
            if max(0, time.time() - part.stat().st_mtime) >= idle:  # clocks of other machines may be ahead
                part.unlink()


def write_whole(path: Path, content: str | dict[str, Any]) -> Path:
    """A text or JSON file, whole or not at all. Raises: as `replacing`."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as part:
        # A path may hold bytes that are no text: escaped so, JSON gives them back as they were.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def file_lock(path: Path, wait: bool = True) -> "BaseFileLock":
    """A lock that one process holds at a time, on this machine or on any that share a file system which has locks.

    It is the kernel's (flock), so that it falls with its process, after kill -9 too; children that a process forks do
    not keep it. A file system without locks raises OSError: a file that stands for a lock would outlive a kill.

    Args:
        path: of a file in a folder that is there; the file stays.
        wait: for as long as it takes; else taking it raises `filelock.Timeout`, an OSError, if another process has it.
    """
    from filelock import FileLock  # here: only who locks waits for its import

    return FileLock(path, blocking=wait, thread_local=False, fallback_to_soft=False)


def unwritable(path: Path, error: OSError) -> UserError:
    """What to tell a person whose file could not be written: space is the cure for a full disk alone."""
    mend = "see that its folder is there and may be written, or choose another place"
    if error.errno in FULL:
        mend = (
            "free some space or choose another place (a training goes on from its last whole checkpoint by "
            "`viticulture resume`)"
        )
    return UserError(f"cannot write {path}: {error.strerror or error}; {mend}")


def read_text(path: Path, what: str, most: int = 0) -> str:
    """The text of a file, in UTF-8 or, where a byte-order mark says so, in UTF-16 or UTF-32; without the mark.

    Args:
        path: the file.
        what: it is, for the error: "recipe".
        most: bytes that are read at most; `MOST_TEXT` by default.

    Raises: UserError if there is no such file, it cannot be read, is no text, or is too long.
    """
    most = most or MOST_TEXT
    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # a pipe would be waited for
        raw = b""
        if regular:
            with path.open("rb") as file:
                raw = file.read(most + 1)
        text = decoded(raw) if len(raw) <= most else ""
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} {path} is no text in UTF-8 (byte {error.start}); save it as that: what Excel calls CSV, and older "
            "files of Windows, are not UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {what} {as_named(path)}: {reason}") from error
    if not regular:
        raise UserError(f"{what} {path} is no file")
    if len(raw) > most:
        raise UserError(f"{what} {path} is longer than {most:,} bytes; is it the right file?")
    return text


def decoded(raw: bytes, errors: str = "strict") -> str:
    """Bytes of a file as text, by the byte-order mark that they begin with."""
    encoding = next((encoding for mark, encoding in _MARKS.items() if raw.startswith(mark)), "utf-8-sig")
    return raw.decode(encoding, errors)


def read_json(path: Path, cure: str = "") -> dict[str, Any]:
    """The JSON object in a file of ours.

    Args:
        path: the file.
        cure: for a damaged one, after a semicolon.

    Raises: UserError if it is missing or damaged.
    """
    try:
        content = json.loads(read_text(path, "file"))
    except UserError as error:
        raise UserError(f"{error}{cure}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}{cure}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: expected a JSON object{cure}")
    return content
