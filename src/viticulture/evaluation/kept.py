# SPDX-License-Identifier: Apache-2.0
"""What was measured before and kept in a run's folder, read back."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..disk import replacing
from ..errors import UserError
from ..text import shell_word
from ..training.rundir import RunDir

Kept = TypeVar("Kept")
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, eq=False)
class Results(Mapping[str, Result]):
    """What was measured of a run by WEIGHTS/SPLIT; empty where nothing could be.

    Args:
        counts: the key of the result that counts; "" where there is none.
        results: by key.
    """

    counts: str
    results: Mapping[str, Result]

    def __post_init__(self) -> None:
        if self.counts not in self.results and (self.counts or self.results):
            raise ValueError(f"the result that counts, {self.counts!r}, is not among {', '.join(self.results)}")

    def __getitem__(self, key: str) -> Result:
        return self.results[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def counting(self) -> Result | None:
        """The one that counts."""
        return self.results.get(self.counts)

    def of_split(self, split: str) -> Result | None:
        """That of the weights that count, on a split."""
        return self.results.get(f"{self.counts.partition('/')[0]}/{split}")

    def of_weights(self, weights: str) -> Self:
        """Those of one set of weights; that on the split that counts, counts. Empty where these were not measured."""
        counts = f"{weights}/{self.counts.partition('/')[2]}"
        results = {key: result for key, result in self.items() if key.partition("/")[0] == weights}
        counts, results = (counts, results) if counts in results else ("", {})
        return replace(self, counts=counts, results=results)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "results": {key: asdict(result) for key, result in self.items()}}  # type: ignore[call-overload]


def read_kept(run: RunDir, name: str, made: Callable[[dict[str, Any]], Kept], absent: Kept) -> Kept:
    """A JSON file of measurements.

    Args:
        run: whose.
        name: of the file in its folder.
        made: from the file's content to what it means.
        absent: what it means that there is no such file.

    Raises: UserError for a file that holds something else.
    """
    if not (run.path / name).exists():
        return absent
    content = run.read(name)
    try:
        return made(content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{run.path / name} is damaged ({type(error).__name__}: {error}); remove it and measure anew"
        ) from error


def keep_arrays(run: RunDir, name: str, arrays: Mapping[str, Any]) -> None:
    """Write a .npz file of measurements, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    with replacing(run.path / name) as part:
        part.write_bytes(buffer.getvalue())


@contextmanager
def kept_arrays(run: RunDir, name: str) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of such a file, each read when it is asked for.

    Raises: UserError for a file that is missing or damaged, or lacks what is asked for.
    """
    path = run.path / name
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is missing or damaged: {error}; make it anew: viticulture evaluate {shell_word(run.path)}"
        ) from error
