# SPDX-License-Identifier: Apache-2.0
"""The verbs on runs that find objects or tell pixels apart."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.dense.results import DenseEvaluations
    from ..training.rundir import RunDir


def measure_dense(run: "RunDir", dataset: "Dataset") -> "DenseEvaluations":
    """Ask a run's network about its images, keep what it finds, and draw its page."""
    from ..analysis.dense_pictures import gather_dense_pictures
    from ..evaluation.dense.judge import judge_dense
    from ..report.pages.run_page import write_page

    judged = judge_dense(run, dataset)
    gather_dense_pictures(run, dataset, judged)
    write_page(run)
    return judged


def evaluate_dense(run: "RunDir", data: str = "") -> "DenseEvaluations":
    """Measure on the run's own images, or on others with objects or masks of the same classes."""
    from ..evaluation.dense.judge import judge_other
    from ..training.session import dataset_of, recipe_of
    from .runs import tell

    if not data:
        return measure_dense(run, dataset_of(run, recipe_of(run)))
    judged, notes = judge_other(run, data)
    for note in notes:
        tell(f"note: {note}")
    return judged
