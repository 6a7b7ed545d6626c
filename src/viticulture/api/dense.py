# SPDX-License-Identifier: Apache-2.0
"""The verbs on runs that find objects or tell pixels apart."""

from typing import TYPE_CHECKING

from ..errors import UserError
from .shown import Shown

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.dense.results import DenseEvaluations
    from ..training.rundir import RunDir


def measure_dense(run: "RunDir", dataset: "Dataset") -> "DenseEvaluations":
    """Ask a run's network about its images, keep what it finds, and draw its page."""
    from ..analysis.dense_pictures import gather_dense_pictures
    from ..evaluation.dense.judge import judge_dense

    judged, shown = judge_dense(run, dataset), Shown(run.path)
    with shown.spared("evaluate"):
        gather_dense_pictures(run, dataset, judged)
    shown.draw()
    return judged


def evaluate_dense(run: "RunDir", data: str = "") -> "DenseEvaluations":
    """Measure on the run's own images. Raises: UserError for others, which nothing reads yet."""
    from ..training.session import dataset_of, recipe_of

    if data:
        raise UserError(
            f"a run that finds objects or tells pixels apart is measured on its own splits alone, got {data}"
        )
    return measure_dense(run, dataset_of(run, recipe_of(run)))
