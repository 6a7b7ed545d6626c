# SPDX-License-Identifier: Apache-2.0
"""Folders, archives, lists and shards, read as one kind of object."""

import io
import json
import os
import pickle
import re
import shutil
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refusals import refused
from strewn import JUNK, every_left_behind, strew
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.dataset import DataSettings, ImageSettings, prepare
from viticulture.data.images.decode import Unreadable
from viticulture.data.open import open_source
from viticulture.data.sources import archives, folders
from viticulture.data.sources import webdataset as shards
from viticulture.data.sources.files import is_image
from viticulture.data.sources.labels import alike, classify, doubtful, natural, split_of
from viticulture.data.sources.source import Source
from viticulture.data.splits import select
from viticulture.data.transforms.view import Augment
from viticulture.errors import UserError

ODD = ["größe & <b>fett<i>", 'a "quoted" name', "it's", "日本語", "with  spaces ", "emoji 🍇", "100%"]


def picture(number: int) -> bytes:
    """Encode a PNG of 3 x 2 pixels whose first red value is its number."""
    pixels = np.full((2, 3, 3), 7, dtype=np.uint8)
    pixels[0, 0, 0] = number
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(root: Path, *paths: str) -> Path:
    """Write numbered images in the given order; other files hold text."""
    for number, path in enumerate(paths):
        file = root / path
        if path.endswith("/"):
            file.mkdir(parents=True, exist_ok=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number) if is_image(path) else b"text")
    return root


def pack(path: Path, root: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for entry in sorted(root.rglob("*")):
            file.write(entry, entry.relative_to(root))
    return path


def numbers(source: Source, split: str) -> list[int]:
    return [source.read(int(i)).getpixel((0, 0))[0] for i in source.splits[split]]


def named(source: Source, split: str) -> dict[str, str | None]:
    """Read name -> class of a split."""
    label = {**dict(enumerate(source.classes)), -1: None}
    return {source.names[i]: label[int(source.labels[i])] for i in source.splits[split]}


@pytest.fixture(params=["folder", "zip"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Source]:
    """Open the same files from a folder and from a zip of it."""

    def opener(*paths: str) -> Source:
        root = write(tmp_path / "data", *paths)
        return open_source(root if request.param == "folder" else pack(tmp_path / "data.zip", root))

    return opener


def test_declared_splits_are_read(opened: Callable[..., Source]) -> None:
    source = opened("train/a/1.png", "train/b/x/2.png", "validation/b/3.png", "test/a/4.PNG", "test/b/5.png")
    assert source.classes == ("a", "b")
    assert named(source, "train") == {"train/a/1.png": "a", "train/b/x/2.png": "b"}
    assert named(source, "val") == {"validation/b/3.png": "b"}
    assert named(source, "test") == {"test/a/4.PNG": "a", "test/b/5.png": "b"}
    assert [numbers(source, kind) for kind in ("train", "val", "test")] == [[0, 1], [2], [3, 4]]


BOTH = {"train": 4, "val": 4}
CATS_AND_DOGS = tuple(f"train/images/{name}/{i}.png" for name in ("cat", "dog") for i in (1, 2))
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]] = {
    "nested folders, natural order": (
        ("10/1.png", "2/deep/er/2.png", "2/3.png", "B/4.png", "a/5.png"), ("2", "10", "a", "B"), {"train": 5},
    ),
    "a class called train": (("car/1.png", "plane/2.png", "train/3.png"), ("car", "plane", "train"), {"train": 3}),
    "parts of a training set": (("train_a/x/1.png", "train_b/x/2.png"), ("train_a", "train_b"), {"train": 2}),
    "one class": (("dog/1.png", "dog/2.png"), ("dog",), {"train": 2}),
    "an empty class": (
        ("train/a/1.png", "train/b/2.png", "train/c/", "test/a/3.png"), ("a", "b", "c"), {"train": 2, "test": 1},
    ),
    "wrapped": (
        ("wrap/again/train/a/1.png", "wrap/again/test/b/2.png", "wrap/again/train/b/3.png", "wrap/README.md"),
        ("a", "b"), {"train": 2, "test": 1},
    ),
    "no classes in test": (("train/a/1.png", "train/b/2.png", "test/3.png"), ("a", "b"), {"train": 2, "test": 1}),
    "images with images": (("train/images/1.png", "train/images/old/2.png"), ("images",), {"train": 2}),
    "images next to others": (("train/images/old/1.png", "train/text/2.png"), ("images", "text"), {"train": 2}),
    **{
        f"images, {val}": (
            (*CATS_AND_DOGS, *(f"{val}/{name}/{i}.png" for name in ("cat", "dog") for i in (1, 2))),
            ("cat", "dog"), BOTH,
        )
        for val in ("val/images", "Val/Images", "val")
    },
    **{
        f"called {name}": (("train/a/1.png", f"{name}/a/2.png"), ("a",), {"train": 1, "val": 1})
        for name in ("val", "valid", "validation", "Val", "validation_set")
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_classes_and_splits_are_read_from_folders(layout: str, opened: Callable[..., Source]) -> None:
    paths, classes, splits = LAYOUTS[layout]
    source = opened(*paths)
    assert source.classes == classes
    assert {kind: len(rows) for kind, rows in source.splits.items()} == splits
    assert all(label in name.split("/") for name, label in named(source, "train").items())
    if layout == "no classes in test":
        assert named(source, "test") == {"test/3.png": None}


def test_two_folders_for_one_split_are_refused(opened: Callable[..., Source]) -> None:
    refused(r"val and valid.* both mean the val split", opened, "train/a/1.png", "val/a/2.png", "valid/a/3.png")


@pytest.mark.parametrize(
    "names", [("seg_train", "seg_test"), ("trainset1", "valset1"), ("my-train", "train2", "mytest")]
)
def test_folders_named_like_splits_are_no_classes(names: tuple[str, ...], opened: Callable[..., Source]) -> None:
    with pytest.raises(UserError, match="look like splits that are not known here; call them train, val and test"):
        opened(*(f"{name}/{label}/1.png" for name in names for label in "ab"))
    assert opened(*(f"{name}/1.png" for name in names)).classes == tuple(sorted(names, key=natural))


def test_images_alone_have_no_labels(opened: Callable[..., Source]) -> None:
    source = opened("1.png", "2.jpg", "readme.txt")
    assert source.classes == ()
    assert source.labels.tolist() == [-1, -1]
    assert source.ignored == ("readme.txt",)


def test_other_files_are_ignored_and_counted(opened: Callable[..., Source]) -> None:
    source = opened(
        "a/1.png",
        "a/.hidden.png",
        "b/2.JPEG",
        "__MACOSX/a/._1.png",
        "a/Thumbs.db",
        "b/notes.txt",
        ".git/x.png",
        "c.json",
    )
    assert source.names == ["a/1.png", "b/2.JPEG"]
    assert source.classes == ("a", "b")
    assert source.ignored == ("b/notes.txt", "c.json")


def sharded(root: Path) -> Path:
    """Write shards of a split each, with macOS' files among their members."""
    root.mkdir()
    for number, split in enumerate(("train", "test")):
        with tarfile.open(root / f"{split}-0.tar", "w") as file:
            for name, raw in (
                ("./x.png", picture(number)),
                ("./x.cls", b"1"),
                ("./._x.png", JUNK),
                ("./._x.cls", JUNK),
            ):
                for place in (name, *([f"__MACOSX/{name[2:]}"] if "._" in name else [])):
                    member = tarfile.TarInfo(place)
                    member.size = len(raw)
                    file.addfile(member, io.BytesIO(raw))
    return root


@every_left_behind
def test_system_files_are_no_part_of_data(name: str, tmp_path: Path) -> None:
    root = write(tmp_path / "data", "train/a/0.png", "train/b/1.png", "test/a/2.png", "test/b/3.png", "notes.txt")
    tars = sharded(tmp_path / "tars")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train").symlink_to(tars)
    opened = [lambda: root, lambda: pack(tmp_path / "data.zip", root), lambda: tars, lambda: f"{tmp_path}/de*/*/*.tar"]
    before = [open_source(data()) for data in opened]
    strew(root, name)
    strew(tars, name)
    (tmp_path / "deep" / name).symlink_to(tars)
    for data, first in zip(opened, before, strict=True):
        source = open_source(data())
        assert (source.names, source.classes, source.ignored) == (first.names, first.classes, first.ignored)
        assert source.splits.keys() == {"train", "test"}
        assert [source.read(i).size for i in range(len(source))] == [(3, 2)] * len(first)


def test_images_outside_the_layout_are_reported(opened: Callable[..., Source]) -> None:
    beside = opened("train/a/1.png", "train/b/2.png", "test/a/3.png", "extra/4.png", "cover.png")
    assert len(beside) == 3
    assert beside.warnings == ("not read: 2 images outside the split folders (in extra)",)
    loose = opened("train/cover.png")
    assert any("outside the class folders" in note for note in loose.warnings)


@pytest.mark.parametrize(
    "made",
    [
        ("runs/a/run.lock", "runs/a/x.png"),
        ("runs/a/run.json", "runs/a/recipe.yaml", "runs/b/run.lock", "runs/list.html"),
        ("mine/studies/a/study.json", "mine/studies/a/study.yaml", "mine/studies/a/cells/c/x.png"),
        ("train-of-mine/run.lock", "train-of-mine/x.png"),
    ],
)
def test_runs_among_the_images_are_no_class(made: tuple[str, ...], tmp_path: Path) -> None:
    source = open_source(write(tmp_path, "cat/a.png", "dog/b.png", *made))
    assert source.classes == ("cat", "dog")
    assert source.names == ["cat/a.png", "dog/b.png"]
    assert ["runs and studies of viticulture" in note for note in source.warnings] == [True]


def test_a_class_keeps_images_next_to_a_run(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, "cat/a.png", "cat/runs/x/run.lock", "dog/b.png", "dog/run.json", "cow/"))
    assert source.names == ["cat/a.png", "dog/b.png"]
    assert source.classes == ("cat", "cow", "dog")


def test_unusual_names_are_unchanged(opened: Callable[..., Source]) -> None:
    source = opened(*(f"train/{name}/{name}.png" for name in ODD))
    assert set(source.classes) == set(ODD)
    assert sorted(numbers(source, "train")) == list(range(len(ODD)))
    assert set(source.names) == {f"train/{name}/{name}.png" for name in ODD}


def test_composed_and_decomposed_letters_are_one_class(opened: Callable[..., Source]) -> None:
    """A Mac's zip writes ö as o + dots."""
    assert opened("train/o\u0308l/1.png", "test/\u00f6l/2.png").classes == ("\u00f6l",)


def test_text_named_jpg_is_unreadable(opened: Callable[..., Source], tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "t.jpg").write_text("I am text")
    source = opened("b/1.png")
    with pytest.raises(Unreadable, match=r"a/t.jpg: not an image"):
        source.read(0)
    with pytest.raises(Unreadable, match=r"a/t.jpg: not an image"):
        source.size_of(0)


def test_sources_are_read_by_threads_and_processes(
    opened: Callable[..., Source], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    source = opened(*(f"{'ab'[i % 2]}/{i:03d}.png" for i in range(100)))
    expected = [int(Path(name).stem) for name in source.names]
    for copy in (source, pickle.loads(pickle.dumps(source))):
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(lambda i, copy=copy: copy.read(i).getpixel((0, 0))[0], list(range(100)) * 4))
        assert read == expected * 4


def test_the_fingerprint_follows_files_labels_and_splits(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.png", "b/2.png")
    first = open_source(root).fingerprint
    assert first == open_source(root).fingerprint
    assert first == pickle.loads(pickle.dumps(open_source(root))).fingerprint
    seen = {first}
    for change in (
        lambda: os.utime(root / "a/1.png", ns=(0, 5)),
        lambda: (root / "a/1.png").rename(root / "b/1.png"),
        lambda: (root / "a").rename(root / "A"),
        lambda: write(root, "c/3.png"),
    ):
        change()
        seen.add(open_source(root).fingerprint)
    assert len(seen) == 5


def test_links_are_followed_once(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.png")
    other = write(tmp_path / "elsewhere", "2.png")
    (root / "b").symlink_to(other)
    (root / "a" / "loop").symlink_to(root)
    (root / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    source = open_source(root)
    assert source.names == ["a/1.png", "a/gone.png", "b/2.png"]
    with pytest.raises(Unreadable, match="no such file"):
        source.read(1)


def linked(root: Path, *links: str) -> Path:
    """Create links below a folder: NAME->TARGET, which is relative to that folder."""
    for link in links:
        name, _, target = link.partition("->")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(os.path.relpath(root / target, (root / name).parent))
    return root


SPLIT = tuple(f"data/train/{c}/{i}.png" for c in "ab" for i in (0, 1))
POOL = ("pool/a/2.png", "pool/b/3.png", "pool/b/4.png")


@pytest.mark.parametrize(
    ("files", "links", "note"),
    [
        ((*SPLIT, *POOL), ("val->../pool", "test->../pool"), "3 of 3 test images are val images, .*test/a/2.png and "),
        ((*SPLIT, *POOL), ("test->../pool", "val->test"), "3 of 3 test images are val images, .*test/a/2.png and val/"),
        ((*SPLIT, *POOL, "data/test/c/5.png"), ("test/a->train/a",), "2 of 3 test images are train images, by links"),
        ((*SPLIT, *POOL, "data/val/b/5.png"), ("val/b/6.png->train/b/1.png",), "1 of 2 val images are train images"),
        (SPLIT, ("train/b/0-again.png->train/a/0.png",), "1 images are images of another class, .*a/0.png and train/b"),
        (
            (*SPLIT, *POOL),
            ("train/a/x->../pool/a", "train/a/y->../pool/a"),
            "1 images repeat another one of their class",
        ),
    ],
)
def test_every_name_of_a_linked_folder_counts(
    files: tuple[str, ...], links: tuple[str, ...], note: str, tmp_path: Path
) -> None:
    write(tmp_path, *files)
    source = open_source(linked(tmp_path / "data", *links))
    assert re.search(note, "\n".join(source.warnings)), source.warnings
    copied = open_source(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
    assert (source.names, source.classes, source.splits.keys()) == (copied.names, copied.classes, copied.splits.keys())
    assert not any("link" in text for text in copied.warnings)


@pytest.mark.parametrize(
    ("files", "links", "words"),
    [
        (SPLIT, ("test->train",), "every test image of data is a training image, by links .*test/a/0.png and train/a"),
        (SPLIT, ("val->train", "test->train"), "every test image of data is a training image"),
        (POOL, ("../data/train->../pool", "test->../pool"), "every test image of data is a training image"),
        ((*SPLIT, *POOL), ("test->../pool", "val/a->train/a", "val/b->train/b"), "every val image of data is a train"),
        (
            (*SPLIT, "data/other/x"),
            ("train/c->train/a",),
            "folder of data is that of two classes.*train/a/0.png and tr",
        ),
        (("data/b/1.png", *POOL), ("c->../pool/b", "a->../pool/b"), "two classes, .* a/3.png and c/3.png are the same"),
    ],
)
def test_links_that_would_test_on_training_images_are_refused(
    files: tuple[str, ...], links: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write(tmp_path, *files)
    refused(words, lambda: open_source(linked(tmp_path / "data", *links)))


def test_hard_links_and_lists_are_reported_as_leaks(tmp_path: Path) -> None:
    root = write(tmp_path, "train/a/0.png", "train/b/1.png", "test/a/2.png")
    (root / "test" / "b").mkdir()
    os.link(root / "train" / "b" / "1.png", root / "test" / "b" / "1.png")
    assert any("1 of 2 test images are train images, by links" in note for note in open_source(root).warnings)
    linked(root, "again->train")
    (root / "list.csv").write_text(
        "path,label,split\ntrain/a/0.png,a,train\nagain/b/1.png,b,train\ntrain/b/1.png,b,test"
    )
    refused(r"every test image of list.csv is a training image", open_source, root / "list.csv")


@pytest.mark.parametrize("count", [8, 40])
def test_multiplying_links_end(count: int, tmp_path: Path) -> None:
    """Two links to the next folder in each: 2^count paths."""
    write(tmp_path, f"{count}/x.png", *(f"{i}/" for i in range(count)))
    linked(tmp_path, *(f"{i}/{side}->{i + 1}" for i in range(count) for side in "lr"))
    if count < 10:
        assert len(folders.scan(tmp_path / "0")[0]) == 2**count
        return
    refused(r"links lead to .* in more than 10,000 ways; remove some", folders.scan, tmp_path / "0")


def test_two_thousand_classes(tmp_path: Path) -> None:
    layout = folders.arrange([f"train/class {c}/{i}.jpg" for c in range(2000) for i in range(10)], [])
    assert layout.classes == tuple(f"class {c}" for c in range(2000))
    assert np.bincount(layout.labels).tolist() == [10] * 2000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "absent", "no such file or folder"),
        (lambda root: f"{root}/absent.csv", "no such file or folder"),
        (lambda root: "photos/that/are/gone", "no such file or folder"),
        (lambda root: "cifar1O0", "unknown data set 'cifar1O0'; did you mean cifar10 or cifar100"),
        (lambda root: "cifar1O0", "no file or folder of that name"),
        (lambda root: write(root / "empty", "x/"), "no images in empty"),
        (lambda root: write(root / "text", "a.txt", "b.txt"), r"no images in text \(only other files: a.txt, b.txt\)"),
        (lambda root: write(root / "odd", "a.doc") / "a.doc", "is no data"),
        (lambda root: write(root / "z", "a.zip") / "a.zip", "cannot be read as a zip"),
        (lambda root: write(root / "t", "a.tar") / "a.tar", "cannot be read as an uncompressed tar"),
        (lambda root: f"{root}/none-*.tar", "no shards match"),
    ],
)
def test_what_cannot_be_opened_is_named(make: Callable[[Path], Path | str], message: str, tmp_path: Path) -> None:
    refused(message, lambda: open_source(make(tmp_path)))


def test_a_name_comes_before_a_folder_unless_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "digits", "a/1.png")
    monkeypatch.chdir(tmp_path)
    assert len(open_source("digits")) == 1797
    assert len(open_source("./digits")) == len(open_source(Path("digits"))) == 1


def test_malicious_zips_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("../up.png", "/abs/root.png", "a/../../b.png", "./a/here.png", "a/ok.png"):
            file.writestr(name, picture(1))
        file.writestr("b/bomb.png", b"\0" * (2**24))
    before = sorted(tmp_path.rglob("*"))
    source = open_source(path)
    assert "a/ok.png" in source.names
    assert not any(".." in name for name in source.names)
    assert any("2 images whose names lead out of the zip: ../up.png" in note for note in source.warnings)
    assert sorted(tmp_path.rglob("*")) == before

    data = bytearray(path.read_bytes())
    for place in [i for i in range(len(data) - 4) if data[i : i + 4] == b"PK\x01\x02"]:
        start = place + 46
        name = bytes(data[start : start + int.from_bytes(data[place + 28 : place + 30], "little")])
        if name == b"b/bomb.png":
            data[place + 24 : place + 28] = (1000).to_bytes(4, "little")  # the lie
        if name == b"a/ok.png":
            data[place + 16 : place + 20] = b"\0\0\0\0"  # a wrong checksum
    path.write_bytes(data)
    source = open_source(path)
    tracemalloc.start()
    for name in ("b/bomb.png", "a/ok.png"):
        with pytest.raises(Unreadable, match="damaged in the zip"):
            source.read(source.names.index(name))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_zips_of_other_systems_are_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "mac.zip", write(tmp_path / "data", "train/a/1.png", "train/@@l/2.png"))
    path.write_bytes(path.read_bytes().replace(b"@@l", "\u00f6l".encode()))
    assert open_source(path).classes == ("a", "\u00f6l")
    assert numbers(open_source(path), "train") == [0, 1]
    with zipfile.ZipFile(tmp_path / "windows.zip", "w") as file:
        for i, name in enumerate(("train\\a\\1.png", "train\\b\\2.png", "train\\c\\")):
            info = zipfile.ZipInfo(name)
            info.create_system = 0
            file.writestr(info, picture(i) if name.endswith("png") else b"")
    source = open_source(tmp_path / "windows.zip")
    assert (source.classes, source.names) == (("a", "b", "c"), ["train/a/1.png", "train/b/2.png"])
    assert numbers(source, "train") == [0, 1]


def test_a_zip_member_beyond_the_limit_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 2**16)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/bomb.png", b"\0" * (2**16 + 1))
    with pytest.raises(Unreadable, match="unpacks to more than"):
        open_source(tmp_path / "x.zip").read(0)


def test_unsupported_zips_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a/1.png", picture(1))
    refused("unpack it and name the folder", open_source, tmp_path / "x.zip")


def table(root: Path, text: str, encoding: str = "utf-8") -> Path:
    write(root, "img/a b.png", "img/ü,x.png", "3.png", "4.png")
    (root / "list.csv").write_bytes(text.encode(encoding))
    return root / "list.csv"


@pytest.mark.parametrize(
    "text",
    [
        'path,label,split\nimg/a b.png,cat,train\n"img/ü,x.png","do""g",val\n3.png,cat,test\n4.png,,train\n',
        '\ufeffsplit;Label ;PATH\r\nTrain;cat;img/a b.png\r\nvalidation;"do""g";img/ü,x.png\r\n\r\ntest;cat;3.png\r\n'
        "training;;4.png\r\n",
        'path\tlabel\tnote\tsplit\nimg/a b.png\tcat\tx\ttrain\nimg/ü,x.png\t"do""g"\t\tvalid\n3.png\tcat\t\ttest\n'
        "4.png\t\t\ttrain",
        'path, label, split\n"img/a b.png", "cat", train\n"img/ü,x.png", "do""g", val\n'
        "3.png, cat, test\n4.png, , train\n",
    ],
)
def test_a_csv_lists_images(text: str, tmp_path: Path) -> None:
    source = open_source(table(tmp_path / "somewhere", text))
    assert source.classes == ("cat", 'do"g')
    assert named(source, "train") == {"img/a b.png": "cat", "4.png": None}
    assert named(source, "val") == {"img/ü,x.png": 'do"g'}
    assert numbers(source, "test") == [2]


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (("1", "1.0", "2.0", ""), ("1", "2")),
        (("-1.0", "0", "1", ""), ("0", "1", "-1")),
        (("1.0", "1.5", "2.0", ""), ("1.0", "1.5", "2.0")),
        (("1.0", "cat", "2.0", ""), ("1.0", "2.0", "cat")),
    ],
)
def test_whole_numbers_with_a_point_equal_those_without(
    cells: tuple[str, ...], classes: tuple[str, ...], tmp_path: Path
) -> None:
    paths = ("img/a b.png", '"img/ü,x.png"', "3.png", "4.png")
    lines = [f"{path},{cell},{cell}\n" for path, cell in zip(paths, cells, strict=True)]
    source = open_source(table(tmp_path, f"path,label,group\n{''.join(lines)}"))
    assert source.classes == classes
    assert source.groups is not None
    assert len(np.unique(source.groups)) == 1 + len(classes)


def test_nearly_equal_names_are_reported(tmp_path: Path) -> None:
    text = "path,label\nimg/a b.png,Old_cat\n3.png,old cat\n4.png,old cat 2\n"
    source = open_source(table(tmp_path, "path,label,group\nimg/a b.png,x,P-1\n3.png,x,p_1\n4.png,x,P-2\n"))
    assert source.warnings[1:] == ("groups of nearly the same name, each taken as a separate one: 'P-1' and 'p_1'",)
    source = open_source(table(tmp_path, text))
    _, notes = select(source, DataSettings(test_fraction=0, val_fraction=0), 0)
    assert notes == ["classes of nearly the same name, each taken as a separate one: 'old cat' and 'Old_cat'"]
    assert alike(("1", "1.0", "10", "1.05")) == [notes[0].partition(": ")[0] + ": '1' and '1.0'"]
    assert alike(("A", "A+", "Ä", "cat1", "cat2")) == []


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("cat", "nan", "NA"), "trained as a class: 'nan', 'NA', as missing labels are written; leave those empty"),
        (("cat", "cat;dog", "dog"), "each trained as a class: 'cat;dog'; join several labels by a bar: cat|dog"),
        (("a, b", "b", "a"), "each trained as a class: 'a, b'; join several labels by a bar: cat|dog"),
        (("['a', 'b']", "['b']"), "each trained as a class: \"['a', 'b']\", \"['b']\"; join several"),
        (("Nancy", "salt & pepper", "salt", "and/or", "n", "a|b", "a", "b"), None),
    ],
)
def test_unlikely_classes_are_reported(classes: tuple[str, ...], said: str | None) -> None:
    warnings = doubtful(classes)
    assert len(warnings) == (said is not None)
    assert said is None or warnings[0].startswith(said)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,class\n3.png,cat\n", "columns path,label.*got 'file,class'"),
        ("", "columns path,label"),
        ("path,label\n", "lists no images"),
        ("path,label\n3.png,cat\ngone.png,cat\n4.png,cat\nlost.png,b\n", r"2 files.*gone.png \(line 3\), lost.png"),
        ("path,label\n3.png,cat,dog\n", "line 2: 3 values for 2 columns"),
        ("path,label\n3.png\n", "line 2: 1 values for 2 columns"),
        ("path,label\n,cat\n", "line 2: the path is empty"),
        ("path,label,split\n3.png,cat,dev\n", "line 2: split must be train, val or test, got 'dev'"),
        ("path,label,split\n3.png,cat,\n", "split must be train, val or test, got an empty cell"),
        ("path,label\n3.png,cat\n3.png,dog\n", "lists 3.png in line 2 and line 3"),
        ("path,label\n3.png,cat\n./3.png,dog\n", "lists ./3.png in line 2 and line 3"),
        ("path,label\n{root}/3.png,cat\n3.png,dog\n", "lists 3.png in line 2 and line 3"),
        ("path,label,label\n3.png,cat,dog\n", "two columns label"),
        ('path,label\n"3.png,cat\n', "line 2: unexpected end of data"),
    ],
)
def test_an_invalid_csv_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    refused(message, lambda: open_source(table(tmp_path, text.replace("{root}", str(tmp_path)))))


def test_a_csv_in_another_encoding_is_refused(tmp_path: Path) -> None:
    refused("not UTF-8", lambda: open_source(table(tmp_path, "path,label\nimg/ü,x.png,cat\n", encoding="latin-1")))


def tars(root: Path, *files: tuple[str, dict[str, bytes]]) -> Path:
    """Write tars by name, with members in the given order."""
    root.mkdir(parents=True, exist_ok=True)
    for name, members in files:
        with tarfile.open(root / name, "w") as file:
            for member, data in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    return root


def test_shards_equal_webdatasets_samples(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    root = tmp_path / "shards"
    root.mkdir()
    for shard in range(3):
        with wds.TarWriter(str(root / f"train-{shard:04d}.tar")) as writer:
            for i in range(5):
                number = shard * 5 + i
                writer.write({"__key__": f"dir.d/sample{number}", "png": picture(number), "cls": number % 11})
    source = open_source(f"{root}/train-{{0000..0002}}.tar")
    samples = list(
        wds.WebDataset([str(path) for path in sorted(root.glob("*.tar"))], shardshuffle=False, empty_check=False)
    )
    assert len(source) == len(samples) == 15
    for i, sample in enumerate(samples):
        number, file = int(sample["cls"]), source.reader.open(i)
        assert source.classes[source.labels[i]] == str(number)
        assert not isinstance(file, np.ndarray)
        assert file.read() == sample["png"]
    assert source.classes == tuple(str(i) for i in range(11))
    assert numbers(pickle.loads(pickle.dumps(source)), "train") == list(range(15))
    for same in (root, f"{root}/train-*.tar"):
        assert open_source(same).names == source.names


def test_shards_carry_splits_and_json_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tars(
        tmp_path / "shards",
        ("set-train-0.tar", {"a.jpg": picture(1), "a.json": b'{"label": "cat"}', "b.txt": b"x", "c.png": picture(2)}),
        (
            "set-test-0.tar",
            {"a.jpg": picture(3), "a.json": json.dumps({"label": "dog"}).encode(), "a.seg.png": picture(9)},
        ),
    )
    source = open_source(root)
    assert named(source, "train") == {"set-train-0.tar/a.jpg": "cat", "set-train-0.tar/c.png": None}
    assert named(source, "test") == {"set-test-0.tar/a.jpg": "dog"}
    monkeypatch.setattr(shards, "_index", None)
    assert open_source(root).names == source.names


def test_a_shards_name_comes_before_its_folders(tmp_path: Path) -> None:
    wds = tmp_path / "test" / "wds"
    for folder, file in (("a", "train-0.tar"), ("b", "train-1.tar"), ("train", "test-0.tar"), ("val", "2.tar")):
        tars(wds / folder, (file, {"x.png": picture(1)}))
    kinds = {"train": ["a/train-0.tar/x.png", "b/train-1.tar/x.png"], "val": ["val/2.tar/x.png"]}
    kinds["test"] = ["train/test-0.tar/x.png"]
    for data in (wds, f"{wds}/*/*.tar"):
        source = open_source(data)
        assert {kind: [source.names[i] for i in rows] for kind, rows in source.splits.items()} == kinds
    source = open_source(f"{wds}/*/train-*.tar")
    assert {kind: [source.names[i] for i in rows] for kind, rows in source.splits.items()} == {"train": kinds["train"]}


def test_ignored_images_of_shards_are_reported(tmp_path: Path) -> None:
    members = {"a.png": picture(1), "a.cls": b"0", "e.tif": picture(2), "e.cls": b"1", "b.v2.png": picture(3)}
    members |= {"b.v2.cls": b"1", "c.jpg.png": picture(4), "c.cls": b"1", "a.jpg": picture(5), "._a.png": b"x"}
    source = open_source(tars(tmp_path / "some", ("d.tar", members)))
    assert named(source, "train") == {"d.tar/a.jpg": "0", "d.tar/e.tif": "1"}
    assert [note.partition(";")[0] for note in source.warnings] == [
        "not read: 3 images (d.tar/a.png, d.tar/b.v2.png, d.tar/c.jpg.png)"
    ]
    with pytest.raises(UserError, match=r"no images in d.tar; not read: 1 image \(d.tar/b.v2.png\)"):
        open_source(tars(tmp_path / "none", ("d.tar", {"b.v2.png": picture(3)})) / "d.tar")


def test_labels_in_json_may_be_several(tmp_path: Path) -> None:
    labels = {"a": ["cat", "dog"], "b": ["dog"], "c": 2.0, "d": [], "e": None, "f": 2, "g": -1}
    members = {f"{key}.json": json.dumps({"label": label}).encode() for key, label in labels.items()}
    source = open_source(tars(tmp_path, ("x.tar", {**members, **{f"{key}.png": picture(1) for key in labels}})))
    assert list(named(source, "train").values()) == ["cat|dog", "dog", "2", None, None, "2", None]
    members = {f"{i}.{end}": data for i in (0, 1, -1) for end, data in (("cls", b"%d" % i), ("png", picture(1)))}
    assert list(named(open_source(tars(tmp_path / "y", ("y.tar", members))), "train").values()) == ["0", "1", None]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("train-0.tar", {"a.jpg": b"x"}), ("more.tar", {"a.jpg": b"x"})], "others do not, such as more.tar"),
        ([("x.tar", {"a.jpg": b"x", "a.cls": b"cat"})], "of a.jpg cannot be read: NAME.cls holds a number, got 'cat'"),
        (
            [("x.tar", {"a.jpg": b"x", "a.json": b'{"label": [0, 1, 1]}'})],
            "cannot be read: .* a 1 or a 0 for each class",
        ),
        ([("x.tar", {"a.jpg": b"x", "a.json": b"[]"})], "the label of a.jpg cannot be read"),
        (
            [("x.tar", {"a.jpg": b"x", "a.json": b'{"label": {"id": 3, "name": "cat"}}'})],
            "of a.jpg cannot be read: .* got a mapping of id, name",
        ),
        ([("x.tar", {"a.jpg": b"x", "a.json": b'{"label": [{"id": 3}]}'})], "got a mapping of id;"),
        ([("x.tar", {"a.txt": b"x"})], "no images"),
        ([("x.tar", {"a.jpg": b"x", "a.JPG": b"y"})], "x.tar holds a.JPG twice"),
    ],
)
def test_bad_shards_are_refused(files: list[tuple[str, dict[str, bytes]]], message: str, tmp_path: Path) -> None:
    refused(message, lambda: open_source(tars(tmp_path / "shards", *files)))


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    root = tars(tmp_path / "shards", ("x.tar", {f"{i}.{end}": b"1" * 600 for i in range(4) for end in ("jpg", "cls")}))
    path = root / "x.tar"
    raw = path.read_bytes()
    assert len(list(archives.tar_spans(path))) == 8
    header = 4 * 1536  # of the fifth file: a header's block and two of data each
    for damaged in (raw[:header], raw[: header + 512], raw[: header + 1000], raw[:header] + b"\xff" * 512 + raw[-512:]):
        path.write_bytes(damaged)
        refused(r"no end mark|as an uncompressed tar", open_source, root)


def test_a_tar_of_class_folders_equals_the_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "photos", "train/a/1.png", "train/b/2.2.png", "test/a/3.png", "test/b/4.png")
    (root / "train/c").mkdir()
    (root / "train/a/5.png").hardlink_to(root / "train/a/1.png")
    write(root / "train/a", "._6.png", ".hidden/7.png")
    (root / "train/a/1.txt").write_text("a caption")
    plain = open_source(root)
    for name, top in (("wrapped.tar", "photos"), ("dotted.tar", "."), ("bare.tar", "")):
        path = tmp_path / name
        with tarfile.open(path, "w") as file:
            file.add(root, top or "x") if top else [file.add(each, each.name) for each in root.iterdir()]
        source = open_source(path)
        assert source.classes == plain.classes == ("a", "b", "c")
        for kind in ("train", "test"):
            ours = {label_name.rpartition("/")[2]: label for label_name, label in named(source, kind).items()}
            assert ours == {file.rpartition("/")[2]: label for file, label in named(plain, kind).items()}
            assert numbers(source, kind) == numbers(plain, kind)
        assert source.warnings[0] == "classes are the folders within 1 tar"
    shards = tars(
        tmp_path / "several",
        ("train-0.tar", {"a/1.png": picture(1), "b/2.png": picture(2)}),
        ("train-1.tar", {"a/1.png": picture(3)}),
        ("test.tar", {"b/1.png": picture(4)}),
    )
    source = open_source(shards)
    assert named(source, "train") == {
        "train-0.tar/a/1.png": "a",
        "train-0.tar/b/2.png": "b",
        "train-1.tar/a/1.png": "a",
    }
    assert named(source, "test") == {"test.tar/b/1.png": "b"}
    tars(shards, ("test.tar", {"train/b/1.png": picture(4), "test/a/2.png": picture(5)}))
    refused("names of tars say other splits than folders in them", open_source, shards)


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x.7z"])
def test_a_compressed_archive_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    refused(r"is a packed archive, .*; unpack it", open_source, tmp_path / name)


@pytest.mark.parametrize("size", [-1, -512, 10**6, 2**60, 2**63])
def test_a_tar_with_a_false_size_is_refused(size: int, tmp_path: Path) -> None:
    path = tars(tmp_path, ("x.tar", {"a.png": picture(1), "b.png": picture(2)})) / "x.tar"
    raw = bytearray(path.read_bytes())
    header = raw[:512]
    header[124:136] = (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + bytes(raw[512:]))
    refused("cannot be read as an uncompressed tar", open_source, path)


def test_random_damage_of_archives_is_reported_or_read(tmp_path: Path) -> None:
    write(tmp_path / "data", "a/1.png", "b/2.png")
    tar = tars(tmp_path, ("x.tar", {"a/1.png": picture(1), "b/2.png": picture(2)})) / "x.tar"
    archived = Path(shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "data"))
    opened = 0
    for path in (tar, archived):
        whole, rng = path.read_bytes(), np.random.default_rng(0)
        for _ in range(150):
            raw = bytearray(whole)
            begin = 0 if path is tar else len(raw) - 400
            for place in rng.integers(begin, begin + 400, 4):
                raw[place] = rng.integers(0, 256)
            path.write_bytes(bytes(raw))
            with suppress(UserError):
                source = open_source(path)
                opened += 1
                for row in range(len(source)):
                    with suppress(Unreadable):
                        source.read(row)
    assert 0 < opened < 300, "some damage is harmless, some is refused"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{000..999999999}.tar", "more than 100,000 shards"),
        ("{0..9999}{0..9999}.tar", "more than 100,000 shards"),
        ("x{a{0..99999},b{0..99999}}.tar", "more than 100,000 shards"),
        (f"{'{a..z}' * 9}.tar", "more than 100,000 shards"),
        ("{0..999999999..100000}.tar", "10000 of 10000 shards do not exist"),
        ("{0..9.tar", "is none: Unbalanced braces"),
    ],
)
def test_a_pattern_of_too_many_shards_is_refused(pattern: str, message: str) -> None:
    pytest.importorskip("webdataset")
    refused(message, open_source, f"nowhere/{pattern}")


def test_missing_shards_of_a_pattern_are_reported(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    root = tars(tmp_path / "shards", ("s-0.tar", {"a.jpg": b"x"}))
    refused(r"2 of 3 shards do not exist, such as .*s-1.tar", open_source, f"{root}/s-{{0..2}}.tar")


def test_classes_are_sorted_naturally() -> None:
    names = ["b10", "b2", "B1", "a", "10", "9", "1", "²", "x01", "x1", "", "7" * 5000]
    expected = ["", "1", "9", "10", "7" * 5000, "a", "B1", "b2", "b10", "x01", "x1", "²"]
    assert sorted(names, key=natural) == expected
    classes, labels = classify(["b", None, "a", "b"], also=["c"])
    assert classes == ("a", "b", "c")
    assert labels.tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize(
    ("word", "split"),
    [
        ("train", "train"),
        ("TRAINING", "train"),
        ("valid", "val"),
        ("validation", "val"),
        ("test_set", "test"),
        ("train2017", "train"),
        ("val_2014", "val"),
        ("train2", None),
        ("trains", None),
        ("contest", None),
        ("", None),
        ("valley", None),
    ],
)
def test_split_names(word: str, split: str | None) -> None:
    assert split_of(word) == split


def test_pipes_among_the_images_are_unreadable(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.png", "b/2.png")
    os.mkfifo(root / "a" / "0.png")
    (tmp_path / "list.csv").write_text("path,label\ndata/a/0.png,a\ndata/b/2.png,b\n")
    for source in (open_source(root), open_source(tmp_path / "list.csv")):
        for read in (source.read, source.size_of):
            with pytest.raises(Unreadable, match=r"a/0.png: broken: no regular file"):
                read(0)
    os.mkfifo(tmp_path / "data.csv")
    refused("neither a file nor a folder", open_source, tmp_path / "data.csv")


def test_a_link_to_itself_is_unreadable(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.png", "b/2.png")
    (root / "a" / "0.png").symlink_to("0.png")
    (root / "c").symlink_to("c")
    source = open_source(root)
    assert source.names == ["a/0.png", "a/1.png", "b/2.png"]
    with pytest.raises(Unreadable, match="symbolic links"):
        source.read(0)


def test_undecodable_names_are_distinct_and_printable(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "b/2.png")
    names = [b"q\xff.png", b"q\\udcff.png", b"q\\\\udcff.png", b"q\\.png", "q\u00e9.png".encode()]
    (root / "q\udcff").mkdir()
    for number, name in enumerate(names):
        Path(os.fsdecode(os.fsencode(root / "q\udcff") + b"/" + name)).write_bytes(picture(number))
    source = open_source(root)
    assert len(set(source.names)) == 6
    for text in (*source.names, *source.classes):
        text.encode()
    read = {source.names[i]: source.read(i).getpixel((0, 0))[0] for i in range(6)}
    assert read[r"q\udcff/q\udcff.png"] == 0
    assert read[r"q\udcff/q\\udcff.png"] == 1
    assert sorted(read.values()) == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "must be the name of a set, a file or a folder"),
        ("  ", "must be the name"),
        ("a" * 5000, "File name too long"),
        ("a/" + "b" * 5000, "File name too long"),
        ("x\0y", "unknown data set|no such file"),
        ("~nobody-of-that-name/x", "no such file or folder"),
    ],
)
def test_invalid_names_are_refused_in_one_line(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_source(word)
    assert len(str(caught.value)) < 600


def test_a_nul_in_a_csv_is_refused_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "1.png")
    (tmp_path / "list.csv").write_text("path,label\n1.png,a\n2\0.png,b\n")
    refused(r"line 3.*NUL|line contains NUL", open_source, tmp_path / "list.csv")


def test_deep_json_in_a_shard_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for name, raw in (("1.png", picture(1)), ("1.json", b'{"label": ' + b"[" * 10**5)):
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            file.addfile(member, io.BytesIO(raw))
    refused(r"the label of 1.png cannot be read", open_source, tmp_path / "x.tar")


def test_listing_costs_one_stat_a_file_and_no_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted for 40 and for 80 files: the difference is 40."""
    calls: list[int] = []
    asked = folders.file_fingerprint  # type: ignore[attr-defined]
    monkeypatch.setattr(folders, "file_fingerprint", lambda status: calls.append(1) or asked(status))
    monkeypatch.setattr("viticulture.data.sources.files.FileReader.open", lambda self, i: pytest.fail("opened"))
    counts = []
    for count in (40, 80):
        root = write(tmp_path / str(count), *(f"train/{'ab'[i % 2]}/{i}.png" for i in range(count)))
        calls.clear()
        assert len(open_source(root)) == count
        counts.append(len(calls))
    assert counts == [40, 80]


def test_layout_checks_folders_not_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(folders, "split_of", lambda name: asked.append(name) or split_of(name))
    spent = []
    for images in (10, 1000):
        asked.clear()
        layout = folders.arrange(
            [f"{kind}/c{c}/{i}.jpg" for kind in ("train", "val") for c in range(9) for i in range(images)], []
        )
        assert {kind: len(rows) for kind, rows in layout.splits.items()} == dict.fromkeys(("train", "val"), 9 * images)
        spent.append(len(asked))
    assert spent[0] == spent[1]


@pytest.mark.parametrize("world", [2, 4])
def test_shards_over_processes_cover_every_sample_once(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in range(3):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as file:
            for i in range(16):
                for ending, raw in (("png", picture(16 * shard + i)), ("cls", b"%d" % (i % 2))):
                    member = tarfile.TarInfo(f"{i:03d}.{ending}")
                    member.size = len(raw)
                    file.addfile(member, io.BytesIO(raw))
    listed: list[Path] = []
    listing = shards.tar_spans  # type: ignore[attr-defined]
    monkeypatch.setattr(shards, "tar_spans", lambda path: listed.append(path) or listing(path))
    read: list[int] = []
    opening = archives.TarReader.open
    monkeypatch.setattr(archives.TarReader, "open", lambda self, i: read.append(i) or opening(self, i))
    seen: list[int] = []
    for rank in range(world):
        data = prepare(tmp_path, DataSettings(val_fraction=0, test_fraction=0), ImageSettings(2, 2, stream=True))
        view = Augment([], (2, 2), (0, 0, 0), (1, 1, 1), 2)
        read.clear()
        mine = [
            number
            for batch in Loader(data.train, (view,), 12, 0, shard=Shard(rank, world, workers=0))
            for number in batch["index"].tolist()
        ]
        assert sorted(read) == sorted(mine)
        seen += mine
    assert sorted(seen) == list(range(48))
    assert len(listed) == 3


def test_ignored_columns_are_reported(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    told = ("columns that are not read: patient; read are path, label, split, group",)
    file = table(tmp_path, "Unnamed: 0,path,label,patient,split\n0,img/a b.png,x,p1,train\n1,3.png,y,p2,test\n")
    assert open_source(file).warnings == told
    frame = pandas.read_csv(file).assign(path=lambda rows: [str(tmp_path / path) for path in rows["path"]])
    assert open_source(frame).warnings == told
    assert not open_source(table(tmp_path, "path,label,split\nimg/a b.png,x,train\n3.png,y,test\n")).warnings
