# SPDX-License-Identifier: Apache-2.0
"""What a run has learnt to tell of an image, by its method; verbs differ by it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..methods.method import BatchSpec
    from ..training.run_folder import RunFolder


def is_dense(run: "RunFolder") -> bool:
    """Whether a run finds objects or tells pixels apart."""
    return _spec(run).dense


def is_multilabel(run: "RunFolder") -> bool:
    """Whether a run tells several labels an image."""
    return _spec(run).contents == "labels"


def _spec(run: "RunFolder") -> "BatchSpec":
    """What its method asks of a batch."""
    from ..config.resolve import method_class
    from ..training.run_inputs import recipe_of

    return method_class(recipe_of(run)).batch_spec
