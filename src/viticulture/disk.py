# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name only when they are whole."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, that takes the place of `path` once the block ends well.

    The data is flushed to the disk before the rename, so a kill or a full disk leaves the old file as it was.

    Raises: UserError if the disk is full or may not be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
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


def unwritable(path: Path, error: OSError) -> UserError:
    """What to tell a person whose file could not be written: space is the cure for a full disk alone."""
    mend = "see that its folder is there and may be written, or choose another place"
    if error.errno in FULL:
        mend = (
            "free some space or choose another place (a training goes on from its last whole checkpoint by "
            "`viticulture resume`)"
        )
    return UserError(f"cannot write {path}: {error.strerror or error}; {mend}")
