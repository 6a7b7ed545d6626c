# SPDX-License-Identifier: Apache-2.0
"""Sessions of methods without labels, on digits."""

from pathlib import Path
from typing import Any

from viticulture.training.session import Session, begin

SMALL: dict[str, Any] = {
    "student.name": "vit_nano",
    "student.options": {"embed_dim": 16, "depth": 2, "num_heads": 2, "drop_path_rate": 0.1},
    "method.name": "mae",
    "data.per_class": 10,
    "train.epochs": 2,
    "train.batch_size": 20,
    "schedule.warmup_epochs": 0,
}


def start(out: Path, data: str = "digits", **overrides: Any) -> Session:
    """Start a session of the digits' recipe with another method."""
    return begin(data, "default/digits", 0, str(out), False, {**SMALL, **overrides}, "test")
