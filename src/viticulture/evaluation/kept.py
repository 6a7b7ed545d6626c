# SPDX-License-Identifier: Apache-2.0
"""What was measured before and kept in a run's folder, read back."""

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import UserError
from ..training.rundir import RunDir

Kept = TypeVar("Kept")


def read_kept(run: RunDir, name: str, made: Callable[[dict[str, Any]], Kept], absent: Kept) -> Kept:
    """A JSON file of measurements.

    Args:
        run: whose.
        name: of the file in its folder.
        made: from the file's content to what it means.
        absent: what it means that there is no such file.

    Raises: UserError for a file that holds something else.
    """
    if not (run.path / name).exists():
        return absent
    content = run.read(name)
    try:
        return made(content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{run.path / name} is damaged ({type(error).__name__}: {error}); remove it and measure anew"
        ) from error
