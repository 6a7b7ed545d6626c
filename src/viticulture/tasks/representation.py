# SPDX-License-Identifier: Apache-2.0
"""Representation: features that are trained without labels, so that nothing is evaluated and nothing predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.galleries import Gallery
from ..table import Table
from .classification import Classification
from .figures import TaskPage
from .results import Results


class Representation(Classification):
    """Features for other trainings, without labels and without results."""

    name = "representation"
    does = "was trained without labels"
    pipeline = "image-feature-extraction"
    metric = ("", "")
    use = ""
    predicts_one_class = False

    def limits(self, results: Results[Any]) -> list[str]:
        return ["It gives features, no classes: add a head, and train it on labeled images."]

    @classmethod
    def tables(cls, results: Results[Any], full: bool = False) -> list[Table]:
        return []

    def page(self, results: Results[Any], galleries: Mapping[str, Sequence[Gallery]], own: bool = True) -> TaskPage:
        return TaskPage()
