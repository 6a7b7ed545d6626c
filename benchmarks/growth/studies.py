# SPDX-License-Identifier: Apache-2.0
"""Planning a study and drawing its page: 160 and 2,000 cells of made-up results."""

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from made_results import classified, save_classes
from viticulture.evaluation import outputs
from viticulture.report.study_page import write_study
from viticulture.report.study_tables import plan_table
from viticulture.study.cell import contents
from viticulture.study.clusters import write_script
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Cell, Grid
from viticulture.study.plan import StudyPlan, make_plan
from viticulture.study.step_times import StepTimes
from viticulture.study.study import Study
from viticulture.study.terms import Subsets, Terms
from viticulture.study.work import changed
from viticulture.tasks import classification_metrics

from . import Row

T = TypeVar("T")

SEEDS = 10
SUBSETS = (5, 10, 20, 50)
CLASSES = tuple("abcdefghij")
IMAGES = 400


def of_size(size: int, root: Path) -> list[Row]:
    """Both costs of so many cells."""
    grid = declared(size)
    folder = StudyFolder.create(root / "study", grid, "viticulture compare digits")
    plan, planning = timed(lambda: planned(folder))
    folder.update(plan=plan.to_dict())
    for cell in grid.cells():
        leave(folder, plan, cell)
    _, checking = timed(lambda: changed(folder, plan))
    _, drawing = timed(lambda: write_study(Study(folder.path)))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return [
        Row("a study planned", size, planning, 0.0),
        Row("its finished cells checked", size, checking, 0.0),
        Row("its page drawn", size, drawing, most),
    ]


def declared(size: int) -> Grid:
    """Half of the candidates learn from the other half."""
    pairs = size // (2 * SEEDS * len(SUBSETS))
    teachers = [Candidate(f"teacher {i}", "default/digits", {"optim.lr": 1e-3 + 1e-6 * i}) for i in range(pairs)]
    taught = [
        Candidate(f"taught {i}", "default/digits", {"guides.logits": {"teacher": f"row:teacher {i}"}})
        for i in range(pairs)
    ]
    terms = Terms(budget=f"{size}min")
    return Grid("digits", (*teachers, *taught), Subsets(per_class=SUBSETS), tuple(range(SEEDS)), terms=terms)


def planned(study: StudyFolder) -> StudyPlan:
    """The plan, shown, and as a script for SLURM."""
    grid, names = study.grid, [candidate.name for candidate in study.grid.candidates]
    paces = {
        (name, subset.name): StepTimes(0.01, 40, 1e-4, 90, 490) for name in names for subset in grid.subsets.each()
    }
    plan = make_plan(grid, dict.fromkeys(names, 100), dict.fromkeys(names, 5.0), paces)
    plan_table(grid, plan).markdown()
    write_script(study, plan)
    return plan


def leave(study: StudyFolder, plan: StudyPlan, cell: Cell) -> None:
    """What a finished training leaves, as far as a page reads it."""
    run, draw = study.run(cell), torch.Generator().manual_seed(cell.seed)
    run.path.mkdir(parents=True)
    labels = torch.arange(IMAGES) % len(CLASSES)
    right = torch.rand(IMAGES, generator=draw) < 0.7
    predicted = torch.where(right, labels, (labels + 1) % len(CLASSES))
    shares = 0.8 * torch.nn.functional.one_hot(predicted, len(CLASSES)) + 0.2 / len(CLASSES)
    predictions = outputs.Predictions(shares, labels, [""] * IMAGES)
    result = classification_metrics.evaluate_predictions(predictions, CLASSES)
    run.write(
        "evaluation.json", classified("best/test", {f"best/{split}": result for split in ("test", "val")}).to_dict()
    )
    save_classes(run, "best/test", {"best/test": predictions})
    lines = (f"{40 * epoch + 39},{epoch},val/accuracy,{0.7 * (epoch + 1) / 100}" for epoch in range(100))
    run.write("metrics.csv", "\n".join(["step,epoch,name,value", *lines]) + "\n")
    run.update(
        status="finished",
        cell=contents(study, cell, plan),
        seconds=60.0,
        steps=4000,
        batch_size=16,
        epochs=100,
        student={"name": "vit_nano", "parameters": 200_000, "macs": 3_000_000},
        data={
            "source": "digits",
            "classes": CLASSES,
            "images": {"train": int(cell.subset.value) * len(CLASSES), "val": 90, "test": IMAGES},
        },
        hardware={"cpu": "a processor", "cores": 2, "gpus": []},
        versions={"viticulture": "0"},
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a work gives, and its processor time."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def measure(sizes: tuple[int, ...] = (160, 2000)) -> Iterator[Row]:
    """Rows of every size; planning is promised under 2 s and a page under 10 s for 2,000 cells."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as root:
            yield from of_size(size, Path(root))
