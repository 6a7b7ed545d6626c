# SPDX-License-Identifier: Apache-2.0
"""Rows that learn from rows: in a table or a study, `row:NAME` stands for the run of the candidate of that name.

student.init: "row:MAE"
guides.co_advise.teachers: {conv: "row:ResNet-10", inv: "row:RedNet-26"}
"""

from collections.abc import Mapping
from typing import Any

from ..errors import UserError

PREFIX = "row:"


def references(values: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> the row that it names, in order; values: nested or dotted recipe values."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, str) and value.startswith(PREFIX):
            rows[key] = value.removeprefix(PREFIX).strip()
        elif isinstance(value, Mapping):
            rows |= {f"{key}.{inner}": row for inner, row in references(value).items()}
    return rows


def replaced(values: Mapping[str, Any], runs: Mapping[str, str]) -> dict[str, Any]:
    """The values with every row's name replaced by its run's folder; those that name no row are left out."""
    return {key: _filled(value, runs) for key, value in values.items() if references({key: value})}


def _filled(value: Any, runs: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner, runs) for key, inner in value.items()}
    names = references({"": value})
    return runs[names[""]] if names else value


def check_alone(values: Mapping[str, Any]) -> None:
    """A training by itself has no other rows. Raises: UserError naming the key and the row to train first."""
    for key, row in references(values).items():
        raise UserError(
            f"{key} is the run of another row, {row!r}: train that one first and name its run (--{key} RUN), or train "
            "them all by `viticulture compare --table TABLE`"
        )
