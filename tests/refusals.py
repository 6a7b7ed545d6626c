# SPDX-License-Identifier: Apache-2.0
"""Errors of users: one line each."""

from collections.abc import Callable
from typing import Any

import pytest

from viticulture.errors import UserError


def refused(message: str, call: Callable[..., object], /, *args: Any, **keywords: Any) -> str:
    """Check that a call raises a `UserError` of one line that matches a pattern; return the line."""
    with pytest.raises(UserError, match=message) as error:
        call(*args, **keywords)
    line = str(error.value)
    del error  # its traceback would keep locks of the call alive
    assert "\n" not in line
    return line
