# SPDX-License-Identifier: Apache-2.0
"""Numbers as targets: the same from a CSV, a data frame, arrays and a data set, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from refusals import refused
from viticulture.data.open import open_source

VALUES = [-1.5, 3.0, float("nan"), 2.25]
PIXELS = torch.zeros(4, 3, 8, 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for i in range(4):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(folder: Path, *cells: str) -> str:
    rows = [f"{i}.png,{cell}" for i, cell in enumerate(cells)]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows]))
    return str(folder / "list.csv")


@pytest.mark.parametrize("kind", ["csv", "frame", "arrays", "dataset"])
def test_numbers_are_read_from_every_table_and_object(kind: str, folder: Path) -> None:
    data: Any = {
        "csv": table(folder, "-1.5", "3", "", "2.25"),
        "frame": pd.DataFrame({"path": [f"{i}.png" for i in range(4)], "label": VALUES}),
        "arrays": (PIXELS, np.array(VALUES)),
        "dataset": TensorDataset(PIXELS, torch.tensor(VALUES)),
    }[kind]
    source = open_source(data, "numbers")
    assert (source.contents, source.classes, source.labels.dtype) == ("numbers", (), np.float32)
    np.testing.assert_array_equal(source.labels, np.array(VALUES, np.float32))


def test_whole_numbers_are_numbers_where_numbers_are_required(folder: Path) -> None:
    labels = np.array([-1, 0, 5, 2])
    assert open_source((PIXELS, labels), "numbers").labels.tolist() == [-1, 0, 5, 2]
    assert open_source((PIXELS, labels)).labels.tolist() == [-1, 0, 2, 1]
    assert open_source(table(folder, "-1", "0", "5", "2"), "numbers").labels.tolist() == [-1, 0, 5, 2]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (("1", "red", "2", "3"), "must be numbers, got 'red'"),
        (("1", "nan", "2", "3"), "got 'nan'; leave missing ones empty"),
        (("1", "inf", "2", "3"), "got 'inf'"),
        (("1|2", "1", "2", "3"), "must be numbers, got '1|2'"),
    ],
)
def test_labels_that_are_no_numbers_are_refused(cells: tuple[str, ...], words: str, folder: Path) -> None:
    refused(words.replace("|", r"\|"), lambda: open_source(table(folder, *cells), "numbers"))


def test_numbers_are_refused_where_classes_are_required() -> None:
    refused("labels of arrays are numbers, not classes", open_source, (PIXELS, np.array(VALUES)), "classes")
    refused(r"all be classes or all be numbers, got 'red' and 0\.5", open_source, (PIXELS, ["red", 0.5, 1, None]))
