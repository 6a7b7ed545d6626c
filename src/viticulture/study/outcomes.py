# SPDX-License-Identifier: Apache-2.0
"""What every cell came to, as plain rows: read from the run folders, kept as table.csv."""

# Numbers of a run besides its accuracy, by the names that tables give them.
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..disk import read_json
from ..errors import UserError
from ..evaluation.agreement.evaluate import read_agreement
from ..evaluation.localization.metrics import OVERLAPS, PUBLISHED
from ..evaluation.localization.results import read_localizations
from ..evaluation.probe.evaluate import read_probes
from ..evaluation.robustness.evaluate import read_robustness
from ..tasks.results import RESULTS, Results
from ..training.run_folder import RunFolder
from .folder import StudyFolder
from .grid import Cell


def other_measure(run: RunFolder, measure: str, results: Results[Any] | None = None) -> dict[str, float]:
    """What a table's number is where it is not the student's accuracy, by the split that it is of, test or val (other
    images than the run's are test); empty where the run does not know it.

    top5                           the true class is among the five likeliest; None where there are fewer classes
    divergence/HEAD/TEACHER        nats, from agreement.json
    robustness/FOLDER/HEAD         from robustness.json: the mean error of corruptions; accuracy where there are none
    localization/0.3,0.5           from localization.json, published protocol: MaxBoxAcc, or its mean over overlaps
    probe/CLASSIFIER               from probe.json: linear probe or k-NN, of the features that validation chooses
    ap, ap50, ap75, ap_masks       of a detector, from dense.json: AP of boxes, at an overlap of 0.5 or 0.75, of masks;
    miou, pixels                   of a segmenter: mean IoU, share of its pixels that are right. `accuracy`, which says
                                   nothing of these, is the first of each; map, micro_f1, macro_f1, exact of several
                                   labels an image. (All taken by `outcomes`.)
    anything else                  the last value that a guide measured on held-out images while it trained
    """
    kind, _, rest = measure.partition("/")
    name, _, of = rest.partition("/")
    if kind == "top5":
        known = {split: results.of_split(split) for split in ("test", "val")} if results else {}
        return {split: evaluation.topk for split, evaluation in known.items() if evaluation and evaluation.k == 5}
    if kind == "divergence":
        agreement = read_agreement(run)
        heads = [head.removesuffix(" token") for head in agreement.heads] if agreement else []
        if agreement is None or name not in heads or of not in agreement.teachers:
            return {}
        return {agreement.split: agreement.divergence[heads.index(name)][agreement.teachers.index(of)]}
    if kind == "robustness":
        for data, result in read_robustness(run).items():
            if Path(data).name == name and of in result.heads:
                head = result.heads.index(of)
                share = result.mean_error(head) if result.errors else 1 - result.clean[head]
                return {} if share is None else {"val" if data == "validation" else "test": share}
        return {}
    if kind == "probe":
        findings = [finding for probe in read_probes(run) for finding in probe.findings if finding.classifier == rest]
        return {"test": max(findings, key=lambda finding: finding.val).top1} if findings else {}
    if kind == "localization":
        positions = [OVERLAPS.index(float(overlap)) for overlap in rest.split(",")]
        for key, localized in read_localizations(run).items():
            if localized.protocol == PUBLISHED.name:
                data = run.read("run.json")["data"]
                own = key.partition("/")[2] == data["name"]
                share = fmean(localized.largest.accuracies[position] for position in positions)
                return {"val" if own and "test" not in data["images"] else "test": share}
        return {}
    return _last_values(run, measure)


def _last_values(run: RunFolder, measure: str) -> dict[str, float]:
    splits = {f"{split}/{measure}": split for split in ("test", "val")}
    last = {}
    if run.metrics.exists():
        with run.metrics.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (split := splits.get(row["name"])) is not None:
                    last[split] = float(row["value"])
    return last


NUMBERS = ("train_images", "test_images", "test_accuracy", "val_accuracy", "epochs", "seconds", "parameters", "macs")
"""Of a row, what charts and tables reckon with."""

NUMBERS_OF_PREDICTIONS = ("images", "balanced_accuracy", "macro_f1", "nll", "calibration_error")
"""Of an evaluation, what an outcome keeps."""


@dataclass(frozen=True)
class Outcome:
    """One cell, trained or not; what is not known, or what a run without labels has not, is None.

    Args:
        cell: which one.
        status: missing, begun, failed, finished, or dropped (by halving).
        error: why it failed.
        test: top-1 in [0, 1] on test images, by the weights that count, or whatever is `measured`.
        val: the same on validation images.
        numbers: further measures of the evaluation that counts: images, balanced_accuracy, macro_f1, nll,
            calibration_error.
        facts: run.json.
        measured: what `test` and `val` are: accuracy, or what a row of a table asks for, see `measures.other_measure`.
    """

    cell: Cell
    status: str
    error: str = ""
    test: float | None = None
    val: float | None = None
    numbers: dict[str, float] | None = None
    facts: dict[str, Any] | None = None
    measured: str = "accuracy"

    @property
    def score(self) -> float | None:
        """On test images; on validation images, where nothing is held out as test."""
        return self.test if self.test is not None else self.val

    @property
    def row(self) -> dict[str, Any]:
        """A flat row of plain values; shares lie in [0, 1]."""
        facts, cell, numbers = self.facts or {}, self.cell, self.numbers or {}
        student, images = facts.get("student", {}), facts.get("data", {}).get("images", {})
        seconds, steps = facts.get("seconds"), facts.get("steps")
        return {
            "candidate": cell.candidate.name,
            "recipe": cell.candidate.recipe,
            "data": cell.candidate.data or facts.get("data", {}).get("source", ""),
            "subset": cell.subset.name,
            cell.unit: cell.seed,
            "rung": cell.rung + 1,
            "status": self.status,
            "measure": self.measured,
            "train_images": images.get("train"),
            "test_accuracy": self.test,
            "val_accuracy": self.val,
            "balanced_accuracy": numbers.get("balanced_accuracy"),
            "macro_f1": numbers.get("macro_f1"),
            "nll": numbers.get("nll"),
            "calibration_error": numbers.get("calibration_error"),
            "test_images": images.get("test"),
            "epochs": facts.get("epochs"),
            "batch_size": facts.get("batch_size"),
            "steps": steps,
            "seconds": seconds,
            "images_per_second": steps * facts["batch_size"] / seconds if steps and seconds else None,
            "parameters": student.get("parameters"),
            "macs": student["macs"] * facts.get("views", 1) if student.get("macs") else None,
            "student": student.get("name"),
            "folder": f"cells/{cell.name}",
            "error": self.error,
        }


class Outcomes:
    """Outcomes of a study's cells, read from the folder; finished ones are remembered.

    Args:
        study: whose cells.
    """

    def __init__(self, study: StudyFolder) -> None:
        self.study = study
        self._known: dict[tuple[str, str], Outcome] = {}

    def of(self, cell: Cell) -> Outcome:
        """One cell as it stands now."""
        key = cell.name, cell.candidate.name
        outcome = self._known.get(key) or self._read(cell)
        if outcome.status == "finished":
            self._known[key] = outcome
        return outcome

    def all(self, cells: Iterable[Cell]) -> list[Outcome]:
        """Several cells as they stand now."""
        return [self.of(cell) for cell in cells]

    def _read(self, cell: Cell) -> Outcome:
        """A folder that says less than a page needs is one failure, told, and trained again; the others stand."""
        try:
            outcome = self._as_written(cell)
            _ = {**outcome.row, **{name: outcome.row[name] / 1 for name in NUMBERS if outcome.row[name] is not None}}
        except (UserError, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__} {error}"
            return Outcome(cell, "failed", f"{self.study.run(cell).path} is damaged: {reason}")
        return outcome

    def _as_written(self, cell: Cell) -> Outcome:
        run = self.study.run(cell)
        facts = read_json(run.path / "run.json") if (run.path / "run.json").exists() else None
        if facts and facts.get("status") == "finished":
            results, measure = self.study.task(cell).read_results(), cell.candidate.measure
            if results is None:
                raise UserError(f"{run.path} holds no {RESULTS}")
            if (counting := results.counting) is None:  # it was trained without labels, or no image was held out
                shares = other_measure(run, measure) if "/" in measure else {}
                return Outcome(cell, "finished", "", shares.get("test"), shares.get("val"), None, facts, measure)
            measure = next(iter(counting.measures)) if measure == "accuracy" else measure
            numbers = {key: getattr(counting, key) for key in NUMBERS_OF_PREDICTIONS if hasattr(counting, key)}
            known = {split: results.of_split(split) for split in ("test", "val")}
            if measure in counting.measures:
                shares = {split: result.measures.get(measure) for split, result in known.items() if result}
            else:
                shares = other_measure(run, measure, results)
            return Outcome(cell, "finished", "", shares.get("test"), shares.get("val"), numbers, facts, measure)
        failure = self.study.failure(cell)
        if failure:
            return Outcome(cell, "failed", str(failure["error"]), facts=facts)
        return Outcome(cell, "begun" if facts else "missing", facts=facts)


def rows_as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as CSV text."""
    if not rows:
        raise UserError("a study without cells has no table")
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
