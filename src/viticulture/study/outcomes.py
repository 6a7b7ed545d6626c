# SPDX-License-Identifier: Apache-2.0
"""Outcomes of a study's cells as plain rows: read from the run folders, written as table.csv."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..disk import read_json
from ..errors import UserError
from ..evaluation.agreement import read_agreement
from ..evaluation.localization.evaluate import read_localizations
from ..evaluation.localization.metrics import OVERLAPS, PUBLISHED
from ..evaluation.probe.evaluate import read_probes
from ..evaluation.robustness.evaluate import read_robustness
from ..tasks.results import Results
from ..training.run_folder import RunFolder
from .folder import StudyFolder
from .grid import Cell

NUMBERS = (
    "train_images",
    "test_images",
    "test_accuracy",
    "val_accuracy",
    "epochs",
    "seconds",
    "core_seconds",
    "parameters",
    "macs",
)
"""Columns of a row that charts and tables calculate with."""

NUMBERS_OF_PREDICTIONS = ("images", "balanced_accuracy", "macro_f1", "nll", "calibration_error")
"""Numbers of an evaluation that an outcome includes."""


@dataclass(frozen=True)
class Outcome:
    """One cell, trained or not; unknown values are None."""

    cell: Cell
    status: str
    error: str = ""
    test: float | None = None  # result on test images, in [0, 1], by the weights that count; of the measure `measured`
    val: float | None = None
    # Further measures of the evaluation that counts: images, balanced_accuracy, macro_f1, nll, calibration_error.
    numbers: dict[str, float] | None = None
    metadata: dict[str, Any] | None = None
    # Accuracy, another task's main measure, or the measure of a table's row, see `other_measure`.
    measured: str = "accuracy"

    @property
    def score(self) -> float | None:
        """Result on test images; on validation images, where there is no test split."""
        return self.test if self.test is not None else self.val

    @property
    def row(self) -> dict[str, Any]:
        """A flat row of plain values."""
        metadata, cell, numbers = self.metadata or {}, self.cell, self.numbers or {}
        student, images = metadata.get("student", {}), metadata.get("data", {}).get("images", {})
        seconds, steps = metadata.get("seconds"), metadata.get("steps")
        return {
            "candidate": cell.candidate.name,
            "recipe": cell.candidate.recipe,
            "data": cell.candidate.data or metadata.get("data", {}).get("source", ""),
            "subset": cell.subset.name,
            cell.unit: cell.seed,
            "rung": cell.rung + 1,
            "status": self.status,
            "measure": self.measured,
            "train_images": images.get("train"),
            "test_accuracy": self.test,
            "val_accuracy": self.val,
            **{name: numbers.get(name) for name in NUMBERS_OF_PREDICTIONS[1:]},
            "test_images": images.get("test"),
            "epochs": metadata.get("epochs"),
            "batch_size": metadata.get("batch_size"),
            "steps": steps,
            "seconds": seconds,
            "core_seconds": metadata.get("core_seconds"),
            "images_per_second": steps * metadata["batch_size"] / seconds if steps and seconds else None,
            "parameters": student.get("parameters"),
            "macs": student["macs"] * metadata.get("views", 1) if student.get("macs") else None,
            "student": student.get("name"),
            "folder": f"cells/{cell.name}",
            "error": self.error,
        }


class Outcomes:
    """Outcomes of a study's cells, read from its folder; finished ones are remembered."""

    def __init__(self, study: StudyFolder) -> None:
        self.study = study
        self._finished: dict[tuple[str, str], Outcome] = {}

    def of(self, cell: Cell) -> Outcome:
        """Return the current outcome of a cell."""
        key = cell.name, cell.candidate.name
        outcome = self._finished.get(key) or self._read(cell)
        if outcome.status == "finished":
            self._finished[key] = outcome
        return outcome

    def all(self, cells: Iterable[Cell]) -> list[Outcome]:
        """Return the current outcomes of several cells."""
        return [self.of(cell) for cell in cells]

    def _read(self, cell: Cell) -> Outcome:
        """Read a cell's outcome; a damaged folder is reported as one failure and trained again."""
        try:
            outcome = self._as_written(cell)
            _ = {**outcome.row, **{name: outcome.row[name] / 1 for name in NUMBERS if outcome.row[name] is not None}}
        except (UserError, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__} {error}"
            return Outcome(cell, "failed", f"{self.study.run(cell).path} is damaged: {reason}")
        return outcome

    def _as_written(self, cell: Cell) -> Outcome:
        run = self.study.run(cell)
        metadata = read_json(run.path / "run.json") if (run.path / "run.json").exists() else None
        if metadata is None or metadata.get("status") != "finished":
            if failure := self.study.failure(cell):
                return Outcome(cell, "failed", str(failure["error"]), metadata=metadata)
            return Outcome(cell, "begun" if metadata else "missing", metadata=metadata)
        results, measure = self.study.task(cell).read_results(), cell.candidate.measure
        if results is None:
            raise UserError(f"{run.path} holds no results of its evaluation")
        if (counting := results.counting) is None:  # nothing was evaluated: no labels, or no held-out images
            values = other_measure(run, measure) if "/" in measure else {}
            return Outcome(cell, "finished", "", values.get("test"), values.get("val"), None, metadata, measure)
        measured = next(iter(counting.measures)) if measure == "accuracy" else measure
        if measured in counting.measures:
            splits = {split: results.of_split(split) for split in ("test", "val")}
            by_split = {split: result.measures[measured] for split, result in splits.items() if result}
        else:
            by_split = other_measure(run, measured, results)
        numbers = {name: getattr(counting, name) for name in NUMBERS_OF_PREDICTIONS if hasattr(counting, name)}
        return Outcome(cell, "finished", "", by_split.get("test"), by_split.get("val"), numbers, metadata, measured)


def other_measure(run: RunFolder, measure: str, results: Results[Any] | None = None) -> dict[str, float]:
    """Read a measure of a paper's table that is none of the run's results, by split, test or val (images that are not
    the run's count as test); empty where the run has no such measure.

    top5                           the true class is among the five most likely; empty where there are fewer classes
    divergence/HEAD/TEACHER        nats, from agreement.json
    robustness/FOLDER/HEAD         from robustness.json: the mean error of corruptions; accuracy where there are none
    localization/0.3,0.5           from localization.json, published protocol: MaxBoxAcc, or its mean over overlaps
    probe/CLASSIFIER               from probe.json: linear probe or k-NN, of the features that validation chooses
    any other                      the last value that a guide logged on held-out images in training
    """
    kind, _, rest = measure.partition("/")
    name, _, teacher = rest.partition("/")
    if kind == "top5":
        by_split = {split: results.of_split(split) for split in ("test", "val")} if results else {}
        return {split: evaluation.topk for split, evaluation in by_split.items() if evaluation and evaluation.k == 5}
    if kind == "divergence":
        agreement = read_agreement(run)
        heads = [head.removesuffix(" token") for head in agreement.heads] if agreement else []
        if agreement is None or name not in heads or teacher not in agreement.teachers:
            return {}
        return {agreement.split: agreement.divergence[heads.index(name)][agreement.teachers.index(teacher)]}
    if kind == "robustness":
        for data, result in read_robustness(run).items():
            if Path(data).name == name and teacher in result.heads:
                head = result.heads.index(teacher)
                value = result.mean_error(head) if result.errors else 1 - result.clean[head]
                return {} if value is None else {"val" if data == "validation" else "test": value}
        return {}
    if kind == "probe":
        findings = [finding for probe in read_probes(run) for finding in probe.findings if finding.classifier == rest]
        return {"test": max(findings, key=lambda finding: finding.val).top1} if findings else {}
    if kind == "localization":
        positions = [OVERLAPS.index(float(overlap)) for overlap in rest.split(",")]
        for key, localized in read_localizations(run).items():
            if localized.protocol == PUBLISHED.name:
                data = run.read("run.json")["data"]
                same_data = key.partition("/")[2] == data["name"]
                value = fmean(localized.largest.accuracies[position] for position in positions)
                return {"val" if same_data and "test" not in data["images"] else "test": value}
        return {}
    return _last_values(run, measure)


def _last_values(run: RunFolder, measure: str) -> dict[str, float]:
    splits = {f"{split}/{measure}": split for split in ("test", "val")}
    if not run.metrics.exists():
        return {}
    with run.metrics.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {splits[row["name"]]: float(row["value"]) for row in rows if row["name"] in splits}


def rows_as_csv(rows: list[dict[str, Any]]) -> str:
    """Write rows of equal keys as CSV text."""
    if not rows:
        raise UserError("a study without cells has no table")
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
