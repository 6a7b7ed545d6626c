# SPDX-License-Identifier: Apache-2.0
"""Advice of `data`: copies across splits, unbalanced classes, lists next to images, no labels."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

import viticulture
from dense_scenes import coco_folder
from viticulture.cli import main
from viticulture.data import near_duplicates
from viticulture.data.dataset import prepare
from viticulture.data.decoded_cache import pixel_digest
from viticulture.data.inspect import inspect
from viticulture.data.near_duplicates import SIDE, NearDuplicates, match_thumbnails, thumbnail
from viticulture.report.inspection import inspected


def scene(seed: int, size: tuple[int, int] = (120, 160)) -> Image.Image:
    """Draw smooth shapes, as photographs have them."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC)


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    image.save(file := io.BytesIO(), "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def copies(images: list[Image.Image]) -> NearDuplicates:
    small = [thumbnail(image) for image in images]
    kept = [np.zeros((SIDE, SIDE, 3), np.uint8) if each is None else each for each in small]
    marks = [
        pixel_digest(np.asarray(image) if each is None else each) for each, image in zip(small, images, strict=True)
    ]
    usable = np.array([each is not None for each in small], bool)
    rows = len(images)
    pixels = np.array(kept, np.uint8).reshape(rows, SIDE, SIDE, 3)
    return match_thumbnails(np.frombuffer(b"".join(marks), np.uint8).reshape(rows, 16), pixels, usable)


def test_copies_are_found_and_other_images_are_not() -> None:
    """Saved again, shrunk, a little lighter, blurred."""
    scenes = [scene(i) for i in range(60)]
    changed = [
        recompressed(scenes[0], 30), scenes[10].resize((80, 60)), scenes[20].point(lambda level: min(255, level + 3)),
        scenes[30].filter(ImageFilter.GaussianBlur(1)), recompressed(scenes[40].resize((70, 50)), 60),
    ]  # fmt: skip
    found = copies([*scenes, *changed])
    assert list(found.listed()) == [(0, 60), (10, 61), (20, 62), (30, 63), (40, 64)]
    assert found.among(np.arange(60, 65), np.arange(60)).all()
    assert not found.among(np.arange(1, 10), np.array([0, *range(10, 65)])).any()
    assert not found.among(np.arange(10), np.arange(10, 60)).any()


def test_similar_backgrounds_are_no_copies() -> None:
    wall = np.asarray(scene(0)).copy()
    for size, color in ((40, ((200, 90, 30), (92, 130, 92))), (16, ((255, 255, 255), (0, 0, 0)))):
        pair = [wall.copy(), wall.copy()]
        for image, level in zip(pair, color, strict=True):
            image[40 : 40 + size, 60 : 60 + size] = level
        assert not list(copies([Image.fromarray(image) for image in pair]).listed()), color
    haze = [scene(i).point(lambda level: 200 + level // 12) for i in range(2, 20)]
    assert not list(copies(haze).listed())


def test_flat_and_small_images_are_copies_only_if_equal() -> None:
    white = [Image.new("RGB", (64, 64), (250 - i, 250, 250)) for i in range(4)]
    small = [scene(0, (31, 200)), scene(0, (31, 200)), scene(0, (31, 200)).point(lambda level: level ^ 1)]
    assert thumbnail(small[0]) is None
    assert list(copies([*white, white[0], *small]).listed()) == [(0, 4), (5, 6)]
    assert list(copies([]).listed()) == []


def test_frames_of_a_video_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = (np.asarray(scene(i)).astype(float) for i in (1, 2))
    frames = [Image.fromarray((first + (last - first) * t).astype(np.uint8)) for t in np.linspace(0, 1, 120)]
    found = copies([*frames, scene(3), *[frames[0]] * 40])
    assert len(np.unique(found.groups[:120])) == 1
    assert (found.groups[121:] == found.groups[0]).all()
    assert found.groups[120] == -1
    assert not found.among(np.arange(1), np.arange(60, 120)).any()
    monkeypatch.setattr(near_duplicates, "SAMPLE", 4)
    monkeypatch.setattr(near_duplicates, "CROWD", 1)
    crowded = copies(frames)
    assert "images resemble so many others that only some were compared" in crowded.warnings[0]
    assert len(np.unique(crowded.groups)) == 1


def save(root: Path, name: str, image: Image.Image) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    image.save(root / name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write thirteen images of class a to one of b, and a test split with a copy of a training image."""
    for i in range(26):
        save(tmp_path / "data", f"train/a/{i}.png", scene(i))
    for i in range(2):
        save(tmp_path / "data", f"train/b/{i}.png", scene(100 + i, (60, 60)))
    save(tmp_path / "data", "test/a/copy.png", recompressed(scene(3), 50))
    save(tmp_path / "data", "test/b/new.png", scene(300, (200, 200)))
    return tmp_path / "data"


def test_data_describes_what_train_will_do(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = inspect(root)
    assert seen.planned == {"train": 25, "val": 3, "test": 2}
    assert (seen.smallest, seen.largest) == ("train/b/0.png", "test/b/new.png")
    assert {name for pair in seen.near for name in pair} == {"train/a/3.png", "test/a/copy.png"}
    assert main(["data", str(root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "25 training, 3 validation, 2 test" in said
    assert "classes are uneven: a has 26 images, b 2" in said
    assert "--data.sampling balanced" in said
    assert "look the same" in said
    assert main(["data", str(root), "--out", str(root.parent / "pairs.csv")]) == 0
    header, *pairs = (root.parent / "pairs.csv").read_text("utf-8").splitlines()
    assert header == "first,second,first_split,second_split,first_class,second_class"
    assert pairs == ["test/a/copy.png,train/a/3.png,test,train,a,a"]


def test_lists_next_to_the_images_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(4):
        save(tmp_path / "data", f"{'ab'[i % 2]}/{i}.png", scene(i))
    (tmp_path / "data" / "readme.txt").write_text("train well")
    assert not any("lists of splits" in note for note in inspect(tmp_path / "data").warnings)
    (tmp_path / "data" / "my_train.txt").write_text("a/0.png 0\n")
    assert "lists of splits lie next to the images (my_train.txt)" in inspect(tmp_path / "data").warnings[0]


def test_what_train_refuses_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("many", 9), ("single", 1), ("empty", 0)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(count):
            scene(i).save(tmp_path / "set" / name / f"{i}.png")
    message = "1 of 3 classes have no training images: empty"
    for command in ("data", "train"):
        main([command, str(tmp_path / "set")])
        shown = capsys.readouterr()
        assert message in " ".join((shown.out + shown.err).split()), command
    (tmp_path / "set" / "empty").rmdir()
    found = inspect(tmp_path / "set")
    assert not found.refused
    assert inspected(replace(found, classes=("single",), counts={"train": (1,)}))[1].note == "1 class; 1 image"
    assert found.warnings == tuple(
        f"no image of 1 class is held out as {kind}, for too few images: single" for kind in ("test", "val")
    )


@pytest.mark.parametrize("label", ["ab", ""])
def test_images_without_a_label_are_reported_once(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["path,label", *(f"{i}.png,{label[i % 2 : i % 2 + 1] if i else ''}" for i in range(13))]
    for i in range(13):
        scene(i, (24, 24)).save(tmp_path / f"{i}.png")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    assert main(["data", str(tmp_path / "list.csv")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert [words.count(phrase) for phrase in ("without a label", "no labels:")] == [bool(label), not label]


def test_python_objects_are_inspected_and_commands_name_a_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    assert viticulture.inspect((images, np.arange(10) % 2)).images == 10
    folder = coco_folder(tmp_path / "my cells", {"train": 2})
    assert main(["data", str(folder)]) == 0
    assert f"viticulture train '{folder}' --recipe detection/photos" in " ".join(capsys.readouterr().out.split())


def test_without_labels_a_self_supervised_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        save(tmp_path / "data", f"{i}.png", scene(i))
    assert main(["data", str(tmp_path / "data")]) == 0
    assert "--recipe mae/photos" in capsys.readouterr().out
    assert main(["train", str(tmp_path / "data")]) == 2
    assert "--recipe mae/photos" in capsys.readouterr().err


def test_validation_images_of_one_class_are_reported(tmp_path: Path) -> None:
    """Catches: silence about weights and views that one class chooses; the same for validation images of two."""
    for split, classes in {"train": "abab", "val": "aaab"}.items():
        for i, name in enumerate(classes):
            (tmp_path / split / name).mkdir(parents=True, exist_ok=True)
            scene(i, (32, 32)).rotate(90 * (split == "val")).save(tmp_path / split / name / f"{i}.png")
    warning = "all validation images are of one class, a"
    assert not any(warning in each for each in prepare(str(tmp_path)).warnings)
    (tmp_path / "val" / "b" / "3.png").unlink()
    assert any(warning in each for each in prepare(str(tmp_path)).warnings)
