# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name only when they are whole, and locks that one process holds at a time."""

import codecs
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError, as_named

if TYPE_CHECKING:
    from filelock import BaseFileLock

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks: NFS, Lustre, FUSE and others, by how they are mounted."""
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
"""Byte-order mark of Excel's and Windows' editors -> encoding of the text; without one it is UTF-8."""

LONG_NAME = 96
"""Bytes of a file's name beyond which some file system (143) takes no more than `unfinished` adds."""
_UNFINISHED = re.compile(r"[.].+[.](?P<machine>[0-9a-f]{8})[.](?P<process>\d{1,9})[.][0-9a-f]{8}[.]part", re.DOTALL)

_SYSTEMS = frozenset(
    {"__macosx", "icon\r", "network trash folder", "temporary items"}  # macOS; its ._NAME and .DS_Store are hidden
    | {"thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"}
    | {"$recycle.bin", "system volume information", "found.000"}
    | {"lost+found", "lost.dir"}
    | {"#recycle", "@recycle", "#snapshot", "~snapshot", "@recently-snapshot", "@eadir", "@tmp"}  # network disks
)
"""Names, in lower case, of what systems, file managers and network disks leave among a user's own files."""


def is_left_behind(path: str) -> bool:
    """Return whether a file or folder is hidden or left behind by a system, or lies in a folder that is.

    Args:
        path: relative to the folder that the user named, with slashes.
    """
    return any(map(_is_systems, path.split("/")))


def _is_systems(name: str) -> bool:
    lower = name.lower()
    hidden = name.startswith(".") and name != "."
    return hidden or lower in _SYSTEMS or lower.endswith(":zone.identifier")  # Windows' mark of a download


def matching(folder: Path, *patterns: str) -> list[Path]:
    """Files and folders that match one of several patterns, sorted, without what is left behind by systems."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in paths if not is_left_behind(path.relative_to(folder).as_posix()))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, that takes the place of `path` once the block ends well.

    The data is flushed to the disk before the rename, so a kill or a full disk leaves the old file as it was. What
    killed processes of this machine left unfinished in the folder is removed.

    Raises: UserError if the disk is full or may not be written.
    """
    part = unfinished(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(".*.part"):
            if _is_dead(left):
                _remove(left)
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def unfinished(path: Path) -> Path:
    """Return where a file, or a folder of what it is made of, is written before it has its name: a name that no other
    writer on any machine uses, and that `sweep` knows. A long name, which may be the longest that the disk takes, is
    replaced by a digest."""
    own = os.fsencode(path.name)
    word = path.name if len(own) <= LONG_NAME else hashlib.sha256(own).hexdigest()[:16]
    return path.with_name(f".{word}.{_machine()}.{os.getpid()}.{secrets.token_hex(4)}.part")


@cache
def _machine() -> str:
    """8 hexadecimal digits of where the numbers of processes count: a machine since its start, or a container."""
    facts = [socket.gethostname()]
    with suppress(OSError):  # Linux alone has them
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text("utf-8"), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()[:8]


def _is_dead(part: Path) -> bool:
    """Return whether a process of this machine that has ended left a file unfinished; of other machines: False."""
    match = _UNFINISHED.fullmatch(part.name)
    if match is None or match["machine"] != _machine():
        return False
    try:
        os.kill(int(match["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user; no number of a process
        pass
    return False


def _remove(part: Path) -> None:
    with suppress(OSError):  # another process sweeps, too
        shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()


def sweep(folder: Path, idle: float = ABANDONED) -> None:
    """Remove what killed processes left half-written, however deep: those of this machine at once.

    Args:
        folder: that holds it.
        idle: seconds since it was last written to, on another machine; 0 where no other process may write.
    """
    for part in folder.rglob(".*.part"):
        with suppress(OSError):  # another process sweeps, too
            age = time.time() - part.stat().st_mtime
            if _is_dead(part) or (max(0, age) >= idle and not part.is_dir()):  # clocks of other machines may be ahead
                _remove(part)


def write_whole(path: Path, content: str | dict[str, Any]) -> Path:
    """A text or JSON file, whole or not at all. Raises: as `replacing`."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as part:
        # A path may hold bytes that are no text: escaped so, JSON gives them back as they were.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def file_lock(path: Path, wait: bool = True, cure: str = "keep it on a local disk (another --out)") -> "BaseFileLock":
    """A lock that one process holds at a time, on this machine or on any that share a file system which has locks.

    It is the kernel's (flock), so that it falls with its process, after kill -9 too; children that a process forks do
    not keep it. On a file system without locks taking it raises UserError: a file that stands for a lock would outlive
    a kill.

    Args:
        path: of a file in a folder that is there; the file stays.
        wait: for as long as it takes; else taking it raises `filelock.Timeout`, an OSError, if another process has it.
        cure: what helps on a file system without locks.
    """
    from filelock import FileLock  # here: only who locks waits for its import

    class Lock(FileLock):
        def acquire(self, *args: Any, **keywords: Any) -> Any:
            try:
                return super().acquire(*args, **keywords)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                raise UserError(
                    f"{path.parent} lies on a file system without locks ({error.strerror}), where two processes would "
                    f"write over each other; {cure}"
                ) from error

    return Lock(path, blocking=wait, thread_local=False, fallback_to_soft=False)


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
