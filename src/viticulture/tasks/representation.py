# SPDX-License-Identifier: Apache-2.0
"""Representation: features that are trained without labels, so that nothing is evaluated."""

from .classification import Classification


class Representation(Classification):
    """Features for other trainings, without labels and without results."""

    name = "representation"
    does = "was trained without labels"
