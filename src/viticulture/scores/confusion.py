# SPDX-License-Identifier: Apache-2.0
"""Confusion of classes."""

import numpy as np
from numpy.typing import ArrayLike


def most_confused(counts: ArrayLike, most: int) -> list[tuple[int, int]]:
    """True class and what it is taken for, of the pairs with the largest numbers, the largest first; none with a zero.
    `counts`: [C, C] how often, or how often of all, by true class (row) and said class (column).
    """
    wrong = np.array(counts)
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(place), len(wrong)) for place in order]
    return [pair for pair in pairs if wrong[pair]]
