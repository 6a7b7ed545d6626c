# SPDX-License-Identifier: Apache-2.0
"""Negative log-likelihood and calibration error of finished classifiers on test images, before and after calibration.

    python -m benchmarks.calibration RUN [RUN ...]

The temperature is fitted anew on the validation images; of a run without test images on every second one, and the
others are measured. `gain` is the fall of the negative log-likelihood, nats, with its 95 % interval over test images
(normal approximation of the paired differences). Calibration is held to gains that are nowhere below zero by more than
this interval, and to half the calibration error in the median.
"""

import argparse
from statistics import median

import torch
from torch import Tensor

from viticulture.evaluation.outputs import Predictions
from viticulture.table import Cell, Column, Table, print_table
from viticulture.tasks.classification import Classification
from viticulture.tasks.classification_metrics import Uncalibrated, evaluate_predictions
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of


def measured(path: str) -> tuple[list[Cell], float]:
    """Return the row of a run, and the ratio of its calibration errors."""
    run = RunFolder.open(path)
    task, dataset = task_of(run), dataset_of(run, config_of(run))
    assert isinstance(task, Classification)
    val, test = dataset.held_out["val"], dataset.held_out.get("test")
    if test is None:
        numbers = torch.arange(len(val))
        val, test = val.part(numbers[::2]), val.part(numbers[1::2])
    outputs = task.outputs(run.which()[0], {"test": test, "val": val}, fit=True)
    predictions, classes = outputs["test"], dataset.classes
    result = evaluate_predictions(predictions, classes)
    before = result.uncalibrated or Uncalibrated(result.nll, result.calibration_error, (0, 0), ())
    raw = predictions.probabilities if predictions.uncalibrated is None else predictions.uncalibrated
    gains = _log_likelihood(predictions.probabilities, predictions) - _log_likelihood(raw, predictions)
    gain, half = float(gains.mean()), 1.96 * float(gains.std()) / len(gains) ** 0.5
    assert bool((raw.argmax(1) == predictions.probabilities.argmax(1)).all()), "the most probable class changed"
    row: list[Cell] = [
        run.path.name,
        len(outputs["val"].names),
        result.images,
        result.top1,
        f"{result.temperature:.2f}",
    ]
    row += [before.nll, result.nll, f"{gain:+.3f} ± {half:.3f}", before.calibration_error, result.calibration_error]
    return row, result.calibration_error / max(before.calibration_error, 1e-9)


def _log_likelihood(probabilities: Tensor, predictions: Predictions) -> Tensor:
    true = probabilities.gather(1, predictions.labels[:, None])[:, 0].double()
    return true.clamp_min(torch.finfo(torch.float32).tiny).log()


def main() -> None:
    """Print a row per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    every = [measured(path) for path in parser.parse_args().runs]
    columns = [Column("run"), Column("val", "count"), Column("test", "count"), Column("top-1", "percent"), Column("T")]
    columns += [Column("NLL before", "decimal"), Column("after", "decimal"), Column("gain")]
    columns += [Column("ECE before", "percent"), Column("ECE after", "percent")]
    note = f"ECE after, relative to before, median: {median(ratio for _, ratio in every):.2f}"
    print_table(Table("Calibration", columns, [row for row, _ in every], note))


if __name__ == "__main__":
    main()
