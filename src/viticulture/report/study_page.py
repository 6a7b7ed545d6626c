# SPDX-License-Identifier: Apache-2.0
"""stub"""

from pathlib import Path

from ..study.study import Study


def write_study(study: Study) -> Path:
    return study.path
