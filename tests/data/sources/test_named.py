# SPDX-License-Identifier: Apache-2.0
"""Data sets by name, on small files laid out as torchvision expects; the reference is torchvision's classes."""

import csv
import hashlib
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from refusals import refused
from strewn import strew
from viticulture.data.open import open_source
from viticulture.data.sources import torchvision_sets as named
from viticulture.data.sources.source import Source
from viticulture.errors import UserError


class Maker:
    """Writes files, every image different; `md5` makes torchvision expect the file as written."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.rng = np.random.default_rng(0)

    def file(self, path: str, data: bytes | str) -> str:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        return hashlib.md5(target.read_bytes()).hexdigest()

    def image(self, *paths: str) -> None:
        for path in paths:
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(self.rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(target)

    def mat(self, path: str, **arrays: Any) -> str:
        from scipy.io import savemat

        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        savemat(self.root / path, arrays)
        return hashlib.md5((self.root / path).read_bytes()).hexdigest()

    def pixels(self, *shape: int) -> np.ndarray:
        return self.rng.integers(0, 256, shape, dtype=np.uint8)


def cifar(make: Maker, cls: Any, key: str) -> None:
    lists: dict[str, list[Any]] = {}
    for attribute, files in (("train_list", cls.train_list), ("test_list", cls.test_list)):
        lists[attribute] = []
        for name, _ in files:
            entry = {"data": make.pixels(4, 3072), key: [3, 0, 1, 3]}
            lists[attribute].append([name, make.file(f"{cls.base_folder}/{name}", pickle.dumps(entry))])
    meta = pickle.dumps({cls.meta["key"]: [f"class {i}" for i in range(4)]})
    lists["meta"] = {**cls.meta, "md5": make.file(f"{cls.base_folder}/{cls.meta['filename']}", meta)}
    for attribute, value in lists.items():
        make.patch.setattr(cls, attribute, value)


def flowers102(make: Maker) -> None:
    cls = torchvision.datasets.Flowers102
    make.image(*(f"flowers-102/jpg/image_{i:05d}.jpg" for i in range(1, 9)))
    label = make.mat("flowers-102/imagelabels.mat", labels=np.array([[102, 1, 5, 5, 1, 102, 3, 3]]))
    setid = make.mat("flowers-102/setid.mat", trnid=[[2, 8, 1]], valid=[[4, 3]], tstid=[[5, 6, 7]])
    make.patch.setattr(
        cls, "_file_dict", {**cls._file_dict, "label": ("imagelabels.mat", label), "setid": ("setid.mat", setid)}
    )


def oxford_pets(make: Maker) -> None:
    lines = {
        "trainval": ["Abyssinian_1 1 1 1", "american_bulldog_2 2 2 1"],
        "test": ["american_bulldog_9 2 2 1", "Abyssinian_3 1 1 1"],
    }
    for split, rows in lines.items():
        make.file(f"oxford-iiit-pet/annotations/{split}.txt", "\n".join(rows) + "\n")
        make.image(*(f"oxford-iiit-pet/images/{row.split()[0]}.jpg" for row in rows))


def fgvc_aircraft(make: Maker) -> None:
    base = "fgvc-aircraft-2013b/data"
    make.file(f"{base}/variants.txt", "707-320\nA 380\nBAe/146\n")
    for split, rows in {"train": "11 A 380\n12 BAe/146\n", "val": "13 707-320\n", "test": "14 A 380\n"}.items():
        make.file(f"{base}/images_variant_{split}.txt", rows)
    make.image(*(f"{base}/images/{i}.jpg" for i in range(11, 15)))


def stanford_cars(make: Maker) -> None:
    annotation = np.dtype([("class", object), ("fname", object)])
    for split, path in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = np.array([(2, f"{split}1.jpg"), (1, f"{split}2.jpg")], dtype=annotation)
        make.mat(f"stanford_cars/{path}", annotations=rows)
        make.image(*(f"stanford_cars/cars_{split}/{split}{i}.jpg" for i in (1, 2)))
    make.mat("stanford_cars/devkit/cars_meta.mat", class_names=np.array(["Audi A1 2010", "Volvo 240"], dtype=object))


def food101(make: Maker) -> None:
    meta = {"train": {"sushi": ["sushi/3", "sushi/1"], "apple_pie": ["apple_pie/2"]}}
    meta["test"] = {"apple_pie": ["apple_pie/7"], "sushi": ["sushi/8"]}
    for split, classes in meta.items():
        make.file(f"food-101/meta/{split}.json", json.dumps(classes))
        make.image(*(f"food-101/images/{path}.jpg" for paths in classes.values() for path in paths))


def dtd(make: Maker) -> None:
    for number, split in enumerate(("train", "val", "test")):
        rows = [f"{name}/{name}_{number}.jpg" for name in ("banded", "zigzagged")]
        make.file(f"dtd/dtd/labels/{split}1.txt", "\n".join(rows) + "\n")
        make.image(*(f"dtd/dtd/images/{row}" for row in rows))


def eurosat(make: Maker) -> None:
    make.image(
        "eurosat/2750/Forest/Forest_1.jpg", "eurosat/2750/Forest/Forest_10.jpg", "eurosat/2750/River/River_2.jpg"
    )


def imagenet(make: Maker) -> None:
    words = {"n01": ("crane",), "n02": ("crane",), "n03": ("tench", "Tinca tinca")}
    make.file("imagenet/meta.bin", b"")
    torch.save((words, ["n01"]), make.root / "imagenet/meta.bin")
    for split in ("train", "val"):
        make.image(*(f"imagenet/{split}/{wnid}/{split}.jpeg" for wnid in words))


def imagenette(make: Maker) -> None:
    for split in ("train", "val"):
        make.image(*(f"imagenette2/{split}/{wnid}/{split}.jpeg" for wnid in ("n01440764", "n03888257")))


def inaturalist(make: Maker) -> None:
    names = [f"{i:05d}_Animalia_a_b_c_d_e_f" for i in range(2)]
    for version in ("2021_train", "2021_valid"):
        make.image(*(f"inaturalist/{version}/{name}/{version}{i}.jpg" for name in names for i in (2, 1)))


def svhn(make: Maker) -> None:
    cls = torchvision.datasets.SVHN
    lists = dict(cls.split_list)
    for split in ("train", "test"):
        url, name, _ = lists[split][:3]
        md5 = make.mat(f"svhn/{name}", X=make.pixels(32, 32, 3, 5), y=np.array([[10], [1], [2], [9], [10]]))
        lists[split] = [url, name, md5]
    make.patch.setattr(cls, "split_list", lists)


def stl10(make: Maker) -> None:
    cls, base = torchvision.datasets.STL10, "stl10_binary"
    make.file(f"{base}/class_names.txt", "airplane\nbird\n")
    lists: dict[str, list[Any]] = {}
    for attribute, start in (("train_list", "train"), ("test_list", "test")):
        images = make.file(f"{base}/{start}_X.bin", make.pixels(2, 3, 96, 96).tobytes())
        labels = make.file(f"{base}/{start}_y.bin", bytes([2, 1]))
        lists[attribute] = [[f"{start}_X.bin", images], [f"{start}_y.bin", labels]]
    lists["train_list"].append(["unlabeled_X.bin", make.file(f"{base}/unlabeled_X.bin", b"")])
    for attribute, value in lists.items():
        make.patch.setattr(cls, attribute, value)


def mnist(make: Maker, folder: str) -> None:
    for start, labels in (("train", [3, 1, 9]), ("t10k", [0, 2])):
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, len(labels), 28, 28)
        make.file(f"{folder}/raw/{start}-images-idx3-ubyte", header + make.pixels(len(labels), 28, 28).tobytes())
        make.file(
            f"{folder}/raw/{start}-labels-idx1-ubyte", struct.pack(">BBBBI", 0, 0, 8, 1, len(labels)) + bytes(labels)
        )


def country211(make: Maker) -> None:
    for split in ("train", "valid", "test"):
        make.image(*(f"country211/{split}/{code}/{split}.jpg" for code in ("AD", "ZW")))


def sun397(make: Maker) -> None:
    make.file("SUN397/ClassName.txt", "/a/abbey\n/b/bar/indoor\n")
    make.image("SUN397/b/bar/indoor/sun_b.jpg", "SUN397/a/abbey/sun_a.jpg", "SUN397/a/abbey/sun_c.jpg")


def gtsrb(make: Maker) -> None:
    make.image(*(f"gtsrb/GTSRB/Training/{i:05d}/x_{i}.ppm" for i in (0, 1, 2)))
    make.image("gtsrb/GTSRB/Final_Test/Images/00000.ppm", "gtsrb/GTSRB/Final_Test/Images/00001.ppm")
    with (make.root / "gtsrb/GT-final_test.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("Filename", "ClassId"), ("00000.ppm", 2), ("00001.ppm", 0)])


def caltech101(make: Maker) -> None:
    base = "caltech101/101_ObjectCategories"
    make.image(f"{base}/BACKGROUND_Google/image_0001.jpg", *(f"{base}/ant/image_000{i}.jpg" for i in (1, 2)))
    make.image(f"{base}/yin_yang/image_0001.jpg")


LAYOUTS: dict[str, Callable[[Maker], None]] = {
    "caltech101": caltech101,
    "cifar10": lambda make: cifar(make, torchvision.datasets.CIFAR10, "labels"),
    "cifar100": lambda make: cifar(make, torchvision.datasets.CIFAR100, "fine_labels"),
    "country211": country211,
    "dtd": dtd,
    "eurosat": eurosat,
    "fashion_mnist": lambda make: mnist(make, "FashionMNIST"),
    "fgvc_aircraft": fgvc_aircraft,
    "flowers102": flowers102,
    "food101": food101,
    "gtsrb": gtsrb,
    "imagenet": imagenet,
    "imagenette": imagenette,
    "inaturalist": inaturalist,
    "kmnist": lambda make: mnist(make, "KMNIST"),
    "mnist": lambda make: mnist(make, "MNIST"),
    "oxford_pets": oxford_pets,
    "stanford_cars": stanford_cars,
    "stl10": stl10,
    "sun397": sun397,
    "svhn": svhn,
}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    return Maker(tmp_path / "sets", monkeypatch)


def images(source: Source, split: str) -> Iterator[tuple[bytes, int]]:
    for i in source.splits[split]:
        yield source.read(int(i)).tobytes(), int(source.labels[i])


@pytest.mark.parametrize("name", LAYOUTS)
def test_named_sets_equal_torchvisions(name: str, make: Maker) -> None:
    LAYOUTS[name](make)
    source, entry = open_source(name), named.TORCHVISION[name]
    assert set(source.splits) == set(entry.parts)
    assert len(source) == sum(map(len, source.splits.values()))
    for split, chosen in entry.parts.items():
        reference = getattr(torchvision.datasets, entry.cls)(make.root / entry.folder, **chosen)
        expected = [reference[i] for i in range(len(reference))]
        pairs = sorted((image.convert("RGB").tobytes(), int(label)) for image, label in expected)
        assert sorted(images(source, split)) == pairs
        own = getattr(reference, "classes", None) or getattr(reference, "categories", None)
        if own is not None and name not in ("imagenet", "imagenette"):
            assert source.classes == tuple(own)
        if not hasattr(reference, "data"):
            assert (shown := [source.names[i] for i in source.splits[split]]) == sorted(shown)
    assert len(set(source.classes)) == len(source.classes) > int(source.labels.max())
    assert open_source(name).fingerprint == source.fingerprint
    assert pickle.loads(pickle.dumps(source)).read(0).tobytes() == source.read(0).tobytes()


@pytest.mark.parametrize("name", sorted(LAYOUTS))
@pytest.mark.parametrize("left", ["lost+found", "._NAME"])
def test_system_files_are_no_part_of_a_named_set(name: str, left: str, make: Maker) -> None:
    LAYOUTS[name](make)
    before = open_source(name)
    strew(make.root, left)
    with suppress(UserError):
        after = open_source(name)
        assert (after.names, after.classes) == (before.names, before.classes)
        return
    refused(r"(?:[.]_|lost.found).*, which a system left behind and .* would read", open_source, name)


def test_every_layout_is_tested() -> None:
    """The other versions of iNaturalist share its layout."""
    assert set(named.TORCHVISION) - set(LAYOUTS) == {"inaturalist_mini", "inaturalist2018", "inaturalist2019"}


def test_older_inaturalist_has_no_test_split(make: Maker) -> None:
    """Versions to 2019 nest classes in kingdoms and number them across."""
    make.image("inaturalist/2018/Plantae/0/a.jpg", "inaturalist/2018/Aves/1/b.jpg")
    source = open_source("inaturalist2018")
    assert list(source.splits) == ["train"]
    assert dict(zip(source.names, source.labels.tolist(), strict=True)) == {
        "2018/Plantae/0/a.jpg": 0,
        "2018/Aves/1/b.jpg": 1,
    }


def test_classes_that_share_a_name_are_separate(make: Maker) -> None:
    """ImageNet has two cranes."""
    imagenet(make)
    assert open_source("imagenet").classes == ("crane (n01)", "crane (n02)", "tench, Tinca tinca")


def test_cifar_is_unpickled_only_if_it_is_the_published_file(make: Maker) -> None:
    """torchvision compares MD5 before it unpickles."""

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (make.root / "owned",)

    LAYOUTS["cifar10"](make)
    make.file("cifar-10-batches-py/data_batch_1", pickle.dumps(Evil()))
    make.patch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", failing)
    with pytest.raises(UserError, match="could not be downloaded") as caught:
        open_source("cifar10")
    assert "download=True" not in str(caught.value)
    assert not (make.root / "owned").exists()


def failing(*args: Any, **kwargs: Any) -> None:
    raise URLError("Name or service not known")


@pytest.mark.parametrize("name", ["eurosat", "cifar100", "imagenet", "stanford_cars", "inaturalist", "mnist"])
def test_a_missing_set_names_files_and_folder(name: str, make: Maker) -> None:
    entry = named.TORCHVISION[name]
    module = getattr(torchvision.datasets, entry.cls).__module__
    for function in ("download_and_extract_archive", "download_url"):
        make.patch.setattr(f"{module}.{function}", failing, raising=False)
    make.patch.setattr("urllib.request.urlopen", failing)
    with pytest.raises(UserError, match="VITICULTURE_DATA") as caught:
        open_source(name)
    assert str(make.root) in str(caught.value)
    assert entry.files in str(caught.value)
    assert not [path for path in make.root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not list(make.root.rglob(".download*"))


def test_a_download_is_renamed_when_complete(make: Maker) -> None:
    def half(url: str, download_root: str, **kwargs: Any) -> None:
        Maker(Path(download_root), make.patch).image("2750/Forest/1.jpg")
        raise URLError("connection lost")

    def whole(url: str, download_root: str, **kwargs: Any) -> None:
        Maker(Path(download_root), make.patch).image("2750/Forest/1.jpg", "2750/River/2.jpg")

    make.patch.setattr(torchvision.datasets.eurosat, "download_and_extract_archive", half)
    refused("connection lost", open_source, "eurosat")
    assert not (make.root / "eurosat").exists()
    make.patch.setattr(torchvision.datasets.eurosat, "download_and_extract_archive", whole)
    assert open_source("eurosat").classes == ("Forest", "River")
    make.patch.setattr(torchvision.datasets.eurosat, "download_and_extract_archive", failing)
    assert len(open_source("eurosat")) == 2


def test_digits_are_scikit_learn_s(make: Maker) -> None:
    """0..16 becomes 0..255; 897 to train and 900 to test, every digit in proportion, the same on every machine."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    source = open_source("digits")
    ours = [(source.read(i).getchannel(0).tobytes(), int(source.labels[i])) for i in range(len(source))]
    scaled = np.round(bunch.images * 255 / 16).astype(np.uint8)
    assert sorted(ours) == sorted(
        (image.tobytes(), int(label)) for image, label in zip(scaled, bunch.target, strict=True)
    )
    counts = {kind: np.bincount(source.labels[rows], minlength=10) for kind, rows in source.splits.items()}
    assert {kind: count.sum() for kind, count in counts.items()} == {"train": 897, "test": 900}
    whole = counts["train"] + counts["test"]
    np.testing.assert_allclose(counts["test"], whole * 900 / 1797, atol=1)
    assert int(np.dot(source.labels[source.splits["train"]], np.arange(897)) % 9973) == 1332
    assert source.classes == tuple("0123456789")


def test_hugging_face_files_are_read_by_their_library(tmp_path: Path, make: Maker) -> None:
    datasets = pytest.importorskip("datasets")
    make.patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant"])})

    def rows(count: int) -> Any:
        pictures = [Image.fromarray(make.pixels(3, 4, 3)) for _ in range(count)]
        return datasets.Dataset.from_dict(
            {"image": pictures, "label": [i % 2 for i in range(count)]}, features=features
        )

    parts = {"train": rows(5), "validation": rows(2), "test": rows(3)}
    (tmp_path / "set" / "data").mkdir(parents=True)
    for kind, part in parts.items():
        part.to_parquet(tmp_path / "set" / "data" / f"{kind}-00000-of-00001.parquet")
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    for source in (
        open_source(tmp_path / "set"),
        open_source(f"hf:{tmp_path / 'set'}"),
        open_source(tmp_path / "saved"),
    ):
        assert source.classes == ("zebra", "ant")
        for kind, ours in (("train", "train"), ("validation", "val"), ("test", "test")):
            expected = [(row["image"].tobytes(), row["label"]) for row in parts[kind]]
            assert list(images(source, ours)) == expected
        assert pickle.loads(pickle.dumps(source)).read(6).tobytes() == source.read(6).tobytes()
    single = open_source(tmp_path / "set" / "data" / "test-00000-of-00001.parquet")
    assert {kind: len(part) for kind, part in single.splits.items()} == {"train": 3}


def test_hugging_face_without_labels_or_images(tmp_path: Path, make: Maker) -> None:
    datasets = pytest.importorskip("datasets")
    make.patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    picture = Image.fromarray(make.pixels(3, 4, 3))
    table = datasets.Dataset.from_dict({"image": [picture, None], "caption": ["x", "y"]})
    table = table.cast_column("image", datasets.Image())
    table.save_to_disk(tmp_path / "captions")
    source = open_source(tmp_path / "captions")
    assert (source.classes, source.labels.tolist()) == ((), [-1, -1])
    refused("no image in this row", source.read, 1)
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(tmp_path / "text")
    refused(r"one column of images.*its columns are text", open_source, tmp_path / "text")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["z", "a"])})
    hidden = datasets.Dataset.from_dict({"image": [picture] * 2, "label": [None, 1]}, features=features)
    hidden.save_to_disk(tmp_path / "hidden")
    assert open_source(tmp_path / "hidden").labels.tolist() == [-1, 1]
    words = datasets.Dataset.from_dict({"image": [picture] * 3, "label": ["b10", "b9", None]})
    words.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "words")
    source = open_source(tmp_path / "words")
    assert (source.classes, source.labels.tolist()) == (("b9", "b10"), [1, 0, -1])


def test_the_missing_extra_is_named(make: Maker) -> None:
    make.patch.setitem(__import__("sys").modules, "datasets", None)
    for name in ("hf:cifar10", "hf:owner/flowers"):
        refused(r"pip install 'viticulture\[hf\]'", open_source, name)


def test_an_unknown_hub_name_is_an_error(make: Maker) -> None:
    datasets = pytest.importorskip("datasets")

    def absent(*args: Any, **kwargs: Any) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'owner/none' doesn't exist on the Hub")

    make.patch.setattr(datasets, "load_dataset", absent)
    refused("neither a file or folder here nor", open_source, "hf:owner/none")
