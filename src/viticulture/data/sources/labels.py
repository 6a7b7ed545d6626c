# SPDX-License-Identifier: Apache-2.0
"""Names of labels and splits: which split a name means, and which class a label."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ...errors import some
from ...text import readable

_SPLIT = re.compile(
    r"(train|val|test)(ing|id|idation)?([ _-]?(set|data|images))?([ _-]?(19|20)\d\d)?", flags=re.IGNORECASE
)

MISSING = re.compile(r"nan|<?na>?|n/a|null|none", flags=re.IGNORECASE)  # spellings of an empty cell
_SEVERAL = re.compile(r"\s*[,;/&+]\s*")


def split_of(name: str) -> str | None:
    """Return the split that a folder or word names: "train", "val", "test"; None for any other."""
    match = _SPLIT.fullmatch(name.strip())
    return match[1].lower() if match else None


def rows_of(kinds: Sequence[str | None] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the positions of each split that occurs, from the split of every image."""
    array = np.array(kinds, dtype=object)
    return {kind: np.flatnonzero(array == kind) for kind in ("train", "val", "test") if kind in kinds}


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key by which class 2 comes before class 10, ignoring case."""
    parts = re.split(r"(\d+)", name)
    digits = [part.lstrip("0") for part in parts[1::2]]
    words = [(0, part.casefold()) for part in parts[::2]]
    numbers = [(len(part), part) for part in digits]
    return [pair for pairs in zip(words, [*numbers, (0, "")], strict=True) for pair in pairs], name


def alike(names: Sequence[str], what: str = "classes") -> list[str]:
    """Warn about names that differ only in case, spaces, hyphens, underscores, or as 1 and 1.0 do."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).strip()).casefold()
        same.setdefault(re.sub(r"(\d)\.0+", r"\1", plain), []).append(name)
    twins = [" and ".join(map(repr, spellings)) for spellings in same.values() if len(spellings) > 1]
    return [f"{what} of nearly the same name, each taken as a separate one: {some(twins, 5)}"] if twins else []


def doubtful(classes: Sequence[str]) -> list[str]:
    """Return warnings for class names that nearly match, stand for missing labels, or join several others."""
    missing = [repr(name) for name in classes if MISSING.fullmatch(name)]
    distinct = {*classes}
    parts = {name: {*_SEVERAL.split(name.strip("[]"))} for name in classes}
    lists = [
        name
        for name in classes
        if (name not in parts[name] and parts[name] <= distinct) or re.fullmatch(r"\[.*\]", name)
    ]
    warnings = alike(classes)
    if missing:
        warnings.append(f"trained as a class: {some(missing, 5)}, as missing labels are written; leave those empty")
    if lists:
        warnings.append(
            f"each trained as a class: {some(list(map(repr, lists)), 3)}; join several labels by a bar: cat|dog"
        )
    return warnings


def class_words(names: Iterable[str | Sequence[str]], ids: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return one name per class, synonyms joined; where two classes share one ("crane"), with their ids."""
    words = [name if isinstance(name, str) else ", ".join(name) for name in names]
    often = Counter(words)
    pairs = zip(words, ids or words, strict=True)
    return tuple(f"{word} ({mark})" if ids and often[word] > 1 else str(word) for word, mark in pairs)


def without_label(labels: Sequence[str | None]) -> np.ndarray | None:
    """Return `Source.unlabeled` of images by their class names, where None means unlabeled."""
    mask = np.array([name is None for name in labels], dtype=bool)
    return mask if mask.any() else None


def classify(labels: Sequence[str | None], also: Iterable[str] = ()) -> tuple[tuple[str, ...], np.ndarray]:
    """Return printable class names in natural order, and labels [N] int64, their positions, -1 for none. `labels`:
    class name of each image; empty for none of the classes, None for unlabeled.
    """
    same = {name: unicodedata.normalize("NFC", readable(name)) for name in {*labels, *also} if name}
    classes = tuple(sorted(set(same.values()), key=natural))
    number = {name: i for i, name in enumerate(classes)}
    code: dict[str | None, int] = {name: number[plain] for name, plain in same.items()}
    return classes, np.array([code.get(name, -1) for name in labels], dtype=np.int64)
