# SPDX-License-Identifier: Apache-2.0
"""Losses against the official code, exact gradients and torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from timm.data.mixup import Mixup

from conftest import Golden
from viticulture.losses import binary_distillation, cross_entropy, hard_distillation, soft_distillation


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_deit_losses_equal_the_official_code(golden: Callable[[str], Golden]) -> None:
    """(1 - alpha) CE(class head, label) + alpha * distillation of the other head; its soft term is ours by C."""
    data = golden("deit_distillation_loss")
    head, distilled, teacher, label = (data[f"in/{name}"] for name in ("cls", "dist", "teacher", "soft_target"))
    alpha, tau, expected = (data.about["config"][name] for name in ("alpha", "tau", "losses"))
    classes = head.shape[1]

    plain = cross_entropy(head, label)
    soft = (1 - alpha) * plain + alpha * soft_distillation(distilled, teacher, tau) / classes
    hard = (1 - alpha) * plain + alpha * hard_distillation(distilled, teacher)
    assert plain.item() == pytest.approx(expected["none"], rel=1e-6)
    assert soft.item() == pytest.approx(expected["soft"], rel=1e-6)
    assert hard.item() == pytest.approx(expected["hard"], rel=1e-6)


def test_soft_distillation_is_that_of_bootstrapping_vits(golden: Callable[[str], Golden]) -> None:
    """Value and gradient of the authors' mutual term."""
    data = golden("boot_kd_loss")
    student, teacher = (data[f"in/{name}"].double() for name in ("student", "teacher"))
    loss = soft_distillation(student.requires_grad_(), teacher, data.about["config"]["T"])
    (slope,) = torch.autograd.grad(loss, student)
    for ours, theirs in ((loss, data["out/loss"]), (slope, data["gin/student"])):
        torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-6)  # theirs are float32


@pytest.mark.parametrize("temperature", [1.0, 4.0, 1000.0])
def test_the_gradient_of_soft_distillation_follows_hinton(temperature: float) -> None:
    """arXiv:1503.02531, Eq. (2) dC/dz = (q - p) / T, Eq. (4) dC/dz = (z - v) / (N T^2) for large T; ours: T^2 C."""
    images, classes = 8, 10
    z, v = noise(2, images, classes)
    z, v = ((x - x.mean(-1, keepdim=True)).requires_grad_() for x in (z, v))
    dz, dv = torch.autograd.grad(soft_distillation(z, v, temperature), (z, v), allow_unused=True)

    q, p = (z / temperature).softmax(-1), (v / temperature).softmax(-1)
    torch.testing.assert_close(images * dz, temperature * (q - p))
    assert dv is None
    if temperature == 1000.0:
        torch.testing.assert_close(images * dz, (z - v) / classes, rtol=0, atol=1e-3)  # the gap is O(1 / T)


@pytest.mark.parametrize("distillation", [soft_distillation, binary_distillation])
def test_nearly_equal_networks_are_compared_in_single_precision(
    distillation: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor],
) -> None:
    teacher = (3 * noise(64, 100)).bfloat16()
    student = (teacher * 1.005).requires_grad_()
    exact = student.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = distillation(student, teacher, 3.0)
    expected = distillation(exact, teacher.double(), 3.0)
    (slope,), (true,) = torch.autograd.grad(loss, student), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-2, atol=0)  # float32 rounds log-probabilities to 1e-7
    assert (slope - true).norm() < 1e-2 * true.norm()  # bfloat16 rounds to 4e-3


def test_the_gradient_of_hard_distillation_is_prediction_minus_decision() -> None:
    """dL/dz = (softmax(z) - onehot(argmax v)) / B."""
    z, v = noise(2, 6, 5)
    (dz,) = torch.autograd.grad(hard_distillation(z.requires_grad_(), v), z)
    torch.testing.assert_close(6 * dz, z.softmax(-1) - F.one_hot(v.argmax(-1), 5))


def test_labels_are_smoothed_once_as_by_timm() -> None:
    """timm's mixup smooths one-hot labels over all C classes."""
    images, classes, smoothing = 6, 7, 0.1
    logits, label = noise(images, classes), torch.arange(images)
    mixed = Mixup(prob=0.0, label_smoothing=smoothing, num_classes=classes)(torch.zeros(images, 3, 2, 2), label)[1]
    expected = -(mixed.double() * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(cross_entropy(logits, label, smoothing), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(cross_entropy(logits, mixed.double(), smoothing), expected)


def test_class_weights_are_factors_of_images() -> None:
    logits, label = noise(6, 5), torch.tensor([0, 1, 1, 4, 4, 4])
    weights = torch.tensor([4.0, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    own = -logits.log_softmax(-1)[torch.arange(6), label]
    torch.testing.assert_close(cross_entropy(logits, label, 0.0, weights), (weights[label] * own).mean())
    smooth = 0.9 * F.one_hot(label, 5) + 0.1 / 5
    whole = cross_entropy(logits, label, 0.1, weights)
    torch.testing.assert_close(whole, -(weights * smooth * logits.log_softmax(-1)).sum(-1).mean())
    torch.testing.assert_close(cross_entropy(logits, smooth, 0.1, weights), whole)
    halves = [cross_entropy(logits[part], label[part], 0.1, weights) for part in (slice(3), slice(3, 6))]
    torch.testing.assert_close(torch.stack(halves).mean(), whole)


def test_shapes_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="share a shape"):
        soft_distillation(noise(2, 3), noise(2, 4))
    with pytest.raises(ValueError, match="positive, got 0"):
        soft_distillation(noise(2, 3), noise(2, 3), 0)
    with pytest.raises(ValueError, match=r"\(2, 4\)"):
        cross_entropy(noise(2, 3), noise(2, 4))
