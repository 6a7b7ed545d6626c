# SPDX-License-Identifier: Apache-2.0
"""From data to the splits of a run: selection, size, errors and warnings."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noise import noise
from refusals import refused
from viticulture.data import decoded_cache
from viticulture.data.dataset import Dataset, DataSettings, ImageSettings, prepare, prepare_test, read_rows
from viticulture.data.image_set import CachedImages, Images, Records, StreamedImages
from viticulture.data.image_settings import choose_cache_size, choose_image_size
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source, open_unlabeled
from viticulture.data.sources.arrays import from_arrays
from viticulture.data.sources.source import Source
from viticulture.data.statistics import cached_statistics, streamed_statistics
from viticulture.errors import UserError


def source(counts: Mapping[str, list[int]], side: int = 8, classes: int = 3) -> Source:
    """Create noise with this many images of each class in each split."""
    parts = {}
    for seed, (kind, each) in enumerate(counts.items()):
        labels = np.repeat(np.arange(len(each)), each)
        parts[kind] = (noise(len(labels), side, side, seed), labels)
    return from_arrays("noise", [f"class {i}" for i in range(classes)], parts)


def folder(root: Path, counts: Mapping[str, int], side: int = 8) -> Path:
    for number, (path, count) in enumerate(counts.items()):
        (root / path).mkdir(parents=True, exist_ok=True)
        for i, pixels in enumerate(noise(count, side, side, number)):
            Image.fromarray(pixels).save(root / path / f"{i:03d}.png")
    return root


def present(images: Images | None) -> Images:
    assert images is not None
    return images


def sets(data: Dataset) -> tuple[set[str], set[str], set[str]]:
    names = [set(part.records.names) if part is not None else set() for part in (data.train, data.val, data.test)]
    return names[0], names[1], names[2]


def test_pixels_labels_sizes_and_names_stay_together() -> None:
    given = source({"train": [20, 30, 10], "test": [5, 5, 5]})
    data = prepare(given, image_settings=ImageSettings(image_size=8))
    for part in (data.train, present(data.val), present(data.test)):
        assert isinstance(part, CachedImages)
        pixels = part.take(torch.arange(len(part))).permute(0, 2, 3, 1).numpy()
        for name, label, size, image in zip(
            part.records.names, part.records.labels.tolist(), part.records.sizes.tolist(), pixels, strict=True
        ):
            i = given.names.index(name)
            np.testing.assert_array_equal(image, np.asarray(given.read(i)))
            assert (label, size) == (given.labels[i], [8, 8])
    assert data.train.records.labels.dtype == torch.int64
    assert data.train.records.sizes.dtype == torch.int32


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"train": [50, 50, 50]}, (108, 12, 30)),  # 20 % of 150, then 10 % of 120
        ({"train": [50, 50, 50], "test": [9, 9, 9]}, (135, 15, 27)),
        ({"train": [50, 50, 50], "val": [8, 8, 8]}, (120, 24, 30)),
        ({"train": [50, 50, 50], "val": [8, 8, 8], "test": [9, 9, 9]}, (150, 24, 27)),
    ],
)
def test_only_undeclared_splits_are_held_out(declared: dict[str, list[int]], expected: tuple[int, int, int]) -> None:
    data = prepare(source(declared))
    train, val, test = sets(data)
    assert (len(train), len(val), len(test)) == expected
    assert len(train | val | test) == sum(expected)
    assert list(data.held_out.items()) == [("test", data.test), ("val", data.val)]


@pytest.mark.parametrize("test_on", ["test", "val", "none"])
def test_near_duplicates_of_test_images_are_not_trained_on_wherever_these_are_used(
    tmp_path: Path, test_on: str
) -> None:
    """Catches: a later evaluation on images that were trained on, as training images or as unlabeled ones."""
    root = folder(tmp_path / "photos", {f"{split}/{c}": 12 for split in ("train", "val", "test") for c in "ab"})
    for number in range(4):
        shutil.copy(root / f"test/a/{number:03}.png", root / f"train/b/of-test-{number}.png")
    more = open_unlabeled(str(root / "test"))
    settings = DataSettings(near_duplicates="leave_out", test_on=test_on)
    refused("all 24 images of data.unlabeled are", prepare, open_source(root).with_unlabeled(more), settings)
    data = prepare(root, settings)
    assert not [name for name in data.split_names["train"] if "of-test" in name]


def test_groups_of_training_images_are_known(tmp_path: Path) -> None:
    """For folds of a cross-validation: the data's, or near-duplicates."""
    root = folder(tmp_path / "photos", {"a": 20, "b": 20})
    assert prepare(root).train_groups is None
    files = sorted(root.rglob("*.png"))
    lines = [f"{path.relative_to(root)},{path.parent.name},{k // 4}" for k, path in enumerate(files)]
    (root / "list.csv").write_text("\n".join(["path,label,group", *lines]) + "\n")
    data = prepare(root / "list.csv")
    assert data.train_groups is not None
    assert set(np.bincount(data.train_groups)) == {0, 4}
    (root / "list.csv").unlink()
    shutil.copy(root / "a/003.png", root / "a/again.png")
    data = prepare(root, DataSettings(test_fraction=0, val_fraction=0.1, split_seed=1))
    groups, names = data.train_groups, data.split_names["train"]
    assert groups is not None
    assert groups[names.index("a/again.png")] == groups[names.index("a/003.png")] >= 0
    assert (groups >= 0).sum() == 2
    again = prepare(root, DataSettings(test_fraction=0, split_seed=1), remembered=data.split_names)
    np.testing.assert_array_equal(again.train_groups, groups)


def test_a_fraction_of_zero_holds_out_nothing() -> None:
    data = prepare(source({"train": [9, 9, 9]}), DataSettings(val_fraction=0, test_fraction=0))
    assert (len(data.train), data.val, data.test, data.held_out) == (27, None, None, {})


def test_the_run_s_seed_draws_the_subset_and_not_the_held_out_images() -> None:
    given = source({"train": [100, 100, 100]})
    runs = [prepare(given, DataSettings(fraction=0.1), seed=seed) for seed in (0, 1)]
    trains, vals, tests = zip(*(sets(run) for run in runs), strict=True)
    assert tests[0] == tests[1]
    assert vals[0] == vals[1]
    assert trains[0] != trains[1]
    assert not (trains[0] | trains[1]) & (vals[0] | tests[0])
    assert np.bincount(runs[0].train.records.labels).tolist() == [7, 7, 7]  # 10 % of 72, that is 90 % of 80
    other = sets(prepare(given, DataSettings(fraction=0.1, split_seed=1)))
    assert other[2] != tests[0]
    per_class = prepare(given, DataSettings(per_class=4))
    assert np.bincount(per_class.train.records.labels).tolist() == [4, 4, 4]


def test_runs_of_other_seeds_may_share_training_images() -> None:
    given = source({"train": [100, 100, 100]})
    for chosen in ({"fraction": 0.1}, {"per_class": 4}):
        first = sets(prepare(given, DataSettings(**chosen), seed=3))
        assert sets(prepare(given, DataSettings(**chosen, subset_seed=3), seed=7)) == first
        assert sets(prepare(given, DataSettings(**chosen, subset_seed=0), seed=3))[0] != first[0]


def test_the_paper_s_subset_ignores_the_seed() -> None:
    """Bootstrapping ViTs, papers 1.6."""
    given = source({"train": [40, 40, 40], "test": [5, 5, 5]})
    chosen = DataSettings(val_fraction=0, fraction=0.1, rule="bootstrapping")
    first, second = (prepare(given, chosen, seed=seed).split_names["train"] for seed in (0, 1))
    assert first == second
    order = np.arange(40)
    np.random.default_rng(0).shuffle(order)
    assert set(first[:4]) == {f"train/{i:05d}" for i in order[:4]}


def test_the_paper_s_subset_is_of_all_training_images() -> None:
    chosen = DataSettings(fraction=0.1, rule="bootstrapping")
    given = source({"train": [40, 40, 40], "val": [2, 2, 2], "test": [5, 5, 5]})
    alone = prepare(source({"train": [40, 40, 40], "test": [5, 5, 5]}), dataclasses.replace(chosen, val_fraction=0))
    assert prepare(given, chosen).split_names["train"] == alone.split_names["train"]
    with pytest.raises(
        UserError, match=r"from all training images, and data\.val_fraction 0\.1 .*set it to 0, or take"
    ):
        prepare(source({"train": [40, 40, 40], "test": [5, 5, 5]}), chosen)


def test_a_run_s_split_is_restored_from_names(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"a": 30, "b": 20})
    first = prepare(root, DataSettings(fraction=0.5), seed=3)
    remembered = json.loads(json.dumps(first.split_names))
    folder(root, {"a": 32})
    again = prepare(root, DataSettings(val_fraction=0, test_fraction=0.5, split_seed=9), seed=4, remembered=remembered)
    assert again.split_names == first.split_names
    assert again.train.records.names == first.train.records.names
    assert again.fingerprint == first.fingerprint
    gone = Path(present(first.test).records.names[0])
    (root / gone).unlink()
    refused(f"photos no longer holds 1 image of this run: {gone}", prepare, root, remembered=remembered)


def test_the_fingerprint_depends_on_content(tmp_path: Path) -> None:
    root = folder(tmp_path / "one", {"a": 10, "b": 10})
    first = prepare(root).fingerprint
    shutil.copytree(root, tmp_path / "two")
    assert prepare(tmp_path / "two").fingerprint == first
    assert prepare(root, DataSettings(split_seed=1)).fingerprint != first
    assert prepare(root, DataSettings(fraction=0.5)).fingerprint != first
    Image.fromarray(noise(1, seed=77)[0]).save(root / "a" / "000.png")
    assert prepare(root).fingerprint != first
    swapped = [from_arrays("x", ["a", "b"], {"train": (noise(4), np.array(y))}) for y in ([0, 1, 0, 1], [1, 0, 1, 0])]
    kept = DataSettings(val_fraction=0, test_fraction=0)
    assert prepare(swapped[0], kept).fingerprint != prepare(swapped[1], kept).fingerprint
    assert prepare(swapped[0], kept).contents != prepare(swapped[1], kept).contents


def test_each_split_has_its_digest(tmp_path: Path) -> None:
    root = folder(tmp_path / "one", {"train/a": 10, "train/b": 10, "test/a": 4, "test/b": 4})
    shutil.copytree(root, tmp_path / "two")
    for settings in (ImageSettings(), ImageSettings(stream=True, image_size=8)):
        before, moved = (prepare(place, image_settings=settings).contents for place in (root, tmp_path / "two"))
        assert set(before) == {"train", "val", "test"}
        assert before == moved
        Image.fromarray(noise(1, seed=77 + bool(settings.stream))[0]).save(root / "test" / "a" / "000.png")
        after = prepare(root, image_settings=settings).contents
        assert {kind for kind in before if before[kind] != after[kind]} == {"test"}
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "two", root)


REFUSED: list[tuple[dict[str, list[int]], int, str]] = [
    ({"train": [9]}, 1, r"one class only \('class 0'\)"),
    ({"train": [9, 0, 9], "test": [1, 1, 1]}, 3, "1 of 3 classes have no training images: class 1"),
    ({"train": [9, 9], "test": [1, 1, 1]}, 3, "classes have no training images: class 2"),
    ({"test": [9, 9, 9]}, 3, "classes have no training images|holds no training images"),
]


@pytest.mark.parametrize(("counts", "classes", "message"), REFUSED)
def test_data_that_cannot_be_trained_on_is_refused(counts: dict[str, list[int]], classes: int, message: str) -> None:
    refused(message, lambda: prepare(source(counts, classes=classes)))


def test_images_without_labels_are_refused_for_classification_only() -> None:
    given = from_arrays("photos", [], {"train": (noise(10), np.full(10, -1))})
    refused("photos has images but no labels", prepare, given)
    data = prepare(given, labeled=False)
    assert (len(data.train), data.val, data.test, data.classes) == (10, None, None, ())


def test_unlabeled_images_are_left_out_or_used_for_training() -> None:
    labels = np.concatenate([np.repeat([0, 1], 20), np.full(10, -1)])
    parts = {"train": (noise(50), labels), "test": (noise(5, seed=1), np.full(5, -1))}
    given = from_arrays("some", ["a", "b"], parts)
    data = prepare(given)
    assert [len(part) for part in sets(data)] == [29, 3, 8]
    assert min(int(present(part).records.labels.min()) for part in (data.train, data.val, data.test)) == 0
    assert any("left out 10 train images without a label" in text for text in data.warnings)
    assert any("left out 5 test images without a label" in text for text in data.warnings)
    free = prepare(given, labeled=False)
    assert (free.train.records.labels == -1).sum() == 10
    assert (present(free.val).records.labels >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataSettings(fraction=0.0), r"fraction must lie in \(0, 1\], got 0.0"),
        (lambda: DataSettings(fraction=10), r"fraction must lie in \(0, 1\], got 10"),
        (lambda: DataSettings(fraction=float("nan")), r"data\.fraction must be a finite number"),
        (lambda: DataSettings(per_class=0), "per_class must be at least 1, got 0"),
        (lambda: DataSettings(per_class=5, fraction=0.1), "not both"),
        (lambda: DataSettings(rule="bootstrapping"), "draws a fraction"),
        (lambda: DataSettings(val_fraction=1.0), "val_fraction must lie in"),
        (lambda: DataSettings(test_fraction=-0.1), "test_fraction must lie in"),
        (lambda: DataSettings(split_seed=-1), "split_seed"),
        (lambda: DataSettings(subset_seed=-1), "subset_seed"),
        (lambda: ImageSettings(image_size=0), "image_size must be at least 1"),
        (lambda: ImageSettings(cache_size=-3), "cache_size must be at least 1"),
        (lambda: ImageSettings(cache_margin=0.5), "cache_margin must lie in 1 to 8"),
        (lambda: ImageSettings(image_size=100_000), "image_size must not exceed 4096 pixels"),
        (
            lambda: ImageSettings(cache_size=100_000),
            r"cache_size must not exceed 4096 .*each image would take 30.00 GB",
        ),
        (lambda: ImageSettings(max_cache_gb=0), "max_cache_gb must be positive"),
        (lambda: ImageSettings(max_cache_gb=float("nan")), "max_cache_gb must be a finite number"),
        (lambda: ImageSettings(max_cache_gb=float("inf")), "max_cache_gb must be a finite number"),
        (lambda: ImageSettings(eval_crop=1.2), "eval_crop must lie in"),
        (lambda: ImageSettings(eval_interpolation="nearest"), "eval_interpolation must be bilinear or bicubic"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    refused(message, make)


def test_unreadable_images_stop_or_are_skipped_everywhere(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"train/a": 20, "train/b": 20, "test/a": 5, "test/b": 5})
    for path in ("train/a/bad.png", "test/b/bad.png"):
        (root / path).write_bytes(b"text")
    refused(r"2 of 52 images cannot be read: test/b/bad.png .*--skip-unreadable", prepare, root)
    data = prepare(root, DataSettings(skip_unreadable=True))
    assert set(data.skipped) == {"train/a/bad.png", "test/b/bad.png"}
    assert "not an image" in data.skipped["train/a/bad.png"]
    assert not {"train/a/bad.png", "test/b/bad.png"} & set().union(*sets(data))
    assert not {"train/a/bad.png", "test/b/bad.png"} & {name for names in data.split_names.values() for name in names}
    assert any("skipped 2 images that could not be read" in text for text in data.warnings)
    again = prepare(root, remembered=data.split_names)
    assert again.fingerprint == data.fingerprint


def test_a_split_that_loses_all_images_is_removed(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"train/a": 9, "train/b": 9, "val/a": 2, "val/b": 2, "test/a": 5, "test/b": 5})
    for path in sorted(root.glob("val/*/*")):
        path.write_bytes(b"text")
    data = prepare(root, DataSettings(skip_unreadable=True))
    assert data.val is None
    assert set(data.split_names) == {"train", "test"}
    assert "no validation image can be read, so the run has no validation" in data.warnings
    assert prepare(root, remembered=data.split_names).fingerprint == data.fingerprint
    source = open_source(root)
    with pytest.raises(UserError, match="photos has no images to test on that can be read"):
        read_rows(source, source.splits["val"], data.image_settings, skip_unreadable=True)
    for path in sorted(root.glob("train/*/*")):
        path.write_bytes(b"text")
    refused("photos has no training images that can be read", prepare, root, DataSettings(skip_unreadable=True))


def test_the_papers_subset_is_not_drawn_from_images_without_a_class() -> None:
    given = source({"train": [9, 9, 9]})
    given.labels[[2, 5]] = -1
    chosen = DataSettings(test_fraction=0, val_fraction=0, fraction=0.5, rule="bootstrapping")
    with pytest.raises(UserError, match="draws from every class, and 2 training images of noise have none; set data"):
        prepare(given, chosen, labeled=False)
    assert len(prepare(given, chosen).train) == 12


def test_a_class_that_loses_all_images_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"a": 10, "b": 10})
    (root / "c").mkdir()
    (root / "c" / "bad.png").write_bytes(b"")
    refused("1 of 3 classes have no training images: c", prepare, root, DataSettings(skip_unreadable=True))


def test_warnings(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"train/a": 60, "train/b": 3, "test/a": 4, "test/b": 4})
    shutil.copy(root / "train/a/007.png", root / "test/b/copy.png")
    (root / "train/a/notes.txt").write_text("x")
    (root / "README.md").write_text("x")  # a person knows, and nothing is lost
    (root / "train/LICENSE").write_text("x")
    text = "\n".join(prepare(root, DataSettings(val_fraction=0)).warnings)
    assert "classes are unbalanced: a has 60 training images, b has 3" in text
    assert "fewer than 5 training images in 1 class: b" in text
    assert "1 test image, pixel by pixel the same as training images" in text
    assert "test/b/copy.png and train/a/007.png" in text
    assert "ignored files that are no images: 1 file, train/a/notes.txt\n" in f"{text}\n"
    (root / "labels.csv").write_text("path,label\n")
    text = "\n".join(prepare(root, DataSettings(val_fraction=0)).warnings)
    assert "labels.csv is read where it is named in place of its folder" in text
    text = "\n".join(prepare(root, DataSettings(val_fraction=0, per_class=10)).warnings)
    assert "fewer than 10 training images in 1 class: b" in text
    assert prepare(source({"train": [30, 30, 30], "test": [5, 5, 5]})).warnings == ()
    (unmeasured,) = prepare(source({"train": [30, 30, 30], "test": [5, 0, 5]})).warnings
    assert unmeasured == "no test image shows class 1: nothing is measured of what no image shows"
    assert prepare(source({"train": [30, 30, 30], "test": [5, 0, 5]}), labeled=False).warnings == ()
    notes = prepare(source({"train": [30, 30, 1]}), DataSettings(val_fraction=0)).warnings
    held_out = "no image of 1 class is held out as test, for too few images: class 2"
    assert [note for note in notes if "test" in note] == [held_out], "said twice, and once without the reason"


@pytest.mark.parametrize(
    ("sizes", "image_size", "cache_size"),
    [
        ([(32, 32)], 32, 32),
        ([(8, 8)], 8, 8),
        ([(28, 28)], 28, 28),
        ([(50, 50)], 48, 50),
        ([(47, 47)], 44, 47),
        ([(1, 1)], 8, 1),
        ([(30, 40), (33, 50)], 32, 48),
        ([(64, 64)], 64, 64),
        ([(64, 65)], 64, 65),
        ([(160, 213)], 160, 208),
        ([(90, 400)], 64, 80),
        ([(100, 400)], 96, 128),
        ([(3000, 4000), (4000, 3000)], 224, 288),
        ([(20, 10_000)], 64, 80),
    ],
)
def test_sizes_follow_the_images(sizes: list[tuple[int, int]], image_size: int, cache_size: int) -> None:
    array = np.array(sizes * 3)
    assert choose_image_size(array) == image_size
    assert choose_cache_size(image_size, array, 1.25) == cache_size


def test_a_larger_input_does_not_enlarge_the_cache() -> None:
    """CIFAR at 224 is stored at 32."""
    assert choose_cache_size(224, np.array([[32, 32]]), 1.25) == 32
    assert choose_cache_size(224, np.array([[375, 500]] * 2), 1.25) == 288
    assert choose_cache_size(224, np.array([[375, 500], [600, 800]]), 2.25) == 512
    assert choose_cache_size(224, np.array([[32, 32]]), 2.25) == 32
    data = prepare(source({"train": [9, 9, 9]}, side=12), image_settings=ImageSettings(image_size=48))
    assert (data.image_size, data.image_settings.cache_size) == (48, 12)


def test_chosen_sizes_are_passed_on() -> None:
    data = prepare(source({"train": [9, 9, 9]}, side=20))
    assert data.image_settings == ImageSettings(image_size=20, cache_size=20)
    again = prepare(source({"train": [9, 9, 9]}, side=30), image_settings=data.image_settings)
    assert isinstance(again.train, CachedImages)
    assert again.train.pixels.shape[-1] == again.image_size == 20


def test_statistics_are_those_of_the_training_pixels() -> None:
    """mean = E[x / 255], std = sqrt(E[x^2] - mean^2), per channel, over all pixels of the training images alone."""
    given = source({"train": [40, 30, 30], "test": [200, 10, 10]})
    given.reader.pixels[:100, ..., 1] //= 2  # type: ignore[attr-defined]
    data = prepare(given, DataSettings(val_fraction=0), ImageSettings(normalize="dataset"))
    pixels = given.reader.pixels[:100].astype(np.float64) / 255  # type: ignore[attr-defined]
    np.testing.assert_allclose(data.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(data.std, pixels.std(axis=(0, 1, 2)), rtol=1e-5)
    mean, std = streamed_statistics(given, np.arange(100), 8)
    np.testing.assert_allclose((mean, std), (data.mean, data.std), rtol=1e-5)
    black = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert cached_statistics(black, torch.arange(2)) == ((0, 0, 0), (1, 1, 1))


def test_statistics_of_a_stream_are_those_of_a_cache() -> None:
    given = source({"train": [9, 9, 9]}, side=16)
    stored, streamed = (
        prepare(given, image_settings=ImageSettings(image_size=6, cache_size=12, normalize="dataset", stream=way))
        for way in (False, True)
    )
    assert isinstance(streamed.train, StreamedImages)
    np.testing.assert_allclose((streamed.mean, streamed.std), (stored.mean, stored.std), rtol=1e-5)


def test_named_normalizations_are_the_papers() -> None:
    """papers.md 1.6 for CIFAR."""
    given = source({"train": [9, 9, 9]})
    stats = {
        key: prepare(given, image_settings=ImageSettings(normalize=key))
        for key in ("imagenet", "cifar10", "cifar100", "half")
    }
    assert stats["imagenet"].mean == (0.485, 0.456, 0.406)
    assert stats["imagenet"].std == (0.229, 0.224, 0.225)
    assert stats["cifar10"].mean == (0.4914, 0.4822, 0.4465)
    assert stats["cifar100"].mean == (0.5071, 0.4867, 0.4408)
    assert stats["cifar10"].std == stats["cifar100"].std == (0.2023, 0.1994, 0.2010)
    assert stats["half"].mean == stats["half"].std == (0.5, 0.5, 0.5)


def test_sets_beyond_the_limit_are_streamed_alike() -> None:
    given = source({"train": [20, 20, 20], "test": [4, 4, 4]})
    stored = prepare(given)
    whole = 72 * 3 * 8 * 8 / 1e9
    for image_settings in (ImageSettings(max_cache_gb=whole * 0.99), ImageSettings(stream=True)):
        streamed = prepare(given, image_settings=image_settings)
        for ours, theirs in ((streamed.train, stored.train), (present(streamed.test), present(stored.test))):
            assert isinstance(ours, StreamedImages)
            assert ours.records.names == theirs.records.names
            torch.testing.assert_close(ours.records.labels, theirs.records.labels)
            assert ours.extent(3) == theirs.extent(3)
            np.testing.assert_array_equal(ours.original(2), theirs.original(2))
    assert isinstance(prepare(given, image_settings=ImageSettings(max_cache_gb=whole * 1.01)).train, CachedImages)
    with pytest.raises(UserError, match=r"more than images\.max_cache_gb"):
        prepare(given, image_settings=ImageSettings(stream=False, max_cache_gb=whole * 0.99))


def test_a_subset_within_the_limit_is_cached(tmp_path: Path) -> None:
    given = source({"train": [100, 100, 100], "test": [4, 4, 4]})
    chosen, image_settings = DataSettings(val_fraction=0, fraction=0.1), ImageSettings(max_cache_gb=100 * 3 * 64 / 1e9)
    data = prepare(given, chosen, image_settings)
    assert isinstance(data.train, CachedImages)
    assert len(data.train.pixels) == 42
    expected = [np.asarray(given.read(given.names.index(name))) for name in data.train.records.names]
    pixels = data.train.take(torch.arange(30)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(pixels, np.stack(expected))
    assert data.train.records.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert present(data.test).records.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_other_data_is_evaluated_in_the_network_s_classes(tmp_path: Path) -> None:
    classes = ["zebra", "b", "a", "never here"]
    root = folder(tmp_path / "photos", {"train/a": 3, "train/zebra": 3, "test/a": 2, "test/zebra": 1})
    images, skipped = prepare_test(root, classes, ImageSettings(image_size=8, cache_size=8))
    assert images.records.labels.tolist() == [2, 2, 0]
    assert skipped == {}
    whole, _ = prepare_test(root / "train", classes, ImageSettings(image_size=8, cache_size=8))
    assert whole.records.labels.tolist() == [2, 2, 2, 0, 0, 0]
    folder(root, {"test/zebras": 1})
    refused("unknown class of photos 'zebras'; did you mean zebra", prepare_test, root, classes, ImageSettings())
    blank = from_arrays("blank", [], {"train": (noise(3), np.full(3, -1))})
    refused("no labeled images", prepare_test, blank, classes, ImageSettings())


def test_a_cached_picture_is_drawn_in_its_proportions() -> None:
    pixels = torch.zeros(3, 3, 16, 16, dtype=torch.uint8)
    sizes = torch.tensor([[100, 200], [16, 16], [1, 5000]], dtype=torch.int32)
    records = Records(torch.zeros(3, dtype=torch.int64), sizes, ["a", "b", "c"])
    images = CachedImages(pixels, torch.arange(3), records)
    assert [images.original(i).shape for i in range(3)] == [(8, 16, 3), (16, 16, 3), (1, 16, 3)]


def test_an_inspection_counts_everything(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"train/a": 6, "train/b": 4, "test/a": 2})
    for copy in ("test/a/seen.png", "train/b/contradiction.png"):
        shutil.copy(root / "train/a/000.png", root / copy)
    shutil.copy(root / "train/a/001.png", root / "train/a/twice.png")
    Image.new("L", (50, 3)).save(root / "train/a/gray.png")
    (root / "train/b/bad.jpg").write_bytes(b"")
    (root / "train/b/notes.txt").write_text("x")
    told: list[tuple[int, int]] = []
    seen = inspect(root, progress=lambda *at: told.append(at))
    assert seen.counts == {"train": (8, 6), "test": (3, 0)}
    assert (seen.images, seen.unlabeled, seen.classes) == (17, 0, ("a", "b"))
    assert seen.height is not None
    assert dataclasses.astuple(seen.height) == (3, 8.0, 8)
    assert seen.width is not None
    assert dataclasses.astuple(seen.width) == (8, 8.0, 50)
    assert seen.modes == {"RGB": 15, "L": 1}
    assert seen.unreadable == {"train/b/bad.jpg": "empty file"}
    assert seen.ignored == ("train/b/notes.txt",)
    group = ("test/a/seen.png", "train/a/000.png", "train/b/contradiction.png")
    assert (seen.across, seen.contradicting, seen.repeated) == ((group,), (group,), 3)
    assert told[-1] == (17, 17)
    assert json.loads(json.dumps(seen.to_dict()))["counts"]["train"] == [8, 6]
    assert not (tmp_path / "cache" / "decoded").exists()


def test_an_image_without_a_label_contradicts_none(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"train/a": 2, "train/b": 2, "test": 1})
    shutil.copy(root / "train/a/000.png", root / "test/same.png")
    seen = inspect(root)
    assert (seen.across, seen.contradicting) == ((("test/same.png", "train/a/000.png"),), ())


def test_a_cache_is_shared_by_fractions_and_seeds() -> None:
    given = source({"train": [40, 40, 40]})
    told: list[tuple[int, int]] = []
    prepare(given, progress=lambda *at: told.append(at))
    assert told
    told.clear()
    for seed in (1, 2):
        prepare(given, DataSettings(fraction=0.2, split_seed=seed), seed=seed, progress=lambda *at: told.append(at))
    assert told == []
    assert decoded_cache.build(given, 8).pixels.shape == (120, 3, 8, 8)


def scene_of(seed: int) -> np.ndarray:
    """Draw [48, 48, 3] smooth shapes."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((48, 48), Image.Resampling.BICUBIC))


def with_bursts(root: Path, split: str = "") -> Path:
    """Write two classes of 20 scenes, each twice; with a named split, one in it and one in train."""
    for c in range(2):
        for i in range(40):
            place = root / (("train", split)[i % 2] if split else "") / f"class {c}" / f"{i:02}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scene_of(100 * c + i // 2) // 2 + 60 + i % 2).save(place)
    return root


def scenes(names: list[str]) -> set[tuple[str, int]]:
    return {(Path(name).parent.name, int(Path(name).stem) // 2) for name in names}


@pytest.mark.parametrize("size", [16, 32])
def test_drawn_splits_keep_near_duplicates_together(tmp_path: Path, size: int) -> None:
    root, settings = with_bursts(tmp_path / "set"), ImageSettings(image_size=size, cache_size=size)
    data = prepare(root, image_settings=settings)
    train, val, test = (scenes(data.split_names[split]) for split in ("train", "val", "test"))
    assert not train & val | train & test | val & test
    assert [len(data.split_names[split]) for split in ("train", "val", "test")] == [60, 4, 16]
    assert data.near_duplicates == {}
    assert data.split_names == prepare(root, image_settings=ImageSettings(image_size=24, cache_size=24)).split_names
    apart = prepare(root, DataSettings(near_duplicates="ignore"), settings)
    assert scenes(apart.split_names["train"]) & scenes(apart.split_names["test"])
    again = prepare(root, image_settings=settings, remembered=apart.split_names)
    assert again.split_names == apart.split_names
    folds = [prepare(root, DataSettings(folds=4, fold=fold), settings).split_names for fold in range(4)]
    assert not any(scenes(each["train"]) & scenes(each["test"]) for each in folds)


def test_without_near_duplicates_splits_do_not_change(tmp_path: Path) -> None:
    for i in range(60):
        place = tmp_path / "set" / "ab"[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene_of(i)).save(place)
    for selection in (DataSettings(), DataSettings(split_seed=3, test_fraction=0.4), DataSettings(folds=3)):
        ignored = dataclasses.replace(selection, near_duplicates="ignore")
        assert prepare(tmp_path / "set", selection).split_names == prepare(tmp_path / "set", ignored).split_names


def test_near_duplicates_across_declared_splits_are_reported_and_can_be_left_out(tmp_path: Path) -> None:
    root = with_bursts(tmp_path / "set", "test")
    for name in ("class 0/37.png", "class 0/39.png", "class 1/35.png"):
        (root / "test" / name).unlink()
    data = prepare(root, DataSettings(val_fraction=0))
    assert data.near_duplicates == {"test": data.split_names["test"]}
    assert any("37 of 37 test images have near-duplicates among the training images" in note for note in data.warnings)
    left = prepare(root, DataSettings(val_fraction=0, near_duplicates="leave_out"))
    assert left.split_names["test"] == data.split_names["test"]
    assert left.split_names["train"] == [f"train/class {c}/{i}.png" for c, i in ((0, 36), (0, 38), (1, 34))]
    assert left.near_duplicates == {}
    assert any("left out 37 training images" in note for note in left.warnings)
    few = prepare(root, DataSettings(val_fraction=0, per_class=5))
    assert len(few.near_duplicates["test"]) in range(7, 11)
    (root / "train" / "class 1" / "34.png").unlink()
    with pytest.raises(UserError, match="would leave no training image of class 1"):
        prepare(root, DataSettings(val_fraction=0, near_duplicates="leave_out"))


def test_skipped_near_duplicate_search_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, small = with_bursts(tmp_path / "set", "test"), tmp_path / "small" / "a"
    streamed = prepare(root, image_settings=ImageSettings(image_size=16, cache_size=16, stream=True))
    assert any("near-duplicates are not searched among streamed images" in note for note in streamed.warnings)
    monkeypatch.setattr(decoded_cache, "MAX_IMAGES", 10)
    assert prepare(root).near_duplicates == {}
    monkeypatch.undo()
    for place in (small, small.with_name("b")):
        place.mkdir(parents=True)
        for i in range(20):
            pixels = noise(1, 8, 8, i // 2)[0] if place == small else noise(1, 8, 8, 100 + i)[0]
            Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels).save(place / f"{i:02}.png")
    names = prepare(small.parent, DataSettings(val_fraction=0)).split_names
    twins = [{int(Path(name).stem) // 2 for name in names[split] if name.startswith("a")} for split in names]
    assert not twins[0] & twins[1]
