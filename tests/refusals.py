# SPDX-License-Identifier: Apache-2.0
"""Errors of users: one line each."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Limit the size of files to some bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
