# SPDX-License-Identifier: Apache-2.0
"""The commands, for Python and the shell: each composes the layers below and returns plain objects.

Slow imports (torch, timm, lightning) are inside the functions, so that `--help` is fast.
"""

from ..study.terms import Subsets, Terms, Where
from .analyses import explain, inspect, links, localize, report, robustness
from .lists import cache, demo, models, recipes, reference, resolved, runs, say, tables
from .probing import label_next, probe, review
from .run import Run
from .run import open_run as open
from .runs import evaluate, export, predict
from .sharing import push, serve
from .studies import compare, compare_resume, compare_search, compare_table
from .training import resume, train, train_row

data, next = inspect, label_next  # the commands' names for them

__all__ = [
    "Run", "Subsets", "Terms", "Where", "cache", "compare", "compare_resume", "compare_search", "compare_table", "data",
    "demo", "evaluate", "explain", "export", "inspect", "label_next", "links", "localize", "models", "next", "open",
    "predict", "probe", "push", "recipes", "reference", "report", "resolved", "resume", "review", "robustness", "runs",
    "say", "serve", "tables", "train", "train_row",
]  # fmt: skip
