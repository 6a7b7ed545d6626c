# SPDX-License-Identifier: Apache-2.0
"""Batches with objects: a pure function of (seed, epoch, step), on two processes as on one, resumed or not."""

from pathlib import Path

import pytest
import torch

from dense_scenes import coco_folder, mask_folder
from simulated_gpu import simulated_gpu
from viticulture.data.annotated import prepare_annotated
from viticulture.data.batches.evaluation import target_batches
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.batches.targets import target_batch, unpacked
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import Dataset
from viticulture.data.image_settings import ImageSettings
from viticulture.data.open import open_source
from viticulture.data.targets.objects import NO_OBJECTS, Boxed, Objects
from viticulture.data.transforms.crop import ScaleJitter
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.placement import Placement
from viticulture.data.transforms.view import Augment
from viticulture.models.data_spec import DataSpec

Batch = dict[str, torch.Tensor]
ALONE, CPU = Shard(), torch.device("cpu")


def dataset_of(path: Path, wanted: str, masks: bool = False) -> Dataset:
    return prepare_annotated(
        open_source(path, wanted),
        DataSettings(test_fraction=0),
        ImageSettings(image_size=48, cache_size=64),
        masks=masks,
    )


def loader(dataset: Dataset, masks: bool = False, shard: Shard = ALONE, device: torch.device = CPU) -> Loader:
    augment = Augment([ScaleJitter((0.5, 2.0)), Flip()], (48, 48), dataset.mean, dataset.std, 0)
    targets = dataset.annotations["train"]
    return Loader(dataset.train, [augment], 4, 0, device=device, shard=shard).with_targets(targets, masks)


def same(first: Batch, second: Batch) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("wanted", ["objects", "pixels"])
def test_a_batch_is_a_function_of_epoch_and_step(tmp_path: Path, wanted: str) -> None:
    folder = coco_folder if wanted == "objects" else mask_folder
    dataset = dataset_of(folder(tmp_path / "set", {"train": 8, "val": 2}), wanted)
    first = loader(dataset)
    seen = [*first, *first]
    assert len(seen) == 2 * len(first) == 4
    assert all(same(seen[place], loader(dataset).batch(place // 2, place % 2)) for place in (3, 0, 2, 1))
    assert not same(seen[0], seen[2])
    stopped = loader(dataset)
    next(iter(stopped))
    resumed = loader(dataset)
    resumed.load_state_dict(stopped.state_dict())
    assert same(next(iter(resumed)), seen[1])
    assert same(next(iter(resumed)), seen[2])


def test_two_processes_are_one(tmp_path: Path) -> None:
    dataset = dataset_of(coco_folder(tmp_path / "set", {"train": 8, "val": 2}), "objects")
    whole = loader(dataset).batch(1, 1)
    for rank in (0, 1):
        part = loader(dataset, shard=Shard(rank, 2)).batch(1, 1)
        assert torch.equal(part["image"], whole["image"][rank::2])
        most = part["labels"].shape[1]
        assert torch.equal(part["boxes"], whole["boxes"][rank::2, :most])
        assert torch.equal(part["labels"], whole["labels"][rank::2, :most])


@pytest.mark.parametrize("wanted", ["objects", "pixels"])
def test_batches_on_a_gpu_are_those_on_a_cpu(tmp_path: Path, wanted: str) -> None:
    folder = coco_folder if wanted == "objects" else mask_folder
    dataset = dataset_of(folder(tmp_path / "set", {"train": 8, "val": 2}), wanted)

    seen = DataSpec(dataset.classes, (48, 48), dataset.mean, dataset.std)

    def batches(device: torch.device) -> list[Batch]:
        held_out = target_batches(dataset.val, dataset.annotations["val"], seen, 4, device)
        return [*loader(dataset, device=device), *held_out]

    expected = batches(CPU)
    with simulated_gpu() as gpu:
        found = batches(gpu)
        assert {value.device for batch in found for value in batch.values()} == {gpu}
        back = [{name: value.cpu() for name, value in batch.items()} for batch in found]
    gray_level = 1.01 / 255 / min(dataset.std)  # sizes are changed by other sums on a GPU, and rounded
    for one, other in zip(expected, back, strict=True):
        torch.testing.assert_close(one.pop("image"), other.pop("image"), rtol=0, atol=gray_level)
        torch.testing.assert_close(one, other)


def test_masks_of_objects_fill_their_boxes(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="outlines are drawn by the extra `dense`")
    dataset = dataset_of(coco_folder(tmp_path / "set", {"train": 8, "val": 2}), "objects", masks=True)
    checked = 0
    for batch in loader(dataset, masks=True):
        for boxes, labels, planes in zip(batch["boxes"], batch["labels"], batch["masks"], strict=True):
            count = int((labels >= 0).sum())
            for box, mask in zip(boxes, unpacked(planes, count), strict=False):
                rows, columns = mask.nonzero().unbind(1)
                spanned = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                torch.testing.assert_close(box, spanned.float(), rtol=0, atol=2.1)  # a stored pixel, enlarged twice
                checked += 1
    assert checked > 5


def test_an_image_without_objects_has_no_masks() -> None:
    pytest.importorskip("pycocotools", reason="outlines are drawn by the extra `dense`")
    whole, size = torch.tensor([[0, 0, 48, 48]] * 2), torch.tensor([[48, 48]] * 2)
    place = Placement(whole, size, torch.zeros(2, dtype=torch.bool), size, 48, (48, 48))
    corners, label = torch.tensor([[8.0, 8, 24, 24]]), torch.tensor([0])
    thing = Objects(corners, label, label.bool(), ([[8, 8, 24, 8, 24, 24, 8, 24]],))
    for second, objects in ((NO_OBJECTS, 0), (thing, 1)):
        batch = target_batch(place, torch.arange(2), Boxed([NO_OBJECTS, second], True), masks=True)
        assert batch["masks"].shape == (2, objects, 48, 48)
        assert (batch["labels"] >= 0).sum() == objects
        assert not batch["masks"][0].any()


def test_planes_hold_any_number_of_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 2, (19, 5, 6), generator=generator, dtype=torch.uint8)
    planes = torch.zeros(3, 5, 6, dtype=torch.uint8)
    for k, mask in enumerate(masks):
        planes[k // 8] |= mask << (k % 8)
    assert torch.equal(unpacked(planes, 19), masks)
    assert unpacked(planes, 0).shape == (0, 5, 6)
