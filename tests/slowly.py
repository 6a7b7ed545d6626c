# SPDX-License-Identifier: Apache-2.0
"""Cases of a test that are slow."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_but(quick: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases for `parametrize`; those that are not quick are marked slow."""
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
