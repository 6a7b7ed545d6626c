# SPDX-License-Identifier: Apache-2.0
"""Similarity of layers by minibatch CKA, within a student or between two.

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

MIN_IMAGES = 4  # in a batch; HSIC_1 divides by n - 3


def gram(features: Tensor) -> Tensor:
    """Compute inner products between the images of a batch with a zero diagonal, K~ of Eq. (3), double precision. The
    batch mean is subtracted first: HSIC_1 does not change, and single precision suffices for large means. `features`:
    [B, ...]; all but the first dimension is flattened. Returns: [B, B].
    """
    rows = features.flatten(1).float()
    rows = rows - rows.mean(0)
    products = (rows @ rows.T).double()
    return products - products.diag().diag()


def hsic(first: Tensor, second: Tensor) -> Tensor:
    """Estimate the Hilbert-Schmidt independence criterion between every two layers, without bias.

        HSIC_1(K, L) = (tr(K~ L~) + 1'K~1 1'L~1 / ((n-1) (n-2)) - 2 / (n-2) * 1'K~ L~1) / (n (n-3))     Eq. (3)

    Args:
        first: `gram` of every layer, [layers, n, n].
        second: the same of other layers for the same images, [other layers, n, n].

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

    It does not change with rotations or one scale of all of a layer's features. It is 1 for equivalent layers and near
    0, positive or negative, for independent ones. All batches must have one size: each has the same weight.
    """

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> None:
        """Add a batch. `second`: another student's of the same images; None compares the first with itself. Raises:
        UserError for batches that are too small for an estimate, or have different numbers of images.
        """
        images = {len(layer) for layer in (*first, *(second or ()))}
        if len(images) != 1 or min(images) < MIN_IMAGES:
            raise UserError(
                f"CKA needs the same {MIN_IMAGES} or more images per batch in every layer, got {sorted(images)}; "
                "leave out a smaller last batch"
            )
        K = torch.stack([gram(layer) for layer in first])
        L = K if second is None else torch.stack([gram(layer) for layer in second])
        with_itself = (torch.cat([hsic(layer, layer).flatten() for layer in grams.unsqueeze(1)]) for grams in (K, L))
        cross, of_k, of_l = hsic(K, L), *with_itself
        if self._sums is not None:
            cross, of_k, of_l = self._sums[0] + cross, self._sums[1] + of_k, self._sums[2] + of_l
        self._sums = cross, of_k, of_l

    def matrix(self) -> Tensor:
        """Return [layers of the first, layers of the second]; NaN for a layer with the same features for all images.

        Raises: UserError before the first batch.
        """
        if self._sums is None:
            raise UserError("there is no CKA of no images; add a batch first")
        cross, of_k, of_l = self._sums
        return cross / torch.outer(of_k.sqrt(), of_l.sqrt())
