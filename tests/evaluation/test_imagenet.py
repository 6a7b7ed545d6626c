# SPDX-License-Identifier: Apache-2.0
"""ImageNet-V2, with numbered folders, and ReaL, with several labels an image: arXiv:1902.10811, 2006.07159."""

import json
from pathlib import Path

import pytest
import torch

from photographs import pictures
from refusals import refused
from untrained import untrained
from viticulture.evaluation.model import ONE_HEAD, OutputHeads, of_run
from viticulture.evaluation.robustness.evaluate import evaluate_robustness
from viticulture.evaluation.robustness.imagenet import read_truth, relabeled
from viticulture.evaluation.robustness.metrics import wrong_predictions
from viticulture.study.outcomes import other_measure
from viticulture.training.data import load_dataset, open_for
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of

CLASSES = tuple(f"n{number:08d}" for number in range(1000))


def predictions(run: RunFolder) -> dict[str, int]:
    """Predict the run's test images, by name."""
    subject, images = of_run(run), dataset_of(run, config_of(run)).test
    assert images is not None
    (batch,) = subject.batches(images)
    said = subject.network(batch["image"]).argmax(-1).tolist()
    return dict(zip(images.records.names, said, strict=True))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Create a student of ImageNet's 1,000 classes with random weights, tested on four images."""
    pictures(tmp_path / "photos" / "train", {"a": 1, "b": 1})
    pictures(tmp_path / "photos" / "test", {"a": 2, "b": 2})
    for number, file in enumerate(sorted((tmp_path / "photos" / "test").rglob("*.png")), 1):
        file.rename(file.with_name(f"ILSVRC2012_val_{number:08d}.png"))
    grown = untrained(tmp_path / "run", CLASSES)
    facts = grown.read("run.json")
    facts["data"] |= {"folder": str(tmp_path / "photos"), "classes": ["a", "b"]}  # of a thousand folders
    grown.write("run.json", facts)
    names = {
        split: [str(p.relative_to(tmp_path / "photos")) for p in sorted((tmp_path / "photos" / split).rglob("*.png"))]
        for split in ("train", "test")
    }
    grown.write("split.json", {"names": names})
    config = config_of(grown)
    dataset = load_dataset(open_for(config, str(tmp_path / "photos")), config, facts["seed"], grown.image_names)
    grown.update(data={**facts["data"], "fingerprint": dataset.fingerprint})
    return grown


def test_any_of_several_labels_is_right_and_images_without_one_are_left_out(run: RunFolder, tmp_path: Path) -> None:
    said = predictions(run)
    truth = []
    for place, name in enumerate(sorted(said, key=lambda name: name[-6:])):
        right = said[name]
        truth.append([[(right + 1) % 1000, right, (right + 2) % 1000], [(right + 1) % 1000], [], [right]][place])
    file = tmp_path / "real.json"
    file.write_text(json.dumps(truth))
    found = evaluate_robustness(run, str(file))
    assert found.images == 3
    assert found.clean == pytest.approx((1 / 3,))
    assert other_measure(run, "robustness/real.json/student") == {"test": pytest.approx(2 / 3)}
    for text, words in (
        ("[[1000]]", "beyond"),
        ("{", "not a list"),
        ("[[]]", "not one of ImageNet's|none of the run's"),
    ):
        file.write_text(text)
        refused(words, evaluate_robustness, run, str(file))


def test_numbered_folders_are_imagenets_classes(run: RunFolder, tmp_path: Path) -> None:
    """V2's folders 0 to 999 in the order of WordNet ids."""
    said = predictions(run)
    for place, (name, right) in enumerate(sorted(said.items())):
        number = right if place < 3 else (right + 1) % 1000
        folder = tmp_path / "imagenetv2" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(name).name).write_bytes((tmp_path / "photos" / name).read_bytes())
    found = evaluate_robustness(run, str(tmp_path / "imagenetv2"))
    assert found.clean == pytest.approx((1 / 4,))
    assert not found.errors


def test_a_mask_of_labels_counts_as_labels() -> None:
    torch.manual_seed(0)
    net, images, labels = torch.nn.Linear(3, 5).eval(), torch.randn(7, 3), torch.randint(0, 5, (7,))
    heads = OutputHeads(("class",), ONE_HEAD)
    mask = torch.nn.functional.one_hot(labels, 5).bool()
    assert (
        wrong_predictions(net, heads, images, mask).tolist() == wrong_predictions(net, heads, images, labels).tolist()
    )
    kept, classes = relabeled(["x/ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000001.JPEG"], [[], [7, 3]])
    assert kept.tolist() == [0]
    assert classes[0].nonzero()[:, 0].tolist() == [3, 7]
    refused("is not one of ImageNet's validation images", relabeled, ["cat.jpg"], [[1]])
    refused("not a list of true classes", read_truth, Path("nowhere.json"))
