# SPDX-License-Identifier: Apache-2.0
"""Python objects as a source: the same images and classes from any container."""

import hashlib
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder

from refusals import refused
from viticulture.data.dataset import DataSettings, ImageSettings, prepare, prepare_test
from viticulture.data.images.decode import decode, image_size
from viticulture.data.images.format import RGB, PixelFormat
from viticulture.data.open import open_source
from viticulture.data.sources.several import cell_words
from viticulture.data.sources.source import Source
from viticulture.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3), np.uint8)
LABELS = np.array([10, 2, 2, 10, -1, 2, 10, 2, 2, 10, 2, 10])


class Pairs(Dataset[Any]):
    """Images and labels as a torchvision set returns them."""

    classes = [f"class {i}" for i in range(11)]  # noqa: RUF012  as torchvision's are

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.images[i], self.labels[i]


def shown(source: Source) -> np.ndarray:
    return np.stack([np.asarray(source.read(i)) for i in range(len(source))])


def tensors() -> torch.Tensor:
    return torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS, LABELS),
        (PIXELS / 255, LABELS.tolist()),
        (np.moveaxis(PIXELS, -1, 1), LABELS),
        (tensors(), torch.from_numpy(LABELS)),
        (tensors() / 255, LABELS),
        ([Image.fromarray(image) for image in PIXELS], LABELS),
        (list(tensors()), LABELS),
        TensorDataset(tensors(), torch.from_numpy(LABELS)),
        [list(PIXELS), list(LABELS)],
    ],
    ids=["arrays", "floats", "channels first", "tensors", "float tensors", "PIL", "list", "dataset", "lists"],
)
def test_images_and_classes_do_not_depend_on_the_container(data: Any) -> None:
    source = open_source(data)
    assert source.classes == ("2", "10")
    assert source.labels.tolist() == [1, 0, 0, 1, -1, 0, 1, 0, 0, 1, 0, 1]
    assert (shown(source) == PIXELS).all()
    if np.asarray(source.reader.open(0)).dtype == np.uint8:
        assert source.fingerprints == open_source((PIXELS, LABELS)).fingerprints


def test_class_names_of_a_data_set_survive_a_subset() -> None:
    images = [Image.fromarray(image) for image in PIXELS]
    source = open_source(Subset(Pairs(images, LABELS), [0, 1, 4]))
    assert source.classes == ("class 2", "class 10")
    assert source.name == "Subset"
    assert (shown(source) == PIXELS[[0, 1, 4]]).all()


NAMES = [f"class {i}" for i in range(11)]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"classes": np.array(NAMES)}, NAMES),
        ({"index": NAMES}, NAMES),
        ({"classes": [(name, "synonym") for name in NAMES]}, [f"{name}, synonym" for name in NAMES]),
        ({"classes": [("crane",)] * 11, "wnids": NAMES}, [f"crane ({name})" for name in NAMES]),
        ({"classes": None, "class_to_idx": dict(zip(reversed(NAMES), range(11), strict=True))}, NAMES[::-1]),
        ({"classes": ["a", "b", "c"], "class_to_idx": {"a": 2, "b": 10, "c": 10}}, {2: "a", 10: "b, c"}),
        ({"classes": NAMES, "class_to_idx": {f"n{i}": i for i in range(11)}}, NAMES),
    ],
    ids=["array", "index", "synonyms", "twins", "class_to_idx", "merged classes", "renamed"],
)
def test_class_names_follow_class_to_idx(given: dict[str, Any], names: Any) -> None:
    if "index" in given:
        given = {"classes": pytest.importorskip("pandas").Index(NAMES)}
    data = Pairs(PIXELS, LABELS)
    for name, value in given.items():
        setattr(data, name, value)
    source = open_source(data)
    told = [source.classes[label] if label >= 0 else None for label in source.labels]
    assert told == [names[label] if label >= 0 else None for label in LABELS.tolist()]


class Others(Pairs):
    """Has another `__len__` of classes."""

    classes = [f"class {i}" for i in reversed(range(11))]  # noqa: RUF012


class Unordered(Pairs):
    """Has classes without an order."""

    classes = {"cat", "dog"}  # type: ignore[assignment]  # noqa: RUF012


class Twins(Pairs):
    """Has equal names for all classes."""

    classes = ["one"] * 11


def test_each_member_of_a_concatenated_data_set_has_its_classes() -> None:
    images = [Image.fromarray(image) for image in PIXELS]
    both: ConcatDataset[Any] = ConcatDataset(
        [Pairs(images[:5], LABELS[:5]), Subset(Others(images, 10 - LABELS), [5, 6, 7])]
    )
    source = open_source(both)
    assert source.classes == ("class 2", "class 10")
    assert source.labels.tolist() == [1, 0, 0, 1, -1, 0, 1, 0]
    assert open_source(Subset(both, [6, 0, 5])).labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    "data",
    [(PIXELS[:4], np.array([[0], [1], [2], [1]])), Pairs(PIXELS[:4], torch.tensor([[0], [1], [2], [1]]))],
    ids=["arrays", "dataset"],
)
def test_a_label_may_be_a_vector_of_one(data: Any) -> None:
    """A column of classes, as MedMNIST's sets have them."""
    source = open_source(data)
    assert [source.classes[label].removeprefix("class ") for label in source.labels] == ["0", "1", "2", "1"]


@pytest.mark.parametrize("kind", ["set", "frozenset", "column"])
def test_a_set_of_labels_is_the_same_in_every_process(kind: str) -> None:
    words = {f"label {i}" for i in range(9)}
    if kind == "column":
        assert cell_words([words]) == ["|".join(sorted(words))]
    else:
        assert open_source((PIXELS[:1], [words if kind == "set" else frozenset(words)])).classes == (
            "|".join(sorted(words)),
        )


@pytest.mark.parametrize("kind", ["tensor", "list", "dataset"])
def test_tensors_of_bfloat16_are_images(kind: str) -> None:
    images = (tensors() / 255).bfloat16()
    labels = torch.from_numpy(LABELS)
    data = {"tensor": (images, labels), "list": (list(images), labels), "dataset": TensorDataset(images, labels)}[kind]
    assert (shown(open_source(data)) == shown(open_source((images.float(), labels)))).all()


def test_items_may_be_dictionaries() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    images, labels = [Image.fromarray(image) for image in PIXELS[:3]], [1, 0, 1]
    held = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    source = open_source(datasets.DatasetDict({"train": held, "validation": held}))
    assert (source.classes, source.labels.tolist()) == (("no", "yes"), labels * 2)
    assert {kind: len(rows) for kind, rows in source.splits.items()} == {"train": 3, "val": 3}


def test_splits_are_those_of_a_dictionary() -> None:
    data = {
        "train": (PIXELS[:8], LABELS[:8]),
        "validation": Pairs(PIXELS[8:10], LABELS[8:10]),
        "test": (PIXELS[10:], LABELS[10:]),
    }
    source = open_source({**data, "validation": (PIXELS[8:10], LABELS[8:10])})
    assert {kind: rows.tolist() for kind, rows in source.splits.items()} == {
        "train": list(range(8)), "val": [8, 9], "test": [10, 11],
    }  # fmt: skip
    assert (shown(source) == PIXELS).all()
    assert source.names[8] == "val/00000"
    mixed = open_source(data)
    assert mixed.classes == ("2", "10", "class 2", "class 10"), "two vocabularies are seen, not merged"


def test_a_data_frame_equals_its_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    for i, image in enumerate(PIXELS[:4]):
        Image.fromarray(image).save(f"{i}.png")
    (tmp_path / "all.csv").write_text("path,label,split\n0.png,3,train\n1.png,4,test\n2.png,,train\n3.png,4,train\n")
    listed, frame = open_source("all.csv"), open_source(pandas.read_csv("all.csv"))
    assert (frame.classes, frame.fingerprint) == (("3", "4"), listed.fingerprint)
    assert (shown(frame) == shown(listed)).all()
    (tmp_path / "gap.csv").write_text("path,label,split\n0.png,3,train\n1.png,4,\n2.png,3,test\n")
    for data, row in (("gap.csv", "gap.csv, line 3"), (pandas.read_csv("gap.csv"), "data frame, row 1")):
        refused(f"{row}: split must be train, val or test, got an empty cell", open_source, data)
    with pytest.raises(UserError, match=r"data frame lists 1 file that .* does not hold: gone\.png \(row 0\)"):
        open_source(pandas.DataFrame({"path": ["gone.png"], "label": ["a"]}))
    refused("label is not there", lambda: open_source(pandas.DataFrame({"path": ["0.png"]})))


def test_unusual_columns_of_a_data_frame_are_read_by_position_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        Image.fromarray(PIXELS[i]).save(f"{i}.png")
    paths = pandas.DataFrame({"path": [Path(f"{i}.png") for i in range(4)]}, index=[3, 3, 1, 0])
    marked = paths.assign(a=[1, 0, 1, 0], b=1).set_axis(["path", 0, 1], axis=1)
    assert open_source(marked).classes == ("0|1", "1")
    frame = paths.assign(label=[torch.tensor(i % 2) for i in range(4)])
    assert open_source(frame).classes == ("0", "1")
    parts = open_source({"train": frame[:3], "validation": frame[3:]})
    assert {split: len(rows) for split, rows in parts.splits.items()} == {"train": 3, "val": 1}
    subclass = type("GeoDataFrame", (pandas.DataFrame,), {"__module__": "geopandas"})
    assert open_source(subclass(frame)).classes == ("0", "1")
    held = list(PIXELS[:4])
    columns = pandas.Series(held, index=[3, 2, 1, 0]), pandas.Series(["a", "b", "c", "d"], index=[3, 2, 1, 0])
    assert open_source(columns).fingerprint == open_source((held, ["a", "b", "c", "d"])).fingerprint
    wrong: dict[str, Any] = {
        "two columns of the data frame are called path": pandas.concat([frame, paths], axis=1),
        "label is not there; its columns are path": paths,
        "its columns are none": pandas.DataFrame(),
        r"holds paths, got ndarray \[6, 8, 3\] of uint8 in row 0": frame.assign(path=held),
        "holds paths, got 9 bytes in row 1": frame.assign(path=["0.png", b"cut bytes", "1.png", "2.png"]),
        "need the same columns, got path in test": {"train": frame, "test": paths},
        "of one split, train, has no column split": {"train": frame.assign(split="train")},
        "splits are data frames all, or none": {"train": frame, "test": (PIXELS, LABELS)},
        "a pair is images and their labels, got DataFrame": (frame, frame.label),
    }
    for said, data in wrong.items():
        refused(said, open_source, data)


def test_the_digest_changes_with_a_pixel_a_label_and_the_order() -> None:
    other, flipped = PIXELS.copy(), LABELS.copy()
    other[3, 2, 1, 0] ^= 1
    flipped[0] = 2
    marks = {
        open_source(data).fingerprint
        for data in ((PIXELS, LABELS), (other, LABELS), (PIXELS, flipped), (PIXELS[::-1], LABELS[::-1]))
    }
    assert len(marks) == 4
    assert open_source((PIXELS.copy(), LABELS.copy())).fingerprint in marks


def test_bytes_keep_the_digest_of_earlier_runs() -> None:
    color = np.broadcast_to(PIXELS[..., :1], (*PIXELS.shape[:3], 3))
    for images in (color, color[..., 0]):
        (first, *_) = open_source((images, LABELS)).fingerprints
        wanted = hashlib.blake2b(str(color[0].shape).encode() + color[0].tobytes(), digest_size=16)
        assert first == wanted.hexdigest()


def test_the_digest_depends_on_the_number_type() -> None:
    settings = ImageSettings(image_size=8, cache_size=8, range=[0, 1])
    whole = np.arange(12 * 8 * 8, dtype=np.int16).reshape(12, 8, 8) - 300
    pairs = ((PIXELS, PIXELS / 255), (whole, whole.view(np.uint16)))
    for one, other in pairs:
        sources = [open_source((images, LABELS)) for images in (one, other)]
        assert not set(sources[0].fingerprints) & set(sources[1].fingerprints)
        first, second = (prepare(source, image_settings=settings).fingerprint for source in sources)
        assert first != second


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        *((mode, PixelFormat(1, ((0, 4095),))) for mode in ("I;16", "I", "F")), ("F", RGB), ("I;16", RGB),
        ("RGBA", PixelFormat(4)), ("RGBA", RGB), ("LA", PixelFormat(4)), ("P", RGB), ("CMYK", RGB),
    ],
)  # fmt: skip
def test_an_opened_picture_equals_its_file(mode: str, kept: PixelFormat, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (5, 7))
    image = Image.fromarray((values / 16).astype(np.uint8)).convert("RGB" if mode == "CMYK" else "L").convert(mode)
    if mode in ("I;16", "I", "F"):
        image = Image.fromarray(values.astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]))
    elif mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray((values % 256).astype(np.uint8)))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path = tmp_path / ("x.png" if kept.channels == 4 else "x.tiff")
    image.save(path, exif=exif, compression="tiff_lzw")  # Pillow turns no TIFF that it maps into memory
    with path.open("rb") as file:
        expected = decode(file, "x", pixel_format=kept)
    opened = Image.open(path)
    source = open_source(([opened, opened], [0, 1]))
    for _ in range(2):
        found = decode(source.reader.open(0), "x", pixel_format=kept)
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        assert found[1:] == expected[1:]
    assert image_size(opened, "x") == (7, 5)


@pytest.mark.parametrize("kind", ["png", "jpg", "tiff"])
def test_a_picture_closed_unread_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{kind}"
    Image.fromarray(PIXELS[0]).save(path)
    with Image.open(path) as unread, Image.open(path) as read:
        read.load()
    assert len(open_source(([read], [0]))) == 1
    refused(r"image 0: a picture of PIL was closed before .* call its load\(\)", open_source, ([unread], [0]))


def test_a_reader_can_be_pickled() -> None:
    source = open_source(TensorDataset(tensors(), torch.from_numpy(LABELS)))
    arrays = open_source([list(PIXELS), list(LABELS)])
    for reader in (source.reader, arrays.reader):
        assert (np.asarray(pickle.loads(pickle.dumps(reader)).open(5)) == PIXELS[5]).all()


class Restless(Pairs):
    """Augments in `__getitem__`."""

    calls = 0

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self.calls += 1
        return np.roll(self.images[i], self.calls, axis=1), self.labels[i]


@pytest.fixture
def damaged(tmp_path: Path) -> ImageFolder:
    """Create two classes of four images by torchvision, one of them truncated."""
    for i, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(PIXELS[4 * i + number]).save(tmp_path / name / f"{number}.png")
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    return ImageFolder(tmp_path)


def test_a_damaged_file_of_a_data_set_is_refused_or_skipped(damaged: ImageFolder) -> None:
    settings = ImageSettings(image_size=8, cache_size=8)
    source = open_source({"train": damaged, "test": damaged})
    with pytest.raises(UserError, match=r"2 of 16 images cannot be read: train/00001 \(broken: cannot identify"):
        prepare(source, DataSettings(), settings)
    dataset = prepare(source, DataSettings(skip_unreadable=True), settings)
    assert list(dataset.skipped) == ["train/00001", "test/00001"]
    assert not any("without a label" in warning for warning in dataset.warnings)
    refused("2 of 16 images cannot be read", prepare_test, source, ("a", "b"), settings)
    images, skipped = prepare_test(source, ("a", "b"), settings, skip_unreadable=True)
    assert (len(images), list(skipped)) == (7, ["train/00001", "test/00001"])
    cut = BytesIO()
    Image.fromarray(PIXELS[0].repeat(9, 0)).save(cut, "PNG")
    held = [*map(Image.fromarray, PIXELS[:3]), Image.open(BytesIO(cut.getvalue()[:200]))]
    with pytest.raises(UserError, match=r"1 of 4 images cannot be read: train/00003 \(truncated"):
        prepare(open_source((held, [0, 1, 0, 1])), DataSettings(), settings)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (3, "no images to train on: int; give a folder"),
        (PIXELS, "no images to train on: ndarray"),
        ((PIXELS, LABELS[:3]), "12 images and 3 labels"),
        ((PIXELS[:, None], LABELS), r"image 0: an array is an image if .*, got \[1, 6, 8, 3\]"),
        ((PIXELS, np.eye(12) / 2), "a vector of labels holds a 1 or a 0 a class"),
        ({"training": (PIXELS, LABELS), "oops": (PIXELS, LABELS)}, "splits are train, val and test"),
        ({}, "splits are"),
        ({"val": (PIXELS, LABELS), "validation": (PIXELS, LABELS)}, "two splits are val"),
        (Restless(PIXELS, LABELS), "image 0: its pixels change.*augment"),
        (TensorDataset(tensors()), "gives .image, label."),
        ((PIXELS[:0], LABELS[:0]), "no images in arrays"),
        (TensorDataset(torch.zeros(2, 3, 6, 8), torch.rand(2, 30)), "got Tensor .30. of torch.float32"),
        (Pairs(PIXELS, LABELS + 1), "image 0: the label 11 names none of .* from 0 to 10: class 0"),
        (Unordered(PIXELS, LABELS), "image 0: the data set's classes are a set, which has no order; make it a list"),
        ((PIXELS, {*range(12)}), "labels are a set, which has no order; give a list of 12"),
        (Twins(PIXELS, LABELS), "image 0: the data set calls several of its classes 'one'; give each"),
        (("photos", "labels"), "a pair is images and their labels, got str first"),
    ],
)  # fmt: skip
def test_unusable_objects_are_refused_in_one_line(data: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        open_source(data)
    assert len(str(caught.value)) < 300
