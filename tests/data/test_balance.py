# SPDX-License-Identifier: Apache-2.0
"""Classes of unequal size: weights in the loss, and a balanced order."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from refusals import refused
from viticulture.data.balance import balanced_order, class_weights, is_unbalanced
from viticulture.data.batches.sampling import seeded
from viticulture.losses import cross_entropy

UNEVEN = torch.tensor([0] * 50 + [1] * 7 + [2] * 3)


def counts(labels: torch.Tensor = UNEVEN) -> torch.Tensor:
    return torch.bincount(labels, minlength=3)


def test_balanced_weights_are_scikit_learns() -> None:
    expected = compute_class_weight("balanced", classes=np.arange(3), y=UNEVEN.numpy())
    torch.testing.assert_close(
        class_weights("balanced", "abc", counts()).double(), torch.from_numpy(expected), rtol=1e-6, atol=0
    )


def test_custom_weights_keep_their_ratio_and_a_mean_of_one() -> None:
    weights = class_weights({"c": 8, "a": 2}, "abc", counts())
    torch.testing.assert_close(weights / weights[1], torch.tensor([2.0, 1.0, 8.0]))
    assert weights[UNEVEN].mean().item() == pytest.approx(1)
    assert torch.equal(class_weights({"a": 3, "b": 3, "c": 3}, "abc", counts()), torch.ones(3))


@pytest.mark.parametrize(
    ("wanted", "said"), [({"d": 2.0}, "class in data.class_weights"), ({"a": 0.0}, "must be positive, got 0")]
)
def test_weights_that_mean_nothing_are_refused(wanted: dict[str, float], said: str) -> None:
    refused(said, lambda: class_weights(wanted, "abc", counts()))


def test_every_class_is_drawn_alike() -> None:
    """60 images of classes of 50, 7 and 3: 20 of each, no image again before all were drawn once."""
    order = balanced_order(UNEVEN, seeded(0, 1))
    assert len(order) == 60
    assert counts(UNEVEN[order]).tolist() == [20, 20, 20]
    shown = torch.bincount(order, minlength=60)
    for label, (least, most) in enumerate(((0, 1), (2, 3), (6, 7))):
        times = shown[label == UNEVEN]
        assert (times.min(), times.max()) == (least, most)
    assert len(UNEVEN[order][:20].unique()) == 3, "classes are mixed, not one after the other"


def test_the_remainder_goes_to_other_classes_each_time() -> None:
    labels = torch.cat([UNEVEN, torch.tensor([0, 0])])
    fewest = set()
    for epoch in range(20):
        shown = counts(labels[balanced_order(labels, seeded(0, epoch))])
        assert sorted(shown.tolist()) == [20, 21, 21]
        fewest.add(int(shown.argmin()))
    assert fewest == {0, 1, 2}


def test_more_classes_than_images() -> None:
    labels = torch.tensor([4, 9, 9])
    assert sorted(labels[balanced_order(labels, seeded(3))].tolist()) in ([4, 4, 9], [4, 9, 9])


def test_the_order_is_a_function_of_its_generator_alone() -> None:
    first, again, other = (balanced_order(UNEVEN, seeded(0, epoch)) for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_weighted_loss_is_torchs_up_to_its_divisor() -> None:
    """With class numbers torch divides by the sum of weights; we by the number of images."""
    logits, label = torch.randn(6, 3, generator=seeded(0)), torch.tensor([0, 1, 2, 0, 0, 2])
    weights = class_weights("balanced", "abc", counts())
    for smoothing in (0.0, 0.1):
        torchs = torch.nn.functional.cross_entropy(logits, label, weights, label_smoothing=smoothing)
        ours = cross_entropy(logits, label, smoothing, weights)
        torch.testing.assert_close(ours * 6, torchs * weights[label].sum())
    assert cross_entropy(logits, label, 0.1, torch.ones(3)) == pytest.approx(cross_entropy(logits, label, 0.1).item())


def test_the_weighted_loss_is_linear_in_mixed_labels() -> None:
    logits = torch.randn(4, 3, generator=seeded(0))
    one, two = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 1, 0])
    weights = class_weights("balanced", "abc", counts())
    mixed = 0.3 * torch.nn.functional.one_hot(one, 3).float() + 0.7 * torch.nn.functional.one_hot(two, 3).float()
    expected = 0.3 * cross_entropy(logits, one, 0, weights) + 0.7 * cross_entropy(logits, two, 0, weights)
    torch.testing.assert_close(cross_entropy(logits, mixed, 0, weights), expected)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    logits, label = torch.randn(6, 3, generator=seeded(0)), torch.tensor([0, 0, 0, 1, 2, 2])
    weights = class_weights("balanced", "abc", counts())
    halves = [cross_entropy(logits[part], label[part], 0.1, weights) for part in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(torch.stack(halves).mean(), cross_entropy(logits, label, 0.1, weights))


def test_a_tenfold_imbalance_is_reported() -> None:
    assert [is_unbalanced(sizes) for sizes in ((10, 1), (11, 1), (3, 3), ())] == [False, True, False, False]
