# SPDX-License-Identifier: Apache-2.0
"""From what a person names (a folder, a file, a data set) to one kind of object: labeled images that can be read.

    digits                          scikit-learn's 1,797 small digits, bundled
    cifar100, flowers102, ...       torchvision's sets by name (torchvision_sets.py)
    a folder, or a zip of one       train/ val/ test/ CLASS/file, or CLASS/file, or just images (folders.py)
    a folder, then /*               the same, with classes one level deeper: GROUP/CLASS/file
    CUB-200-2011's folder           by its lists (cub.py)
    Tiny-ImageNet's folder          its validation images by their list (tiny_imagenet.py)
    a CSV                           path,label[,split] (csv_file.py); cat|dog are two labels (sources/several.py)
    clipart_train.txt, train.txt    lists of paths, a file a split (path_lists.py)
    train2018.json, labels.json     lists of iNaturalist, COCO's form, Label Studio (inaturalist.py, json_lists.py)
    a .npz, medmnist:NAME           MedMNIST's arrays (medmnist.py)
    hf:owner/name                   Hugging Face data sets (hugging_face.py)
    *.parquet                       path and label, or images as Hugging Face keeps them (parquet.py)
    *.tar                           WebDataset shards, or tars of such a folder (webdataset.py)
    python:my_module.open_scans     a function of one's own that gives a `Source` (own.py)
    an object of a Python program   a torch Dataset, a data frame, arrays (objects.py)

A name of a set wins over a folder of that name; write ./digits for the folder.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError, shortened, unknown
from .sources.source import Source

_PATTERN = re.compile(r"[{*?\[]")
"""Where what stands for several shards begins in a path."""

_PACKED = {".gz", ".tgz", ".bz2", ".tbz", ".tbz2", ".xz", ".txz", ".zst", ".7z", ".rar"}
"""Endings of archives, such as .tar.gz, that must be unpacked."""


def open_source(data: Any) -> Source:
    """Find out what is meant by `data`, a word, a path or an object, and open it; no file is decoded yet.

    Raises: UserError where there is no such data or it holds no images.
    """
    from .sources import csv_file as listing
    from .sources import cub, folders, json_lists, medmnist, own, parquet, path_lists
    from .sources import hugging_face as hub
    from .sources import tiny_imagenet as tiny
    from .sources import torchvision_sets as named

    if not isinstance(data, (str, Path)):
        from .sources import objects

        return objects.from_object(data)
    text = str(data)
    if not text.strip():
        raise UserError(f"data must be the name of a set, a file or a folder, got {text!r}; write . for {Path.cwd()}")
    if isinstance(data, str):
        if text.lower() in named.NAMES:
            return named.open_named(text.lower())
        if text.startswith("hf:"):
            return hub.open_hub(text.removeprefix("hf:"))
        if text.startswith("python:"):
            return own.open_own(text.removeprefix("python:"))
        if text.startswith(medmnist.PREFIX):
            return medmnist.open_named(text.removeprefix(medmnist.PREFIX))
        if text.endswith("/*") and Path(text[:-2]).expanduser().is_dir():
            return folders.open_folder(Path(text[:-2]).expanduser(), deeper=1)
        if _is_pattern(text):
            return folders.open_tars(text)
    path = Path(data)
    try:
        path = path.expanduser()
        folder, file, there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a word, a NUL in it, an unknown ~user
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"no such file or folder: {shortened(text)!r} ({why})") from error
    if folder:
        if tiny.is_tiny_imagenet(path):
            return tiny.open_tiny_imagenet(path)
        return cub.open_cub(path) if cub.is_cub(path) else folders.open_folder(path)
    if there and not file:
        raise UserError(f"{path} is no data: neither a file nor a folder, but a pipe or a device")
    if file:
        openers: dict[str, Callable[[Path], Source]] = {
            ".zip": folders.open_zip,
            ".csv": listing.open_csv,
            ".tsv": listing.open_csv,
            ".tar": folders.open_tars,
            ".parquet": parquet.open_parquet,
            ".txt": path_lists.open_lists,
            ".json": json_lists.open_json,
            ".npz": medmnist.open_npz,
        }
        if path.suffix.lower() in openers:
            return openers[path.suffix.lower()](path)
        if path.suffix.lower() in _PACKED:
            raise UserError(f"{path} is a packed archive, in which images cannot be read in place; unpack it")
        raise UserError(f"{path} is no data: expected a folder, {', '.join(openers)}, or the name of a data set")
    if "/" in text or "\\" in text or path.suffix or text.startswith(("~", ".")) or isinstance(data, Path):
        hint = f"; Hugging Face sets are named hf:{text}" if re.fullmatch(r"[\w-]+/[\w.-]+", text) else ""
        raise UserError(f"no such file or folder: {shortened(text)!r} (looked in {Path.cwd()}){hint}")
    raise UserError(f"{unknown('data set', text, named.NAMES)} (and no file or folder of that name in {Path.cwd()})")


def check_there(data: str) -> None:
    """Raises: UserError, as `open_source`, where a word is no set's name, and nothing of that name is here."""
    with suppress(OSError, ValueError, RuntimeError):  # `open_source` says what of a name is wrong
        if ":" in data or is_there(str(Path(data).expanduser())):
            return
    from .sources.torchvision_sets import NAMES

    if data.lower() not in NAMES:
        open_source(data)


def start_of(data: str) -> Path:
    """The path of data in files; of a pattern, the folder in which it begins."""
    if data.endswith("/*"):
        return Path(data[:-2])
    if _is_pattern(data) and (match := _PATTERN.search(data)):
        return Path(f"{data[: match.start()]}_").parent
    return Path(data)


def _is_pattern(data: str) -> bool:
    """Return whether a word stands for several shards; a file or folder of that very name is one."""
    return ".tar" in data and bool(_PATTERN.search(data)) and not os.path.exists(os.path.expanduser(data))  # noqa: PTH110, PTH111


def is_there(data: str) -> bool:
    """Whether a path of data is there; of a pattern, the folder in which it begins."""
    return start_of(data).exists()
