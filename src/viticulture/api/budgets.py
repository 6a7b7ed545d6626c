# SPDX-License-Identifier: Apache-2.0
"""A training within a budget, from what a person asks for to a plan in the run's folder."""

from pathlib import Path
from typing import Any

from ..budget.budget import Budget


def plan_run(  # noqa: PLR0913  what `train` was asked for
    data: str, recipe: str, seed: int, out: str, overwrite: bool, overrides: dict[str, Any], budget: str, search: bool
) -> Path:
    """Choose what fits into a budget, write it down and show it; arguments as for `train`. Returns: the run's folder.

    Raises: UserError for any mistake, before the folder is made.
    """
    given = Budget(budget)
    now = given.clock
    began = now()  # before torch is imported, where the command line asks
    from ..budget.prepare import Wish, make_folder, make_plan
    from ..report.terminal import introduce_budget
    from ..training.session import run_path
    from .runs import command

    wish = Wish(data, recipe, seed, run_path(out, data), overrides, given, search, overwrite)
    plan = make_plan(wish, command(), now, began)
    make_folder(wish, plan)
    introduce_budget(wish.out, plan)
    return wish.out
