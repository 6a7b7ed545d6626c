# SPDX-License-Identifier: Apache-2.0
"""Data that a Python program holds: a data set of torch's, a data frame, arrays or tensors; by split or in one.

    viticulture.train(torchvision.datasets.CIFAR10(...))            any `torch.utils.data.Dataset` of (image, label)
    viticulture.train(frame)                                        pandas: path, label[, split][, group]
    viticulture.train((images, labels))                             [N, H, W, C] or [N, H, W]; tensors [N, C, H, W]
                                                                    of any numbers; `images.channels` is C, or 3 or 1
    viticulture.train({"train": (images, labels), "test": dataset}) its own splits

A data set is read once before it is trained on, item by item, for its labels and for digests of its pixels. Items may
be dictionaries with image and label, as Hugging Face's are. An empty list of labels shows none; None is no label.
Classes have the names of its `classes`, synonyms joined, or of its `class_to_idx`.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from ...errors import UserError, received, shortened, some
from ..images.decode import Decoded, as_pixels, channels_stand_last, in_numpy, numbers_of, reason
from ..images.format import Unfit
from .frames import from_frames, is_frame
from .labels import class_words, classify, rows_of, split_of, without_label
from .several import JOINT, check_classes
from .source import Reader, Source

T = TypeVar("T")

WAYS = (
    "give a folder's path or a set's name, a torch Dataset of (image, label), a pandas DataFrame with path and label, "
    "a pair of images and labels, or a dict of these by split"
)
AGAIN = 8  # items that are read twice, to see whether they stay the same
DAMAGED = OSError, SyntaxError, Image.DecompressionBombError
"""What Pillow raises of a damaged file; anything else is a fault of the data set's own code."""
UNREADABLE = "unreadable"
"""The fingerprint of an image that could not be read."""


class Part(NamedTuple):
    """The images of one split.

    Args:
        pixels: image i of N, as `as_pixels` gives it.
        labels: N class names, as `labels.classify` takes them.
        fingerprints: N digests of the pixels.
        damaged: image without a label, as it could not be read with it -> what is wrong.
    """

    pixels: Callable[[int], Decoded]
    labels: list[str | None]
    fingerprints: list[str]
    damaged: dict[int, str]


class Array:
    """Images in an array or a list."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __call__(self, i: int) -> Decoded:
        return as_pixels(self.images[i])


class Items:
    """Images in a data set of (image, label), or of dictionaries of these."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, i: int) -> Decoded:
        return self.both(i)[0]

    def both(self, i: int) -> tuple[Decoded, Any]:
        """Image and label i."""
        item = self.dataset[i]
        if isinstance(item, Mapping) and {"image", "label"} <= item.keys():
            item = item["image"], item["label"]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise UserError(f"a data set gives (image, label), got {received(item)}")
        return as_pixels(item[0]), item[1]


class ObjectReader(Reader):
    """Images that Python objects hold; one thread at a time, as a data set may not stand more.

    Args:
        parts: what holds them, in order.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part.labels) for part in parts)])
        self.lock = Lock()

    def open(self, i: int) -> Decoded:
        part = int(np.searchsorted(self.starts, i, side="right")) - 1
        with self.lock:
            try:
                return self.parts[part].pixels(i - int(self.starts[part]))
            except (SyntaxError, Image.DecompressionBombError) as error:
                raise OSError(str(error)) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None}  # a process of its own gets a lock of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=Lock())


def from_object(data: Any) -> Source:
    """Images that a Python object holds, as a source.

    Raises: UserError for an object of another kind, for items that are no images or change from one time to the next,
        and for labels that are no classes.
    """
    if isinstance(data, Source):
        return data
    if is_frame(data):
        return from_frames({"": data})
    by_split = data if isinstance(data, Mapping) else {"": data}
    if not by_split or any(key and split_of(str(key)) is None for key in by_split):
        raise UserError(f"splits are train, val and test, got {list(by_split)}")
    kinds = [split_of(str(key)) for key in by_split]
    if twice := [kind for kind in kinds if kind and kinds.count(kind) > 1]:
        raise UserError(f"two splits are {twice[0]}, got {list(by_split)}; join them, or leave one out")
    if all(map(is_frame, by_split.values())):
        return from_frames({split_of(str(key)) or "train": frame for key, frame in by_split.items()})
    parts = {split_of(str(key)) or "train": _part(content, str(key)) for key, content in by_split.items()}
    names = [f"{kind}/{i:05d}" for kind, part in parts.items() for i in range(len(part.labels))]
    words = [label for part in parts.values() for label in part.labels]
    classes, labels = classify(words)
    first, reader = next(iter(by_split.values())), ObjectReader(list(parts.values()))
    starts = zip(reader.starts.tolist(), reader.parts, strict=False)  # and the end
    return Source(
        name=type(first).__name__ if _is_dataset(first) else "arrays",
        classes=classes,
        labels=labels,
        names=names,
        splits=rows_of([kind for kind, part in parts.items() for _ in part.labels]),
        fingerprints=[mark for part in parts.values() for mark in part.fingerprints],
        reader=reader,
        damaged={start + i: why for start, part in starts for i, why in part.damaged.items()},
        unlabeled=without_label(words),
    )


def _part(content: Any, split: str) -> Part:
    where = f"{split}, image" if split else "image"
    if is_frame(content):
        raise UserError("splits are data frames all, or none; give images and labels of each as a pair")
    if isinstance(content, (tuple, list)) and len(content) == 2:
        return _of_arrays(content[0], content[1], where)
    if _is_dataset(content):
        return _of_dataset(content, where)
    raise UserError(f"no images to learn from: {shortened(type(content).__name__)}; {WAYS}")


def _of_arrays(images: Any, labels: Any, where: str) -> Part:
    if hasattr(images, "iloc") and not is_frame(images):
        images = list(images)  # a column of pandas finds by its index, and labels come by their places
    if is_frame(images) or not (_is_dataset(images) or isinstance(images, (list, tuple, np.ndarray, Tensor))):
        raise UserError(f"a pair is images and their labels, got {shortened(type(images).__name__)} first; {WAYS}")
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim == 4:
        images = _channels_last(images)
    if isinstance(labels, (set, frozenset)):
        raise UserError(f"labels are a set, which has no order; give a list of {len(images)}")
    given = labels.tolist() if hasattr(labels, "tolist") and labels.ndim == 1 else list(labels)
    if len(images) != len(given):
        raise UserError(f"every image has one label, got {len(images)} images and {len(given)} labels")

    held = Array(images)
    marks, _ = _looked(lambda i: _digest(held(i)), len(given), where)
    return Part(held, [_label(label, {}) for label in given], [mark or UNREADABLE for mark in marks], {})


def _channels_last(images: Any) -> Any:
    """[N, H, W, C] out of what may be [N, C, H, W], as tensors are: unless gray or color stands last."""
    if isinstance(images, Tensor):
        return in_numpy(images if channels_stand_last(images) else images.permute(0, 2, 3, 1))
    return np.moveaxis(images, 1, -1) if images.shape[1] in (1, 3) and images.shape[-1] not in (1, 3) else images


def _of_dataset(dataset: Any, where: str) -> Part:
    items = Items(dataset)
    named: dict[int, Mapping[int, str]] = {}

    def read(i: int) -> tuple[str | None, str]:
        pixels, label = items.both(i)
        mark = _digest(pixels)
        if i < AGAIN and _digest(items(i)) != mark:
            raise UserError(
                "its pixels change from one time to the next: take random transforms out of the data set; the section "
                "augment of the recipe changes images"
            )
        return _label(label, _classes(dataset, i, named)), mark

    readings, damaged = _looked(read, len(dataset), where)
    seen = [each or (None, UNREADABLE) for each in readings]
    return Part(items, [label for label, _ in seen], [mark for _, mark in seen], damaged)


def _looked(read: Callable[[int], T], count: int, where: str) -> tuple[list[T | None], dict[int, str]]:
    """What a look at each image gives, None for a damaged one, and what is wrong with those.

    Raises: UserError that says which image it is about.
    """
    readings: list[T | None] = []
    damaged = {}
    for i in range(count):
        try:
            readings.append(read(i))
        except (UserError, Unfit) as error:
            raise UserError(f"{where} {i}: {error}") from error
        except DAMAGED as error:
            readings.append(None)
            damaged[i] = reason(error)
    return readings, damaged


def _classes(dataset: Any, i: int, named: dict[int, Mapping[int, str]]) -> Mapping[int, str]:
    """Number -> name of the classes of item i, those of its data set or of the one that this is a part of, or that is a
    part of it, as `Subset` and `ConcatDataset` say; empty if none are given. `named` remembers them by the data set."""
    while dataset is not None:
        if id(dataset) not in named:
            named[id(dataset)] = _names(dataset)
        if names := named[id(dataset)]:
            return names
        if isinstance(dataset, ConcatDataset):
            part = bisect_right(ends := [0, *dataset.cumulative_sizes], i) - 1
            dataset, i = dataset.datasets[part], i - ends[part]
        else:
            i = dataset.indices[i] if isinstance(dataset, Subset) else i
            dataset = getattr(dataset, "dataset", None)
    return {}


def _names(dataset: Any) -> Mapping[int, str]:
    """Number -> name of the classes of a data set as it gives them itself; empty if it gives none.

    Raises: UserError for a set.
    """
    names: Any = getattr(dataset, "classes", None)
    numbers = getattr(dataset, "class_to_idx", None)
    if names is None and isinstance(features := getattr(dataset, "features", None), Mapping):
        names = getattr(features.get("label"), "names", None)  # Hugging Face's
    if isinstance(names, (set, frozenset)):
        raise UserError("the data set's classes are a set, which has no order; make it a list, by their numbers")
    ordered = isinstance(names, (list, tuple)) or getattr(names, "ndim", 0) == 1  # an array, an index of pandas
    listed = list(names) if ordered else []
    words = class_words(listed, getattr(dataset, "wnids", None)) if all(map(_is_name, listed)) else ()
    if not isinstance(numbers, Mapping) or not all(
        isinstance(number, (int, np.integer)) for number in numbers.values()
    ):
        return dict(enumerate(words))
    if words and numbers.keys() != {*words}:  # a person renamed the classes
        return dict(enumerate(words))
    of_number: dict[int, list[str]] = {}  # whose numbers the labels are
    for name, number in numbers.items():
        of_number.setdefault(int(number), []).append(str(name))
    return {number: ", ".join(synonyms) for number, synonyms in of_number.items()}


def _is_name(name: Any) -> bool:
    """Whether this is a class's name, or its synonyms."""
    return isinstance(name, str) or (isinstance(name, (list, tuple)) and all(isinstance(word, str) for word in name))


def _label(label: Any, classes: Mapping[int, str]) -> str | None:
    """A label as the name of its class; several labels, a list of them or a vector of 1 and 0, joined: "" for none."""
    if isinstance(label, (set, frozenset)):
        label = sorted(label, key=str)  # its own order is another one in every process
    if isinstance(label, (list, tuple)):
        check_classes(label)
        return JOINT.join(name for each in label if (name := _label(each, classes)))
    if isinstance(label, (Tensor, np.ndarray)) and label.shape == (1,):
        label = label[0]  # a column of classes, as MedMNIST's
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 1:
        if not set(label.tolist()) <= {0, 1}:
            raise UserError(f"a vector of labels holds a 1 or a 0 a class, got {received(label)}")
        return _label(list(np.flatnonzero(label.tolist())), classes)
    if isinstance(label, (Tensor, np.ndarray, np.generic)) and label.ndim == 0:
        label = label.item()
    if isinstance(label, str):
        return label
    if label is None or (isinstance(label, float) and np.isnan(label)):
        return None
    if isinstance(label, (bool, int)):
        if label < 0:
            return None
        if not classes or isinstance(label, bool):
            return str(label)
        if label not in classes:
            raise UserError(
                f"the label {label} names none of the data set's classes, which are numbered from {min(classes)} to "
                f"{max(classes)}: {some(list(classes.values()), 3)}"
            )
        if list(classes.values()).count(name := classes[label]) > 1:
            raise UserError(f"the data set calls several of its classes {name!r}; give each a name of its own")
        return name
    raise UserError(f"a label is the number or the name of a class (-1 or None without one), got {received(label)}")


def _digest(image: Decoded) -> str:
    """Of the numbers and, but for bytes, their type: which levels they become depends on what is kept. Gray bytes
    and color that stands for the same have one digest, whatever holds them."""
    numbers = numbers_of(image) if isinstance(image, Image.Image) else image
    pixels = numbers[..., None] if numbers.ndim == 2 else numbers
    if pixels.dtype == np.uint8 and pixels.shape[2] == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    about = f"{'' if pixels.dtype == np.uint8 else pixels.dtype.str}{pixels.shape}"
    if isinstance(image, Image.Image) and image.mode == "I":
        about += " 2"  # of such pictures of up to 255 other levels are made than once
    return hashlib.blake2b(about.encode() + pixels.tobytes(), digest_size=16).hexdigest()


def _is_dataset(data: Any) -> bool:
    """Whether an object gives items by number and says how many, and is no array or list of them."""
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return sized and not isinstance(data, (str, bytes, tuple, list, np.ndarray, Tensor, Mapping, Image.Image))
