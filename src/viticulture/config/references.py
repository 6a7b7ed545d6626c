# SPDX-License-Identifier: Apache-2.0
"""Values that stand for weights: `row:NAME` for the run of another row of the table or study, `given:WHAT` for weights
that the user must name; and paths of weights, which are made independent of the working folder.

student.init: "row:MAE"
guides.co_advise.teachers: {conv: "row:ResNet-10", inv: "row:RedNet-26"}
student.init: "given:DHVT-T trained on ImageNet-1k"
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..models.weights.sources import anchored, place_of
from .keys import CELLS, STAGES, flat

ROW, GIVEN = "row:", "given:"
PLACES = ("init", "teacher", "teachers")  # keywords of a student, a method or a guide that hold paths of weights


def references(values: Mapping[str, Any], prefix: str = ROW) -> dict[str, str]:
    """Return dotted key -> the row that it names, in order; for GIVEN, the weights that it requires.

    Args:
        values: nested or dotted recipe values.
        prefix: ROW or GIVEN.
    """
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, str) and value.startswith(prefix):
            rows[key] = value.removeprefix(prefix).strip()
        elif isinstance(value, Mapping):
            rows |= {f"{key}.{inner}": named for inner, named in references(value, prefix).items()}
    return rows


def replaced(values: Mapping[str, Any], runs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that name rows, with every row replaced by its run's folder."""
    return {key: _filled(value, runs) for key, value in values.items() if references({key: value})}


def _filled(value: Any, runs: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner, runs) for key, inner in value.items()}
    names = references({"": value})
    return runs[names[""]] if names else value


def from_anywhere(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values, nested or by dotted keys, with absolute paths of weights, images and lists, so that a
    run or a study resumes in any working folder."""
    return {key: _placed(key, value) for key, value in values.items()}


def _placed(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _placed(f"{key}.{name}", inner) for name, inner in value.items()}
    if key in ("data.unlabeled", "data.leave_out") and isinstance(value, str) and Path(value).exists():
        return str(Path(value).absolute())
    return anchored(value) if isinstance(value, str) and keyword_of(key) in PLACES else value


def keyword_of(key: str) -> str:
    """Return the keyword of a student, a method or a guide in a dotted key; "" for a whole section or guide."""
    section, *keywords = key.split(".")
    return next(iter(keywords[section == "guides" :]), "")  # a guide may be called teacher


def check_outlast(values: Mapping[str, Any], replaced: Path) -> None:
    """Raises: UserError naming the key of weights or a teacher that lies in the folder that a training replaces."""
    for key, value in flat(from_anywhere(values)).items():
        place = place_of(value) if isinstance(value, str) else Path()
        if place.is_absolute() and place.exists() and place.resolve().is_relative_to(replaced.resolve()):
            raise UserError(f"{key} is {value}, which --overwrite would remove first; choose another --out")


def where_they_lie(run: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run on a budget or in a study with current paths of earlier stages and other rows: the
    folder may have been moved since. A row that is still at its path stays: it may be another study's."""
    return {key: _next_to(run, value) for key, value in values.items()}


def _next_to(run: Path, value: Any) -> Any:
    if isinstance(value, Mapping):
        return where_they_lie(run, value)
    if isinstance(value, str):
        for folder in (run.absolute() / STAGES, run.absolute().parent):
            here, there = folder / Path(value).name, Path(value)
            internal = folder.name == STAGES or (folder.name == CELLS and not there.exists())
            if internal and there.parent.name == folder.name and here.is_dir():
                return str(here)
    return value


def check_alone(values: Mapping[str, Any]) -> None:
    """Raises: UserError naming the key and the row to train first, for a training outside a table."""
    check_given(values)
    for key, row in references(values).items():
        raise UserError(
            f"{key} is the run of another row, {row!r}: train that one first and name its run (--{key} RUN), or train "
            "them all by `viticulture compare --table TABLE`"
        )


def check_given(values: Mapping[str, Any]) -> None:
    """Raises: UserError for weights that the user must name and did not, and how to name them."""
    for key, weights in references(values, GIVEN).items():
        how = f'--{key} WEIGHTS (of one row of a table: --init "ROW=WEIGHTS")'
        raise UserError(f"{key} needs weights that you name, {weights}: {how}")
