# SPDX-License-Identifier: Apache-2.0
"""Open a data set by its name, path or object: whatever its format, a `Source` comes out.

    digits                          scikit-learn's 1,797 small digits, bundled
    cifar100, flowers102, ...       torchvision's sets by name (torchvision_sets.py)
    a folder, or a zip of one       train/ val/ test/ CLASS/file, or CLASS/file, or just images (folders.py)
    a folder, then /*               the same, with classes one level deeper: GROUP/CLASS/file
    a folder of a published set     CUB-200-2011, Tiny-ImageNet (published.py)
    a CSV                           path,label[,split] (table.py); cat|dog are two labels (several.py)
    clipart_train.txt, train.txt    lists of paths, a file a split (path_lists.py)
    train2018.json, labels.json     lists of iNaturalist, COCO's form, Label Studio (published.py, json_lists.py)
    a .npz, medmnist:NAME           MedMNIST's arrays (medmnist.py)
    hf:owner/name                   Hugging Face data sets (hugging_face.py)
    *.parquet                       path and label, or images as Hugging Face keeps them (table.py)
    *.tar                           WebDataset shards, or tars of such a folder (webdataset.py)
    python:my_module.open_scans     a function that returns a `Source` (objects.py)
    an object of a Python program   a torch Dataset, a data frame, arrays (objects.py)

    a folder with instances_*.json, labels/ and data.yaml, Annotations/*.xml, or a CSV of boxes    objects
                                                                    (coco.py, yolo.py, voc.py, box_csv.py)
    a folder with images/ and masks/                                classes of pixels (mask_folders.py)

A name of a set wins over a folder of that name; write ./digits for the folder.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, shortened, unknown
from .sources.several import as_numbers, separated
from .sources.source import RECIPES, Contents, Source
from .subsets import count_by_class

_PATTERN = re.compile(r"[{*?\[]")  # first character of a path that stands for several shards

_PACKED = {".gz", ".tgz", ".bz2", ".tbz", ".tbz2", ".xz", ".txz", ".zst", ".7z", ".rar"}
"""Endings of archives, such as .tar.gz, that must be unpacked."""


class Annotated(NamedTuple):
    """Words for annotations other than classes: what the data holds, the title of a table of counts by class, and what
    an image without any lacks."""

    held: str
    title: str
    needed: str


ANNOTATED: dict[str, Annotated] = {
    "objects": Annotated("boxes of objects", "Objects of each class", "an object that is no crowd"),
    "pixels": Annotated("masks of classes", "Images that show each class", "a labeled pixel"),
}
_EXPECTED = {
    "objects": "annotations/instances_train.json (COCO), images/ next to labels/ with data.yaml (YOLO), "
    "Annotations/*.xml (Pascal VOC) or a CSV with path,label,x0,y0,x1,y1",
    "pixels": "images/ next to masks/ (PNG) with classes.json",
}
_IMAGE_FOLDERS = {"images", "masks", "jpegimages", "segmentationclass", "segmentationobject"}
"""Folders of images in annotated data, which are not classes."""

Open = Callable[[Path], Source]


def open_source(data: Any, contents: Contents | None = None, annotations_first: bool = False) -> Source:
    """Open a name, a path or an object; no image is decoded yet.

    Args:
        contents: required targets; None takes classes, and where there are none the objects or masks of the images.
        annotations_first: without `contents`, take objects or masks wherever there are any: for methods that use no
            labels, in whose splits the images are.

    Raises: UserError where there is no such data, it holds no images, or other targets than required.
    """
    if contents in ANNOTATED:
        return _open_annotated(data, contents)
    is_path = isinstance(data, str | Path)
    annotations_first = annotations_first or (is_path and Path(data).suffix.lower() in (".csv", ".tsv"))
    opener = annotation_format(data)[1] if is_path and annotations_first else None
    if opener is None:
        try:
            source = _open_classes(data, contents == "numbers")
        except UserError:
            opener = annotation_format(data)[1] if is_path else None
            if opener is None:
                raise
        else:
            counts = count_by_class(source.labels, len(source.classes)) if source.classes else ()
            named = {name.lower() for name, count in zip(source.classes, counts, strict=True) if count}
            if is_path and source.contents == "classes" and named <= _IMAGE_FOLDERS:
                opener = annotation_format(data)[1]
            if opener is None:
                return _with_contents(source, contents)
    if contents is not None and (held := annotation_format(data)[0]):
        raise UserError(
            f"{data} holds {ANNOTATED[held].held} and no classes of images; train on it with --recipe {RECIPES[held]}"
        )
    return opener(Path(data).expanduser())


def open_unlabeled(data: str) -> Source:
    """Open every image of a folder, whatever its classes and splits, or of another source.

    Raises: UserError where there is none.
    """
    path = Path(data).expanduser()
    if os.sep in data and not path.exists():
        raise UserError(f"data.unlabeled: there is no {data}; name a folder of images, or bring it back")
    if not path.is_dir():
        return open_source(data).images_alone
    from .sources.folders import open_folder

    return open_folder(path, deeper=None)


def _with_contents(source: Source, contents: Contents | None) -> Source:
    if contents == "numbers":
        return as_numbers(source)
    if contents is not None and source.contents == "numbers":
        raise UserError(
            f"labels of {source.name} are numbers, not classes; train on them with --recipe {RECIPES[source.contents]}"
        )
    return separated(source) if contents == "labels" else source


def annotation_format(data: str | Path) -> tuple[Contents | None, Open | None]:
    """Recognize images with objects or masks: "objects" or "pixels" and how to open them; None for other data."""
    with suppress(OSError, ValueError, RuntimeError):  # opening it says what is wrong with it
        path = Path(data).expanduser()
        if not path.exists():
            return None, None
        from .sources import box_csv, coco, mask_folders, voc, yolo  # import torch

        formats: tuple[tuple[Contents, Callable[[Path], Any], Open], ...] = (
            ("objects", box_csv.is_box_csv, box_csv.open_box_csv),
            ("objects", coco.listings, coco.open_coco),
            ("objects", voc.annotations, voc.open_voc),
            ("objects", yolo.is_yolo, yolo.open_yolo),
            ("pixels", mask_folders.is_mask_folder, mask_folders.open_masks),
        )
        for contents, recognizes, opener in formats:
            if recognizes(path):
                return contents, opener
    return None, None


def _open_annotated(data: Any, expected: Contents) -> Source:
    if isinstance(data, Source) and data.contents == expected:
        return data
    if not isinstance(data, str | Path):
        raise UserError(f"{ANNOTATED[expected].held} are read from files; name a folder")
    path = Path(data).expanduser()
    if not path.exists():
        raise UserError(f"no such file or folder: {str(data)!r}")
    contents, opener = annotation_format(path)
    if contents == expected and opener is not None:
        return opener(path)
    if contents:
        raise UserError(f"{path} holds {ANNOTATED[contents].held}; train on it with --recipe {RECIPES[contents]}")
    fix = "unpack it first" if path.suffix == ".zip" else f"expected {_EXPECTED[expected]}"
    raise UserError(f"{path} holds neither boxes nor masks; {fix}")


def _open_classes(data: Any, numbers: bool) -> Source:
    """Open images with labels, or without any targets."""
    from .sources import folders, json_lists, medmnist, path_lists, published, table
    from .sources import hugging_face as hub
    from .sources import torchvision_sets as named

    text = str(data) if isinstance(data, str | Path) else ""
    if not isinstance(data, str | Path) or (isinstance(data, str) and text.startswith("python:")):
        from .sources import objects  # imports torch

        return objects.open_function(text.removeprefix("python:")) if text else objects.from_object(data, numbers)
    if not text.strip():
        raise UserError(f"data must be the name of a set, a file or a folder, got {text!r}; write . for {Path.cwd()}")
    if isinstance(data, str):
        prefixes = {"hf:": hub.open_hub, "medmnist:": medmnist.open_named}
        if text.lower() in named.NAMES:
            return named.open_named(text.lower())
        for prefix, open_rest in prefixes.items():
            if text.startswith(prefix):
                return open_rest(text.removeprefix(prefix))
        if text.endswith("/*") and Path(text[:-2]).expanduser().is_dir():
            return folders.open_folder(Path(text[:-2]).expanduser(), deeper=1)
        if _is_pattern(text):
            return folders.open_tars(text)
    try:
        path = Path(data).expanduser()
        folder, file, there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a word, a NUL in it, an unknown ~user
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"no such file or folder: {shortened(text)!r} ({why})") from error
    if folder:
        return (published.format_of(path) or folders.open_folder)(path)
    if there and not file:
        raise UserError(f"{path} is no data: neither a file nor a folder, but a pipe or a device")
    if file:
        openers: dict[str, Open] = {
            ".zip": folders.open_zip,
            ".csv": table.open_csv,
            ".tsv": table.open_csv,
            ".tar": folders.open_tars,
            ".parquet": table.open_parquet,
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
    """Return the path of data in files; of a pattern, the folder in which it begins."""
    if data.endswith("/*"):
        return Path(data[:-2])
    if _is_pattern(data) and (match := _PATTERN.search(data)):
        return Path(f"{data[: match.start()]}_").parent
    return Path(data)


def _is_pattern(data: str) -> bool:
    """Return whether a word stands for several shards; a file or folder of that very name is one."""
    return ".tar" in data and bool(_PATTERN.search(data)) and not os.path.exists(os.path.expanduser(data))  # noqa: PTH110, PTH111


def is_there(data: str) -> bool:
    """Return whether a path of data exists; of a pattern, the folder in which it begins."""
    return start_of(data).exists()
