# SPDX-License-Identifier: Apache-2.0
"""Metrics of an evaluation against arithmetic by hand, NumPy, scikit-learn and torchmetrics."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_calibration_error

from refusals import refused
from viticulture.evaluation.outputs import Predictions, collect
from viticulture.scores.intervals import wilson
from viticulture.tasks.classification_metrics import (
    ClassificationResult,
    ReliabilityBin,
    evaluate_predictions,
    joined,
    most_confident_mistakes,
)


def predictions(rows: list[list[float]], labels: list[int]) -> Predictions:
    return Predictions(torch.tensor(rows), torch.tensor(labels), [f"image {i}" for i in range(len(labels))])


def drawn(N: int, C: int, absent: int = 0, seed: int = 0) -> Predictions:
    """Draw informative probabilities; the last `absent` classes have no image."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C - absent, (N,), generator=generator)
    logits = torch.randn(N, C, generator=generator)
    logits[torch.arange(N), labels] += 1.5
    return Predictions(logits.softmax(-1), labels, [str(i) for i in range(N)])


HAND = predictions(
    [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.45, 0.35, 0.2]], [0, 1, 1, 2, 0]
)


def test_metrics_of_five_images_by_hand() -> None:
    """Predicted 0 1 0 1 0, true 0 1 1 2 0."""
    found = evaluate_predictions(HAND, ["a", "b", "c"], k=2)

    assert found.images == 5
    assert found.top1 == 3 / 5
    assert (found.k, found.topk) == (2, 1.0)  # the true classes come first, first, second, second, first
    np.testing.assert_array_equal(found.confusion, [[2, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert [score.support for score in found.per_class] == [2, 2, 1]
    assert [score.precision for score in found.per_class] == [2 / 3, 1 / 2, None]
    assert [score.recall for score in found.per_class] == [1, 1 / 2, 0]
    assert [score.f1 for score in found.per_class] == [4 / 5, 1 / 2, 0]
    assert found.balanced_accuracy == pytest.approx(1 / 2)
    assert found.macro_f1 == pytest.approx((4 / 5 + 1 / 2) / 3)
    assert found.nll == pytest.approx(-np.log([0.7, 0.6, 0.3, 0.3, 0.45]).mean())


def test_bins_are_merged_until_each_holds_enough_images() -> None:
    numbers = ((0.1, 1.0, 2), (0.3, 0.0, 1), (0.5, 0.5, 12), (0.7, 0.5, 6), (0.9, 1.0, 4))
    bins = [ReliabilityBin(*each) for each in numbers]
    assert [each.images for each in joined(bins, 1)] == [2, 1, 12, 6, 4]
    few, many = joined(bins, 10)
    assert (few.images, many.images) == (15, 10)
    assert few.confidence == pytest.approx((0.1 * 2 + 0.3 + 0.5 * 12) / 15)
    assert many.accuracy == pytest.approx((0.5 * 6 + 4) / 10)
    assert [each.images for each in joined(bins, 1000)] == [25]
    assert joined([], 10) == []


def test_calibration_error_follows_guo() -> None:
    """Guo et al. 2017, arXiv:1706.04599, Eq. (3): sum over bins of (share of images) |accuracy - confidence|."""
    found = evaluate_predictions(HAND, ["a", "b", "c"])
    assert found.calibration_error == pytest.approx((0.3 + 0.4 + 2 * 0.5 + 0.55) / 5, abs=1e-7)
    assert [b.images for b in found.reliability] == [1, 2, 1, 1]
    assert [b.accuracy for b in found.reliability] == [1, 0, 1, 1]


@pytest.mark.parametrize("absent", [0, 3])
@pytest.mark.parametrize(("N", "C"), [(400, 10), (50, 30)])
def test_references_agree(N: int, C: int, absent: int) -> None:
    """scikit-learn's scores, torchmetrics' calibration error and a NumPy sort, also with classes without images."""
    given = drawn(N, C, absent)
    labels, p = given.labels.numpy(), given.probabilities.numpy()
    predicted = p.argmax(-1)
    found = evaluate_predictions(given, [str(i) for i in range(C)], k=3)

    assert found.top1 == metrics.accuracy_score(labels, predicted)
    assert found.topk == np.mean([label in row[:3] for label, row in zip(labels, (-p).argsort(-1), strict=True)])
    assert found.macro_f1 == pytest.approx(metrics.f1_score(labels, predicted, average="macro"), abs=1e-6)
    recalls = [np.mean(predicted[labels == c] == c) for c in np.unique(labels)]
    assert found.balanced_accuracy == pytest.approx(np.mean(recalls))
    exact = p.astype(np.float64) / p.sum(-1, keepdims=True, dtype=np.float64)
    assert found.nll == pytest.approx(metrics.log_loss(labels, exact, labels=range(C)), rel=1e-6)
    reference = multiclass_calibration_error(given.probabilities, given.labels, C, n_bins=15, norm="l1")
    assert found.calibration_error == pytest.approx(float(reference), abs=1e-6)  # torchmetrics sums in float32
    np.testing.assert_array_equal(found.confusion, metrics.confusion_matrix(labels, predicted, labels=range(C)))
    assert sum(b.images for b in found.reliability) == N


def test_a_class_without_images_has_no_recall() -> None:
    """Once it is predicted its precision is 0 and its recall is still unknown."""
    never = evaluate_predictions(predictions([[0.9, 0.05, 0.05], [0.3, 0.6, 0.1]], [0, 1]), ["a", "b", "c"])
    assert (never.per_class[2].precision, never.per_class[2].recall, never.per_class[2].f1) == (None, None, None)
    assert never.macro_f1 == never.balanced_accuracy == 1

    wrongly = evaluate_predictions(predictions([[0.9, 0.05, 0.05], [0.3, 0.1, 0.6]], [0, 1]), ["a", "b", "c"])
    assert (wrongly.per_class[2].precision, wrongly.per_class[2].recall, wrongly.per_class[2].f1) == (0, None, 0)
    assert wrongly.balanced_accuracy == 0.5
    assert wrongly.macro_f1 == pytest.approx(1 / 3)


def test_one_image_is_enough() -> None:
    found = evaluate_predictions(predictions([[0.25, 0.75]], [1]), ["a", "b"])
    assert (found.top1, found.topk, found.k, found.macro_f1, found.balanced_accuracy) == (1, 1, 2, 1, 1)
    assert found.nll == pytest.approx(-math.log(0.75))
    assert found.calibration_error == pytest.approx(0.25)
    assert found.top1_interval[0] < 0.25
    assert found.top1_interval[1] == 1
    assert all(np.isfinite(value) for value in vars(found).values() if isinstance(value, float))


def test_k_is_lowered_to_the_number_of_classes() -> None:
    assert evaluate_predictions(HAND, ["a", "b", "c"], k=5).k == 3


def test_ties_go_to_the_first_class_everywhere() -> None:
    flat = predictions([[0.25] * 4] * 4, [0, 1, 2, 3])
    found = evaluate_predictions(flat, list("abcd"), k=2)
    assert (found.top1, found.topk) == (1 / 4, 1 / 2)
    assert found.confusion[:, 0].tolist() == [1, 1, 1, 1]
    assert evaluate_predictions(flat, list("abcd"), k=1).topk == found.top1


def test_a_certain_wrong_prediction_has_a_finite_likelihood() -> None:
    """The cost is -log of the smallest normal float32, 87 nats."""
    found = evaluate_predictions(predictions([[1.0, 0.0], [1.0, 0.0]], [1, 1]), ["a", "b"])
    assert found.nll == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert found.calibration_error == 1


def test_confidence_of_one_is_in_the_last_bin() -> None:
    found = evaluate_predictions(
        predictions([[1.0, 0.0], [0.0, 1.0], [0.95, 0.05], [0.6, 0.4], [0.62, 0.38]], [0] * 5), ["a", "b"]
    )
    assert [b.images for b in found.reliability] == [2, 3]


@pytest.mark.parametrize(
    ("right", "images", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (5, 10, 0.2366, 0.7634)],
)
def test_interval_follows_wilson(right: int, images: int, low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17, Table I, method 3 (81 of 263), and n = 10 by hand."""
    assert wilson(right, images) == pytest.approx((low, high), abs=5e-5)
    if right == 0:
        assert wilson(right, images)[1] == pytest.approx(1.959964**2 / (images + 1.959964**2), abs=1e-6)


def test_an_evaluation_is_saved_as_json_and_read() -> None:
    found = evaluate_predictions(drawn(60, 12, absent=2), [f"class “{i}” <b>" for i in range(12)])
    text = json.dumps(found.to_dict(), allow_nan=False)
    again = ClassificationResult.from_dict(json.loads(text))
    np.testing.assert_array_equal(again.confusion, found.confusion)
    assert {**vars(again), "confusion": 0} == {**vars(found), "confusion": 0}


def test_the_most_confident_mistakes_come_first() -> None:
    found = most_confident_mistakes(HAND, 10)
    assert [(m.number, m.name, m.label, m.predicted) for m in found] == [(2, "image 2", 1, 0), (3, "image 3", 2, 1)]
    assert found[0].probability == 0.5
    sorted_by = most_confident_mistakes(drawn(200, 5), 7)
    assert len(sorted_by) == 7
    assert [m.probability for m in sorted_by] == sorted((m.probability for m in sorted_by), reverse=True)
    assert most_confident_mistakes(predictions([[0.9, 0.1]], [-1]), 3) == []
    assert most_confident_mistakes(predictions([[0.9, 0.1]], [0]), 3) == []


@pytest.mark.parametrize(
    ("given", "classes", "words"),
    [
        (predictions([[0.5, 0.5]], [-1]), ["a", "b"], "1 without"),
        (predictions([[0.5, 0.5]], [2]), ["a", "b"], "between 0 and 1"),
        (predictions([[0.5, 0.5]], [0]), ["a", "b", "c"], "2 probabilities and 3 classes"),
        (predictions([[float("nan"), 0.5]], [0]), ["a", "b"], "not finite for 1 of 1"),
        (Predictions(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), []), ["a", "b"], "got 0 images"),
    ],
)
def test_invalid_predictions_are_refused(given: Predictions, classes: list[str], words: str) -> None:
    refused(words, evaluate_predictions, given, classes)


def test_the_file_of_two_thousand_classes_is_small() -> None:
    found = evaluate_predictions(drawn(2000, 2000), [f"class {i}" for i in range(2000)])
    assert len(json.dumps(found.to_dict())) < 250_000


class Backwards(nn.Module):
    """Return the input's mean in the wrong mode and its logits in the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm2d(3).eval()

    def forward(self, image: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return image.mean((2, 3)) * 8


def test_collecting_restores_order_names_and_modes() -> None:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(10, 3, 4, 4, generator=generator), torch.arange(10) % 3
    order = torch.randperm(10, generator=generator)
    batches = [{"image": images[i], "label": labels[i], "index": i} for i in order.split(4)]
    student = Backwards().train()
    student.frozen.eval()

    found = collect(student, batches, [f"{i}.png" for i in range(10)])

    torch.testing.assert_close(found.probabilities, (images.mean((2, 3)) * 8).softmax(-1))
    assert found.probabilities.dtype == torch.float32
    assert torch.equal(found.labels, labels)
    assert found.names[3] == "3.png"
    assert student.training
    assert not student.frozen.training


def test_an_incomplete_split_is_refused() -> None:
    batch = {
        "image": torch.zeros(2, 3, 4, 4),
        "label": torch.zeros(2, dtype=torch.int64),
        "index": torch.tensor([0, 2]),
    }
    with pytest.raises(ValueError, match="1 of 3 did not come"):
        collect(Backwards(), [batch], ["a", "b", "c"])
