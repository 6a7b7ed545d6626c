# SPDX-License-Identifier: Apache-2.0
"""Which cases of a test are left to the slow part."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_but(quick: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`: those that are not among the quick ones are marked slow."""
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
