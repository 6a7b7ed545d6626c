# SPDX-License-Identifier: Apache-2.0
"""Studies of one candidate, and a killer of its workers."""

import os
import signal
import threading
from pathlib import Path

from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.halving import current_outcomes
from viticulture.study.outcomes import Outcomes
from viticulture.study.plan import StudyPlan
from viticulture.study.terms import Subsets, Terms
from viticulture.study.workers import claimed_by

TINY = {"train.batch_size": 8}


def made(path: Path, seeds: int, epochs: int = 1, terms: Terms = Terms()) -> StudyFolder:  # noqa: B008
    """Create a study of one candidate on a few digits, planned without measuring."""
    grid = Grid(
        "digits",
        (Candidate("a", "default/digits", TINY),),
        Subsets(per_class=(2,)),
        tuple(range(seeds)),
        epochs=epochs,
        terms=terms,
    )
    study = StudyFolder.create(path, grid, "test")
    study.update(plan=StudyPlan({("a", "2 a class"): epochs}, {}, {"a": 100}, {"a": 5.0}).to_dict())
    return study


def statuses(study: StudyFolder) -> list[str]:
    return [one.status for one in current_outcomes(study.grid, Outcomes(study))]


class Killer(threading.Thread):
    """Kills the first process that has begun to train a cell, by kill -9, until the study is over."""

    def __init__(self, study: StudyFolder) -> None:
        super().__init__()
        self.study, self.killed, self.over = study, list[int](), threading.Event()

    def run(self) -> None:
        while not self.killed and not self.over.wait(0.01):
            for lock in (self.study.path / "locks").glob("a.*"):
                words = lock.read_text().split()
                if len(words) == 2 and (self.study.path / "cells" / lock.name / "run.json").exists():
                    pid = int(words[1])
                    if claimed_by(self.study, pid):
                        os.kill(pid, signal.SIGKILL)
                        self.killed.append(pid)
                        return

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()
