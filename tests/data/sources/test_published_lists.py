# SPDX-License-Identifier: Apache-2.0
"""Data sets as they are published, with their lists."""

import io
import json
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from refusals import refused
from untrained import photo
from viticulture.analysis.galleries import read_galleries
from viticulture.data.data_settings import DataSettings
from viticulture.data.images.decode import Unreadable
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source
from viticulture.data.sources import published
from viticulture.data.sources.published import hundred_classes
from viticulture.data.sources.source import Source
from viticulture.data.splits import select
from viticulture.errors import UserError
from viticulture.evaluation.saved import saved_arrays
from viticulture.training.run_folder import RunFolder


def pictures(root: Path, *paths: str) -> None:
    """Write small pictures, each of another gray."""
    for gray, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (gray,) * 3).save(root / path)


def splits_of(source: Source) -> dict[str, list[tuple[str, str]]]:
    """Read split -> name and class of its images."""
    return {
        kind: [(source.names[i], source.classes[source.labels[i]]) for i in rows]
        for kind, rows in source.splits.items()
    }


def test_cub_is_read_by_its_three_lists(tmp_path: Path) -> None:
    pictures(tmp_path / "images", "002.Owl/b.jpg", "001.Wren/a b.jpg", "002.Owl/c.jpg")
    (tmp_path / "images.txt").write_text("7 002.Owl/b.jpg\n8 001.Wren/a b.jpg\n9 002.Owl/c.jpg\n")
    (tmp_path / "image_class_labels.txt").write_text("9 2\n8 1\n7 2\n")
    (tmp_path / "train_test_split.txt").write_text("8 1\n7 1\n9 0\n")
    train = [("images/002.Owl/b.jpg", "2"), ("images/001.Wren/a b.jpg", "1")]
    assert splits_of(open_source(tmp_path)) == {"train": train, "test": [("images/002.Owl/c.jpg", "2")]}
    (tmp_path / "classes.txt").write_text("1 001.Wren\n2 002.Owl\n")
    source = open_source(str(tmp_path))
    assert source.classes == ("001.Wren", "002.Owl")
    assert source.read(0).getpixel((0, 0)) == (0, 0, 0)
    for name, text, words in (
        ("train_test_split.txt", "8 1\n7 1\n", "do not list the same images: 9"),
        ("train_test_split.txt", "8 1\n7 1\n9 2\n", "must say 1"),
        ("train_test_split.txt", "8 1\n8 1\n", "line 2: 8 appears twice"),
        ("images.txt", "7\n", "line 1: expected a number and a value"),
    ):
        kept = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        refused(words, open_source, tmp_path)
        (tmp_path / name).write_text(kept)


def test_tiny_imagenet_has_its_validation_classes_in_a_list(tmp_path: Path) -> None:
    root = tmp_path / "wrap" / "tiny"
    train = [f"train/{name}/images/{name}_{i}.JPEG" for name in ("n01", "n02") for i in range(2)]
    pictures(root, *train, "val/images/val_0.JPEG", "val/images/val_1.JPEG", "test/images/test_0.JPEG")
    (root / "val/val_annotations.txt").write_text("val_1.JPEG\tn01\t0\t0\t3\t3\r\nval_0.JPEG\tn02\t0\t0\t3\t3\r\n\n")
    source = open_source(root)
    val = [("val/images/val_1.JPEG", "n01"), ("val/images/val_0.JPEG", "n02")]
    assert splits_of(source) == {"train": [(path, path.split("/")[1]) for path in train], "val": val}
    assert source.warnings == ("not read: 1 image without a class, such as those of test",)
    refused("unpack it and name the folder in which train and val lie", open_source, root.parent)
    (root / "val/val_annotations.txt").write_text("val_1.JPEG\tn01\nval_0.JPEG n02\n")
    refused("line 2: expected FILE and CLASS between tabs", open_source, root)
    for i, name in enumerate(("n02", "n01")):
        (root / "val" / name).mkdir()
        (root / f"val/images/val_{i}.JPEG").rename(root / f"val/{name}/val_{i}.JPEG")
    (root / "val/images").rmdir()
    (root / "test/images/test_0.JPEG").unlink()
    (root / "test/images").rmdir()
    assert splits_of(open_source(root))["val"] == [("val/n01/val_1.JPEG", "n01"), ("val/n02/val_0.JPEG", "n02")]


def test_lists_of_paths_are_read_by_any_name(tmp_path: Path) -> None:
    """DomainNet's form, with another domain next to it."""
    pictures(tmp_path, "clipart/ant/1.jpg", "clipart/bee/2.jpg", "clipart/ant/3.jpg", "real/ant/1.jpg")
    (tmp_path / "clipart_train.txt").write_text("clipart/ant/1.jpg 0\nclipart/bee/2.jpg 1\n")
    (tmp_path / "clipart_test.txt").write_text("clipart/ant/3.jpg 0\n\n")
    (tmp_path / "real_train.txt").write_text("real/ant/1.jpg 0\n")
    expected = {
        "train": [("clipart/ant/1.jpg", "ant"), ("clipart/bee/2.jpg", "bee")],
        "test": [("clipart/ant/3.jpg", "ant")],
    }
    for name in ("clipart_train.txt", "clipart_test.txt"):
        source = open_source(str(tmp_path / name))
        assert splits_of(source) == expected
        assert source.name == "clipart"


def test_class_names_fall_back_to_numbers(tmp_path: Path) -> None:
    """ImageNet-LT: test images in one folder; training images name the classes."""
    pictures(tmp_path, "train/n02/1.jpg", "train/n01/2.jpg", "val/3.jpg", "val/4.jpg", "x/a/1.jpg", "y/a/2.jpg")
    (tmp_path / "LT_train.txt").write_text("train/n02/1.jpg 0\ntrain/n01/2.jpg 1\n")
    (tmp_path / "LT_val.txt").write_text("val/3.jpg 1\n")
    (tmp_path / "LT_test.txt").write_text("val/4.jpg 0\n")
    source = splits_of(open_source(str(tmp_path / "LT_test.txt")))
    assert (source["val"], source["test"]) == ([("val/3.jpg", "n01")], [("val/4.jpg", "n02")])
    (tmp_path / "same_train.txt").write_text("x/a/1.jpg 4\ny/a/2.jpg 5\n")
    assert open_source(str(tmp_path / "same_train.txt")).classes == ("4", "5")
    (tmp_path / "train.txt").write_text("train/n02/1.jpg\n./train/n01/2.jpg\n")
    (tmp_path / "test.txt").write_text("train/n02/1.jpg\n")
    with pytest.raises(UserError, match=r"lists train/n02/1\.jpg in line 1 of test.txt and line 1 of train.txt"):
        open_source(str(tmp_path / "train.txt"))
    (tmp_path / "test.txt").unlink()
    assert open_source(str(tmp_path / "train.txt")).classes == ("n01", "n02")


def test_lists_that_number_classes_differently_are_reported(tmp_path: Path) -> None:
    pictures(tmp_path, "ant/1.jpg", "ant/2.jpg", "bee/1.jpg", "bee/2.jpg")
    (tmp_path / "train.txt").write_text("ant/1.jpg 0\nbee/1.jpg 1\n")
    (tmp_path / "test.txt").write_text("ant/2.jpg 0\nbee/2.jpg 1\n")
    assert open_source(str(tmp_path / "train.txt")).warnings == ()
    (tmp_path / "test.txt").write_text("ant/2.jpg 1\nbee/2.jpg 0\n")
    (note,) = open_source(str(tmp_path / "train.txt")).warnings
    assert note.startswith("2 images in the folder of another class than their number says")
    assert "ant/2.jpg (line 1 of test.txt: bee)" in note


def test_of_lists_with_the_same_images_the_named_one_is_read(tmp_path: Path) -> None:
    for number, path in enumerate(("a/1.png", "b/2.png", "a/3.png", "b/4.png")):
        photo(tmp_path / path, number)
    texts = {"train": "a/1.png\n", "val": "b/2.png\n", "trainval": "a/1.png\nb/2.png\n", "test": "a/3.png\n"}

    def lists(*names: str) -> None:
        for file in tmp_path.glob("*.txt"):
            file.unlink()
        for name in names:
            (tmp_path / f"{name}.txt").write_text(texts[name.replace("valid", "val")])

    apart = {"train": [("a/1.png", "a")], "val": [("b/2.png", "b")], "test": [("a/3.png", "a")]}
    joint = {"train": [("a/1.png", "a"), ("b/2.png", "b")], "test": [("a/3.png", "a")]}
    lists(*texts)
    for named, expected, passed in (
        ("train", apart, "trainval.txt"),
        ("test", apart, "trainval.txt"),
        ("trainval", joint, "train.txt, val.txt"),
    ):
        source = open_source(str(tmp_path / f"{named}.txt"))
        assert splits_of(source) == expected
        assert source.warnings == (f"lists that were not read next to {named}.txt: {passed}",)
    lists("trainval", "val", "test")
    assert splits_of(open_source(str(tmp_path / "test.txt"))) == joint
    lists("train", "trainval", "test")
    assert splits_of(open_source(str(tmp_path / "train.txt")))["train"] == [("a/1.png", "a")]
    lists("train", "val", "valid", "test")
    assert splits_of(open_source(str(tmp_path / "valid.txt"))) == apart
    refused(r"val.txt and valid.txt both list the val split; keep one", open_source, str(tmp_path / "train.txt"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("notes.txt", "hello", "must say by its name which split"),
        ("a_test.txt", "b/1.jpg 0", "has no a_train.txt next to it"),
        ("a_train.txt", "b/1.jpg 0", "1 file that .* does not hold: b/1.jpg"),
        ("a_train.txt", "/etc/hostname 0", r"1 file that .* does not hold: /etc/hostname \(line 1"),
        ("a_train.txt", "b/../../1.jpg 0", r"1 file that .* does not hold: b/../../1.jpg \(line 1"),
        ("a_train.txt", "1.jpg", "line 1: expected PATH NUMBER"),
        ("notes.json", "{}", "is no list of images that is known here"),
        ("train2018.json", "[]", "none of iNaturalist's lists"),
        ("val2018.json", "{}", "needs train2018.json next to it"),
        ("a.npz", "text", "no file of arrays"),
    ],
)
def test_invalid_lists_are_refused_in_one_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / name).write_text(text)
    (tmp_path / "1.jpg").write_bytes(b"")
    refused(words, open_source, str(tmp_path / "lists" / name))


def test_inaturalist_is_tested_on_its_validation_images(tmp_path: Path) -> None:
    for word, count in (("train", 3), ("val", 1)):
        names = [f"train_val2018/{word}/{i}.jpg" for i in range(count)]
        pictures(tmp_path, *names)
        images = [{"id": 10 * i, "file_name": name} for i, name in enumerate(names)]
        annotations = [{"image_id": 10 * i, "category_id": i} for i in reversed(range(count))]
        (tmp_path / f"{word}2018.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    source = open_source(str(tmp_path / "train2018.json"))
    assert splits_of(source)["test"] == [("train_val2018/val/0.jpg", "0")]
    assert len(splits_of(source)["train"]) == 3
    (tmp_path / "val2018.json").unlink()
    assert "val2018.json is not there" in open_source(str(tmp_path / "train2018.json")).warnings[0]


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    """Create the six arrays, of two classes."""
    draw = np.random.default_rng(0)
    made = {}
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        made[f"{split}_images"] = draw.integers(0, 255, (count, 5, 6, 3), dtype=np.uint8)
        made[f"{split}_labels"] = (np.arange(count) % 2).astype(np.uint8)[:, None]
    return {**made, **changed}


def test_a_medmnist_download_is_renamed_when_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITICULTURE_DATA", str(tmp_path / "sets"))
    named, calls, meet = tmp_path / "sets" / "pathmnist.npz", list[str](), Barrier(1)

    class PathMNIST:
        def __init__(self, split: str, download: bool, root: str) -> None:
            calls.append(split)
            file = Path(root) / "pathmnist.npz"
            file.write_bytes(b"half")
            assert not named.exists()
            if len(calls) == 1:
                raise OSError("connection lost")
            np.savez(file, **arrays())

    class Package:
        """Describes a set that is looked up and not found."""

        @property
        def INFO(self) -> dict[str, dict[str, str]]:
            meet.wait()
            return {"pathmnist": {"python_class": "PathMNIST"}}

    package: Any = Package()
    package.PathMNIST = PathMNIST
    monkeypatch.setitem(sys.modules, "medmnist", package)
    refused("connection lost", open_source, "medmnist:pathmnist")
    assert not named.exists()
    meet = Barrier(2)
    with ThreadPoolExecutor(2) as processes:
        sources = list(processes.map(open_source, ["medmnist:pathmnist"] * 2))
    assert [len(source) for source in sources] == [9, 9]
    assert len(calls) == 2
    assert not list(named.parent.glob(".download-*"))


def test_medmnists_arrays_keep_their_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "pathmnist.npz", **arrays())
    monkeypatch.setenv("VITICULTURE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "medmnist", None)
    for data in (str(tmp_path / "pathmnist.npz"), "medmnist:pathmnist"):
        source = open_source(data)
        assert {kind: len(rows) for kind, rows in source.splits.items()} == {"train": 4, "val": 2, "test": 3}
        assert source.labels[source.splits["test"]].tolist() == [0, 1, 0]
        assert np.array_equal(np.asarray(source.read(6)), arrays()["test_images"][0])
        assert source.classes == ("0", "1")
    refused("pip install medmnist", open_source, "medmnist:bloodmnist")
    known = {"pathmnist": {"label": {"0": "adipose", "1": "mucus"}}}
    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(INFO=known))  # type: ignore[arg-type]
    assert open_source("medmnist:pathmnist").classes == ("adipose", "mucus")
    refused("has no set 'cats'", open_source, "medmnist:cats")
    for changed, words in (
        ({"train_labels": np.zeros((4, 14), int)}, "one class an image"),
        ({"train_images": np.zeros((4, 5, 5, 5), np.uint8)}, "must be"),
        ({"train_images": np.zeros((4, 5, 5))}, "uint8"),
        ({key: array[:0] for key, array in arrays().items()}, "no images in .*bad.npz: its arrays are empty"),
    ):
        np.savez(tmp_path / "bad.npz", **arrays(**changed))
        refused(words, open_source, str(tmp_path / "bad.npz"))
    np.savez(tmp_path / "gaps.npz", **arrays(train_labels=np.array([[0], [1], [-5], [-1]])))
    assert open_source(str(tmp_path / "gaps.npz")).labels[:4].tolist() == [0, 1, -1, -1]
    np.savez(tmp_path / "bad.npz", images=np.zeros(3))
    refused("lacks train_images", open_source, str(tmp_path / "bad.npz"))


def test_classes_may_be_one_level_deeper(tmp_path: Path) -> None:
    for split, files in (("train", ("a/x/1", "a/x/2", "a/y/3", "b/x/4")), ("test", ("a/x/5",))):
        pictures(tmp_path / "deep" / split, *(f"{file}.jpg" for file in files))
    deep = str(tmp_path / "deep")
    assert open_source(deep).classes == ("a", "b")
    assert "its 3 inner folders do" in " ".join(inspect(deep).warnings)
    source = open_source(f"{deep}/*")
    assert source.classes == ("a/x", "a/y", "b/x")
    assert splits_of(source)["test"] == [("test/a/x/5.jpg", "a/x")]
    assert not source.warnings
    pictures(tmp_path / "flat", "a/1.jpg", "b/2.jpg", "b/inner/3.jpg")
    assert not open_source(tmp_path / "flat").warnings


def test_validation_images_may_train_or_test(tmp_path: Path) -> None:
    """As papers do with Flowers and Aircraft."""
    pictures(
        tmp_path, *(f"{split}/{name}/{i}.jpg" for split in ("train", "val", "test") for name in "ab" for i in range(2))
    )
    source = open_source(tmp_path)
    plain, _ = select(source, DataSettings(), 0)
    both, _ = select(source, DataSettings(train_on="train+val", val_fraction=0), 0)
    assert both.keys() == {"train", "test"}
    assert sorted(both["train"]) == sorted([*plain["train"], *plain["val"]])
    tested, _ = select(source, DataSettings(test_on="val", val_fraction=0), 0)
    assert tested.keys() == {"train", "test"}
    assert np.array_equal(tested["test"], plain["val"])
    assert np.array_equal(tested["train"], plain["train"])
    refused("test on training images", DataSettings, train_on="train+val", test_on="val")
    untested, _ = select(source, DataSettings(test_on="none", val_fraction=0.5), 0)
    assert "test" not in untested
    assert untested.keys() >= {"train", "val"}
    refused(r"holds out images to test on, and data.test_on is none", DataSettings, test_on="none", folds=5)
    with pytest.raises(UserError, match="needs validation images, and digits has none"):
        select(open_source("digits"), DataSettings(train_on="train+val"), 0)


def test_imagenet100_is_a_subset_of_imagenet(tmp_path: Path) -> None:
    listed = Path(published.__file__).with_name("imagenet100.txt").read_text("utf-8").splitlines()[1:]
    hundred = {wnid for line in listed for wnid in line.split()}
    assert len(hundred) == 100
    wnids = sorted({*hundred, "n00000001"})
    pictures(tmp_path, *(f"{split}/{wnid}/1.jpg" for split in ("train", "test") for wnid in wnids))
    source = hundred_classes(open_source(tmp_path))
    assert source.classes == tuple(sorted(hundred))
    for kind in ("train", "test"):
        assert all(name == f"{kind}/{label}/1.jpg" for name, label in splits_of(source)[kind])
        assert len(splits_of(source)[kind]) == 100
    first = source.splits["test"][0]
    assert source.read(int(first)).getpixel((0, 0))[0] == pytest.approx(101 + 1, abs=3)
    (tmp_path / "train" / wnids[-1] / "1.jpg").unlink()
    (tmp_path / "test" / wnids[-1] / "1.jpg").unlink()
    refused("lacks 1 of", lambda: hundred_classes(open_source(tmp_path)))


def npz(path: Path, headers: dict[str, bytes] | None = None, **changed: np.ndarray) -> Path:
    """Write a file of the six arrays, some replaced by these bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, values in arrays(**changed).items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            file.writestr(f"{name}.npy", (headers or {}).get(name, buffer.getvalue()))
    return path


def header(shape: str, kind: str = "|u1") -> bytes:
    """Write a .npy header of that shape, and a few numbers."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(9)


@pytest.mark.parametrize(
    "damaged",
    [
        header("(1000000000000, 5, 6, 3)"),
        header("(4, 5, 6, 30000000000)"),
        header("(-1, 5, 6, 3)"),
        header("(9223372036854775807, 9223372036854775807)"),
        header("(3,)", "|O"),
        header("(3,)", "<U99999999"),
        header("(" * 5000),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x07\x00",
        b"",
    ],
)
@pytest.mark.parametrize("part", ["train_images", "test_labels"])
def test_arrays_with_false_headers_are_refused(tmp_path: Path, part: str, damaged: bytes) -> None:
    with pytest.raises(UserError, match=r"x.npz is no file of arrays that can be read: "):
        open_source(npz(tmp_path / "x.npz", {part: damaged}))
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.npy").write_bytes(damaged)
    source = open_source(tmp_path / "data")
    for read in (source.read, source.size_of):
        with pytest.raises(Unreadable, match=r"a/1.npy: "):
            read(0)


def test_missing_numbers_of_an_array_allocate_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.npy").write_bytes(header("(13000, 13000, 3)", "<f8"))
    tracemalloc.start()
    with pytest.raises(Unreadable, match=r"its header promises 13000 x 13000 x 3 numbers, which do not follow"):
        open_source(tmp_path).read(0)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    kept = RunFolder(tmp_path)
    for name in ("train_images", "index"):
        npz(tmp_path / "pictures.npz", {name: header("()", "<U99999999")}, index=np.array("{}"))
        with pytest.raises(UserError, match=r"pictures.npz is damaged .*promises .* numbers, which do not follow"):
            read_galleries(tmp_path / "pictures.npz")
        with pytest.raises(UserError, match=r"pictures.npz is missing or damaged: .*promises"):
            saved_arrays(kept, "pictures.npz").__enter__()
    path = npz(tmp_path / "x.npz", {"train_images": header(f"({2**31}, 5, 6, 3)")})
    raw = bytearray(path.read_bytes())
    place = raw.index(b"PK\1\2")
    raw[place + 24 : place + 28] = b"\xf0\xff\xff\xff"  # 4 GB, says the list of members
    path.write_bytes(bytes(raw))
    refused(r"train_images.npy cannot unpack to 4,294,967,280 bytes", open_source, path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": np.array([0, 1, 2**40, 1])}, "hold 1099511627776 for one of 4 images"),
        ({"test_labels": np.array([0, 1, 2**64 - 1], np.uint64)}, "hold 18446744073709551615 for one of 3 images"),
        ({"val_images": np.zeros((2, 9, 9, 3), np.uint8)}, r"must agree in shape, got \(5, 6, 3\) and \(9, 9, 3\)"),
        ({"val_images": np.zeros((2, 5, 6), np.uint8)}, r"must agree in shape, got \(5, 6\) and \(5, 6, 3\)"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path: Path, changed: dict[str, np.ndarray], words: str) -> None:
    refused(words, lambda: open_source(npz(tmp_path / "x.npz", **changed)))
