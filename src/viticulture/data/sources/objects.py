# SPDX-License-Identifier: Apache-2.0
"""Data of a Python program: a torch `Dataset`, a data frame, arrays or tensors, by split or in one; or a `Source` that
a function of the user's returns.

    viticulture.train(torchvision.datasets.CIFAR10(...))            any `torch.utils.data.Dataset` of (image, label)
    viticulture.train(frame)                                        pandas: path, label[, split][, group]
    viticulture.train((images, labels))                             [N, H, W, C] or [N, H, W]; tensors [N, C, H, W]
                                                                    of any numbers; `images.channels` is C, or 3 or 1
    viticulture.train({"train": (images, labels), "test": dataset}) its own splits
    python:my_module.open_scans                                     a function that returns a `Source`: open_scans()
    python:my_module.open_scans:/data/scans                         the same with a text: open_scans("/data/scans")

A `Dataset` is read once before training, item by item, for its labels and for digests of its pixels. Items may be
dictionaries with image and label, as Hugging Face's are. An empty list of labels means none of them; None means
unlabeled. Classes have the names of its `classes`, synonyms joined, or of its `class_to_idx`. Labels of type float are
numbers to predict. A function's reader is pickled for worker processes, so its class must stand in a module, not in a
function.
"""

import hashlib
import inspect
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from ...errors import UserError, received, shortened, some
from ...user_code import blamed, imported
from ..images.decode import Decoded, as_pixels, channels_stand_last, in_numpy, numbers_of, reason
from ..images.format import Unfit
from .labels import class_words, classify, rows_of, split_of, without_label
from .several import JOINT, check_classes
from .source import Reader, Source
from .table import from_frames, is_frame

T = TypeVar("T")

WAYS = (
    "give a folder's path or a set's name, a torch Dataset of (image, label), a pandas DataFrame with path and label, "
    "a pair of images and labels, or a dict of these by split"
)
AGAIN = 8  # items that are read twice, to check that they stay the same
DAMAGED = OSError, SyntaxError, Image.DecompressionBombError
"""What Pillow raises for a damaged file; anything else is an error in the code of the data set."""
UNREADABLE = "unreadable"  # the fingerprint of an image that could not be read
Label = str | float | None  # name of a class as `labels.classify` takes it, or a number to predict


class Part(NamedTuple):
    """The images of one split."""

    pixels: Callable[[int], Decoded]
    labels: list[Label]
    fingerprints: list[str]
    damaged: dict[int, str]  # image whose label could not be read because it is damaged -> reason


def _element(images: Any, i: int) -> Decoded:
    return as_pixels(images[i])


def _item(dataset: Any, i: int) -> tuple[Decoded, Any]:
    """Return image and label i of a data set of (image, label), or of dictionaries of these."""
    item = dataset[i]
    if isinstance(item, Mapping) and {"image", "label"} <= item.keys():
        item = item["image"], item["label"]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"a data set gives (image, label), got {received(item)}")
    return as_pixels(item[0]), item[1]


def _image(dataset: Any, i: int) -> Decoded:
    return _item(dataset, i)[0]


class ObjectReader(Reader):
    """Reads images of Python objects, the parts in order; one thread at a time, since a data set may not be safe to use
    from several."""

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
        return {**self.__dict__, "lock": None}  # each process has its lock

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=Lock())


def open_function(word: str) -> Source:
    """Call the function that a word names.

    Raises: UserError if there is no such function, it fails, or it returns no `Source`.
    """
    path, colon, argument = word.partition(":")
    function, arguments = imported("data", path), [argument] if colon else []
    if not callable(function):
        raise UserError(f"data {path} must be a function that returns a Source, got {received(function)}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        fix = f"python:{path} is all it takes" if colon else f"write python:{path}:ARGUMENT"
        raise UserError(f"data {path} cannot be called so: {error}; {fix}") from error
    try:
        source = function(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"data {path} fails at {blamed(error)}") from error
    if not isinstance(source, Source):
        raise UserError(f"data {path} must return a {Source.__module__}.{Source.__name__}, got {received(source)}")
    return source


def from_object(data: Any, numbers: bool = False) -> Source:
    """Make a source of a Python object.

    Raises: UserError for an object of another type, for items that are no images or change from one time to the next,
        and for labels that are neither classes nor numbers.
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
    parts = {split_of(str(key)) or "train": _part(content, str(key), numbers) for key, content in by_split.items()}
    every = [label for part in parts.values() for label in part.labels]
    first, reader = next(iter(by_split.values())), ObjectReader(list(parts.values()))
    floats, names = ([label for label in every if isinstance(label, kind)] for kind in (float, str))
    if floats and names:
        raise UserError(f"labels must all be classes or all be numbers, got {names[0]!r} and {floats[0]}")
    words = [label for label in every if not isinstance(label, float)]
    (classes, labels), unlabeled = classify(words), without_label(words)
    if floats:
        labels, unlabeled = np.array([np.nan if label is None else label for label in every], np.float32), None
    starts = zip(reader.starts.tolist(), reader.parts, strict=False)  # and the end
    return Source(
        name=type(first).__name__ if _is_dataset(first) else "arrays",
        classes=classes,
        labels=labels,
        names=[f"{kind}/{i:05d}" for kind, part in parts.items() for i in range(len(part.labels))],
        splits=rows_of([kind for kind, part in parts.items() for _ in part.labels]),
        fingerprints=[mark for part in parts.values() for mark in part.fingerprints],
        reader=reader,
        damaged={start + i: why for start, part in starts for i, why in part.damaged.items()},
        unlabeled=unlabeled,
    )


def _part(content: Any, split: str, numbers: bool) -> Part:
    where = f"{split}, image" if split else "image"
    if is_frame(content):
        raise UserError("splits are data frames all, or none; give images and labels of each as a pair")
    if isinstance(content, (tuple, list)) and len(content) == 2:
        return _of_arrays(content[0], content[1], where, numbers)
    if _is_dataset(content):
        return _of_dataset(content, where, numbers)
    raise UserError(f"no images to train on: {shortened(type(content).__name__)}; {WAYS}")


def _of_arrays(images: Any, labels: Any, where: str, numbers: bool) -> Part:
    if hasattr(images, "iloc") and not is_frame(images):
        images = list(images)  # pandas indexes elements of a column by its index, and labels come by position
    if is_frame(images) or not (_is_dataset(images) or isinstance(images, (list, tuple, np.ndarray, Tensor))):
        raise UserError(f"a pair is images and their labels, got {shortened(type(images).__name__)} first; {WAYS}")
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim == 4:
        images = _channels_last(images)
    if isinstance(labels, (set, frozenset)):
        raise UserError(f"labels are a set, which has no order; give a list of {len(images)}")
    listed = labels.tolist() if hasattr(labels, "tolist") and labels.ndim == 1 else list(labels)
    if len(images) != len(listed):
        raise UserError(f"every image has one label, got {len(images)} images and {len(listed)} labels")
    pixels = partial(_element, images)
    marks, _ = _read_all(lambda i: _digest(pixels(i)), len(listed), where)
    words = [_label(label, {}, numbers) for label in listed]
    return Part(pixels, words, [mark or UNREADABLE for mark in marks], {})


def _channels_last(images: Any) -> Any:
    """Return images [N, H, W, C] that may be [N, C, H, W], as tensors are, unless gray or color stands last."""
    if isinstance(images, Tensor):
        return in_numpy(images if channels_stand_last(images) else images.permute(0, 2, 3, 1))
    return np.moveaxis(images, 1, -1) if images.shape[1] in (1, 3) and images.shape[-1] not in (1, 3) else images


def _of_dataset(dataset: Any, where: str, numbers: bool) -> Part:
    named: dict[int, Mapping[int, str]] = {}

    def read(i: int) -> tuple[Label, str]:
        pixels, label = _item(dataset, i)
        mark = _digest(pixels)
        if i < AGAIN and _digest(_image(dataset, i)) != mark:
            raise UserError(
                "its pixels change from one time to the next: take random transforms out of the data set; the section "
                "augment of the recipe changes images"
            )
        return _label(label, _classes(dataset, i, named), numbers), mark

    readings, damaged = _read_all(read, len(dataset), where)
    items = [each or (None, UNREADABLE) for each in readings]
    return Part(partial(_image, dataset), [label for label, _ in items], [mark for _, mark in items], damaged)


def _read_all(read: Callable[[int], T], count: int, where: str) -> tuple[list[T | None], dict[int, str]]:
    """Read each image; return None for a damaged one, and what is wrong with those.

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
    """Return number -> name of the classes of item i: those of its data set, or of one that wraps it or is wrapped by
    it (`Subset`, `ConcatDataset`); empty if it has none. `named` caches them by data set."""
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
    """Return number -> name of a data set's classes; empty if it has none. Raises: UserError for a set."""
    names: Any = getattr(dataset, "classes", None)
    numbers = getattr(dataset, "class_to_idx", None)
    if names is None and isinstance(features := getattr(dataset, "features", None), Mapping):
        names = getattr(features.get("label"), "names", None)  # Hugging Face's
    if isinstance(names, (set, frozenset)):
        raise UserError("the data set's classes are a set, which has no order; make it a list, by their numbers")
    ordered = isinstance(names, (list, tuple)) or getattr(names, "ndim", 0) == 1  # an array, an index of pandas
    listed = list(names) if ordered else []
    words = class_words(listed, getattr(dataset, "wnids", None)) if all(map(_is_name, listed)) else ()
    if not isinstance(numbers, Mapping) or (words and numbers.keys() != {*words}):  # then the classes were renamed
        return dict(enumerate(words))
    if not all(isinstance(number, (int, np.integer)) for number in numbers.values()):
        return dict(enumerate(words))
    of_number: dict[int, list[str]] = {}  # whose numbers the labels are
    for name, number in numbers.items():
        of_number.setdefault(int(number), []).append(str(name))
    return {number: ", ".join(synonyms) for number, synonyms in of_number.items()}


def _is_name(name: Any) -> bool:
    """Return whether this is a class's name, or its synonyms."""
    return isinstance(name, str) or (isinstance(name, (list, tuple)) and all(isinstance(word, str) for word in name))


def _label(label: Any, classes: Mapping[int, str], numbers: bool) -> Label:
    """Return a label as the name of its class; of several labels, a list of them or a vector of 1 and 0, as their
    joined names, "" for none; of a number to predict, as a float."""
    if isinstance(label, (set, frozenset)):
        label = sorted(label, key=str)  # the order of a set is another one in every process
    if isinstance(label, (list, tuple)):
        check_classes(label)
        if floats := [each for each in label if isinstance(each, float)]:
            raise UserError(f"several labels are numbers or names of classes, got {floats[0]}")
        return JOINT.join(str(name) for each in label if (name := _label(each, classes, False)))
    if isinstance(label, (Tensor, np.ndarray)) and label.shape == (1,):
        label = label[0]  # a column of labels, as MedMNIST's
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 1:
        if not set(label.tolist()) <= {0, 1}:
            raise UserError(f"a vector of labels holds a 1 or a 0 a class, got {received(label)}")
        return _label(list(np.flatnonzero(label.tolist())), classes, False)
    if isinstance(label, (Tensor, np.ndarray, np.generic)) and label.ndim == 0:
        label = label.item()
    if isinstance(label, str):
        return label
    if label is None or (isinstance(label, float) and np.isnan(label)):
        return None
    if isinstance(label, float) or (numbers and isinstance(label, int)):
        return float(label)
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
            raise UserError(f"the data set calls several of its classes {name!r}; give each another name")
        return name
    raise UserError(f"a label is the number or the name of a class (-1 or None without one), got {received(label)}")


def _digest(image: Decoded) -> str:
    """Return a digest of an image's values and, except for bytes, of their type, on which the levels depend that they
    are stored as. Gray bytes and the same in color have one digest, whatever holds them."""
    numbers = numbers_of(image) if isinstance(image, Image.Image) else image
    pixels = numbers[..., None] if numbers.ndim == 2 else numbers
    if pixels.dtype == np.uint8 and pixels.shape[2] == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    about = f"{'' if pixels.dtype == np.uint8 else pixels.dtype.str}{pixels.shape}"
    if isinstance(image, Image.Image) and image.mode == "I":
        about += " 2"  # whose levels differ from those of an array of the same type
    return hashlib.blake2b(about.encode() + pixels.tobytes(), digest_size=16).hexdigest()


def _is_dataset(data: Any) -> bool:
    """Return whether an object has items by number and a length, and is no array or list of them."""
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return sized and not isinstance(data, (str, bytes, tuple, list, np.ndarray, Tensor, Mapping, Image.Image))
