# SPDX-License-Identifier: Apache-2.0
"""Hugging Face data sets, by their id or from files on this machine, through their library.

hf:owner/name            hf:owner/name:configuration
a .parquet file          a folder of them, or one that `Dataset.save_to_disk` wrote
"""

import glob
import io
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import numpy as np

from ...cache import digest
from ...disk import is_system_file, matching
from ...errors import UserError, shortened, some
from ...text import readable
from .files import file_fingerprint, open_file
from .labels import classify, rows_of, split_of, without_label
from .several import cell_word, cell_words
from .source import HERE, Reader, Source

_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?(:[\w.,-]+)?")
_PATIENCE = 3.0  # seconds to wait for a response of Hugging Face; its library would try six times over half a minute

_LABELS = ("label", "labels", "fine_label", "class", "category", "target")


class HubReader(Reader):
    """Reads images in a column of Arrow tables, one `datasets.Dataset` per split whose images are not decoded."""

    def __init__(self, tables: list[Any], column: str) -> None:
        self.tables, self.column = tables, column
        self.ends = np.cumsum([len(table) for table in tables])

    def open(self, i: int) -> BinaryIO:
        number = int(np.searchsorted(self.ends, i, side="right"))
        row = i - int(self.ends[number - 1]) if number else i
        image = self.tables[number][row][self.column]
        if image is None:
            raise OSError("no image in this row")
        if image["bytes"] is not None:
            return io.BytesIO(image["bytes"])
        if image["path"] is None:
            raise OSError("neither bytes nor a path in this row")
        return open_file(image["path"])


def open_hub(name: str) -> Source:
    """Open a data set of Hugging Face by its id, downloading it into Hugging Face's cache.

    Raises: UserError if the extra is missing, there is no such data set, or it holds no images.
    """
    if not name:
        raise UserError("hf: needs the name of a data set, such as hf:owner/name")
    path, there = Path(name), False
    with suppress(OSError, RuntimeError):  # too long for a path, or ~ of an unknown user
        path = path.expanduser()
        there = path.exists()
    if there:
        return open_local(path)
    if not _NAME.fullmatch(name):
        raise UserError(f"hf: takes owner/name or owner/name:configuration, got {shortened(name)!r}, which is no path")
    datasets = _library(name)
    owner, _, configuration = name.partition(":")
    try:
        with _offline_where_unreachable():
            loaded = datasets.load_dataset(owner, configuration or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{name!r} is neither a file or folder here nor could it be loaded from Hugging Face: {reason}"
        ) from error
    return _source(name, loaded)


@contextmanager
def _offline_where_unreachable() -> Iterator[None]:
    """Have Hugging Face's libraries read their caches only, where it does not respond."""
    import datasets
    import huggingface_hub

    switches: list[tuple[Any, bool]] = [
        (module, module.HF_HUB_OFFLINE) for module in (datasets.config, huggingface_hub.constants)
    ]
    if not any(offline for _, offline in switches) and not _responds(huggingface_hub.constants.ENDPOINT):
        for module, _ in switches:
            module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, offline in switches:
            module.HF_HUB_OFFLINE = offline


def _responds(address: str) -> bool:
    """Return whether a server responds in time; the lookup of its name may take longer than any timeout of a
    request."""
    responses: list[bool] = []

    def request() -> None:
        with suppress(OSError, ValueError):
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(address, timeout=_PATIENCE).close()
            responses.append(True)

    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(responses)


def open_local(path: Path) -> Source:
    """Open Parquet or Arrow files on this machine as Hugging Face's library reads them."""
    datasets = _library(str(path))
    files = [path] if path.is_file() else [file for file in matching(path, "**/*") if file.is_file()]
    mark = digest(f"{file}{HERE}{file_fingerprint(file.stat)}" for file in files)
    # The library caches the tables of a file by its path and time alone, so each state gets a folder.
    cache = str(Path(datasets.config.HF_DATASETS_CACHE, mark))
    try:
        if path.is_file():
            loaded = datasets.load_dataset("parquet", data_files=glob.escape(str(path)), cache_dir=cache)
        elif (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            loaded = datasets.load_from_disk(str(path))
        elif glob.has_magic(str(path)):
            raise UserError(f"Hugging Face's library takes brackets or stars in {path} for a pattern; rename it")
        else:
            _check_left_behind(path)
            loaded = datasets.load_dataset(str(path), cache_dir=cache)
            _check_names(matching(path, "**/*.parquet"))
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{path} cannot be read as a Hugging Face data set: {error}") from error
    return _source(path.name, loaded, mark)


def _check_left_behind(path: Path) -> None:
    """Raises: UserError for tables that systems leave behind, as in a disk's trash, which the library would read with
    the others; it passes over hidden ones itself."""
    names = [file.relative_to(path).as_posix() for ending in ("parquet", "arrow") for file in path.rglob(f"*.{ending}")]
    if read := [name for name in names if is_system_file(name) and not re.search(r"(^|/)([.]|__)", name)]:
        raise UserError(f"{path} holds tables that a system left behind: {some(read, 3)}; remove or move them")


def _check_names(files: Sequence[Path]) -> None:
    """Raises: UserError where Parquet files number their classes differently: all are read by the names of one."""
    from pyarrow import parquet

    first: dict[str, tuple[Path, Any]] = {}
    for file in files:
        stated = (parquet.read_schema(file).metadata or {}).get(b"huggingface", b"{}")
        for column, feature in json.loads(stated).get("info", {}).get("features", {}).items():
            before, other = first.setdefault(column, (file, feature))
            if feature != other and "ClassLabel" in f"{feature}{other}":
                raise UserError(
                    f"column {column} numbers its classes otherwise in {file} than in {before}; cast it to the same "
                    "ClassLabel in every file"
                )


def _library(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name!r} needs Hugging Face's library: pip install 'viticulture[hf]' (or is it a mistyped path?)"
        ) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()  # problems come back as errors
    return datasets


def _source(name: str, loaded: Any, mark: str = "") -> Source:
    """Make a source of loaded tables; `mark` changes with the files on this machine that they came from."""
    datasets = _library(name)
    tables = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    parts = {key: split_of(key) for key in tables}
    if not any(parts.values()) and len(tables) == 1:
        parts = dict.fromkeys(tables, "train")
    for kind in ("train", "val", "test"):
        if len(same := [key for key in parts if parts[key] == kind]) > 1:
            raise UserError(f"splits {' and '.join(same)} of {name} both mean the {kind} split; keep one of them")
    used = {kind: tables[key] for key, kind in parts.items() if kind is not None}
    if not used:
        raise UserError(f"{name} has no train, val or test split, but {some(list(tables))}")
    column = _image_column(name, used)
    fields = _labels(name, used)
    if unused := [key for key, kind in parts.items() if kind is None]:
        fields["warnings"] = (f"splits that were not read: {some(unused)}", *fields["warnings"])
    undecoded = [
        table.select_columns([column]).cast_column(column, datasets.Image(decode=False)) for table in used.values()
    ]
    rows = [(kind, i) for kind, table in used.items() for i in range(len(table))]
    return Source(
        name=name,
        names=[f"{kind}/{i}" for kind, i in rows],
        splits=rows_of([kind for kind, _ in rows]),
        fingerprints=[f"{used[kind]._fingerprint}/{i}{HERE}{mark}" for kind, i in rows],
        reader=HubReader(undecoded, column),
        **fields,
    )


def _image_column(name: str, tables: Mapping[str, Any]) -> str:
    """Return the column that holds the images of every split."""
    first = "train" if "train" in tables else next(iter(tables))
    features = tables[first].features
    columns = [key for key, feature in features.items() if _holds_images(feature)]
    if len(columns) > 1 and "image" in columns:
        columns = ["image"]
    if len(columns) != 1:
        raise UserError(
            f"{name} must have one column of images, or one called image; its columns are {some(list(features))}"
        )
    column = str(columns[0])
    for split, table in tables.items():
        if not _holds_images(table.features.get(column)):
            raise UserError(
                f"{name} must hold its images in one column of every split: {first} has them in {column}, and {split} "
                f"has the columns {some(list(table.features))}; rename one"
            )
    return column


def _holds_images(feature: Any) -> bool:
    """Return whether a column is one of images, or of bytes, or of bytes and path, which images are stored as."""
    is_bytes = type(feature).__name__ == "Value" and feature.dtype == "binary"
    return (
        type(feature).__name__ == "Image"
        or is_bytes
        or (isinstance(feature, dict) and {"bytes", "path"} == feature.keys())
    )


def _labels(name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Source` about labels; each split's numbers are read by the names of that split.

    Raises: UserError where splits keep their labels in different columns, or one numbers what another one names.
    """
    labeled = {split: column for split, table in tables.items() if (column := _label_column(table.features))}
    first = "train" if "train" in labeled else next(iter(labeled), None)
    if first is None:
        labels = np.full(sum(map(len, tables.values())), -1)
        return {"classes": (), "labels": labels, "warnings": _number_lists(tables)}
    column = labeled[first]
    for split, other in labeled.items():
        if column not in tables[split].features:
            raise UserError(
                f"{name} must keep its labels in one column of every split: {first} has them in {column}, {split} in "
                f"{other}; rename one"
            )
    features = {split: table.features[column] for split, table in tables.items() if column in table.features}
    entries = {split: _entry(feature) for split, feature in features.items()}
    declared = [entry.names for entry in entries.values() if _has_names(entry)]
    numbered = [split for split, entry in entries.items() if not _names_classes(entry)]
    if declared and numbered:
        raise UserError(
            f"column {column} of {name} names classes in one split and only numbers them in {numbered[0]}; cast it to "
            "the same ClassLabel in every split"
        )
    words = [
        word
        for split, table in tables.items()
        for word in (_words(table, column, entries[split]) if split in entries else [None] * len(table))
    ]
    warnings = []
    if without := [split for split in tables if split not in entries]:
        warnings.append(f"without the column {column}, so without labels: {some(without)}")
    every = tables[first].features.items()
    if others := [key for key, feature in every if key != column and _has_names(_entry(feature))]:
        warnings.append(f"labels are the column {column}; others that name classes are not read: {some(others)}")
    names = list(dict.fromkeys(each for names in declared for each in names))
    if all(map(_has_names, features.values())):
        number: dict[str | None, int] = {each: i for i, each in enumerate(names)}  # in the order that the data declares
        classes, labels = tuple(map(readable, names)), np.array([number.get(word, -1) for word in words], np.int64)
        return {"classes": classes, "labels": labels, "warnings": tuple(warnings)}
    classes, labels = classify(words, names)
    return {"classes": classes, "labels": labels, "warnings": tuple(warnings), "unlabeled": without_label(words)}


def _label_column(features: Mapping[str, Any]) -> str | None:
    """Return the column of labels: one label per image before several; a usual name before another that has classes."""
    for single in (True, False):
        entries = {key: _entry(feature) for key, feature in features.items() if (_entry(feature) is feature) == single}
        named = [key for key, entry in entries.items() if _has_names(entry)]
        plain = [
            key
            for key, entry in entries.items()
            if type(entry).__name__ == "Value" and (single or _names_classes(entry))
        ]
        called = [
            key
            for columns in (named, plain)
            for word in _LABELS
            for key in sorted((key for key in columns if key.lower() == word), key=word.__ne__)  # the very word first
        ]
        if preferred := called + named:
            return preferred[0]
    return None


def _entry(feature: Any) -> Any:
    """Return the feature of a list's elements; any other column's feature as it is."""
    return feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)


def _has_names(entry: Any) -> bool:
    return type(entry).__name__ == "ClassLabel"


def _names_classes(entry: Any) -> bool:
    return _has_names(entry) or "string" in str(getattr(entry, "dtype", ""))


def _words(table: Any, column: str, entry: Any) -> list[str | None]:
    """Return the name of each row's class, several joined; "" for none, None where it is missing or below 0."""
    values = table.select_columns([column]).to_dict()[column]
    if (names := getattr(entry, "names", None)) is None:
        return cell_words([None if isinstance(value, int) and value < 0 else value for value in values])

    def word(number: int | None) -> str | None:
        return None if number is None or number < 0 else names[number]

    return [cell_word(list(map(word, value))) if isinstance(value, list) else word(value) for value in values]


def _number_lists(tables: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn about columns with a usual name of labels whose lists may hold classes or a 1 or 0 for each of them."""
    features = {key: feature for table in tables.values() for key, feature in table.features.items()}
    lists = [
        key
        for key, feature in features.items()
        if key.lower() in _LABELS and (entry := _entry(feature)) is not feature and type(entry).__name__ == "Value"
    ]
    warning = f"lists of numbers name no classes: column {some(sorted(lists))}; cast to ClassLabel, or have no labels"
    return (warning,) if lists else ()
