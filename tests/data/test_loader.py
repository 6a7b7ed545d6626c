# SPDX-License-Identifier: Apache-2.0
"""Batches are a pure function of (seed, epoch, step); two integers resume them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from refusals import refused
from viticulture.config.resolve import plan_of, resolve
from viticulture.data.batches.evaluation import evaluation_batches
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.batches.sampling import Sampling, repeated
from viticulture.data.image_set import CachedImages, Records
from viticulture.data.transforms.color import Blur
from viticulture.data.transforms.crop import CenterCrop, PaddedCrop, Resize, ResizedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.mix import Mix
from viticulture.data.transforms.rand_augment import RandAugment
from viticulture.data.transforms.view import Augment

MEAN, STD, CLASSES = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), 3


def images(count: int, side: int = 10) -> CachedImages:
    """Draw different noise in every image; the split takes every other image of its cache, backwards."""
    pixels = torch.randint(0, 256, (2 * count, 3, side, side), generator=torch.Generator().manual_seed(0))
    records = Records(torch.arange(count) % CLASSES, torch.tensor([[20, 30]] * count), [str(n) for n in range(count)])
    return CachedImages(pixels.to(torch.uint8), torch.arange(2 * count - 1, 0, -2), records)


def view(*extra: Any) -> Augment:
    return Augment([ResizedCrop(), Flip(), RandAugment(), Erase(), *extra], (8, 8), MEAN, STD, CLASSES)


def loader(count: int = 25, batch_size: int = 8, seed: int = 0, **keywords: Any) -> Loader:
    return Loader(images(count), (view(Mix()),), batch_size, seed, **keywords)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_batch_is_a_function_of_seed_epoch_and_step() -> None:
    first = loader()
    kept = {(epoch, step): first.batch(epoch, step) for epoch in (0, 1, 2) for step in (0, 1, 2)}
    torch.manual_seed(9)
    second = loader()
    for (epoch, step), batch in reversed(kept.items()):
        assert same(batch, second.batch(epoch, step))
    other = [*kept.values(), loader(seed=1).batch(0, 0), loader(seed=1).batch(1, 2)]
    assert len({batch["image"].numpy().tobytes() for batch in other}) == len(other)
    keys = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    tables = [loader(seed=seed).draw(epoch, step).u[0] for seed, epoch, step in keys]
    assert len({table.numpy().tobytes() for table in tables}) == 4


def test_an_epoch_has_each_image_once_and_drops_the_rest() -> None:
    load = loader()
    assert len(load) == 3
    epochs = [list(load), list(load)]
    for epoch, batches in enumerate(epochs):
        assert len(torch.cat([batch["index"] for batch in batches]).unique()) == 24
        assert all(same(batch, load.batch(epoch, step)) for step, batch in enumerate(batches))
    assert not torch.equal(epochs[0][0]["index"], epochs[1][0]["index"])


def test_steps_made_together_equal_those_made_alone() -> None:
    load = Loader(images(25), (view(), view()), 4, seed=0, shard=Shard(1, 2))
    alone = {(epoch, step): load.batch(epoch, step) for epoch in (0, 1) for step in range(6)}
    load.at_once = 4
    together = [batch for _ in (0, 1) for batch in load]
    assert all(map(same, alone.values(), together))
    load.load_state_dict({"epoch": 0, "next": 3})
    assert all(map(same, [alone[0, step] for step in (3, 4, 5)], load))


def test_resuming_makes_steps_in_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 3 of 6 on, as from 0. Catches: groups that begin where a run resumes, in which a GPU may round
    otherwise."""
    sizes: list[int] = []
    staged = Loader._staged
    monkeypatch.setattr(
        Loader, "_staged", lambda self, draw, *rest: (sizes.append(len(draw.numbers)), staged(self, draw, *rest))[1]
    )
    load = Loader(images(25), (view(),), 4, seed=0)
    load.at_once = 4
    whole = [list(load), list(load)]
    assert sizes == [16, 8, 16, 8]
    sizes.clear()
    load.load_state_dict({"epoch": 0, "next": 3})
    resumed = [list(load), list(load)]
    assert sizes == [16, 8, 16, 8]
    assert all(map(same, whole[0][3:] + whole[1], resumed[0] + resumed[1]))


def test_labels_and_pixels_belong_to_their_index() -> None:
    data = images(12)
    batch = Loader(data, (Augment([Resize()], (10, 10), MEAN, STD, CLASSES),), 6, 0).batch(0, 1)
    assert torch.equal(batch["label"], data.records.labels[batch["index"]])
    pixels = (batch["image"] * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255
    torch.testing.assert_close(pixels, data.take(batch["index"]).float(), atol=1e-3, rtol=0)


def test_fixed_views_begin_again() -> None:
    """Order and augmentation of epoch 2 are those of epoch 0, of epoch 1 are others."""
    whole = loader(sampling=Sampling(fixed_views=2))
    first, second, third = (whole.batch(epoch, 0) for epoch in range(3))
    assert all(torch.equal(first[key], third[key]) for key in first)
    assert not torch.equal(first["image"], second["image"])
    assert not torch.equal(first["index"], second["index"])


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(3), Sampling(balanced=True), Sampling(3, balanced=True)], ids=str
)
def test_two_processes_together_are_one(sampling: Sampling) -> None:
    """The rows of two shards, interleaved, are the global batch: images, labels (mixed), index."""
    whole = loader(sampling=sampling)
    halves = [loader(sampling=sampling, shard=Shard(rank, 2)) for rank in (0, 1)]
    for step in range(len(whole)):
        one, two = whole.batch(3, step), [half.batch(3, step) for half in halves]
        for key in one:
            assert torch.equal(one[key], torch.stack([part[key] for part in two], 1).flatten(0, 1))


@pytest.mark.parametrize("count", [11, 14, 26])
def test_mixing_on_several_processes_pairs_the_same_images(count: int) -> None:
    def size(images: int = count, **train: int) -> int:
        overrides = {"engine.devices": 2, **{f"train.{key}": value for key, value in train.items()}}
        return plan_of(resolve("mixed", {"augment": {"mix": {}}}, overrides), images).batch_size

    whole = loader(count, size())
    halves = [loader(count, size(), shard=Shard(rank, 2)) for rank in (0, 1)]
    one, two = whole.batch(0, 0), [half.batch(0, 0) for half in halves]
    assert torch.equal(one["label"], torch.stack([part["label"] for part in two], 1).flatten(0, 1))
    for wrong in ({"batch_size": 6}, {"batch_size": 6, "accumulate": 3}, {"images": 3}):
        refused(r"multiple of (4|12).*mixing", size, **wrong)
    assert size(batch_size=8, accumulate=2) == 8
    assert plan_of(resolve("alone", {"augment": {"mix": {}}}, {"train.batch_size": 5}), count).batch_size == 5


@pytest.mark.parametrize(
    ("images", "by_adamw", "by_muon"),
    [(12, 12, 12), (1279, 16, 16), (1280, 32, 16), (2560, 64, 32), (5119, 64, 32), (5120, 128, 64), (10**6, 512, 512)],
)
def test_batch_size_depends_on_images_and_optimizer(images: int, by_adamw: int, by_muon: int) -> None:
    def size(**keys: object) -> int:
        own = {"student": "hybrid_nano", "optim": {"name": "auto"}}
        overrides = {key.replace("_", ".", 1): value for key, value in keys.items()}
        return plan_of(resolve("own", own, overrides), images).batch_size

    assert size() == by_muon  # what is left open is Muon for a hybrid
    assert size(optim_name="adamw") == size(student_name="vit_nano") == by_adamw
    assert size(train_batch_size=10) == 10


def test_repeated_augmentation_is_deits(golden: Callable[[str], Any]) -> None:
    """Official RASampler: 1,000 images, two processes, each number three times in a row, then strided and cut."""
    official = golden("deit_ra_sampler")
    order = repeated(official["out/permutation"], 3, 2)
    for rank in (0, 1):
        assert torch.equal(order[rank::2], official[f"out/rank{rank}"])


def test_few_images_are_repeated_without_blocks() -> None:
    assert len(loader(25, sampling=Sampling(3))) == len(loader(25)) == 3
    assert len(repeated(torch.arange(300), 3, 1)) == 256
    index = loader(25, sampling=Sampling(3)).batch(0, 0)["index"]
    assert index[:3].unique().numel() == 1
    assert index.unique().numel() == 3


def test_copies_of_an_image_are_augmented_independently() -> None:
    batch = Loader(images(12), (view(),), 12, 0, sampling=Sampling(3)).batch(0, 0)
    assert len({image.numpy().tobytes() for image in batch["image"]}) > 9


def test_two_views_are_drawn_independently() -> None:
    load = Loader(images(12), (view(), view()), 6, 0)
    batch = load.batch(0, 0)
    assert batch["image"].shape == batch["image2"].shape
    assert not torch.equal(batch["image"], batch["image2"])
    assert torch.equal(batch["image"], Loader(images(12), (view(),), 6, 0).batch(0, 0)["image"])
    refused("mix does not apply", lambda: Loader(images(12), (view(), view(Mix())), 6, 0))


def test_the_state_counts_batches_handed_out() -> None:
    load, seen = loader(), []
    for batch in load:
        seen.append(batch)
        if len(seen) == 2:
            break
    assert load.state_dict() == {"epoch": 0, "next": 2}
    resumed = loader()
    resumed.load_state_dict(load.state_dict())
    assert [same(a, b) for a, b in zip(list(resumed), [load.batch(0, 2)], strict=True)] == [True]
    assert resumed.state_dict() == {"epoch": 1, "next": 0}
    assert len(list(resumed)) == 3
    refused("3 steps an epoch", load.load_state_dict, {"epoch": 0, "next": 7})


def test_workers_change_nothing() -> None:
    plain, helped = loader(), loader(shard=Shard(workers=2))
    keys = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    got = [*helped, *(batch for batch, _ in zip(helped, range(2), strict=False))]
    assert all(same(batch, plain.batch(*key)) for key, batch in zip(keys, got, strict=True))
    helped.load_state_dict({"epoch": 5, "next": 2})
    assert same(next(iter(helped)), plain.batch(5, 2))


class Tiny(LightningModule):
    """A linear student that records its images' indices by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3 * 8 * 8, CLASSES)
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, batch["index"].tolist()))
        return nn.functional.cross_entropy(self.net(batch["image"].flatten(1)), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Stop(Callback):
    """Stores a checkpoint after a step, and ends the run there."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def fit(path: Path | None = None, stop: Callback | None = None) -> Tiny:
    torch.manual_seed(0)
    model = Tiny()
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, min_epochs=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[stop] if stop else [],
    )  # fmt: skip
    trainer.fit(model, loader(), ckpt_path=path, weights_only=True if path else None)
    return model


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6, 8])
@pytest.mark.filterwarnings("ignore")
def test_a_stopped_fit_resumes_with_the_next_batch(step: int, tmp_path: Path) -> None:
    whole = fit()
    assert [epoch for epoch, _ in whole.seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    first = fit(stop=Stop(step, tmp_path / "state.ckpt"))
    assert first.seen[:step] == whole.seen[:step]
    second = fit(tmp_path / "state.ckpt")
    assert second.seen == whole.seen[step:]
    assert torch.equal(second.net.weight, whole.net.weight)


@dataclass
class Wanted:
    image_size: tuple[int, int]
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD


def test_evaluation_has_every_image_once_in_order() -> None:
    data = images(7)
    data.records.sizes[:] = 10
    batches = list(evaluation_batches(data, Wanted((10, 10)), 3, torch.device("cpu")))
    assert [len(batch["image"]) for batch in batches] == [3, 3, 1]
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(7))
    assert torch.equal(torch.cat([batch["label"] for batch in batches]), data.records.labels)
    shown = torch.cat([batch["image"] for batch in batches])
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    torch.testing.assert_close(shown, (data.take(torch.arange(7)) / 255 - mean) / std)
    smaller = next(iter(evaluation_batches(data, Wanted((6, 4)), 3, torch.device("cpu"), CenterCrop(0.9))))
    assert smaller["image"].shape == (3, 3, 6, 4)


def test_impossible_settings_are_refused() -> None:
    refused("must not exceed the 25 images of an epoch, got 26", loader, 25, 26)
    refused("multiple of the 3 processes, got 8", lambda: loader(shard=Shard(0, 3)))
    refused("repeats", Sampling, repeats=0)
    refused("one view at least", lambda: Loader(images(8), (), 4, 0))


def test_padded_crops_of_one_image_and_another_shape() -> None:
    batch = Loader(images(5), (Augment([PaddedCrop(), Flip()], (12, 20), MEAN, STD, 3),), 1, 0).batch(0, 4)
    assert batch["image"].shape == (1, 3, 12, 20)


def test_teachers_get_the_same_crop_at_their_own_size() -> None:
    """At the student's size the very same images; at twice its size, averaged in twos, nearly so. The student's images,
    labels and random numbers are those without a teacher."""
    views = Augment([ResizedCrop((0.3, 1)), Flip(), Mix()], (8, 8), MEAN, STD, CLASSES)
    smooth = torch.nn.functional.interpolate(torch.rand(8, 3, 5, 5), (48, 48), mode="bicubic").clamp(0, 1)
    records = Records(torch.arange(8) % CLASSES, torch.tensor([[48, 48]] * 8), [str(n) for n in range(8)])
    source = CachedImages((255 * smooth).to(torch.uint8), torch.arange(8), records)
    plain, same_size, larger = (Loader(source, (views,), 4, 0) for _ in range(3))
    same_size.with_teacher_view(8)
    larger.with_teacher_view(16)
    for step in range(2):
        without, with_same, with_larger = (each.batch(1, step) for each in (plain, same_size, larger))
        assert torch.equal(with_same.pop("teacher_image"), without["image"])
        teacher = with_larger.pop("teacher_image")
        assert teacher.shape == (4, 3, 16, 16)
        halved = torch.nn.functional.avg_pool2d(teacher, 2)
        apart = (halved - without["image"]).abs().mean()
        assert apart < 0.2 * (halved - halved.roll(1, 0)).abs().mean()
        assert same(with_same, without)
        assert same(with_larger, without)


def test_blur_for_a_teacher_grows_with_its_images() -> None:
    view = Augment([Blur(1.0, (1.0, 2.0))], (8, 8), MEAN, STD, CLASSES).resized((24, 24))
    assert [vars(blur)["sigma"] for blur in view.before] == [(3.0, 6.0)]
