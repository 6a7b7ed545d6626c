# SPDX-License-Identifier: Apache-2.0
"""Mixed precision on a CPU: no gradient depends on previous memory."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lightning.pytorch.plugins import Precision
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.overrides import TorchFunctionMode

import viticulture
from resumed import check_same_bits
from trained import train_apart, trained, weights
from viticulture.budget.choices import CANDIDATES, TINY_CANDIDATES, candidates, teacher
from viticulture.config.load import load_config
from viticulture.data.open import open_source
from viticulture.errors import UserError
from viticulture.methods.supervised import Supervised
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import token_logits
from viticulture.models.students import create_student, fitting_patch
from viticulture.training.data import load_dataset
from viticulture.training.half_precision import FILLS, CpuMixedPrecision, compare_gradients, wrong_or_slow
from viticulture.training.machine import filled_memory

HALF = CpuMixedPrecision("bf16-mixed", "cpu")
CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
CNN: dict[str, Any] = {
    "student.name": "resnet10t",
    "student.patch_size": None,
    "images.image_size": 16,
    "data.per_class": 4,
    "train.epochs": 2,
    "schedule.warmup_epochs": 0,
    "engine.precision": "bf16-mixed",
    "engine.device": "cpu",
}
"""Digits that a CNN of stride 32 sees at 16 pixels, in bfloat16."""


def gradients(network: nn.Module, images: Tensor, precision: Precision, fill: int) -> dict[str, Tensor]:
    """Compute gradients of the sum of squared outputs, in memory filled with a byte."""
    network.zero_grad()
    with filled_memory(fill):
        torch.manual_seed(0)
        with precision.forward_context():
            loss = torch.stack([output.float().square().sum() for output in token_logits(network(images))]).sum()
        loss.backward()
        return {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}


def check(network: nn.Module, images: Tensor, near: float) -> None:
    """Check for the same bits in any memory, near float32's."""
    once, again = (gradients(network, images, HALF, fill) for fill in FILLS)
    assert [name for name in once if not torch.equal(once[name], again[name])] == []
    exact = parameters_to_vector(gradients(network, images, Precision(), FILLS[0]).values())
    assert (parameters_to_vector(once.values()) - exact).norm() < near * exact.norm()


@pytest.mark.parametrize(
    ("pixels", "kernel"), [((1, 1), 3), ((2, 2), 3), ((3, 4), 3), ((1, 7), 5), ((4, 4), 7), ((2,), 5), ((2, 1, 3), 3)]
)
def test_a_tap_of_padding_alone_is_found_by_its_gradient(pixels: tuple[int, ...], kernel: int) -> None:
    dimensions = len(pixels)
    settings: list[dict[str, Any]] = [
        {"stride": stride, "padding": padding, "dilation": dilation}
        for stride, padding, dilation in itertools.product((1, 2, 3, 4), (0, 1, 2, 3, (1,)), (1, 2))
    ]
    settings += [{"padding": word, "dilation": dilation} for word in ("same", "valid") for dilation in (1, 2, 3)]
    answers = set()
    for chosen in settings:
        images = torch.ones(1, 1, *pixels, dtype=torch.float64)
        weight = torch.ones(1, 1, *[kernel] * dimensions, dtype=torch.float64, requires_grad=True)
        try:
            CONVOLVE[dimensions](images, weight, **chosen).sum().backward()
        except RuntimeError:  # the kernel exceeds the padded image
            continue
        assert weight.grad is not None
        answers.add(found := wrong_or_slow(images, weight, **chosen))
        assert found == bool((weight.grad == 0).any()), chosen
    assert len(answers) == 2 or 1 in pixels


@pytest.mark.parametrize(
    ("layer", "in_float32"),
    [
        (nn.Conv2d(16, 16, 3, 2, 1, groups=16), True),
        (nn.Conv2d(16, 16, 5, 1, 2, groups=16), True),
        (nn.Conv2d(16, 16, 3, 1, 1, groups=16), False),
        (nn.Conv2d(16, 16, 3, 2, 1, groups=2), False),
        (nn.Conv2d(16, 16, 5, 1, 2), False),
    ],
)
def test_depthwise_convolutions_that_are_slow_in_bfloat16_run_in_float32(layer: nn.Conv2d, in_float32: bool) -> None:
    casts = list[bool]()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.conv2d:
                casts.append(torch.is_autocast_enabled("cpu"))
            return func(*args, **(kwargs or {}))

    with Watch(), HALF.forward_context():
        assert layer(torch.randn(2, 16, 9, 9)).dtype == torch.bfloat16
    assert casts == [not in_float32]


SHAPES = [
    (nn.Conv2d(16, 32, 3, 2, 1), (1, 1)),
    (nn.Conv2d(6, 10, 3, 2, 1, bias=False), (1, 1)),
    (nn.Conv2d(16, 32, 2, 2, 1), (1, 1)),
    (nn.Conv2d(16, 32, 5, 2, 2), (1, 1)),
    (nn.Conv2d(16, 16, 7, 4, 3, groups=16), (3, 3)),
    (nn.Conv2d(16, 32, 3, 3, 2, 2), (2, 2)),
    (nn.Conv2d(16, 32, 3, 2, 1), (4, 1)),
    (nn.Conv2d(16, 32, 3, 1, "same", 4), (3, 3)),
    (nn.Conv1d(16, 32, 3, 2, 1), (1,)),
    (nn.Conv3d(4, 8, 3, 2, 1), (1, 1, 1)),
    (nn.ConvTranspose2d(16, 32, 3, 2, 1), (1, 1)),
    (nn.ConvTranspose2d(16, 32, 2, 4), (3, 3)),
    (nn.ConvTranspose1d(16, 32, 3, 4, 1), (2,)),
    (nn.Conv2d(16, 32, 3, 1, 1), (8, 8)),
    (nn.ConvTranspose2d(16, 32, 2, 2), (4, 4)),
]


@pytest.mark.parametrize(("layer", "pixels"), SHAPES)
def test_convolutions_of_small_maps_have_the_gradients_of_float32(layer: nn.Module, pixels: tuple[int, ...]) -> None:
    """Under two fillings of memory: outputs and gradients of images, kernel and bias, in both layouts."""
    torch.manual_seed(0)
    channels = next(layer.parameters()).shape[0] if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d) else 0
    width = channels or next(layer.parameters()).shape[1] * getattr(layer, "groups", 1)
    images = torch.randn(20, width, *pixels)
    for contents in (images, images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images):
        outputs, slopes = [], []
        for precision, fill in ((HALF, FILLS[0]), (HALF, FILLS[1]), (Precision(), FILLS[0])):
            seen = contents.clone().requires_grad_()
            with filled_memory(fill):
                layer.zero_grad()
                with precision.forward_context():
                    outputs.append(layer(seen))
                outputs[-1].float().square().sum().backward()
            slopes.append([seen.grad, *(weight.grad for weight in layer.parameters())])
        assert [output.dtype for output in outputs] == [torch.bfloat16, torch.bfloat16, torch.float32]
        results = [[output, *slope] for output, slope in zip(outputs, slopes, strict=True)]
        for one, other, exact in zip(*results, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one.float(), exact, rtol=0.05, atol=0.02 * exact.abs().max().item())


def test_only_convolutions_that_need_it_run_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    types = []

    class Recorded(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.conv2d:
                types.append("float32" if not torch.is_autocast_enabled("cpu") else "bfloat16")
            return func(*args, **(kwargs or {}))

    layer, small, large = nn.Conv2d(3, 4, 3, 2, 1), torch.ones(2, 3, 1, 1), torch.ones(2, 3, 8, 8)
    with Recorded(), HALF.forward_context():
        assert layer(small).dtype is layer(large).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert layer(small).dtype is torch.float32
    assert types == ["float32", "bfloat16", "float32"]
    assert layer(small).dtype is torch.float32


def test_a_cnn_with_a_map_of_one_pixel_is_reproducible() -> None:
    """Eight steps of resnet10t on images of 16 pixels."""
    ends = []
    for fill in FILLS:
        with filled_memory(fill):
            torch.manual_seed(0)
            network = timm.create_model("resnet10t", num_classes=10).train()
            optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.05)
            generator = torch.Generator().manual_seed(1)
            for _ in range(8):
                images = torch.randn(20, 3, 16, 16, generator=generator)
                labels = torch.randint(0, 10, (20,), generator=generator)
                with HALF.forward_context():
                    loss = nn.functional.cross_entropy(network(images).float(), labels)
                optimizer.zero_grad()
                loss.backward()
                assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in network.parameters())
                optimizer.step()
            ends.append(network.state_dict())
    check_same_bits(*ends)


def chosen_networks() -> list[Any]:
    """Return students and teachers of budgets at all sizes; a few of them in the fast tests."""
    sizes = sorted({rung.image_size for rung in (*CANDIDATES, *TINY_CANDIDATES)} | {8, 12, 16, 24, 28, 32, 40, 48})
    found = {(rung.student, rung.image_size) for side in sizes for rung in candidates(side)}
    found |= {(name, side) for side in sizes for name in {teacher(0), teacher(10**6)}}
    found |= {("vit_nano", side) for side in (8, 16, 32, 64)}
    fast = {("resnet10t", 8), ("resnet10t", 16), ("botnet14n", 64), ("dhvt_nano", 64), ("vit_nano", 8)}
    return [
        pytest.param(name, side, marks=[] if (name, side) in fast else pytest.mark.slow) for name, side in sorted(found)
    ]


@pytest.mark.parametrize(("name", "side"), chosen_networks())
def test_networks_of_budgets_have_correct_gradients(name: str, side: int) -> None:
    data_spec = DataSpec(tuple("abcdefghij"), (side, side), (0.5,) * 3, (0.5,) * 3)
    torch.manual_seed(0)
    network = create_student(name, data_spec, fitting_patch(name, (side, side))).train()
    batch = 20 if side <= 64 else 4
    images = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    check(network, images, near=0.5)


def test_a_bfloat16_training_is_reproducible_in_any_memory(tmp_path: Path) -> None:
    for fill in FILLS:
        with filled_memory(fill):
            trained(tmp_path / str(fill), CNN)
    check_same_bits(*(weights(tmp_path / str(fill)) for fill in FILLS))


@pytest.mark.slow
def test_two_processes_of_one_seed_end_in_the_same_bits_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fill in ("85", "170"):
        monkeypatch.setenv("MALLOC_PERTURB_", fill)
        train_apart(tmp_path / fill, {**CNN, "student.patch_size": "null"})
    check_same_bits(weights(tmp_path / "85"), weights(tmp_path / "170"))


class Unwritten(torch.autograd.Function):
    """The identity, whose gradient in bfloat16 is uninitialized memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.half = torch.is_autocast_enabled("cpu")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return torch.empty_like(dy) if ctx.half else dy


class Coarse(Unwritten):
    """The identity, whose gradient in bfloat16 has the opposite sign."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return -dy if ctx.half else dy


def faulty(monkeypatch: pytest.MonkeyPatch, function: type[Unwritten]) -> None:
    """Make losses go through a function whose gradient in bfloat16 is wrong."""
    real = Supervised.losses

    def losses(self: Supervised, batch: Any) -> dict[str, Tensor]:
        return {name: function.apply(term) for name, term in real(self, batch).items()}  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Supervised, "losses", losses)


def test_gradients_are_compared_over_other_memory_and_with_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = {"engine.precision": "bf16-mixed", "engine.device": "cpu", "data.per_class": 10}
    config = load_config("default/digits", overrides)
    dataset = load_dataset(open_source("digits"), config, 0)
    state = torch.random.get_rng_state()
    sound = compare_gradients(config, dataset, 0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not sound.fault
    assert not sound.unstable
    assert 0 < sound.distance < 0.1
    with monkeypatch.context() as patch:
        faulty(patch, Coarse)
        coarse = compare_gradients(config, dataset, 0)
    assert coarse.distance == pytest.approx(2, abs=0.1)
    assert coarse.fault == "gradients are 200% away from those in float32"
    if filled():
        faulty(monkeypatch, Unwritten)
        assert "depends on what was in memory" in compare_gradients(config, dataset, 0).fault


def test_a_training_on_wrong_gradients_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not filled():
        pytest.skip("memory is filled by glibc alone")
    words: dict[str, Any] = {"train.epochs": 1, "schedule.warmup_epochs": 0, "data.per_class": 4}
    words |= {"engine.precision": "bf16-mixed", "engine.device": "cpu"}
    faulty(monkeypatch, Unwritten)
    with pytest.raises(UserError, match=r"must compute the same gradients twice.*--engine.precision 32"):
        viticulture.train("digits", "default/digits", out=str(tmp_path / "run"), overrides=words, progress=False)


def filled() -> bool:
    """Return True if this C library fills memory."""
    with filled_memory(0x3F):
        return bool((torch.empty(10_000).view(torch.uint8) == 0x3F).all())
