# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by several files: golden numbers of the official code, images and teachers of `pairs`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from fake_hub import FakeHub
    from pairs import Data

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Golden:
    """Arrays of one file, keyed as `w/NAME`, `in/NAME`, `out/NAME`, `grad/NAME`, `gin/NAME`, `after/NAME`."""

    arrays: "dict[str, Tensor]"
    about: dict[str, Any]

    def __getitem__(self, key: str) -> "Tensor":
        return self.arrays[key]

    def part(self, prefix: str) -> "dict[str, Tensor]":
        """Return the arrays under a prefix, such as `w/`, without it."""
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """Load outputs of the official code by file name; tests/golden/README.md describes them."""

    import torch

    def load(name: str) -> Golden:
        path = GOLDEN / f"{name}.npz"
        arrays = {}
        if path.exists():
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: torch.from_numpy(file[key]) for key in file.files}
        return Golden(arrays, json.loads((GOLDEN / f"{name}.json").read_text()))

    return load


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Data]":
    """Create eight random images, see `pairs`."""
    from pairs import make_data

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITICULTURE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield make_data()


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a ViT and a CNN with random weights, see `pairs`."""
    from pairs import make_teachers

    return make_teachers(tmp_path_factory.mktemp("teachers"))


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Iterator[FakeHub]":
    """Replace the real Hub by an empty one."""
    from fake_hub import used_instead

    with used_instead(monkeypatch, tmp_path) as served:
        yield served


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes as slow and put them first, so that one worker starts their server."""
    import torch

    torch.set_num_threads(1)  # small tensors; several threads on busy cores wait for one another
    for item in items:
        if item.get_closest_marker("children"):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("children") is None)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty cache."""
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VITICULTURE_DATA", str(tmp_path / "sets"))
