# SPDX-License-Identifier: Apache-2.0
"""Minibatch CKA is Nguyen et al.'s, arXiv:2010.15327, and has its invariances."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from refusals import refused
from viticulture.analysis.layers import MinibatchCKA, gram, hsic

Load = Callable[[str], Any]


def features(images: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(images, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cka(first: Tensor, second: Tensor, batch: int = 64) -> float:
    similarity = MinibatchCKA()
    for one, other in zip(torch.split(first, batch), torch.split(second, batch), strict=True):
        similarity.add([one], [other])
    return similarity.matrix().item()


def test_it_is_the_official_code(golden: Load) -> None:
    """Two batches of two models' layers, features not centered."""
    data, similarity = golden("mae_cka"), MinibatchCKA()
    total = torch.zeros(2, 3, dtype=torch.float64)
    for batch in (0, 1):
        one = [data[f"in/b{batch}_model1_layer{i}"] for i in range(2)]
        other = [data[f"in/b{batch}_model2_layer{i}"] for i in range(3)]
        similarity.add(one, other)
        total = total + hsic(torch.stack([gram(x) for x in one]), torch.stack([gram(x) for x in other]))
    torch.testing.assert_close(similarity.matrix().float(), data["out/cka"], rtol=1e-4, atol=1e-5)
    ratio = total.float() / data["out/hsic"][..., 1]  # theirs may be a sum or a mean over the batches
    torch.testing.assert_close(ratio, ratio.flatten()[0].expand_as(ratio), rtol=1e-3, atol=0)


def test_the_estimate_is_unbiased() -> None:
    """Eq. (3): the mean over ordered quadruples of different images of k_ij (l_ij + l_qr - 2 l_iq)."""
    k, l = features(6, 3), features(6, 4, seed=1)  # noqa: E741
    K, L = k @ k.T, l @ l.T  # not centered
    terms = [K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q]) for i, j, q, r in permutations(range(6), 4)]
    found = hsic(gram(k).unsqueeze(0), gram(l).unsqueeze(0))
    torch.testing.assert_close(found.squeeze(), torch.stack(terms).mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-2, 300.0])
def test_rotated_and_scaled_features_have_cka_one(scale: float) -> None:
    """CKA(X, s X Q + m) = 1 for an orthogonal Q, with a mean 3000 times the spread as well."""
    x = features(128, 12)
    turn = torch.linalg.qr(features(12, 12, seed=1)).Q
    assert cka(x, scale * x @ turn) == pytest.approx(1, abs=1e-5)
    assert cka(x, scale * (x @ turn + 3000)) == pytest.approx(1, abs=1e-4)


def test_other_linear_maps_change_cka() -> None:
    x = features(128, 12)
    stretch = torch.ones(12, dtype=torch.float64)
    stretch[0] = 10
    assert cka(x, x * stretch) < 0.8


def test_independent_features_have_cka_near_zero() -> None:
    """Also with far more channels than images, where the biased estimate lies near 1."""
    assert abs(cka(features(512, 200), features(512, 200, seed=1), batch=16)) < 0.05


def test_a_student_with_itself_is_symmetric_with_ones() -> None:
    layers, similarity = [features(32, 5, seed=k) for k in range(3)], MinibatchCKA()
    layers[1] = layers[0] + layers[1]
    for part in range(2):
        similarity.add([layer[16 * part : 16 * part + 16] for layer in layers])
    found = similarity.matrix()
    torch.testing.assert_close(found, found.T)
    torch.testing.assert_close(found.diag(), torch.ones(3, dtype=torch.float64))
    assert found[0, 1] > found[0, 2] + 0.2


def test_batches_that_say_nothing_are_refused() -> None:
    refused("4 or more images", lambda: MinibatchCKA().add([features(3, 2)]))
    refused("same 4 or more", lambda: MinibatchCKA().add([features(8, 2)], [features(9, 2)]))
    refused("no CKA of no images", lambda: MinibatchCKA().matrix())
