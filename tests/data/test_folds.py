# SPDX-License-Identifier: Apache-2.0
"""Folds hold every image once, every class alike, and keep groups whole."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold

from refusals import refused
from viticulture.data.data_settings import DataSettings
from viticulture.data.open import open_source
from viticulture.data.sources.several import separated
from viticulture.data.sources.source import Source
from viticulture.data.splits import Splits, folds_of, select
from viticulture.data.subsets import assign
from viticulture.errors import UserError


def test_without_groups_folds_are_stratified() -> None:
    labels = np.repeat(np.arange(4), (23, 7, 5, 101))
    part = assign(labels, None, [0.2] * 5, 3)
    for c in range(4):
        sizes = np.bincount(part[labels == c], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(part)
    assert sizes.max() - sizes.min() <= 1
    assert (part == assign(labels, None, [0.2] * 5, 3)).all()
    assert (part != assign(labels, None, [0.2] * 5, 4)).any()


def test_groups_stay_whole_and_classes_as_even_as_scikit_learns() -> None:
    """Reference: StratifiedGroupKFold."""
    draw = np.random.default_rng(0)
    groups = draw.integers(0, 40, 600)
    labels = (draw.random(600) < 0.1 + 0.8 * (groups % 5 == 0)).astype(np.int64) + (groups % 7 == 0)
    ours = assign(labels, groups, [0.2] * 5, 0)
    theirs = np.zeros(600, dtype=np.int64)
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0).split(labels, labels, groups)
    for number, (_, held) in enumerate(folds):
        theirs[held] = number
    assert all(len(set(ours[groups == g].tolist())) == 1 for g in range(40))

    def unevenness(part: np.ndarray) -> float:
        shares = np.stack([np.bincount(part[labels == c], minlength=5) / (labels == c).sum() for c in range(3)])
        return float(shares.std(1).mean())

    assert unevenness(ours) <= unevenness(theirs) + 0.01, "a hundredth of a class: both are greedy"


def test_unequal_shares_and_ungrouped_images() -> None:
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 3, 900)
    groups = np.where(np.arange(900) < 450, draw.integers(0, 90, 900), -1)
    held = assign(labels, groups, (0.85, 0.15), 0) == 1
    for c in range(3):
        assert held[labels == c].mean() == pytest.approx(0.15, abs=0.02), "a group of a class is up to a hundredth"
    assert 0 < held[groups < 0].sum() < 450


def listed(folder: Path, header: str, lines: list[str]) -> Source:
    """Write a CSV of tiny images; {i} in a line is the number of its image."""
    folder.mkdir()
    for i in range(len(lines)):
        Image.new("RGB", (2, 2), (i, 0, 0)).save(folder / f"{i}.png")
    rows = [f"{i}.png,{line}" for i, line in enumerate(lines)]
    (folder / "list.csv").write_text("\n".join([header, *rows]))
    return open_source(str(folder / "list.csv"))


def chosen(source: Source, folds: int, **more: object) -> list[Splits]:
    """Return the splits of every fold."""
    return [select(source, DataSettings(folds=folds, fold=k, **more), 0)[0] for k in range(folds)]  # type: ignore[arg-type]


def test_every_image_is_tested_once_by_folds_without_it(tmp_path: Path) -> None:
    source = listed(tmp_path / "set", "path,label", ["ab"[i % 2] for i in range(40)])
    splits = chosen(source, 4)
    assert sorted(np.concatenate([one["test"] for one in splits]).tolist()) == list(range(40))
    for one in splits:
        assert sorted(np.concatenate([one["train"], one["val"], one["test"]]).tolist()) == list(range(40))
        assert np.bincount(source.labels[one["test"]]).tolist() == [5, 5]
    again = select(source, DataSettings(folds=4, fold=2), seed=9)[0]
    assert again["test"].tolist() == splits[2]["test"].tolist()


def test_groups_of_a_csv_stay_together_in_folds_and_splits(tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2]},patient {i // 4}" for i in range(80)]
    source = listed(tmp_path / "set", "path,label,group", lines)
    assert source.warnings == ("20 groups (column group), which no split that is drawn divides",)
    plain = select(source, DataSettings(), 0)[0]
    assert {"train", "val", "test"} == set(plain)
    for one in [plain, *chosen(source, 5)]:
        sides = [set((rows // 4).tolist()) for rows in one.values()]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 20
    bare = listed(tmp_path / "bare", "path,label,group", [f"{line[0]}," for line in lines])
    none = listed(tmp_path / "none", "path,label", [line[0] for line in lines])
    assert bare.groups is None
    assert select(bare, DataSettings(), 0)[0]["test"].tolist() == select(none, DataSettings(), 0)[0]["test"].tolist()


def test_a_class_of_few_groups_is_held_out_too(tmp_path: Path) -> None:
    groups = [("a", g) for g in range(10)] + [("b", g) for g in range(10, 13)] + [("c", 13)]
    lines = [f"{name},plot {g}" for name, g in groups for _ in range(4)]
    splits, notes = select(listed(tmp_path / "set", "path,label,group", lines), DataSettings(), 0)
    shown = {
        kind: [sum(lines[row].startswith(name) for row in rows) for name in "abc"] for kind, rows in splits.items()
    }
    assert shown == {"train": [28, 4, 4], "val": [4, 4, 0], "test": [8, 4, 0]}
    told = "no image of 1 class is held out as {}, for too few groups: c"
    assert notes == [told.format("test"), told.format("val")]


def test_a_declared_test_split_stays_and_folds_validate(tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2]},{'test' if i < 8 else 'train'},{i // 2 % 9}" for i in range(40)]
    source = listed(tmp_path / "set", "path,label,split,group", lines)
    splits = chosen(source, 4)
    assert all(one["test"].tolist() == list(range(8)) for one in splits)
    assert sorted(np.concatenate([one["val"] for one in splits]).tolist()) == list(range(8, 40))
    told = select(source, DataSettings(folds=4), 0)[1]
    assert "the same in every fold" in told[0]
    assert "groups of images are in several" in told[1]
    whole = listed(
        tmp_path / "whole", "path,label,split", [f"{'ab'[i % 2]},{['test', 'val', 'train'][i % 3]}" for i in range(24)]
    )
    refused(r"own validation and test images.*train_on train\+val", chosen, whole, 2)
    assert len(chosen(whole, 2, train_on="train+val")[0]["val"]) == 8


def test_unlabeled_images_follow_their_group(tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2] if i < 40 else ''},{i % 40 if i < 80 else ''}" for i in range(90)]
    source = listed(tmp_path / "set", "path,label,group", lines)
    assert source.groups is not None
    for selection in (DataSettings(), DataSettings(folds=4, fold=1)):
        splits, notes = select(source, selection, 0, labeled=False)
        held = {kind: rows for kind, rows in splits.items() if kind != "train"}
        apart = np.concatenate(list(held.values()))
        stay = np.setdiff1d(np.arange(90), np.concatenate([apart, apart + 40]))
        assert splits["train"].tolist() == stay.tolist()
        told = [
            f"left out {len(rows)} images without a label, of groups that are held out as {kind}"
            for kind, rows in held.items()
        ]
        assert sorted(notes) == sorted(told)


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    source = listed(tmp_path / "set", "path,label,group", [f"{'ab'[i < 6]},{i // 2}" for i in range(40)])
    refused("4 folds need 4 groups of every class: b has 3; take at most 3", chosen, source, 4)
    refused(r"per_class must not exceed the training images of 3 folds.*got 5: b", chosen, source, 3, per_class=5)
    flat = listed(tmp_path / "flat", "path,label", ["ab"[i < 3] for i in range(40)])
    refused("5 folds need 5 images of every class: b has 3", chosen, flat, 5)
    for settings, words in (
        ({"folds": 1}, "at least 2"),
        ({"folds": 3, "fold": 3}, r"lie in 0\.\.2, got 3"),
        ({"fold": 1}, "folds is None"),
        ({"folds": 3, "rule": "bootstrapping", "fraction": 0.5}, "leave the folds out"),
    ):
        with pytest.raises(UserError, match=words):
            DataSettings(**settings)  # type: ignore[arg-type]


def test_folds_and_groups_split_images_of_several_labels(tmp_path: Path) -> None:
    names = ["a|b", "a", "b", "", "a|rare", "b", "a", ""]
    lines = [f"{names[i // 2 % 8]},patient {i // 2}" for i in range(160)]
    source = separated(listed(tmp_path / "set", "path,label,group", lines))
    plain = select(source, DataSettings(), 0)[0]
    splits = chosen(source, 5)
    for one in [plain, *splits]:
        sides = [set((rows // 2).tolist()) for rows in one.values()]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 80
    tested = [source.labels[one["test"]] for one in splits]
    assert [len(labels) for labels in tested] == [32] * 5
    np.testing.assert_array_equal([labels.sum(0) for labels in tested], np.tile([16, 12, 4], (5, 1)))
    assert source.labels[plain["test"]].sum(0).tolist() == [16, 12, 4], "a fifth"
    bare = separated(listed(tmp_path / "bare", "path,label", [line.partition(",")[0] for line in lines]))
    assert sorted(np.concatenate([one["test"] for one in chosen(bare, 5)]).tolist()) == list(range(160))
    refused("21 folds need 21 groups of every class: rare has 10", chosen, source, 21)


def test_near_duplicates_are_in_one_fold(tmp_path: Path) -> None:
    lines = ["ab"[i // 60] for i in range(120)]
    source = listed(tmp_path / "set", "path,label", lines)
    rows, copies = np.arange(120), np.concatenate([np.arange(60) // 4, np.full(60, 99)])
    fold = folds_of(source, rows, 5, 0, copies)
    assert all(len(set(fold[start : start + 4])) == 1 for start in range(0, 60, 4))
    assert [np.bincount(fold[source.labels == c]).tolist() for c in (0, 1)] == [[12] * 5] * 2
    assert (np.diff(fold[60:]) != 0).sum() == 4, "five runs"
    few = folds_of(source, np.array([0, 1, 2, 3, 4, 60, 61, 62, 63, 64]), 5, 0, np.array([0] * 5 + [-1] * 5))
    assert sorted(few[:5].tolist()) == [0, 1, 2, 3, 4]
    none = np.full(120, -1)
    assert folds_of(source, rows, 5, 0, none).tolist() == folds_of(source, rows, 5, 0).tolist()
