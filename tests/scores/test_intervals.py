# SPDX-License-Identifier: Apache-2.0
"""One interval for every number that is told of boxes, pixels and labels."""

import re
from pathlib import Path

import numpy as np

import viticulture
from viticulture.scores.intervals import ENDS, interval_of


def test_an_interval_leaves_out_as_much_at_either_end() -> None:
    """Of 0 to 1000 the numbers 25 and 975. Fails for another share, or ends that are turned round."""
    assert interval_of(np.random.default_rng(0).permutation(1001).astype(float)) == (25, 975)


def test_percentiles_are_written_down_once() -> None:
    """Catches a second copy, which one day is of another share."""
    root = Path(viticulture.__file__).parent
    written = re.compile(r"\(\s*2\.5,\s*97\.5\s*\)")
    assert [path.name for path in root.rglob("*.py") if written.search(path.read_text("utf-8"))] == ["intervals.py"]
    assert ENDS == (2.5, 97.5)
