# SPDX-License-Identifier: Apache-2.0
"""The verbs, for Python and the shell alike: each composes the layers below and returns plain objects.

Imports that take seconds (torch, timm, lightning) live inside the verbs, so that `--help` answers at once.
"""

from ..study.terms import Subsets, Terms, Where
from .lists import demo, models, recipes, reference, resolved, say, tables
from .looking import cache, explain, inspect, links, localize, probe, report, robustness, runs
from .run import Run
from .run import open_run as open
from .runs import evaluate, export, predict
from .sharing import push, serve
from .studies import compare, compare_resume, compare_table
from .training import resume, train, train_row

data = inspect
"""The same by the command's name."""

__all__ = [
    "Run",
    "Subsets",
    "Terms",
    "Where",
    "cache",
    "compare",
    "compare_resume",
    "compare_table",
    "data",
    "demo",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "links",
    "localize",
    "models",
    "open",
    "predict",
    "probe",
    "push",
    "recipes",
    "reference",
    "report",
    "resolved",
    "resume",
    "robustness",
    "runs",
    "say",
    "serve",
    "tables",
    "train",
    "train_row",
]
