# SPDX-License-Identifier: Apache-2.0
"""The words of labels and splits: which names mean which split, which label has which number."""

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

MISSING = re.compile(r"nan|<?na>?|n/a|null|none", flags=re.IGNORECASE)
"""How programs write that a cell is empty."""
_SEVERAL = re.compile(r"\s*[,;/&+]\s*")


def split_of(name: str) -> str | None:
    """The split that a folder or a word names: "train", "val", "test"; None where it names none."""
    match = _SPLIT.fullmatch(name.strip())
    return match[1].lower() if match else None


def rows_of(kinds: Sequence[str | None] | np.ndarray) -> dict[str, np.ndarray]:
    """The positions of each split that occurs, from the split of every image."""
    array = np.array(kinds, dtype=object)
    return {kind: np.flatnonzero(array == kind) for kind in ("train", "val", "test") if kind in kinds}


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key under which class 2 comes before class 10, whatever the case of letters."""
    parts = re.split(r"(\d+)", name)
    digits = [part.lstrip("0") for part in parts[1::2]]
    words = [(0, part.casefold()) for part in parts[::2]]
    numbers = [(len(part), part) for part in digits]
    return [pair for pairs in zip(words, [*numbers, (0, "")], strict=True) for pair in pairs], name


def alike(names: Sequence[str], what: str = "classes") -> list[str]:
    """A warning where names of classes, or of what else, differ in nothing but what is rarely meant: case, spaces,
    hyphens, underscores, or a 1 and a 1.0."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).strip()).casefold()
        same.setdefault(re.sub(r"(\d)\.0+", r"\1", plain), []).append(name)
    twins = [" and ".join(map(repr, spellings)) for spellings in same.values() if len(spellings) > 1]
    return [f"{what} of nearly the same name, each taken as its own: {some(twins, 5)}"] if twins else []


def doubtful(classes: Sequence[str]) -> list[str]:
    """Return warnings for class names that nearly match, stand for missing labels, or join several others."""
    missing = [repr(name) for name in classes if MISSING.fullmatch(name)]
    known = {*classes}
    parts = {name: {*_SEVERAL.split(name.strip("[]"))} for name in classes}
    lists = [
        name for name in classes if (name not in parts[name] and parts[name] <= known) or re.fullmatch(r"\[.*\]", name)
    ]
    warnings = alike(classes)
    if missing:
        warnings.append(f"learnt as a class: {some(missing, 5)}, as missing labels are written; leave those empty")
    if lists:
        warnings.append(
            f"learnt as a class each: {some(list(map(repr, lists)), 3)}; join several labels by a bar: cat|dog"
        )
    return warnings


def class_words(names: Iterable[str | Sequence[str]], ids: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of classes as a word each, synonyms joined; where two classes share one ("crane"), ids tell them apart."""
    words = [name if isinstance(name, str) else ", ".join(name) for name in names]
    often = Counter(words)
    pairs = zip(words, ids or words, strict=True)
    return tuple(f"{word} ({mark})" if ids and often[word] > 1 else str(word) for word, mark in pairs)


def without_label(labels: Sequence[str | None]) -> np.ndarray | None:
    """`Source.unlabeled` of the class names of images, None where nobody said what one shows."""
    mask = np.array([name is None for name in labels], dtype=bool)
    return mask if mask.any() else None


def classify(labels: Sequence[str | None], also: Iterable[str] = ()) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names that can be printed, in natural order, and the [N] int64 labels that point to them, -1 for none.

    Args:
        labels: the class name of each image; empty where it shows none, None where nobody said what it shows.
        also: classes that have no image.
    """
    same = {name: unicodedata.normalize("NFC", readable(name)) for name in {*labels, *also} if name}
    classes = tuple(sorted(set(same.values()), key=natural))
    number = {name: i for i, name in enumerate(classes)}
    code: dict[str | None, int] = {name: number[plain] for name, plain in same.items()}
    return classes, np.array([code.get(name, -1) for name in labels], dtype=np.int64)
