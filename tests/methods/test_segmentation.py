# SPDX-License-Identifier: Apache-2.0
"""The class of every pixel, learnt on several processes."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

from children import start as start_child
from exact import CLOSE, doubled, never_single
from viticulture.data.annotations import UNLABELED
from viticulture.methods.method import Setup
from viticulture.methods.segmentation import Segmentation
from viticulture.models.students import create_student
from viticulture.models.task import Task

SIDE, HALF = (16, 16), (0.5, 0.5, 0.5)


def method() -> Segmentation:
    torch.manual_seed(0)
    student = create_student("vit_nano", Task((), SIDE, HALF, HALF), 8, {"depth": 1})
    segmentation = Segmentation(Setup(student, Task(("ground", "disk"), SIDE, HALF, HALF)))
    predict = segmentation.student.get_submodule("predict")
    assert isinstance(predict.weight, Tensor)
    nn.init.normal_(predict.weight)
    return segmentation


def batch() -> dict[str, Tensor]:
    """Four images, of which the second has a tenth of its pixels labeled, and the fourth none."""
    draw = torch.Generator().manual_seed(1)
    images, classes = torch.randn(4, 3, *SIDE, generator=draw), torch.randint(0, 2, (4, *SIDE), generator=draw)
    classes[1][torch.rand(SIDE, generator=draw) < 0.9] = UNLABELED
    classes[3] = UNLABELED
    return {"image": images, "classes": classes}


def learnt(segmentation: Segmentation, images: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the loss."""
    segmentation.losses(images)["pixels"].backward()
    return {name: p.grad for name, p in segmentation.named_parameters() if p.grad is not None}


def one_of_two(rank: int, folder: str) -> None:
    """A process with every other image; leaves its gradients, averaged as DDP would."""
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=10))
    never_single()
    found = learnt(method().double(), {name: part[rank::2] for name, part in doubled(batch()).items()})
    for gradient in found.values():
        distributed.all_reduce(gradient)
    torch.save({name: gradient / 2 for name, gradient in found.items()}, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.children
def test_two_processes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one of them has few labeled pixels. Fails if these weigh as much together as all of the other's."""
    processes = [start_child(one_of_two, rank, str(tmp_path)) for rank in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    whole = learnt(method().double(), doubled(batch()))
    for rank in range(2):
        halves = torch.load(tmp_path / f"{rank}.pt")
        for name, gradient in whole.items():
            torch.testing.assert_close(halves[name], gradient, **CLOSE)


def test_a_batch_without_labeled_pixels_teaches_nothing() -> None:
    """Fails for a loss that is no number."""
    nothing = {name: part[3:] for name, part in batch().items()}
    assert not any(gradient.any() for gradient in learnt(method(), nothing).values())
