# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes, locks, and reading of text and JSON files."""

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
"""Errors of file systems without locks: NFS, Lustre, FUSE and others, depending on mount options."""
ABANDONED = 3600.0  # seconds without a write after which a partial file is stale; a complete one is renamed at once
MAX_TEXT = 2**28  # maximum bytes of a text file written by hand
MAX_LIST = 2**34  # maximum bytes of a list of images, which programs write
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, which begins alike
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte-order mark, as Excel and Windows editors write it -> encoding; without one it is UTF-8."""

MAX_NAME = 96  # maximum bytes of a file name for which `partial_path` fits every file system (one allows 143)
_PARTIAL = re.compile(r"[.].+[.](?P<machine>[0-9a-f]{8})[.](?P<process>\d{1,9})[.][0-9a-f]{8}[.]part", re.DOTALL)

_SYSTEMS = frozenset(
    {"__macosx", "icon\r", "network trash folder", "temporary items"}  # macOS; its ._NAME and .DS_Store are hidden
    | {"thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"}
    | {"$recycle.bin", "system volume information", "found.000"}
    | {"lost+found", "lost.dir"}
    | {"#recycle", "@recycle", "#snapshot", "~snapshot", "@recently-snapshot", "@eadir", "@tmp"}  # network disks
)
"""Names, in lower case, of files that systems, file managers and network disks create."""


def is_system_file(path: str) -> bool:
    """Return whether a file or folder, or one above it, is hidden or created by a system."""
    return any(map(_is_system_name, path.split("/")))


def _is_system_name(name: str) -> bool:
    lower = name.lower()
    hidden = name.startswith(".") and name != "."
    return hidden or lower in _SYSTEMS or lower.endswith(":zone.identifier")  # Windows marks downloads


def matching(folder: Path, *patterns: str) -> list[Path]:
    """Return the files and folders that match one of the patterns, sorted, without system files."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in paths if not is_system_file(path.relative_to(folder).as_posix()))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    The data is flushed before the rename, so a kill or a full disk leaves the old file intact. Partial files of killed
    processes of this machine in the folder are removed.

    Raises: UserError if the disk is full or not writable.
    """
    part = partial_path(path)
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


def partial_path(path: Path) -> Path:
    """Return a temporary path for a file or folder, unique among all machines, that `sweep` recognizes; long names
    become a digest."""
    encoded = os.fsencode(path.name)
    word = path.name if len(encoded) <= MAX_NAME else hashlib.sha256(encoded).hexdigest()[:16]
    return path.with_name(f".{word}.{_machine()}.{os.getpid()}.{secrets.token_hex(4)}.part")


@cache
def _machine() -> str:
    """Return 8 hexadecimal digits of the scope of process ids: a machine since its boot, or a container."""
    scope = [socket.gethostname()]
    with suppress(OSError):  # Linux only
        scope += [Path("/proc/sys/kernel/random/boot_id").read_text("utf-8"), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256(" ".join(scope).encode()).hexdigest()[:8]


def _is_dead(part: Path) -> bool:
    """Return whether a dead process of this machine left a partial file; False for other machines."""
    match = _PARTIAL.fullmatch(part.name)
    if match is None or match["machine"] != _machine():
        return False
    try:
        os.kill(int(match["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's; not a process id
        pass
    return False


def _remove(part: Path) -> None:
    with suppress(OSError):  # another process may sweep, too
        shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()


def sweep(folder: Path, idle: float = ABANDONED) -> None:
    """Remove partial files of killed processes, recursively. `idle`: minimum seconds since the last write, for other
    machines; 0 if no other process may write.
    """
    for part in folder.rglob(".*.part"):
        with suppress(OSError):  # another process may sweep, too
            age = time.time() - part.stat().st_mtime
            if _is_dead(part) or (max(0, age) >= idle and not part.is_dir()):  # other clocks may be ahead
                _remove(part)


def write_whole(path: Path, content: str | dict[str, Any]) -> Path:
    """Write a text or JSON file atomically. Raises: as `replacing`."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as part:
        # undecodable bytes of paths, escaped so, survive JSON
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def file_lock(path: Path, wait: bool = True, fix: str = "keep it on a local disk (another --out)") -> "BaseFileLock":
    """Return a lock for one process at a time, on this machine or on all that share a file system with locks.

    It is the kernel's (flock): it is released when the process dies, and forked children do not hold it. On a file
    system without locks, acquiring raises UserError, since a lock file would outlive a killed process.

    Args:
        path: of the lock file, in an existing folder; the file stays.
        wait: as long as needed; else acquiring raises `filelock.Timeout`, an OSError, if another process holds it.
    """
    from filelock import FileLock  # slow import

    class Lock(FileLock):
        def acquire(self, *args: Any, **keywords: Any) -> Any:
            try:
                return super().acquire(*args, **keywords)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                raise UserError(
                    f"{path.parent} lies on a file system without locks ({error.strerror}), where two processes would "
                    f"write over each other; {fix}"
                ) from error

    return Lock(path, blocking=wait, thread_local=False, fallback_to_soft=False)


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the error for a file that could not be written."""
    fix = "check that its folder exists and is writable, or choose another place"
    if error.errno in FULL:
        fix = (
            "free some space or choose another place (a training continues from its last checkpoint by "
            "`viticulture resume`)"
        )
    return UserError(f"cannot write {path}: {error.strerror or error}; {fix}")


def read_text(path: Path, what: str, max_bytes: int = 0) -> str:
    """Read a text file in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark.

    Raises: UserError if it is missing, unreadable, not text, or too long.
    """
    max_bytes = max_bytes or MAX_TEXT
    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # reading a pipe would block
        raw = b""
        if regular:
            with path.open("rb") as file:
                raw = file.read(max_bytes + 1)
        text = decoded(raw) if len(raw) <= max_bytes else ""
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} {path} is not UTF-8 text (byte {error.start}); save it as UTF-8: Excel's plain CSV and older "
            "Windows files are not"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {what} {as_named(path)}: {reason}") from error
    if not regular:
        raise UserError(f"{what} {path} is not a file")
    if len(raw) > max_bytes:
        raise UserError(f"{what} {path} is longer than {max_bytes:,} bytes; is it the right file?")
    return text


def decoded(raw: bytes, errors: str = "strict") -> str:
    """Decode a file's bytes by their byte-order mark."""
    encoding = next((encoding for mark, encoding in _MARKS.items() if raw.startswith(mark)), "utf-8-sig")
    return raw.decode(encoding, errors)


def read_json(path: Path, fix: str = "") -> dict[str, Any]:
    """Read a JSON object. Raises: UserError if it is missing or damaged."""
    try:
        content = json.loads(read_text(path, "file"))
    except UserError as error:
        raise UserError(f"{error}{fix}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}{fix}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: expected a JSON object{fix}")
    return content
