# SPDX-License-Identifier: Apache-2.0
"""Data sets by name: torchvision's through torchvision's classes, scikit-learn's digits and ImageNet-100.

They are looked for in `VITICULTURE_DATA` (default ~/.cache/viticulture/data), laid out as torchvision lays them out,
and downloaded by torchvision if they are missing, into a temporary folder first.

torchvision unpickles the files of CIFAR, after it has compared their MD5 with that of the published files; nothing else
here is ever unpickled. Where a set's labeled evaluation images are called "val" and the test labels are secret
(ImageNet, iNaturalist), these images are our test split: papers report on them.
"""

import importlib
import inspect
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...cache import data_folder, locked
from ...disk import is_system_file
from ...errors import UserError, some
from ...text import readable
from .arrays import from_arrays, open_digits
from .files import FileReader, file_fingerprint, is_image
from .labels import class_words
from .published import IMAGENET100, hundred_classes
from .source import Source


@dataclass(frozen=True)
class Named:
    """A set of torchvision."""

    cls: str
    parts: Mapping[str, Mapping[str, Any]]
    files: str
    folder: str = ""


def _split(**words: str) -> dict[str, dict[str, Any]]:
    return {ours: {"split": theirs} for ours, theirs in words.items()}


_ALL: dict[str, dict[str, Any]] = {"train": {}}
_FLAG = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = _split(train="train", test="test")
_TRAIN_VAL_TEST = _split(train="train", val="val", test="test")

TORCHVISION = {
    "caltech101": Named("Caltech101", _ALL, "caltech101/101_ObjectCategories/"),
    "cifar10": Named("CIFAR10", _FLAG, "cifar-10-batches-py/"),
    "cifar100": Named("CIFAR100", _FLAG, "cifar-100-python/"),
    "country211": Named("Country211", _split(train="train", val="valid", test="test"), "country211/"),
    "dtd": Named("DTD", _TRAIN_VAL_TEST, "dtd/dtd/images/, dtd/dtd/labels/"),
    "eurosat": Named("EuroSAT", _ALL, "eurosat/2750/"),
    "fashion_mnist": Named("FashionMNIST", _FLAG, "FashionMNIST/raw/"),
    "fgvc_aircraft": Named("FGVCAircraft", _TRAIN_VAL_TEST, "fgvc-aircraft-2013b/"),
    "flowers102": Named("Flowers102", _TRAIN_VAL_TEST, "flowers-102/jpg/, imagelabels.mat, setid.mat"),
    "food101": Named("Food101", _TRAIN_TEST, "food-101/images/, food-101/meta/"),
    "gtsrb": Named("GTSRB", _TRAIN_TEST, "gtsrb/GTSRB/, gtsrb/GT-final_test.csv"),
    "imagenet": Named("ImageNet", _split(train="train", test="val"), "ILSVRC2012_*.tar or train/, val/", "imagenet"),
    "imagenette": Named("Imagenette", _split(train="train", test="val"), "imagenette2/"),
    "inaturalist": Named(
        "INaturalist",
        {"train": {"version": "2021_train"}, "test": {"version": "2021_valid"}},
        "2021_train/, 2021_valid/",
        "inaturalist",
    ),
    "inaturalist_mini": Named(
        "INaturalist",
        {"train": {"version": "2021_train_mini"}, "test": {"version": "2021_valid"}},
        "2021_train_mini/, 2021_valid/",
        "inaturalist",
    ),
    "inaturalist2018": Named("INaturalist", {"train": {"version": "2018"}}, "2018/", "inaturalist"),
    "inaturalist2019": Named("INaturalist", {"train": {"version": "2019"}}, "2019/", "inaturalist"),
    "kmnist": Named("KMNIST", _FLAG, "KMNIST/raw/"),
    "mnist": Named("MNIST", _FLAG, "MNIST/raw/"),
    "oxford_pets": Named("OxfordIIITPet", _split(train="trainval", test="test"), "oxford-iiit-pet/"),
    "stanford_cars": Named("StanfordCars", _TRAIN_TEST, "stanford_cars/devkit/, cars_train/, cars_test/, *.mat"),
    "stl10": Named("STL10", _TRAIN_TEST, "stl10_binary/"),
    "sun397": Named("SUN397", _ALL, "SUN397/"),
    "svhn": Named("SVHN", _TRAIN_TEST, "train_32x32.mat, test_32x32.mat", "svhn"),
}

NAMES = ("digits", IMAGENET100, *TORCHVISION)  # every data set that has a name


def open_named(name: str) -> Source:
    """Open a set of `NAMES`, downloading it if it is missing and torchvision can.

    Raises: UserError that says where to put which files.
    """
    if name == "digits":
        return open_digits()
    if name == IMAGENET100:
        return hundred_classes(open_named("imagenet"))
    named = TORCHVISION[name]
    root = data_folder() / named.folder
    try:
        sets = _open(named, root)
    except (RuntimeError, OSError, ImportError, KeyError) as absent:  # a KeyError names a keyword of torchvision
        _check_left_behind(named, root)
        try:
            sets = _download(named, root)
        except (RuntimeError, OSError, ImportError, ValueError) as error:
            why = "" if isinstance(absent, RuntimeError) else f" ({_line(absent)})"
            raise UserError(
                f"{name} is not in {root}{why} and could not be downloaded ({_line(error)}); put there"
                f" {named.files}, or point VITICULTURE_DATA at the folder that holds them"
            ) from error
    return _from_arrays(name, sets) if hasattr(sets["train"], "data") else _from_files(name, sets, root)


def _check_left_behind(named: Named, root: Path) -> None:
    """Raises: UserError for what systems left behind: torchvision would take its folders for classes and its files for
    images."""
    below = [root / folder for folder in re.findall(r"[\w.-]+(?=/)", named.files)]
    found = [
        path.relative_to(root) for folder in below for path in folder.rglob("*") if path.is_dir() or is_image(path.name)
    ]
    if left := [path.as_posix() for path in found if is_system_file(path.as_posix())]:
        raise UserError(
            f"{root} holds {some(left, 3)}, which a system left behind and {named.cls} would read as part of the set; "
            "remove it"
        )


def _open(named: Named, root: Path, **more: Any) -> dict[str, Any]:
    cls = getattr(importlib.import_module("torchvision.datasets"), named.cls)
    takes = inspect.signature(cls).parameters
    if "download" in more and "download" not in takes:
        raise RuntimeError("its license requires that you download it yourself")
    if "loader" in takes or "kwargs" in takes:
        more["loader"] = str  # hand paths on; `decode` reads them
    return {kind: cls(root, **chosen, **more) for kind, chosen in named.parts.items()}


def _download(named: Named, root: Path) -> dict[str, Any]:
    """Have torchvision download into a temporary folder; only what is complete is renamed."""
    with locked(root / f".{named.cls}.lock"):
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as aside:
            try:
                return _open(named, root)  # another process was faster
            except (RuntimeError, OSError):
                _open(named, Path(aside), download=True)
            for entry in Path(aside).iterdir():
                entry.rename(root / entry.name)
        return _open(named, root)


def _from_arrays(name: str, sets: dict[str, Any]) -> Source:
    parts = {}
    for kind, part in sets.items():
        pixels = np.asarray(part.data)
        if pixels.ndim == 4 and pixels.shape[1] == 3:
            pixels = pixels.transpose(0, 2, 3, 1)  # [N, 3, H, W] -> [N, H, W, 3]
        parts[kind] = pixels, np.asarray(part.targets if hasattr(part, "targets") else part.labels)
    return from_arrays(name, _classes(sets["train"], int(parts["train"][1].max()) + 1), parts)


def _from_files(name: str, sets: dict[str, Any], root: Path) -> Source:
    paths: list[str] = []
    labels: list[int] = []
    splits = {}
    for kind, part in sets.items():
        every = sorted((Path(path).relative_to(root).as_posix(), int(label)) for path, label in _items(part))
        items = [item for item in every if not is_system_file(item[0])]
        splits[kind] = np.arange(len(paths), len(paths) + len(items))
        paths += [path for path, _ in items]
        labels += [label for _, label in items]
    return Source(
        name=name,
        classes=_classes(sets["train"], max(labels) + 1),
        labels=np.array(labels, dtype=np.int64),
        names=[readable(path) for path in paths],
        splits=splits,
        fingerprints=[file_fingerprint((root / path).stat) for path in paths],
        reader=FileReader(root, paths),
        root=str(root.resolve()),
    )


def _items(part: Any) -> list[tuple[Any, int]]:
    kind = type(part).__name__
    # These three take no loader and decode the images.
    if kind == "OxfordIIITPet":
        return list(zip(part._images, part._labels, strict=True))
    if kind == "GTSRB":
        return list(part._samples)
    if kind == "Caltech101":  # it numbers the images of a class by how many files there are
        _check_left_behind(TORCHVISION["caltech101"], Path(part.root).parent)
        folder = Path(part.root) / "101_ObjectCategories"
        files = zip(part.index, part.y, strict=True)
        return [(folder / part.categories[label] / f"image_{number:04d}.jpg", label) for number, label in files]
    return [part[i] for i in range(len(part))]


def _classes(part: Any, count: int) -> tuple[str, ...]:
    """Return class names, with the WordNet id where two classes share one."""
    for key in ("classes", "categories", "all_categories"):
        if hasattr(part, key):
            return class_words(getattr(part, key), getattr(part, "wnids", None))
    return tuple(str(number) for number in range(count))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
