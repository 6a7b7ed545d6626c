# SPDX-License-Identifier: Apache-2.0
"""Measurements in a run's folder: written, and read back.

A run that goes on training has other weights then: every measurement holds the checksum of its weights, and is not read
any more once these are gone.
"""

import filecmp
import io
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..data.images.arrays import check_npz
from ..data.sources.source import Source
from ..disk import replacing
from ..errors import UserError
from ..models.weights.checksum import FILES, checksum
from ..text import shell_word
from ..training.run_folder import RunFolder

SPLITS = ("train", "val", "validation", "test")  # names that other images than a run's own cannot have

Saved = TypeVar("Saved")


def name_of(data: str | Source) -> str:
    """Name images other than the run's: a folder that is named like a split by its path."""
    name = data.name if isinstance(data, Source) else data
    return f"./{name}" if name in SPLITS else name


def weights_for(run: RunFolder, split: str, splits: Collection[str]) -> list[str]:
    """Return the sets of weights that are evaluated on one of a run's own splits: all of them, but where validation
    images chose the best, these alone on test images."""
    which = run.which()
    return which[:1] if split == "test" and "val" in splits and which[0] == "best" else which


def of_each(run: RunFolder, measure: Callable[[str], Saved], which: Sequence[str] = ()) -> dict[str, Saved]:
    """Measure sets of weights of a run, by default all, those that count first; equal sets, as best and last often are,
    once."""
    measured: dict[str, Saved] = {}
    for weights in which or run.which():
        twin = next((other for other in measured if _same(run, other, weights)), None)
        measured[weights] = measure(weights) if twin is None else measured[twin]
    return measured


def _same(run: RunFolder, weights: str, others: str) -> bool:
    """Return whether the files are there and equal; a missing file is reported by whatever reads it."""
    places = run.weights(weights), run.weights(others)
    return not any(filecmp.cmpfiles(*places, FILES, shallow=False)[1:])


def read_saved(run: RunFolder, name: str, made: Callable[[dict[str, Any]], Saved]) -> Saved | None:
    """Read a JSON file of measurements; None where there is none.

    Raises: UserError for a file that holds something else.
    """
    if not (run.path / name).exists():
        return None
    content = run.read(name)
    try:
        return made(content)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise UserError(f"{run.path / name} is damaged ({reason}); remove it and measure anew") from error


def checksum_of(run: RunFolder, weights: str) -> str:
    """Return the checksum of best, last or ema weights; empty where these have none."""
    return checksum(run.weights(weights))


def is_current(run: RunFolder, weights: str, recorded: str) -> bool:
    """Return whether the run still has the weights of this checksum; true where one of them has none."""
    return not recorded or checksum_of(run, weights) in ("", recorded)


def read_each(run: RunFolder, name: str, made: Callable[[dict[str, Any]], Saved]) -> dict[str, Saved]:
    """Read a JSON file of results by name, without those of weights that are gone."""

    def is_there(result: Mapping[str, Any]) -> bool:
        return is_current(run, result["weights"], result.get("checksum", ""))

    every = read_saved(run, name, lambda content: {key: made(each) for key, each in content.items() if is_there(each)})
    return every or {}


def save_arrays(run: RunFolder, name: str, arrays: Mapping[str, Any]) -> None:
    """Write a .npz file of measurements, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    with replacing(run.path / name) as part:
        part.write_bytes(buffer.getvalue())


@contextmanager
def saved_arrays(run: RunFolder, name: str) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of such a file, each read at its first use.

    Raises: UserError for a file that is missing or damaged, or lacks an array.
    """
    path = run.path / name

    def damaged(error: Exception) -> UserError:
        anew = f"make it anew: viticulture evaluate {shell_word(run.path)}"
        return UserError(f"{path} is missing or damaged: {error}; {anew}")

    with ExitStack() as stack:
        try:
            opened = stack.enter_context(path.open("rb"))
            check_npz(opened)
            opened.seek(0)
            file = stack.enter_context(np.load(opened, allow_pickle=False))
        except Exception as error:  # NumPy raises anything for a damaged file
            raise damaged(error) from error
        try:
            yield file
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
            raise damaged(error) from error
