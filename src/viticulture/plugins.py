# SPDX-License-Identifier: Apache-2.0
"""Everything that a plug-in imports: a guide, method, task, transform or source in a file of the user's.

A recipe names a class by its dotted path (`guides: {energy: {class: my_module.MyGuide}}`), the command line a source by
the function that opens it (`viticulture train python:my_module.open_scans`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data.batches.targets import Batch
from .data.sources.source import Reader, Source
from .data.transforms.transform import Transform
from .errors import UserError
from .guides.guide import Capability, Guide
from .losses import cross_entropy, hard_distillation, soft_distillation
from .methods.method import BatchSpec, Method, Setup, StepContext, TrainingLength
from .models.data_spec import DataSpec
from .models.layout import layout
from .models.taps import Readings
from .models.teachers.feature_maps import load_maps
from .models.teachers.frozen import Frozen
from .models.teachers.outputs import load_teacher
from .table import Column, Table

if TYPE_CHECKING:
    from .evaluation.model import EvaluatedModel
    from .evaluation.outputs import Predictions
    from .tasks.figures import TaskPage, TaskSection
    from .tasks.image_task import ImageTask
    from .tasks.results import Results
    from .tasks.task import Prediction, Task

_OF_TASKS = {
    "EvaluatedModel": ".evaluation.model", "ImageTask": ".tasks.image_task", "Prediction": ".tasks.task",
    "Predictions": ".evaluation.outputs", "Results": ".tasks.results", "Task": ".tasks.task",
    "TaskPage": ".tasks.figures", "TaskSection": ".tasks.figures",
}  # fmt: skip
"""What a task imports, by module. They import evaluation and training, which other plug-ins do not need."""

__all__ = [
    "Batch", "BatchSpec", "Capability", "Column", "DataSpec", "EvaluatedModel", "Frozen", "Guide", "ImageTask",
    "Method", "Prediction", "Predictions", "Reader", "Readings", "Results", "Setup", "Source", "StepContext", "Table",
    "Task", "TaskPage", "TaskSection", "TrainingLength", "Transform", "UserError", "cross_entropy", "hard_distillation",
    "layout", "load_maps", "load_teacher", "soft_distillation",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _OF_TASKS:
        return getattr(import_module(_OF_TASKS[name], __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
