# SPDX-License-Identifier: Apache-2.0
"""The package's version, MAJOR.MINOR.PATCH, and what it goes on with."""

VERSION = "0.1.0"


def same_release(made_by: str) -> bool:
    """Whether the version that began something trains as this one does: patches change nothing that is learnt."""
    return made_by.split(".")[:2] == VERSION.split(".")[:2]
