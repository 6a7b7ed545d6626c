# SPDX-License-Identifier: Apache-2.0
"""The verbs on runs that find objects or tell pixels apart."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..text import tell
from ..waiting import waiting
from .shown import Shown

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.dense.results import DenseEvaluations
    from ..training.rundir import RunDir


def measure_dense(run: "RunDir", dataset: "Dataset") -> "DenseEvaluations":
    """Ask a run's network about its images, keep what it finds, and draw its page."""
    from ..analysis.dense_pictures import gather_dense_pictures
    from ..evaluation.dense.judge import judge_dense

    evaluations, shown = judge_dense(run, dataset), Shown(run.path)
    with shown.spared("evaluate"):
        gather_dense_pictures(run, dataset, evaluations)
    shown.draw()
    return evaluations


def evaluate_dense(run: "RunDir", data: str = "") -> "DenseEvaluations":
    """Measure on the run's own images, or on others with objects or masks of the same classes."""
    from ..evaluation.dense.judge import judge_other
    from ..evaluation.evaluate import check_held_out
    from ..training.run_inputs import dataset_of, recipe_of

    if not data:
        evaluations = measure_dense(run, dataset_of(run, recipe_of(run)))
        check_held_out(run, evaluations.results)
        return evaluations
    evaluations, notes = judge_other(run, data)
    for note in notes:
        tell(f"note: {note}")
    return evaluations


def export_dense(run: "RunDir", out: Path, weights: str = "", int8: bool = False) -> Path:
    """Write a run's network as ONNX, from an image as it is to boxes, or to classes of its pixels."""
    from ..evaluation.dense.subject import of_run
    from ..export.dense_file import dense_to_onnx
    from ..training.run_inputs import recipe_of

    if int8:
        raise UserError(f"--int8 computes classifiers, and {run.path} holds none; leave it out")
    subject = of_run(run, weights)
    images = recipe_of(run).section("images")
    more = {} if images.range is None else {"range": images.range}
    tell(f"weights  {weights or run.which()[0]}")
    with waiting("writing ONNX"):
        return dense_to_onnx(subject.network, out, subject.task, images.store_size, more)
