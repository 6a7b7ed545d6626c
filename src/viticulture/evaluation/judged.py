# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of being measured by something else than accuracy: AP, mIoU or mAP, with draws of its images."""

from ..training.rundir import RunDir
from .dense.results import DenseEvaluations, read_dense
from .multilabel.results import LabelEvaluations, read_labels


def read_judged(run: RunDir) -> DenseEvaluations | LabelEvaluations | None:
    """Of a detector, a segmenter or a student of several labels; None for others, or before anything was measured.

    Raises: UserError if it is damaged.
    """
    return read_dense(run) or read_labels(run)
