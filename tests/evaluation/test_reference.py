# SPDX-License-Identifier: Apache-2.0
"""Baselines on a run's page: chance and plain classifiers on the same images."""

import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made_study import study
from refusals import refused
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import prepare
from viticulture.data.image_set import CachedImages, Records
from viticulture.evaluation.reference import add_reference, evaluate_references, pixel_accuracies, read_references
from viticulture.study.disagreement import _varied
from viticulture.tasks.classification import Classification
from viticulture.training.run_folder import RunFolder


def images(values: list[int], labels: list[int], side: int = 4) -> CachedImages:
    """Create images of one gray each."""
    pixels = torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, side, side)
    records = Records(torch.tensor(labels), torch.full((len(values), 2), side), [str(i) for i in range(len(values))])
    return CachedImages(pixels, torch.arange(len(values)), records)


@pytest.mark.parametrize("side", [4, 40])
def test_plain_classifiers_separate_dark_from_light(side: int) -> None:
    train, test = images([0, 10, 200, 250], [0, 0, 1, 1], side), images([5, 240, 230], [0, 1, 0], side)
    lines = pixel_accuracies(train, test)
    assert set(lines) == {"logistic regression on pixels", "nearest neighbor on pixels"}
    assert list(lines.values()) == [pytest.approx(2 / 3)] * 2


def test_many_classes_of_few_images_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = pixel_accuracies(images(list(range(200)), list(range(200))), images([3], [3]))
    assert lines["nearest neighbor on pixels"] == 1


def test_baselines_name_training_images_and_chance(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    dataset = prepare("digits", DataSettings(per_class=10))
    evaluate_references(run, dataset)
    known = read_references(run)
    assert known is not None
    assert dataset.test is not None
    assert known.split == "test"
    assert known.images["train"] == (10,) * 10
    assert known.images["test"] == tuple(np.bincount(dataset.test.records.labels).tolist())
    chance = known.images["test"][0] / sum(known.images["test"])  # all are the commonest: the first
    assert known.accuracy["always the most common class"] == pytest.approx(chance)
    assert known.accuracy["nearest neighbor on pixels"] > 0.7
    run.write("references.json", asdict(replace(known, accuracy={**known.accuracy, "cnn (theirs)": 0.5})))
    evaluate_references(run, dataset)  # as `viticulture evaluate` does, which keeps what `report` has added
    assert read_references(run) == replace(known, accuracy={**known.accuracy, "cnn (theirs)": 0.5})


def test_another_run_on_the_same_images_is_listed(tmp_path: Path) -> None:
    made = study(tmp_path / "s", ["vit", "cnn"], (10,), 1)
    ours, theirs = (made.folder.run(cell) for cell in made.folder.grid.cells())
    results = Classification(theirs).read_results()
    assert results is not None
    counting = results.counts, results[results.counts].top1
    refused("viticulture evaluate", add_reference, ours, theirs, *counting)
    ours.write("references.json", {"split": "test", "accuracy": {"chance": 0.1}, "images": {"train": [1, 2]}})
    for run, names in ((ours, ["a"]), (theirs, ["b"])):
        run.write("split.json", {"names": {"test": names}})
    refused("different images", add_reference, ours, theirs, *counting)
    theirs.write("split.json", {"names": {"test": ["a"]}})
    add_reference(ours, theirs, *counting)
    known = read_references(ours)
    assert known is not None
    assert set(known.accuracy) == {"chance", f"vit_nano ({theirs.path.name})"}
    assert known.images == {"train": (1, 2)}


def test_examples_cover_every_class_first() -> None:
    truth = np.array([0, 0, 0, 1, 1, 2], np.int32)
    gap = np.array([1.0, 1.0, 0.0, 0.5, 1.0, 0.5])
    order = np.argsort(-gap, kind="stable")
    assert _varied(order, gap, truth).tolist() == [0, 4, 5, 1, 3]
