# SPDX-License-Identifier: Apache-2.0
"""Who was taught by whom: students with one teacher, beside it (Co-advise, arXiv:2106.12378, Figure 4)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...config.references import references


def teachers_of(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Student -> its teacher, for candidates that learn from one other's answers or maps; not what they start from.

    Args:
        overrides: candidate -> its recipe keys.
    """
    taught = {}
    for name, values in overrides.items():
        teachers = {row for key, row in references(values).items() if key.startswith("guides.")}
        if len(teachers) == 1 and (teacher := next(iter(teachers))) in overrides:
            taught[name] = teacher
    return taught


def family(network: str) -> str:
    """A network's name without its size: resnet18 and resnet50 are of one family."""
    return re.sub(r"[\d_].*", "", network)


def families(networks: Iterable[str]) -> list[str]:
    """Every family once, in the order of the networks."""
    return list(dict.fromkeys(map(family, networks)))
