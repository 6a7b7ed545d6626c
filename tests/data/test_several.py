# SPDX-License-Identifier: Apache-2.0
"""Several labels per image: formats of files and objects, and splits that keep rare ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from colored import COLORS, colored_csv, drawn_labels
from refusals import refused
from viticulture.data.balance import positive_weights
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import prepare, prepare_test
from viticulture.data.image_settings import ImageSettings
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source
from viticulture.data.sources.several import are_numbers, is_joined, separated
from viticulture.data.splits import select
from viticulture.data.subsets import fraction_of_each, holdout
from viticulture.errors import UserError
from viticulture.report.terminal import say
from viticulture.training.data import default_recipe

IMAGES = 24
SORTED = ("blue", "green", "red")
TRUE = drawn_labels(IMAGES)[:, [COLORS.index(name) for name in SORTED]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colored_csv(tmp_path_factory.mktemp("colors"), IMAGES).parent


def write(root: Path, kind: str) -> Any:
    """Write the same images and labels in another form."""
    shown = drawn_labels(IMAGES)
    names = [[name for name, there in zip(COLORS, row, strict=True) if there] for row in shown]
    paths = [f"{i:03d}.png" for i in range(IMAGES)]
    if kind == "csv":
        return str(root / "labels.csv")
    if kind == "columns":
        lines = [f"{path},seen twice,{','.join(map(str, row))}" for path, row in zip(paths, shown, strict=True)]
        (root / "columns.csv").write_text("\n".join([f"path,Notes,{','.join(COLORS)}", *lines]))
        return str(root / "columns.csv")
    if kind == "studio":
        chosen = [[{"result": [{"value": {"choices": some}}] if some else []}] for some in names]
        tasks = [{"data": {"image": path}, "annotations": each} for path, each in zip(paths, chosen, strict=True)]
        (root / "studio.json").write_text(json.dumps(tasks))
        return str(root / "studio.json")
    pandas = pytest.importorskip("pandas")
    whole = [str(root / path) for path in paths]
    if kind == "frame of columns":
        return pandas.DataFrame({"path": whole, **dict(zip(COLORS, shown.T.astype(bool), strict=True))})
    frame = pandas.DataFrame({"path": whole, "label": names})
    if kind == "frame of lists":
        return frame
    pytest.importorskip("pyarrow")
    frame.to_parquet(root / "labels.parquet")
    return str(root / "labels.parquet")


FORMS = ["csv", "columns", "studio", "frame of columns", "frame of lists", "parquet of lists"]


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_reads_the_same_labels(root: Path, kind: str) -> None:
    source = separated(open_source(write(root, kind)))
    assert source.classes == SORTED
    np.testing.assert_array_equal(source.labels, TRUE)
    assert len(source) == IMAGES


@pytest.mark.parametrize("labels", [TRUE, torch.from_numpy(TRUE), [list(np.flatnonzero(row)) for row in TRUE]])
def test_vectors_of_one_and_zero_and_lists_of_classes_are_labels(labels: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (IMAGES, 8, 8, 3), np.uint8)
    source = separated(open_source((pixels, labels)))
    assert source.classes == ("0", "1", "2")
    np.testing.assert_array_equal(source.labels, TRUE)
    refused("a 1 or a 0 a class", open_source, (pixels[:2], np.array([[0, 2], [1, 0]])))


def test_a_list_of_zeros_and_ones_is_refused() -> None:
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match=r"\[0, 1, 1\], a 1 or a 0 for each class; list the classes of the image"):
        open_source((pixels, [[0, 1, 1], [1, 0, 0]]))
    pandas = pytest.importorskip("pandas")
    for marks in ([0, 1, 1], np.array([0.0, 1.0, 1.0])):
        with pytest.raises(UserError, match="a 1 or a 0 for each class"):
            open_source(pandas.DataFrame({"path": ["a.png"], "label": [marks]}))


UNLABELED = [[0, 1], [1], [], None, [0]]
AS_ROWS = [[1, 1], [0, 1], [0, 0], [-1, -1], [1, 0]]


def without_a_label(root: Path, kind: str) -> Any:
    """Write images with the labels of `UNLABELED`, None where no label is known."""
    pixels = np.random.default_rng(0).integers(0, 255, (len(UNLABELED), 8, 8, 3), np.uint8)
    if kind == "arrays":
        return pixels, UNLABELED
    if kind == "vectors":
        return pixels, [None if row[0] < 0 else np.array(row) for row in AS_ROWS]
    names = [None if each is None else [str(label) for label in each] for each in UNLABELED]
    if kind == "frame":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame({"path": [str(root / f"{i:03d}.png") for i in range(len(names))], "label": names})
    datasets = pytest.importorskip("datasets", reason="the extra `hf`")
    table = {"image": [Image.fromarray(image) for image in pixels], "labels": names}
    datasets.Dataset.from_dict(table).save_to_disk(str(root / "hub"))
    return root / "hub"


@pytest.mark.parametrize("kind", ["arrays", "vectors", "frame", "hub"])
def test_none_is_unlabeled_and_an_empty_list_has_no_labels(root: Path, kind: str) -> None:
    source = separated(open_source(without_a_label(root, kind)))
    assert source.labels.tolist() == AS_ROWS
    nothing_held = DataSettings(test_fraction=0, val_fraction=0)
    splits, notes = select(source, nothing_held, 0)
    assert splits["train"].tolist() == [0, 1, 2, 4]
    assert notes == ["left out 1 train image without a label"]
    assert len(select(source, nothing_held, 0, labeled=False)[0]["train"]) == len(UNLABELED)
    assert len(select(source, DataSettings(0, 0, fraction=0.8), 0, labeled=False)[0]["train"]) == 4
    found = inspect(source)
    assert (found.unlabeled, found.counts) == (1, {"train": (2, 2)})
    assert found.several.endswith("1 of 4 images have none")
    other, _ = prepare_test(source, ("1", "0", "2"), ImageSettings(image_size=8, cache_size=8))
    assert other.records.labels.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_a_table_without_labels_is_refused_with_both_forms(root: Path) -> None:
    (root / "bad.csv").write_text("path,cat\n000.png,1\n001.png,maybe\n")
    refused(r"path,label.*or a column of 1 and 0 for every label, got 'path,cat'", open_source, str(root / "bad.csv"))


def test_many_label_columns_are_read_in_time(root: Path) -> None:
    many = 60_000
    header = ",".join(f"c{i}" for i in range(many))
    rows = [f"{i:03d}.png," + ",".join(str((i + j) % 2) for j in range(many)) for i in range(4)]
    (root / "wide.csv").write_text("\n".join([f"path,{header}", *rows]))
    assert len(inspect(root / "wide.csv").classes) == many


def test_label_columns_are_reported_one_by_one(root: Path) -> None:
    rows = [("000", 1, 0, 0, 1), ("001", 0, 1, 0, 0), ("002", 1, 1, 0, 2)]
    text = "path,cat,dog,ox,count\n" + "".join(f"{name}.png,{','.join(map(str, cells))}\n" for name, *cells in rows)
    (root / "several.csv").write_text(text)
    source = open_source(str(root / "several.csv"))
    assert separated(source).classes == ("cat", "dog")
    assert source.warnings == (
        "labels are the columns cat, dog (1 or 0)",
        "no class, since no image shows it: ox",
        "no labels, since not all cells are 1 or 0: count (line 4: '2')",
    )
    (root / "several.csv").write_text(text.replace("001.png,0,1,", "001.png,0,,"))
    with pytest.raises(UserError, match=r"several.csv, line 3: dog is empty, and its other cells are 1 or 0; fill the"):
        open_source(str(root / "several.csv"))


def test_data_lists_labels_one_by_one(root: Path) -> None:
    found = inspect(write(root, "columns"))
    assert found.classes == SORTED
    assert found.counts["train"] == tuple(TRUE.sum(0))
    assert found.several.endswith(f"{int((TRUE.sum(1) == 0).sum())} of {IMAGES} images have none")
    assert found.warnings[0] == "labels are the columns red, green, blue (1 or 0)"
    assert sum(found.planned.values()) == IMAGES


def test_labels_are_not_counted_as_images(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(inspect(write(root, "columns")))
    shown = " ".join(capsys.readouterr().out.split())
    assert "Images by label" in shown
    assert f"3 labels; {TRUE.sum()} train, an image once for each of its labels" in shown


def test_a_rare_label_is_in_both_parts() -> None:
    """300 images, of which 4 have a rare label."""
    draw = np.random.default_rng(0)
    labels = (draw.random((300, 4)) < (0.5, 0.3, 0.1, 0)).astype(np.float32)
    labels[draw.permutation(300)[:4], 3] = 1
    splits = [holdout(labels, 0.2, seed) for seed in range(5)]
    for stay, held in splits:
        assert sorted([*stay, *held]) == list(range(300))
        assert labels[held, 3].sum() == 1
        np.testing.assert_allclose(labels[held].sum(0) / labels.sum(0), 0.2, atol=0.06)  # an image or two of each
        assert len(held) == 60
    assert len({tuple(held) for _, held in splits}) == 5
    np.testing.assert_array_equal(splits[0][1], holdout(labels, 0.2, 0)[1])


def test_a_fraction_keeps_every_label() -> None:
    labels = np.eye(50, 8, dtype=np.float32)  # 42 images show none
    kept = fraction_of_each(labels, 0.1, 0)
    assert labels[kept].any(0).all()
    assert len(kept) <= 8 + 5
    np.testing.assert_array_equal(fraction_of_each(labels, 1.0, 0), np.arange(50))


def test_images_keep_their_labels_through_splits(root: Path) -> None:
    source = separated(open_source(str(root / "labels.csv")))
    dataset = prepare(source, DataSettings(), ImageSettings(image_size=16))
    assert sum(map(len, dataset.split_names.values())) == IMAGES
    for kind in ("train", "val", "test"):
        images = getattr(dataset, kind)
        numbers = [int(name.partition(".")[0]) for name in images.records.names]
        np.testing.assert_array_equal(images.records.labels.numpy(), TRUE[numbers])
    other, _ = prepare_test(source, ("red", "purple", "blue", "green"), dataset.image_settings)
    np.testing.assert_array_equal(other.records.labels.numpy()[:, [2, 3, 0]], TRUE)
    assert not other.records.labels[:, 1].any()
    with pytest.raises(UserError, match=r"data.per_class counts images of one class, .* set data.fraction alone"):
        prepare(source, DataSettings(per_class=3), ImageSettings(image_size=16))


def test_numbers_are_told_from_classes(tmp_path: Path) -> None:
    """Catches: ages, digits or names that are taken for numbers to predict; a list of numbers that trains a class for
    each."""
    listed = {
        "1.5 2.25 3.125 4": True,
        "1 2 3 4": False,
        "1.5 1.5 2 2": False,
        "a 1.5 2.5 3.5": False,
        "1e999 2.5 3.5 4": False,
    }
    for labels, numbers in listed.items():
        rows = [f"{i}.png,{label}" for i, label in enumerate(labels.split())]
        for i in range(len(rows)):
            Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
        (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
        source = open_source(tmp_path / "list.csv")
        assert are_numbers(source) == numbers, labels
        assert (default_recipe(source) == "regression/photos") == numbers
    for i in range(40):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    rows = [f"{i}.png,{i / 7:.3f}" for i in range(40)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    seen = inspect(open_source(tmp_path / "list.csv"))
    assert (seen.contents, seen.classes, sorted(seen.planned)) == ("numbers", (), ["test", "train", "val"])


def test_one_class_per_image_is_unchanged(tmp_path: Path, root: Path) -> None:
    (tmp_path / "one.csv").write_text("path,label\n" + "".join(f"{root}/{i:03d}.png,c{i % 2}\n" for i in range(4)))
    source = open_source(str(tmp_path / "one.csv"))
    assert not is_joined(source)
    assert source.labels.tolist() == [0, 1, 0, 1]


def test_balanced_weights_equalize_present_and_absent() -> None:
    """n_c w_c = N - n_c."""
    labels = torch.tensor([[1.0, 1], [0, 1], [0, 1], [0, 0]])
    assert positive_weights("balanced", ("a", "b"), labels).tolist() == pytest.approx([3, 1 / 3])
    assert positive_weights({"b": 2}, ("a", "b"), labels).tolist() == [1, 2]
    refused("class_weights", positive_weights, {"c": 2}, ("a", "b"), labels)
