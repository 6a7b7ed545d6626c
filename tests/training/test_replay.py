# SPDX-License-Identifier: Apache-2.0
"""Teachers' logits are computed once and replayed, bit for bit."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import viticulture
from refusals import refused
from resumed import check_same_bits
from trained import trained, weights
from viticulture.api import cache
from viticulture.config.sections import Engine
from viticulture.guides.co_advise import CoAdvise
from viticulture.guides.guide import Batch
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Readings
from viticulture.models.teachers.frozen import Frozen
from viticulture.models.weights.files import save
from viticulture.training.replay import Budget, Memory

CPU = torch.device("cpu")
DIGITS = DataSpec(tuple(map(str, range(10))), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"embed_dim": 8, "depth": 1, "num_heads": 2}
Grow = Callable[..., viticulture.Run]
STEPS = 6  # of the two epochs of a run
IMAGES = torch.zeros(0)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("teachers")
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        save(create_student("vit_nano", DIGITS, 4, TINY), folder / name, DIGITS)
    return {name: str(folder / name) for name in ("one", "two")}


@pytest.fixture
def grow(teachers: dict[str, str], tmp_path: Path) -> Grow:
    """Train a small CiT on 30 digits under both teachers, with mixed labels and drop-path."""
    return grower(teachers, tmp_path)


def grower(teachers: dict[str, str], folder: Path) -> Grow:
    def run(name: str, seed: int = 0, **changes: Any) -> viticulture.Run:
        return trained(
            folder / name,
            {
                "student.name": "cit_tiny", "student.patch_size": 4,
                "student.options": {**TINY, "depth": 2, "tokens": 2, "drop_path_rate": 0.3},
                "guides.co_advise": {"teachers": teachers}, "data.per_class": 3, "data.val_fraction": 0,
                "augment.mix": {"mixup": 0.8}, "train.epochs": 2, "train.batch_size": 10, "train.validate": "none",
                "schedule.warmup_epochs": 0, "engine.device": "cpu", **changes,
            },
            seed,
        )  # fmt: skip

    return run


def assert_same(one: viticulture.Run, other: viticulture.Run) -> None:
    check_same_bits(weights(one.path), weights(other.path))


def test_a_replayed_run_equals_a_plain_one(grow: Grow) -> None:
    """Plain = recorded = replayed; then another student under the same teachers."""
    plain, first, second = (
        grow("plain"),
        grow("first", **{"engine.replay_gb": 1}),
        grow("second", **{"engine.replay_gb": 1}),
    )
    assert_same(plain, first)
    assert_same(plain, second)
    assert first.metadata["teacher_logits"] == {"computed": 2 * STEPS, "replayed": 0}
    assert second.metadata["teacher_logits"] == {"computed": 0, "replayed": 2 * STEPS}
    larger = grow("larger", **{"engine.replay_gb": 1, "student.options.depth": 3, "train.epochs": 3, "optim.lr": 1e-4})
    assert larger.metadata["teacher_logits"] == {"computed": STEPS, "replayed": 2 * STEPS}


def test_fixed_views_are_computed_once(grow: Grow) -> None:
    """The third epoch has the images of the first, so that replay changes nothing and saves its teachers' passes."""
    keys = {"train.fixed_views": 2, "train.epochs": 3}
    plain, replayed = grow("plain", **keys), grow("replayed", **keys, **{"engine.replay_gb": 1})
    assert_same(plain, replayed)
    assert replayed.metadata["teacher_logits"] == {"computed": 2 * STEPS, "replayed": STEPS}


def test_two_calls_of_a_teacher_per_step_are_separate(grow: Grow, monkeypatch: pytest.MonkeyPatch) -> None:
    about = CoAdvise.losses

    def twice(guide: CoAdvise, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        mirrored = about(guide, {**batch, "image": batch["image"].flip(-1)}, readings)
        return {name: term + 2 * mirrored[name] for name, term in about(guide, batch, readings).items()}

    monkeypatch.setattr(CoAdvise, "losses", twice)
    plain = grow("plain")
    for name, replayed in (("first", 0), ("second", 2 * STEPS)):
        run = grow(name, **{"engine.replay_gb": 1})
        assert_same(plain, run)
        assert run.metadata["teacher_logits"] == {"computed": 4 * STEPS - replayed, "replayed": replayed}


ALL = {"engine.replay_gb": 1, "train.epochs": 1, "data.per_class": None, "train.batch_size": 448}
"""Images of the digits, so that another seed is another order alone."""


@pytest.fixture(scope="module")
def recorded(teachers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a cache of one run's logits."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITICULTURE_CACHE", str(folder / "cache"))
        assert grower(teachers, folder)("first", **ALL).metadata["teacher_logits"]["replayed"] == 0
    return folder / "cache"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 1},
        {"train.batch_size": 224},
        {"train.accumulate": 2},
        {"augment.flip": {"probability": 0.5}},
        {"augment.mix.mixup": 0.4},
        {"data.per_class": 60},
        {"images.normalize": "imagenet"},
        {"images.cache_size": 6},
        {"images.fit": "stretch"},
    ],
)
def test_nothing_is_replayed_for_other_images(
    grow: Grow, changes: dict[str, Any], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITICULTURE_CACHE", str(recorded))
    answers = grow("second", **{**ALL, **changes}).metadata["teacher_logits"]
    assert (answers["replayed"] > 0) == (not changes)


OWN = """
from viticulture.data.transforms.transform import Transform

class Darker(Transform):
    columns = 0

    def __call__(self, images, u):
        return images // 2

class Negative(Transform):
    columns = 0

    def __call__(self, images, u):
        return 255 - images
"""


def test_nothing_is_replayed_for_another_order_of_custom_augmentations(
    grow: Grow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_levels.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for name, order in (("first", ("Darker", "Negative")), ("second", ("Negative", "Darker"))):
        own = {f"augment.{cls.lower()}": {"class": f"two_levels.{cls}"} for cls in order}
        run = grow(name, **{"engine.replay_gb": 1, **own})
        assert run.metadata["teacher_logits"] == {"computed": 2 * STEPS, "replayed": 0}


def test_evaluation_settings_invalidate_no_logits(grow: Grow) -> None:
    grow("first", **{"engine.replay_gb": 1})
    second = grow(
        "second", **{"engine.replay_gb": 1, "images.eval_crop": 0.75, "images.eval_interpolation": "bilinear"}
    )
    assert second.metadata["teacher_logits"] == {"computed": 0, "replayed": 2 * STEPS}


def test_an_interrupted_run_resumes_with_the_right_logits(
    grow: Grow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the fifth step, resumed, then replayed whole."""
    written = 0
    real = os.pwrite

    def stopping(handle: int, data: bytes, offset: int) -> int:
        nonlocal written
        written += 1
        if written == 9:
            raise KeyboardInterrupt
        return real(handle, data, offset)

    often = {"engine.replay_gb": 1, "engine.checkpoint_minutes": 1e-9}
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", stopping)
        with pytest.raises(KeyboardInterrupt):
            grow("stopped", **often)
    copy = shutil.copytree(
        tmp_path / "stopped", tmp_path / "elsewhere"
    )  # this process still holds the first one's lock
    stopped = viticulture.resume(str(copy))
    assert 0 < stopped.metadata["teacher_logits"]["computed"] < 2 * STEPS
    plain, again = grow("plain"), grow("again", **often)
    assert_same(plain, stopped)
    assert_same(plain, again)
    assert again.metadata["teacher_logits"] == {"computed": 0, "replayed": 2 * STEPS}


def test_logits_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    place: list[tuple[int, int] | None] = [None]
    budget = Budget(tmp_path, 10**6)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        given = {
            (epoch, step): torch.randn(3, 5, generator=torch.Generator().manual_seed(10 * epoch + step)).to(dtype)
            for epoch in range(2)
            for step in range(4)
        }
        given[0, 0][0, :4] = torch.tensor([float("nan"), float("inf"), 1e-40, -0.0])
        memory = Memory(folder, budget, lambda _: place[0], CPU)
        place[0] = None
        assert memory(IMAGES, lambda: "anything") == "anything"
        for place[0], answer in given.items():
            assert memory(IMAGES, lambda answer=answer: answer) is answer
        memory.finish_epoch()
        again = Memory(folder, budget, lambda _: place[0], CPU)
        for place[0], answer in reversed(given.items()):
            found = again(IMAGES, lambda: None)
            assert found.dtype == dtype
            assert torch.equal(found.view(torch.uint8), answer.view(torch.uint8))
        assert (again.computed, again.replayed) == (0, 8)


def test_a_damaged_record_is_computed_again(tmp_path: Path) -> None:
    place = (0, 1)
    answer = torch.randn(2, 3)
    memory = Memory(tmp_path / "a", Budget(tmp_path, 10**6), lambda _: place, CPU)
    memory(IMAGES, lambda: answer)
    memory.finish_epoch()
    file = tmp_path / "a" / "epoch-00000.bin"
    whole = file.read_bytes()
    size = len(whole) // 2
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole[size:] * 2, b""):
        file.write_bytes(broken)
        for place in ((0, 0), (0, 1)):
            torn = Memory(tmp_path / "a", Budget(tmp_path, 10**6), lambda _, place=place: place, CPU)
            good = broken == whole[size:] * 2 and place == (0, 1)
            assert (torn(IMAGES, lambda: None) is None) != good


def test_a_full_cache_ends_the_writing_not_the_run(
    grow: Grow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Room for five of twelve arrays of 10 x 10 numbers."""
    size = 4 + 400
    small = {"engine.replay_gb": (5 * size + 10) / 1e9}
    plain, first = grow("plain"), grow("first", **small)
    assert_same(plain, first)
    assert capsys.readouterr().err.count("no longer stored: they fill") == 1
    files = list((tmp_path / "cache" / "teacher_logits").rglob("*.bin"))
    assert sum(file.stat().st_size for file in files) <= 6 * size, "with a hole, perhaps"
    second = grow("second", **{"engine.replay_gb": 1})
    assert_same(plain, second)
    assert second.metadata["teacher_logits"] == {"computed": 2 * STEPS - 5, "replayed": 5}
    cache(clear=True)
    assert not any((tmp_path / "cache" / "teacher_logits").rglob("*.bin"))


def test_an_unwritable_disk_ends_the_writing_not_the_run(
    grow: Grow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "teacher_logits").write_text("in the way")
    run = grow("run", **{"engine.replay_gb": 1})
    assert run.metadata["teacher_logits"] == {"computed": 2 * STEPS, "replayed": 0}
    assert capsys.readouterr().err.count("no longer stored") == 1
    refused("replay_gb must be positive", Engine, replay_gb=0)


def test_other_outputs_and_calls_outside_training_are_not_cached(tmp_path: Path) -> None:
    memory = Memory(tmp_path, Budget(tmp_path, 10**6), lambda _: (0, 0), CPU)
    maps = torch.zeros(2, 3, 4)
    assert memory(IMAGES, lambda: maps) is maps
    assert not list(tmp_path.iterdir())

    class Sum(nn.Module):
        def forward(self, *values: Tensor) -> Tensor:
            return torch.stack(values).sum(0)

    teacher = Frozen(Sum())
    teacher.memory = memory
    for number in (1.0, 2.0):
        assert torch.equal(teacher(torch.ones(2, 3), torch.full((2, 3), number)), torch.full((2, 3), 1 + number))
