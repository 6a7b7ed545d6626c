# SPDX-License-Identifier: Apache-2.0
"""Write pages during and after a training; an error in a page is a warning and never stops the training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from ..errors import UserError
from ..text import command_line, log

PACKAGE = str(Path(__file__).parents[1])


class PageGuard:
    """The pictures and the page of a run's or a study's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last_reason = folder, ""

    def write(self) -> None:
        """Write report.html of a run."""
        from ..report.run_page import write_page
        from ..training.run_folder import RunFolder

        with self.guard("report"):
            write_page(RunFolder(self.folder))

    @contextmanager
    def guard(self, command: str) -> Iterator[None]:
        """Log an error in the block as a warning, once for as long as it stays the same.

        Args:
            command: does the same again.
        """
        try:
            yield
        except Exception as error:
            ours = [frame.name for frame in extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
            reason = str(error) if isinstance(error, UserError) else f"{ours[-1]}: {type(error).__name__}: {error}"
            again = command_line(["viticulture", command, str(self.folder)])
            if reason != self.last_reason:  # a page is written every few epochs
                self.last_reason = reason
                log(f"warning: the page of {self.folder} is incomplete: {reason}; once fixed, run: {again}")
