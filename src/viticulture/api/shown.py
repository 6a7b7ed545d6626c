# SPDX-License-Identifier: Apache-2.0
"""What shows a training while it goes on and afterwards: it may fail, which costs a line, but never the training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from ..errors import UserError
from ..text import command_line, tell

PACKAGE = str(Path(__file__).parents[1])


class Shown:
    """Pictures and page of a run or a study.

    Args:
        folder: of what trains, or has just been measured.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, ""

    def draw(self) -> None:
        """Draw report.html of a run."""
        from ..report.run_page import write_page
        from ..training.run_folder import RunFolder

        with self.spared("report"):
            write_page(RunFolder(self.folder))

    @contextmanager
    def spared(self, verb: str) -> Iterator[None]:
        """The one guard: an error inside becomes a warning, once for as long as it stays the same.

        Args:
            verb: that makes the same again.
        """
        try:
            yield
        except Exception as error:
            ours = [frame.name for frame in extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
            reason = str(error) if isinstance(error, UserError) else f"{ours[-1]}: {type(error).__name__}: {error}"
            again = command_line(["viticulture", verb, str(self.folder)])
            if reason != self.told:  # a page is drawn every few epochs
                self.told = reason
                tell(f"warning: the page of {self.folder} is not whole: {reason}; once that is mended: {again}")
