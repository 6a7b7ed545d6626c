# SPDX-License-Identifier: Apache-2.0
"""The package's version, MAJOR.MINOR.PATCH, and what it goes on with."""

VERSION = "0.1.0"


def same_release(made_by: str) -> bool:
    """True if this version trains as the one that began; patch releases do not change training."""
    return made_by.split(".")[:2] == VERSION.split(".")[:2]
