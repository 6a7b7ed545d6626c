# SPDX-License-Identifier: Apache-2.0
"""Everything that a plug-in imports: a guide, method, task, transform or source in a file of the user's.

A recipe names a class by its dotted path (`guides: {energy: {class: my_module.MyGuide}}`), the command line a source by
the function that opens it (`viticulture train python:my_module.open_scans`).
"""

from typing import TYPE_CHECKING, Any

from .data.batches.batch import Batch
from .data.sources.source import Reader, Source
from .data.transforms.transform import Transform
from .errors import UserError
from .guides.guide import Capability, Guide
from .losses import cross_entropy, hard_distillation, soft_distillation
from .methods.method import BatchSpec, Method, Setup, StepContext, TrainingLength
from .models.data_spec import DataSpec
from .models.taps import Readings, layout
from .models.teachers.feature_maps import load_maps
from .models.teachers.frozen import Frozen, load_teacher

if TYPE_CHECKING:
    from .tasks.task import Task

__all__ = [
    "Batch",
    "BatchSpec",
    "Capability",
    "DataSpec",
    "Frozen",
    "Guide",
    "Method",
    "Reader",
    "Readings",
    "Setup",
    "Source",
    "StepContext",
    "Task",
    "TrainingLength",
    "Transform",
    "UserError",
    "cross_entropy",
    "hard_distillation",
    "layout",
    "load_maps",
    "load_teacher",
    "soft_distillation",
]


def __getattr__(name: str) -> Any:
    if name == "Task":  # it imports evaluation and training, which few plug-ins need
        from .tasks.task import Task

        return Task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
