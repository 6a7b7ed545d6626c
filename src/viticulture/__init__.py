# SPDX-License-Identifier: Apache-2.0
"""viticulture grows Vision Transformers on little data.

import viticulture
run = viticulture.train("./photos")
run.accuracy, run.predict(["leaf.jpg"])
"""

from typing import Any

from .version import VERSION as __version__

__all__ = [
    "Amounts",
    "Run",
    "Terms",
    "UserError",
    "Where",
    "__version__",
    "compare",
    "compare_resume",
    "compare_table",
    "evaluate",
    "explain",
    "inspect",
    "predict",
    "resume",
    "train",
    "train_row",
]


def __getattr__(name: str) -> Any:
    """The verbs of `viticulture.api`, imported when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'viticulture' has no attribute {name!r}")
    from . import api, errors

    return getattr(errors if name == "UserError" else api, name)
