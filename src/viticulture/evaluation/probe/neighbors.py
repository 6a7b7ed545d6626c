# SPDX-License-Identifier: Apache-2.0
"""Classify by the nearest neighbors among frozen features.

    score of class c = sum over the k nearest training images of class c of exp(cos(x, neighbor) / T)

Source: Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", CVPR 2018,
arXiv:1805.01978, Sec. 3.4, with its T of 0.07.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.07
CHUNK = 2**24  # similarities held at once


def vote(features: Tensor, bank: Tensor, labels: Tensor, classes: int, counts: Sequence[int]) -> Tensor:
    """The class that k neighbors choose for each vector, for several k in one pass, [N, D] -> [len(counts), N].

    Args:
        features: whose class is asked, [N, D].
        bank: vectors of known class, [M, D].
        labels: of the bank, [M] int64, in [0, classes).
        classes: C.
        counts: values of k, each at most M.
    """
    bank, chosen = F.normalize(bank, dim=1), []
    for some in torch.split(F.normalize(features, dim=1), max(1, CHUNK // len(bank))):
        similar, nearest = (some @ bank.T).topk(max(counts))  # the most similar first
        weights, of = (similar.double() / TEMPERATURE).exp(), labels[nearest]
        scores = [weights.new_zeros(len(some), classes).scatter_add_(1, of[:, :k], weights[:, :k]) for k in counts]
        chosen.append(torch.stack(scores).argmax(-1))
    return torch.cat(chosen, dim=1)
