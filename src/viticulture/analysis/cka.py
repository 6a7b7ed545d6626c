# SPDX-License-Identifier: Apache-2.0
"""Which layers hold alike features: minibatch CKA, within a student or between two.

    similarity = MinibatchCKA()
    for images in batches:
        similarity.add(patch_features(taps_a(images)), patch_features(taps_b(images)))
    similarity.matrix()                     # [layers of a, layers of b]

Source: Nguyen et al., "Do Wide and Deep Networks Learn the Same Things?", ICLR 2021, arXiv:2010.15327, as Wang et al.,
arXiv:2205.14443, use it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError

FEWEST = 4  # images in a batch; HSIC_1 divides by n - 3


def gram(features: Tensor) -> Tensor:
    """Inner products between the images of a batch with a zero diagonal, K~ of Eq. (3), double precision.

    The batch mean is taken off first: HSIC_1 stays what it is, and single precision suffices for large means.

    Args:
        features: one row an image, [B, ...]; the rest is flattened.

    Returns: [B, B].
    """
    rows = features.flatten(1).float()
    rows = rows - rows.mean(0)
    products = (rows @ rows.T).double()
    return products - products.diag().diag()


def hsic(first: Tensor, second: Tensor) -> Tensor:
    """Unbiased estimate of the Hilbert-Schmidt independence criterion between every two layers.

        HSIC_1(K, L) = (tr(K~ L~) + 1'K~1 1'L~1 / ((n-1) (n-2)) - 2 / (n-2) * 1'K~ L~1) / (n (n-3))     Eq. (3)

    Args:
        first: `gram` of every layer, [layers, n, n].
        second: likewise of the same images, [other layers, n, n].

    Returns: [layers, other layers]; may be negative, its expectation is not.
    """
    n = first.shape[-1]
    ones_k, ones_l = first.sum(-1), second.sum(-1)  # K~1, [layers, n]
    trace = first.flatten(1) @ second.flatten(1).T  # both are symmetric
    sums = torch.outer(ones_k.sum(-1), ones_l.sum(-1))
    return (trace + sums / ((n - 1) * (n - 2)) - 2 / (n - 2) * ones_k @ ones_l.T) / (n * (n - 3))


class MinibatchCKA:
    """CKA between every two layers; memory does not grow with the number of images.

        CKA = sum over batches HSIC_1(K, L) / sqrt(sum HSIC_1(K, K) * sum HSIC_1(L, L))     Eq. (2)

    It is unchanged by rotations and by one scale of all of a layer's features. It is 1 for alike layers and lies near
    0 for independent ones, on either side. Give batches of one size: each counts alike.
    """

    def __init__(self) -> None:
        self._cross: Tensor | None = None
        self._own: tuple[Tensor, Tensor] | None = None

    def add(self, first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> None:
        """Count a batch.

        Args:
            first: a student's features, one [B, ...] a layer.
            second: another student's of the same images; None: the same student's.

        Raises: UserError for batches too small to estimate from, or of other images.
        """
        images = {len(layer) for layer in (*first, *(second or ()))}
        if len(images) != 1 or min(images) < FEWEST:
            raise UserError(
                f"CKA needs the same {FEWEST} or more images a batch in every layer, got {sorted(images)}; "
                "leave out a smaller last batch"
            )
        K = torch.stack([gram(layer) for layer in first])
        L = K if second is None else torch.stack([gram(layer) for layer in second])
        sums = (hsic(K, L), _of_itself(K), _of_itself(L))
        if self._cross is not None and self._own is not None:
            sums = (self._cross + sums[0], self._own[0] + sums[1], self._own[1] + sums[2])
        self._cross, self._own = sums[0], sums[1:]

    def matrix(self) -> Tensor:
        """[layers of the first, layers of the second]; nan for a layer whose features are alike for all images.

        Raises: UserError before the first batch.
        """
        if self._cross is None or self._own is None:
            raise UserError("there is no CKA of no images; add a batch first")
        return self._cross / torch.outer(self._own[0].sqrt(), self._own[1].sqrt())


def _of_itself(grams: Tensor) -> Tensor:
    """HSIC_1(K, K) of every layer, [layers]."""
    return torch.cat([hsic(layer, layer).flatten() for layer in grams.unsqueeze(1)])
