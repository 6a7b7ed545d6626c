# SPDX-License-Identifier: Apache-2.0
"""MoCo v3 equals the authors' on one process, and two processes equal one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from children import one_of_pair, pair, shared_gradients
from conftest import Golden
from exact import CLOSE, check_same_gradients, doubled, never_single
from label_free import SMALL, start
from networks import error
from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from trained import weights
from viticulture.errors import UserError
from viticulture.methods.method import Setup, StepContext, TrainingLength
from viticulture.methods.moco_v3 import MoCoV3
from viticulture.models.data_spec import DataSpec
from viticulture.models.shared_batch_norm import SharedBatchNorm, gathered, perceptron
from viticulture.models.students import create_student
from viticulture.models.vit.patches import sincos
from viticulture.training.session import begin

Load = Callable[[str], Golden]
HALF = (0.5, 0.5, 0.5)
TASK = DataSpec((), (32, 32), HALF, HALF)
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
VIEWS = {"augment2.padded_crop.padding": 2, "method.name": "moco_v3", "method.hidden_width": 32, "method.width": 8}


def method(**options: Any) -> MoCoV3:
    torch.manual_seed(0)
    student = create_student("mae_tiny", TASK, 8, TINY)
    return MoCoV3(Setup(student, TASK), **{"width": 8, "hidden_width": 24, **options})


def views(images: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(images, 3, 32, 32, generator=generator) for name in ("image", "image2")}


def test_it_is_the_official_code(golden: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, gradients, and the momentum encoder after one step in the middle of a training."""
    data = golden("moco_tiny_step")
    config, moco = data.about["config"], method()
    moco.auxiliary["momentum"].updates, moco.length = config["iter"], TrainingLength(config["total_iters"])
    parts: list[tuple[str, Any, Any]] = [
        ("base_encoder", moco.student, moco.auxiliary["projector"]),
        ("momentum_encoder", *moco.auxiliary["momentum"].children()),
    ]
    for part, student, projector in parts:
        state = data.part(f"w/{part}.")
        head = {key.removeprefix("head."): value for key, value in state.items() if key.startswith("head.")}
        student.load_state_dict({key: value for key, value in state.items() if not key.startswith("head.")})
        missing = projector.load_state_dict(head, strict=False).missing_keys
        assert all(name.endswith("num_batches_tracked") for name in missing)
    moco.auxiliary["predictor"].load_state_dict(data.part("w/predictor."), strict=False)

    monkeypatch.setattr(Tensor, "float", Tensor.double)  # so that the only rounding is the reference's
    (loss,) = moco.double().losses(doubled({"image": data["in/x1"], "image2": data["in/x2"]})).values()
    loss = loss.to(torch.float32)
    torch.testing.assert_close(loss.to(torch.float32), data["out/loss"], rtol=1e-4, atol=0)
    assert loss.item() == pytest.approx(config["loss"], rel=1e-4)
    loss.backward()
    assert moco.student.patch_embed.proj.bias.grad is not None
    assert error(moco.student.patch_embed.proj.bias.grad, data["grad/base_encoder.patch_embed.proj.bias"]) < 1e-3
    assert error(moco.auxiliary["predictor"][0].weight.grad, data["grad/predictor.0.weight"]) < 1e-3
    student, projector = moco.auxiliary["momentum"].children()
    for key, value in data.part("after/momentum_encoder.").items():
        ours = projector.state_dict()[key[5:]] if key.startswith("head.") else student.state_dict()[key]
        torch.testing.assert_close(ours.to(value.dtype), value, rtol=1e-5, atol=1e-7)
    assert not any(parameter.requires_grad for parameter in moco.auxiliary["momentum"].parameters())
    assert moco.auxiliary["momentum"].updates == config["iter"] + 1


def test_loss_momentum_and_positions_alone(golden: Load) -> None:
    """2 T CE(cos / T) of given queries and keys; momentum over a training; MAE's positions with halves swapped."""
    data, moco = golden("moco_loss_and_pos"), method(momentum=0.99)
    torch.testing.assert_close(moco._contrast(data["in/q"], data["in/k"]), data["out/loss"], rtol=1e-5, atol=0)
    moco._contrast(data["in/k"], data["in/k"])
    assert moco.logs["instance_accuracy"] == 1
    weight, copied = moco.student.norm.weight, moco.auxiliary["momentum"][0].norm.weight
    for step, expected in zip(data["in/iters"].tolist(), data["out/momentum"].tolist(), strict=True):
        nn.init.constant_(copied, 1.0)
        nn.init.constant_(weight, 0.0)
        moco.auxiliary["momentum"].updates = int(step)
        moco.auxiliary["momentum"].update(moco.student, moco.auxiliary["projector"], 1000)
        assert copied[0].item() == pytest.approx(expected, abs=1e-6)
    table = data["out/pos_embed_d16_g4"].float()
    torch.testing.assert_close(sincos((4, 4), 16).roll(8, dims=2), table, rtol=1e-6, atol=1e-6)


def test_the_perceptrons_are_the_papers() -> None:
    """MoCo-v3-Tiny: 18.63 M parameters in the projector, 2.11 M in the predictor [numbers.json]."""
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in perceptron(w).parameters()) for w in ([192, 4096, 4096, 256], [256, 4096, 256])
        ]
    assert counts == [pytest.approx(18.6286e6, abs=51), pytest.approx(2.1053e6, abs=51)]


def test_frozen_parts_do_not_change() -> None:
    for options, frozen in (
        ({}, {"pos_embed"}),
        ({"positions": "learned"}, set()),
        ({"freeze_patches": True}, {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}),
    ):
        moco = method(**options)
        moco.losses(views())["contrast"].backward()
        assert {name for name, p in moco.student.named_parameters() if p.grad is None} == frozen
    MoCoV3(Setup(create_student("dhvt_nano", TASK, 4), TASK), width=8, hidden_width=16)
    student = timm.create_model("resnet10t", num_classes=0)
    resnet = MoCoV3(Setup(student, TASK), width=8, hidden_width=16)
    assert resnet.losses(views())["contrast"].isfinite()
    with pytest.raises(UserError, match="freeze_patches needs a patch embedding, which ResNet lacks"):
        MoCoV3(Setup(student, TASK), freeze_patches=True)


def test_micro_batches_move_the_momentum_encoder_once() -> None:
    moco = method()
    for first, last in ((True, False), (False, False), (False, True), (True, False)):
        moco.step = StepContext(first=first, last=last)
        moco.losses(views())
    assert moco.auxiliary["momentum"].updates == 2


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    whole, again = whole_and_resumed(partial(start, **VIEWS, **{"data.per_class": 6}), tmp_path, steps=4)
    assert any("its batch of 20: with fewer than" in warning for warning in whole.warnings)
    clocks = [session.method.auxiliary["momentum"].updates for session in (whole, again)]
    assert clocks == [2 * whole.method.length.steps_per_epoch] * 2
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    assert not [name for name in weights(again.run.path) if "projector" in name or "momentum" in name]


def one_of_two(rank: int, folder: str) -> None:
    """Compute a process's gradients, averaged as by DDP, and its statistics, from every other image."""
    with one_of_pair(rank, folder):
        never_single()
        moco = method().double()
        loss = moco.losses({name: images[rank::2] for name, images in doubled(views()).items()})["contrast"]
        loss.backward()
        torch.save([shared_gradients(moco), dict(moco.named_buffers())], f"{folder}/{rank}.pt")


@pytest.mark.children
def test_two_processes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = pair(one_of_two, tmp_path)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    moco = method().double()
    moco.losses(doubled(views()))["contrast"].backward()
    for gradients, buffers in halves:
        check_same_gradients(gradients, moco)
        for name, value in moco.named_buffers():
            torch.testing.assert_close(buffers[name], value, **CLOSE)


def norms(kind: type[nn.BatchNorm1d], images: Tensor) -> list[Tensor]:
    """Return the output of a norm with a scale, and its statistics afterwards."""
    norm = kind(5)
    return [norm(images).detach(), *norm.buffers()]


def half_precision(count: int = 8) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(1)).bfloat16()


def half_of_two(rank: int, folder: str) -> None:
    """Run every other image in half precision."""
    with one_of_pair(rank, folder):
        torch.save(norms(SharedBatchNorm, half_precision()[rank::2]), f"{folder}/{rank}.pt")


@pytest.mark.children
def test_the_shared_norm_supports_half_precision(tmp_path: Path) -> None:
    halves = pair(half_of_two, tmp_path)
    expected, *statistics = norms(nn.BatchNorm1d, half_precision())
    for rank, (output, *found) in enumerate(halves):
        torch.testing.assert_close(output, expected[rank::2])
        torch.testing.assert_close(found, statistics)


def test_on_one_process_the_shared_norm_is_torchs() -> None:
    shared, plain = SharedBatchNorm(5, affine=False), nn.BatchNorm1d(5, affine=False)
    x = torch.randn(6, 5, requires_grad=True)
    assert torch.equal(shared(x), plain(x))
    assert torch.equal(shared.running_var, plain.running_var)
    assert not gathered(x).requires_grad


def test_validation_compares_images_with_their_mirror_images() -> None:
    moco = method().eval()
    batch, mirrored = ({"image": images} for images in (views()["image"], views()["image"].flip(-1)))
    measured = moco.metrics(batch)["loss"]
    assert torch.equal(measured, moco.metrics(batch)["loss"])
    (loss,) = moco.losses({**batch, "image2": mirrored["image"]}).values()
    torch.testing.assert_close((measured + moco.metrics(mirrored)["loss"]) / 2, loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive.*got 0.0"),
        ({"momentum": 1.0}, "momentum lie in \\[0, 1\\).*1.0"),
        ({"width": 0}, "must be positive, got 0"),
        ({"positions": "x"}, "fixed or learned"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, method, **options)


def test_a_batch_of_one_is_refused() -> None:
    refused(r"the batch size is 1; take a larger train.batch_size", lambda: method().warnings(1))


def test_one_view_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="augment2"):
        begin("digits", "default/digits", 0, str(tmp_path / "run"), False, {**SMALL, "method.name": "moco_v3"}, "test")
