# SPDX-License-Identifier: Apache-2.0
"""Segmentation on several processes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from children import one_of_pair, pair, shared_gradients
from exact import CLOSE, doubled, never_single
from viticulture.data.batches.targets import labeled
from viticulture.data.targets.objects import UNLABELED
from viticulture.methods.method import Setup
from viticulture.methods.segmentation import Segmentation
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.training.feed import MicroBatches

SIDE, HALF = (16, 16), (0.5, 0.5, 0.5)


def method() -> Segmentation:
    torch.manual_seed(0)
    student = create_student("vit_nano", DataSpec((), SIDE, HALF, HALF), 8, {"depth": 1})
    segmentation = Segmentation(Setup(student, DataSpec(("ground", "disk"), SIDE, HALF, HALF)))
    predict = segmentation.student.get_submodule("predict")
    assert isinstance(predict.weight, Tensor)
    nn.init.normal_(predict.weight)
    return segmentation


def batch() -> dict[str, Tensor]:
    """Return four images; the second has a tenth of its pixels labeled, the fourth none."""
    draw = torch.Generator().manual_seed(1)
    images, classes = torch.randn(4, 3, *SIDE, generator=draw), torch.randint(0, 2, (4, *SIDE), generator=draw)
    classes[1][torch.rand(SIDE, generator=draw) < 0.9] = UNLABELED
    classes[3] = UNLABELED
    return {"image": images, "classes": classes, "labeled": labeled(classes)}


def gradients_of(segmentation: Segmentation, images: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of the loss."""
    segmentation.losses(images)["pixels"].backward()
    return {name: p.grad for name, p in segmentation.named_parameters() if p.grad is not None}


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        segmentation = method().double()
        images = {name: part[rank::2] for name, part in doubled(batch()).items()}
        gradients_of(segmentation, {**images, "labeled": labeled(images["classes"])})
        torch.save(shared_gradients(segmentation), f"{folder}/{rank}.pt")


@pytest.mark.children
def test_two_processes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    whole = gradients_of(method().double(), doubled(batch()))
    for gradients in halves:
        for name, gradient in whole.items():
            torch.testing.assert_close(gradients[name], gradient, **CLOSE)


def test_micro_batches_are_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of their gradients, as Lightning takes it."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    segmentation, images = method().double(), doubled(batch())
    whole = {name: gradient.clone() for name, gradient in gradients_of(segmentation, images).items()}
    segmentation.zero_grad()
    for part in MicroBatches([images], 4):  # type: ignore[arg-type]
        parts = gradients_of(segmentation, part)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name] / 4, gradient, **CLOSE)


def test_a_batch_without_labeled_pixels_has_zero_loss() -> None:
    nothing = {name: part[3:] for name, part in batch().items()} | {"labeled": torch.zeros(1)}
    assert not any(gradient.any() for gradient in gradients_of(method(), nothing).values())
