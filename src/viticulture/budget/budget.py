# SPDX-License-Identifier: Apache-2.0
"""The time limit of a command, and the clock that measures it; imports nothing slow."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UserError
from ..study.terms import duration

CORE = re.compile(r"(\s*[\d.]+\s*)core-?", re.IGNORECASE)  # makes a time one of processors: 15core-m, 1 core-h


@dataclass(frozen=True)
class TimeBudget:
    """Seconds of a command, from its first check, when its libraries are loaded, to its report."""

    # As the user wrote it: 90s, 30m, 2h, 1night (ten hours); a bare number counts minutes; 15core-m counts processor
    # time, all threads together, in place of wall-clock time (helpers that decode streamed images are other processes,
    # and are not counted).
    text: str
    search: bool = True

    def __post_init__(self) -> None:
        _ = self.seconds

    @property
    def seconds(self) -> float:
        """Length in seconds. Raises: UserError if the text is no time."""
        try:
            return duration(CORE.sub(r"\1", self.text))
        except UserError as error:
            raise UserError(
                f"a budget is a time such as 90s, 30m, 2h, 1night or 15core-m, got {self.text!r}"
            ) from error

    @property
    def counts_processors(self) -> bool:
        """True if the budget limits processor time."""
        return CORE.match(self.text) is not None

    @property
    def unit(self) -> str:
        """Unit of its minutes."""
        return "core-min" if self.counts_processors else "min"

    @property
    def clock(self) -> Callable[[], float]:
        """The clock that measures it; only differences mean anything."""
        return time.process_time if self.counts_processors else time.perf_counter
