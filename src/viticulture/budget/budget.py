# SPDX-License-Identifier: Apache-2.0
"""The time that a person gives, and the clock that counts it; imports nothing that takes time."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UserError
from ..study.terms import duration

CORE = re.compile(r"(\s*[\d.]+\s*)core-?", re.IGNORECASE)
"""What makes a time one of processors: 15core-m, 1 core-h."""


@dataclass(frozen=True)
class Budget:
    """Seconds of a command, from its first check, when its libraries are loaded, to its report.

    Args:
        words: as a person gave them: 90s, 30m, 2h, 1night (ten hours); a bare number counts minutes; 15core-m counts
            the time of processors, all threads together, and not that of the clock on the wall (helpers that decode
            streamed images are processes of their own, and are not counted).
        search: whether stages before the student's own and mixing may be planned.
    """

    words: str
    search: bool = True

    def __post_init__(self) -> None:
        _ = self.seconds

    @property
    def seconds(self) -> float:
        """Raises: UserError if the words are no time."""
        try:
            return duration(CORE.sub(r"\1", self.words))
        except UserError as error:
            raise UserError(
                f"a budget is a time such as 90s, 30m, 2h, 1night or 15core-m, got {self.words!r}"
            ) from error

    @property
    def counts_processors(self) -> bool:
        """Whether it is the processors' time that is limited."""
        return CORE.match(self.words) is not None

    @property
    def clock(self) -> Callable[[], float]:
        """What tells the time; only differences mean anything."""
        return time.process_time if self.counts_processors else time.perf_counter
