# SPDX-License-Identifier: Apache-2.0
"""Losses of several labels per image, mixing, and errors where one class per image is needed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.loss.asymmetric_loss import AsymmetricLossMultiLabel
from torch import nn

from refusals import refused
from viticulture.config.checks import check_parts
from viticulture.config.load import load_config
from viticulture.data.transforms.mix import Mix
from viticulture.errors import UserError
from viticulture.guides.logits import Logits
from viticulture.losses import asymmetric_binary, binary_cross_entropy, binary_distillation
from viticulture.methods.method import Setup
from viticulture.methods.multilabel import Multilabel
from viticulture.methods.regression import Regression
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import load, save

ONE = DataSpec(("cat", "dog", "hare"), (8, 8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TASK = DataSpec(ONE.classes, ONE.image_size, ONE.mean, ONE.std, multilabel=True)
GENERATOR = torch.Generator().manual_seed(0)
LOGITS, OTHER = torch.randn(2, 6, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = (torch.rand(6, 3, generator=GENERATOR) < 0.4).double()
BATCH = {"image": torch.randn(6, 3, 8, 8, generator=GENERATOR), "label": LABELS.float()}


def student(data_spec: DataSpec = TASK) -> nn.Module:
    return create_student("vit_tiny", data_spec, 4, {"depth": 1, "embed_dim": 12, "num_heads": 2})


def test_cross_entropy_is_the_likelihood_of_every_label() -> None:
    """-log p(labels) of independent Bernoullis, mean over images; positive weights count for present labels alone."""
    p = LOGITS.sigmoid()
    likelihood = torch.where(LABELS > 0, p, 1 - p).prod(1)
    torch.testing.assert_close(binary_cross_entropy(LOGITS, LABELS), -likelihood.log().mean())
    weights = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    weighed = -(weights * LABELS * p.log() + (1 - LABELS) * (1 - p).log()).sum(1).mean()
    torch.testing.assert_close(binary_cross_entropy(LOGITS, LABELS, 0.0, weights), weighed)
    smooth = 0.8 * LABELS + 0.1
    torch.testing.assert_close(binary_cross_entropy(LOGITS, LABELS, 0.2), binary_cross_entropy(LOGITS, smooth))
    with pytest.raises(ValueError, match="share a shape"):
        binary_cross_entropy(LOGITS, LABELS[:, :2])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_of_labels_is_a_divergence_per_label(temperature: float) -> None:
    """dL/dz = T (q - p) of both probabilities at that temperature; none to the teacher."""
    z, v = LOGITS.clone().requires_grad_(), OTHER.clone().requires_grad_()
    dz, dv = torch.autograd.grad(binary_distillation(z, v, temperature), (z, v), allow_unused=True)
    q, p = (z / temperature).sigmoid(), (v / temperature).sigmoid()
    torch.testing.assert_close(6 * dz, temperature * (q - p).detach())
    assert dv is None
    assert float(binary_distillation(OTHER, OTHER, temperature)) == pytest.approx(0, abs=1e-12)


def test_every_head_that_predictions_average_is_trained(tmp_path: Path) -> None:
    """Catches: a distillation head that stays random and half of every prediction."""
    save(student(), tmp_path, TASK)
    images, generator = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.Generator()
    sizes = {"embed_dim": 24, "depth": 1, "num_heads": 3}
    for kind in (Multilabel, Regression):
        spec = TASK if kind is Multilabel else DataSpec(("value",), (8, 8), TASK.mean, TASK.std, scale=(0.0, 1.0))
        distilled = create_student("deit_tiny_distilled_patch16_224", spec, 4, sizes).train()
        label = torch.rand(4, 3, generator=generator).round() if kind is Multilabel else torch.rand(4)
        (term,) = kind(Setup(distilled, spec)).losses({"image": images, "label": label}).values()
        term.backward()
        assert all(weight.grad is not None for weight in distilled.parameters()), kind
        if kind is Multilabel:  # DeiT's own: the teacher trains the other head
            guides = {"logits": Logits(distilled, spec, teacher=str(tmp_path), kind="soft")}
            alone = Multilabel(Setup(distilled, spec, guides))
            assert not alone.has_idle_heads
            assert len(alone.trained_on_labels([term, term])) == 1


def test_the_method_applies_weights_and_smoothing() -> None:
    weights = torch.tensor([2.0, 1.0, 0.5])
    method = Multilabel(Setup(student(), TASK, class_weights=weights), smoothing=0.1, label_weight=0.5)
    logits = method.student(BATCH["image"])
    terms = method.losses(BATCH)
    assert terms.keys() == {"label"}
    torch.testing.assert_close(terms["label"], 0.5 * binary_cross_entropy(logits, BATCH["label"], 0.1, weights))
    measured = method.metrics(BATCH)
    assert measured.keys() == {"map", "loss"}
    torch.testing.assert_close(measured["loss"], binary_cross_entropy(logits, BATCH["label"]))
    optimizer = torch.optim.SGD(method.parameters(), 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        method.losses(BATCH)["label"].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert method.losses(BATCH)["label"] < terms["label"]


@pytest.mark.parametrize("mixed", [False, True])
def test_the_asymmetric_loss_is_the_mean_of_timms_per_image(mixed: bool) -> None:
    labels = torch.lerp(LABELS, LABELS.roll(3, 0), 0.3) if mixed else LABELS
    logits = (4 * LOGITS).requires_grad_()  # some probabilities lie below the margin
    by_timm = torch.stack([AsymmetricLossMultiLabel()(logits[i : i + 1], labels[i : i + 1]) for i in range(6)]).mean()
    ours = asymmetric_binary(logits, labels)
    slopes = [torch.autograd.grad(loss, logits)[0] for loss in (ours, by_timm)]
    torch.testing.assert_close(ours, by_timm.double(), rtol=1e-5, atol=0)  # timm's is of float32
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)
    method = Multilabel(Setup(student(), TASK), loss="asymmetric", label_weight=0.5)
    expected = 0.5 * asymmetric_binary(method.student(BATCH["image"]), BATCH["label"])
    torch.testing.assert_close(method.losses(BATCH)["label"], expected)
    refused("sets its weights itself", lambda: Multilabel(Setup(student(), TASK), loss="asymmetric", smoothing=0.1))


def test_mixing_mixes_labels_as_it_does_images() -> None:
    mix = Mix(mixup=0.8, cutmix=0.0, smoothing=0.3)
    u = torch.tensor([0.0, 0.9, 0.3, 0.5, 0.5], dtype=torch.float64)
    share, images, labels = mix.draw(u, 8, 8)[0], BATCH["image"], BATCH["label"]
    mixed, soft = mix(images, labels, u, 3)
    torch.testing.assert_close(soft, share * labels + (1 - share) * labels.roll(3, 0))
    torch.testing.assert_close(mixed, share * images + (1 - share) * images.roll(3, 0))


def test_saved_weights_record_several_labels(tmp_path: Path) -> None:
    save(student(), tmp_path, TASK)
    data_spec = load(tmp_path)[1]
    assert data_spec == TASK
    torch.testing.assert_close(data_spec.probabilities(LOGITS.float()), LOGITS.float().double().sigmoid())
    torch.testing.assert_close(ONE.probabilities(LOGITS.float()), LOGITS.float().softmax(-1))


def test_a_teacher_of_one_class_per_image_or_hard_labels_is_refused(tmp_path: Path) -> None:
    for name, data_spec in (("several", TASK), ("one", ONE)):
        save(student(data_spec), tmp_path / name, data_spec)
    pupil, image = student(), BATCH["image"]
    with pytest.raises(UserError, match="one class an image, and the student is trained on several labels an image"):
        Logits(pupil, TASK, teacher=str(tmp_path / "one"), kind="soft")
    refused("kind: soft", Logits, pupil, TASK, teacher=str(tmp_path / "several"))
    guide = Logits(pupil, TASK, teacher=str(tmp_path / "several"), kind="soft", temperature=2.0, weight=0.5)
    terms = Multilabel(Setup(pupil, TASK, {"logits": guide}), label_weight=0.5).losses(BATCH)
    torch.testing.assert_close(terms["logits"], 0.5 * binary_distillation(pupil(image), guide.teacher(image), 2.0))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"guides.bootstrap.weight": 0.5}, "guide bootstrap requires one label an image"),
        ({"guides.co_advise.teachers": {"a": "runs/x"}}, "guide co_advise requires one label an image, which method"),
        ({"data.sampling": "balanced"}, "data.sampling balances classes of images, and an image may have several"),
    ],
)
def test_one_class_per_image_is_required_in_one_line(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        check_parts(load_config("multilabel/photos", overrides))
    assert "\n" not in str(error.value)
