# SPDX-License-Identifier: Apache-2.0
"""Whole trainings on a simulated GPU, see tests/simulated_gpu.py."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from pairs import Data, pair
from simulated_gpu import simulated_gpu, waits
from slowly import slow_but
from viticulture.config.resolve import Config
from viticulture.config.sections import Engine
from viticulture.data.batches.loader import Loader
from viticulture.data.image_set import CachedImages
from viticulture.data.transforms.color import Solarize
from viticulture.data.transforms.crop import PaddedCrop
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.mix import Mix
from viticulture.data.transforms.transform import send
from viticulture.data.transforms.view import Augment
from viticulture.training.assemble import assemble
from viticulture.training.metrics import StepMetrics
from viticulture.training.replay import Budget, Memory
from viticulture.training.run import fit, precision
from viticulture.training.run_folder import RunFolder
from viticulture.training.state import Ema

from .test_dense_runs import session
from .test_devices import ONCE, unless_refused

STEADY = ("cnn", "many heads", "mae")  # families that draw no random numbers while they learn labels


def test_the_simulation_refuses_what_a_gpu_refuses() -> None:
    with simulated_gpu() as gpu:
        there, here = torch.arange(3, device=gpu), torch.arange(3)
        for attempt in (lambda: here[there], lambda: there + here, lambda: torch.stack([here, there])):
            with pytest.raises(RuntimeError, match="cuda:0"):
                attempt()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator of cuda:0"):
            torch.rand(3, generator=torch.Generator(), device=gpu)
        levels = torch.zeros(1, 1, 4, 4, dtype=torch.uint8, device=gpu)
        for attempt in (lambda: there @ there, lambda: F.interpolate(levels, (2, 2), mode="bilinear")):
            with pytest.raises(RuntimeError, match="whole numbers"):
                attempt()
        assert there[here].device == gpu
        assert (there + 1).cpu().tolist() == (here + 1).tolist()
        assert here.to(gpu).device == there.device == gpu


def test_the_simulation_counts_synchronizations() -> None:
    with simulated_gpu() as gpu:
        here = torch.arange(3)
        there = send(here, gpu)
        waiting = (
            lambda: float(there[0]),
            there.tolist,
            lambda: there[there > 1],
            there.cpu,
            lambda: here.to(gpu),
            lambda: torch.tensor(1.0, device=gpu),
        )
        queued = (
            lambda: torch.where(there > 1, there, 0).sum(),
            lambda: there[:2].index_select(0, there[:1]),
            lambda: send(here, gpu),
            lambda: torch.full((), 1.0, device=gpu),
        )
        for calls, expected in ((waiting, 1), (queued, 0)):
            for call in calls:
                waits.clear()
                call()
                assert len(waits) == expected, waits


def test_batches_on_a_gpu_are_those_on_a_cpu(data: Data) -> None:
    images = data.labeled.train
    assert isinstance(images, CachedImages)
    view = Augment([PaddedCrop(padding=2), Flip(), Mix()], (16, 16), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), 3)
    expected = [batch for loader in [Loader(images, [view], 2, 0)] for _ in (0, 1) for batch in loader]
    with simulated_gpu() as gpu:
        loader = Loader(images, [view], 2, 0, device=gpu)
        assert loader.at_once > 1
        found = [batch for _ in (0, 1) for batch in loader]
        assert {value.device for batch in found for value in batch.values()} == {gpu}
        back = [{name: value.cpu() for name, value in batch.items()} for batch in found]
    for one, other in zip(expected, back, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name])


def test_two_views_on_a_gpu_are_separate(data: Data) -> None:
    images = data.labeled.train
    assert isinstance(images, CachedImages)
    side = images.pixels.shape[-1]
    views = [Augment(changes, (side, side), (0.5,) * 3, (0.5,) * 3, 2) for changes in ([], [Solarize(1.0, 0)])]
    expected = Loader(images, views, 2, 0).batch(0, 0)
    with simulated_gpu() as gpu:
        found = {name: value.cpu() for name, value in Loader(images, views, 2, 0, device=gpu).batch(0, 0).items()}
    for name in ("image", "image2"):
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize(
    ("method", "guide", "student"), slow_but([("supervised", "none", "cnn"), ("mae", "none", "vit with dropout")], ONCE)
)
def test_a_gpu_trains_as_a_cpu(
    method: str, guide: str, student: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    """Two epochs in float32, by the Trainer; no synchronization between a batch and its gradients."""
    if unless_refused(method, guide, student, data, teachers) is None:
        return
    with simulated_gpu():
        found = trained(method, guide, student, data, teachers, tmp_path / "gpu", "cuda:0")
    if student in STEADY:
        expected = trained(method, guide, student, data, teachers, tmp_path / "cpu", "cpu")
        for name, value in expected.items():
            torch.testing.assert_close(found[name].float(), value.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_detection_and_segmentation_train_on_a_gpu(kind: str, tmp_path: Path) -> None:
    devices, before = Devices(), torch.get_float32_matmul_precision()
    with simulated_gpu():
        begun = session(kind, tmp_path, "run", **{"train.epochs": 1, "engine.precision": "32"})
        fit(begun, more=[devices])
    assert devices.seen == {"cuda:0"}
    assert torch.get_float32_matmul_precision() == before == "highest"
    assert kind == "detection" or not devices.waited  # torchvision's heads wait for what they find


def test_means_of_a_checkpoint_are_reduced_on_the_gpu() -> None:
    means, reduced = StepMetrics(50), []
    means.load_state_dict({"processes": [{"sums": {"loss": torch.tensor(6.0)}, "batches": {"loss": 2}}]})
    with simulated_gpu() as gpu:
        strategy = SimpleNamespace(reduce=lambda value, reduce_op: reduced.append(value) or value)
        trainer = SimpleNamespace(strategy=strategy, loggers=[])
        means.on_train_epoch_end(cast(Trainer, trainer), cast(LightningModule, SimpleNamespace(device=gpu)))
        assert [value.device for value in reduced] == [gpu]
    assert means.means == {"loss": 3.0}


def test_the_ema_does_not_synchronize() -> None:
    student = torch.nn.BatchNorm1d(2)
    ema = Ema(student, 0.9)
    with simulated_gpu() as gpu:
        student.to(gpu)
        ema.student.to(gpu)
        waits.clear()
        for step in (0, None):
            ema.average.update(student, step)
        assert not waits


def test_teachers_logits_are_cached_and_replayed_on_a_gpu(tmp_path: Path) -> None:
    """In bfloat16, by pinned memory and an event, without waiting."""
    with simulated_gpu() as gpu:
        images, answer = torch.zeros(2, 3, device=gpu), send(torch.randn(2, 5).bfloat16(), gpu)
        first = Memory(tmp_path / "a", Budget(tmp_path, 10**6), lambda _: (0, 0), gpu)
        waits.clear()
        first(images, lambda: answer)
        assert not waits
        first.finish_epoch()
        second = Memory(tmp_path / "a", Budget(tmp_path, 10**6), lambda _: (0, 0), gpu)
        replayed = second(images, lambda: pytest.fail("the teacher was asked"))
        assert replayed.device == gpu
        assert torch.equal(replayed.cpu(), answer.cpu())


def test_a_gpu_that_emulates_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a T4 does, of which torch says that it supports bfloat16."""
    with simulated_gpu():
        assert precision(Engine(), on_gpu=True) == "bf16-mixed"
        with monkeypatch.context() as emulating:  # ends before the simulation, whose answers it would bring back
            emulating.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
            assert precision(Engine(), on_gpu=True) == "32-true"
            assert precision(Engine(precision="bf16-mixed"), on_gpu=True) == "bf16-mixed"


class Devices(Callback):
    """Records where batches and weights are in training, and synchronizations before the gradients."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.waited: list[str] = []

    def on_train_batch_start(self, *_: Any) -> None:
        waits.clear()

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.waited += waits

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        self.seen |= {str(weight.device) for weight in pl_module.parameters()}
        self.seen |= {str(value.device) for value in batch[1].values()}


def trained(
    method: str, guide: str, student: str, data: Data, teachers: Path, folder: Path, device: str
) -> dict[str, Tensor]:
    """Return the student's weights after two epochs in float32, on the CPU."""
    session = pair(method, guide, student, data, teachers)
    plain: dict[str, Any] = {"engine": {"precision": "32"}}
    if student in STEADY:  # Adam makes whole steps of rounding
        plain["optim"] = {"name": "sgd", "lr": 0.1}
    config = Config("pair", {**session.config.values, **plain})
    made, warnings = assemble(config, session.dataset, seed=0)
    run, devices = RunFolder.create(folder), Devices()
    run.write("run.json", {})
    torch.manual_seed(0)
    fit(replace(session, run=run, config=config, method=made, warnings=warnings), more=[devices])
    assert devices.seen == {device}
    assert not devices.waited
    return {name: value.cpu() for name, value in made.student.state_dict().items()}
