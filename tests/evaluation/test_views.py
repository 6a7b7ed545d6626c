# SPDX-License-Identifier: Apache-2.0
"""Test-time augmentation: the mean of the probabilities of several views, wherever a classifier predicts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import viticulture
from photographs import pictures
from refusals import refused
from untrained import photo, untrained
from viticulture.config.checks import check_parts
from viticulture.config.load import load_config
from viticulture.data.dataset import prepare_test
from viticulture.data.image_set import Images
from viticulture.data.open import open_source
from viticulture.deploy.hub.push import contents
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.errors import UserError
from viticulture.evaluation.model import ONE_HEAD, OutputHeads, of_run, of_source
from viticulture.evaluation.outputs import Predictions, choose_views
from viticulture.evaluation.robustness.metrics import wrong_predictions
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.tta import TTA_KEY, TTA_VIEWS, TTAMode, TTAModel, with_tta
from viticulture.models.weights.files import note
from viticulture.tasks.classification import Classification
from viticulture.tasks.classification_metrics import ClassificationResult
from viticulture.tasks.task import task_of
from viticulture.training.data import load_dataset
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of

SMALL = {
    "images.image_size": 8,
    "images.cache_size": 8,
    "student.name": "vit_nano",
    "student.patch_size": 4,
    "student.options": {"depth": 1},
    "train.epochs": 1,
}


class LeftAndMiddle(nn.Module):
    """Compute logits: mean of the left half, of the middle 0.8 and of the whole image, of its first channel."""

    def forward(self, images: Tensor) -> Tensor:
        plane = images[:, 0]
        return torch.stack([plane[..., :5].mean((1, 2)), plane[:, 1:-1, 1:-1].mean((1, 2)), plane.mean((1, 2))], 1)


def data_spec(several: bool = False) -> DataSpec:
    return DataSpec(("a", "b", "c"), (10, 10), (0.5,) * 3, (0.5,) * 3, several)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", get_args(TTAMode))
def test_predictions_are_the_mean_over_views(name: TTAMode, several: bool) -> None:
    images = torch.randn(5, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    middle = F.interpolate(images[:, :, 1:9, 1:9], (10, 10), mode="bicubic")
    heart = F.interpolate(images[:, :, 2:8, 2:8], (10, 10), mode="bicubic")
    asked = {
        "one": [images],
        "mirrored": [images, images.flip(3)],
        "middle": [images, middle],
        "four": [images, images.flip(3), middle, middle.flip(3)],
        "six": [images, images.flip(3), middle, middle.flip(3), heart, heart.flip(3)],
    }[name]
    decide = data_spec(several).probabilities
    expected = torch.stack([decide(LeftAndMiddle()(view)) for view in asked]).mean(0)
    answers = with_tta(LeftAndMiddle(), name, data_spec(several))(images)
    assert torch.allclose(decide(answers), expected, atol=1e-6)
    assert name == "one" or not torch.allclose(expected, decide(LeftAndMiddle()(images)), atol=1e-4)


def test_confident_views_have_a_finite_mean() -> None:
    """Of several labels, logits of 20 to 60."""
    images = torch.ones(1, 3, 10, 10) * torch.tensor([-60.0, -20.0, 20.0, 60.0])[:, None, None, None]
    images[..., :5] *= 1.01  # mirrored views differ
    views = [LeftAndMiddle()(view).double() for view in (images, images.flip(3))]
    shown, hidden = (torch.stack([(sign * view).sigmoid() for view in views]).mean(0) for sign in (1, -1))
    answers = with_tta(LeftAndMiddle(), "mirrored", data_spec(several=True))(images)
    torch.testing.assert_close(answers.double(), shown.log() - hidden.log(), rtol=1e-5, atol=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Train for an epoch, after which validation images choose the views."""
    folder = pictures(tmp_path_factory.mktemp("views") / "photos", {"a": 24, "b": 24, "c": 24}, side=8)
    keys = {**SMALL, "images.eval_views": "best", "data.val_fraction": 0.3}
    return RunFolder(viticulture.train(str(folder), out=str(folder.parent / "run"), overrides=keys).path)


def asked_by_hand(run: RunFolder, images: Images, name: TTAMode) -> Tensor:
    subject = of_run(run)
    pixels = torch.cat([batch["image"] for batch in subject.batches(images)])
    with torch.inference_mode():
        views = [subject.network(view.of(pixels)).softmax(1) for view in TTA_VIEWS[name]]
    return torch.stack(views).mean(0)


def test_validation_images_choose(run: RunFolder) -> None:
    dataset = dataset_of(run, config_of(run))
    assert dataset.val is not None
    labels = dataset.val.records.labels
    shares = {
        name: float((asked_by_hand(run, dataset.val, name).argmax(1) == labels).double().mean())
        for name in get_args(TTAMode)
    }
    chosen = of_run(run).eval_views
    assert shares[chosen] == max(shares.values())
    kept = json.loads((run.path / "evaluation.json").read_text())["results"]
    assert kept["best/val"]["top1"] == pytest.approx(shares[chosen])
    assert all(json.loads((run.weights(each) / "config.json").read_text())[TTA_KEY] == chosen for each in run.which())


@pytest.mark.parametrize("name", get_args(TTAMode))
def test_the_first_of_the_best_is_chosen(name: TTAMode, run: RunFolder) -> None:
    dataset = dataset_of(run, config_of(run))
    assert dataset.val is not None
    before = {each: (run.weights(each) / "config.json").read_text() for each in run.which()}
    sure = asked_by_hand(run, dataset.val, name)

    def score(said: Predictions) -> float:
        assert len(said.probabilities) == len(sure)
        return float(torch.allclose(said.probabilities, sure, atol=1e-6))

    try:
        for each in run.which():
            without = {key: value for key, value in json.loads(before[each]).items() if key != TTA_KEY}
            (run.weights(each) / "config.json").write_text(json.dumps(without))
        choose_views(run, dataset.val, score)
        assert {of_run(run, each).eval_views for each in run.which()} == {name}
        choose_views(run, dataset.val, lambda said: float(not score(said)))
        assert of_run(run).eval_views == name, "what is chosen stays"
        config = json.loads(before["last"])
        del config[TTA_KEY]
        (run.weights("last") / "config.json").write_text(json.dumps(config))  # as a resumed run writes it
        choose_views(run, dataset.val, lambda said: float(not score(said)))
        assert of_run(run, "last").eval_views == name
    finally:
        for each, text in before.items():
            (run.weights(each) / "config.json").write_text(text)


def test_right_counts_the_likeliest_class(tmp_path: Path) -> None:
    said = Predictions(torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]]), torch.tensor([0, 1, 1]), ["x", "y", "z"])
    assert Classification(RunFolder(tmp_path)).view_score(said) == pytest.approx(2 / 3)


def test_every_command_predicts_by_these_views(tmp_path: Path) -> None:
    """predict, the ONNX file, the weights as a folder."""
    run = untrained(tmp_path / "run", ("a", "b", "c"))
    photos = [photo(tmp_path / f"{i}.png", i) for i in range(3)]
    alone = task_of(run).predict(photos, "last")
    note(run.weights("last"), {TTA_KEY: "four"})
    by_four = task_of(run).predict(photos, "last")
    assert all(one.probabilities != pytest.approx(four.probabilities) for one, four in zip(alone, by_four, strict=True))
    subject, folder = of_run(run, "last"), of_source(str(run.weights("last")))
    assert (subject.eval_views, folder.eval_views) == ("four", "four")
    onnx = pytest.importorskip("onnxruntime")
    path = to_onnx(subject.tta_network, tmp_path / "four.onnx", subject.data_spec)
    images = torch.randn(3, 3, *subject.data_spec.image_size)
    (found,) = onnx.InferenceSession(str(path)).run(["logits"], {"image": images.numpy()})
    with torch.inference_mode():
        logits = subject.tta_network(images).numpy()
    assert np.allclose(found, logits, atol=1e-4 * np.abs(logits).max())


def test_a_card_describes_the_views(run: RunFolder) -> None:
    known = (run.weights("last") / "config.json").read_text()
    try:
        for views, told in (("four", True), ("one", False)):
            note(run.weights("last"), {TTA_KEY: views})
            pushed = contents(run, "someone/name", "last")
            config, card = pushed["config.json"], pushed["README.md"]
            assert isinstance(config, bytes)
            assert isinstance(card, bytes)
            assert json.loads(config)[TTA_KEY] == views
            assert (b"4 views of each image" in card) is told
    finally:
        (run.weights("last") / "config.json").write_text(known)


@pytest.mark.parametrize(("wanted", "kept"), [("four", "four"), ("one", "one"), ("best", "one")])
def test_without_validation_images_one_view_is_used(wanted: str, kept: str, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos", {"a": 8, "b": 8}, side=8)
    keys: dict[str, Any] = {**SMALL, "images.eval_views": wanted, "data.val_fraction": 0.0}
    keys |= {"train.validate": "val", "train.best_by": "balanced_accuracy"}
    made = viticulture.train(str(folder), out=str(tmp_path / "run"), overrides=keys)
    assert of_run(RunFolder(made.path)).eval_views == kept
    warnings = RunFolder(made.path).read("run.json")["warnings"]
    chosen = {warning.split()[0] for warning in warnings if "nothing can select" in warning}
    assert chosen == {"train.best_by"} | ({"images.eval_views"} if wanted == "best" else set())
    assert ("per view, 4 views an image" in (made.path / "report.html").read_text()) is (kept == "four"), (
        "what an answer costs"
    )


def test_damage_is_reported(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    note(run.weights("last"), {TTA_KEY: "for"})
    refused("did you mean four", of_run, run)


def test_one_view_is_the_network_itself() -> None:
    network = LeftAndMiddle()
    assert with_tta(network, "one", data_spec()) is network
    assert isinstance(with_tta(network, "four", data_spec()), TTAModel)


@pytest.mark.parametrize("name", ["detection/photos", "segmentation/photos"])
def test_detectors_and_segmenters_have_no_views(name: str) -> None:
    with pytest.raises(UserError, match=r"images\.eval_views four is for classes of images, which method"):
        check_parts(load_config(name, {"images.eval_views": "four"}))


def test_analyses_get_the_same_batches(tmp_path: Path) -> None:
    run, sizes = untrained(tmp_path / "run"), []
    dataset = load_dataset(open_source(str(pictures(tmp_path / "photos", {"a": 10, "b": 10}))), config_of(run), 0)
    for views in ("one", "four"):
        note(run.weights("last"), {TTA_KEY: views})
        subject = of_run(run, batch_size=4)
        sizes.append([len(batch["image"]) for batch in subject.batches(dataset.train)])
        assert not isinstance(subject.network, TTAModel)
    assert sizes[0] == sizes[1]


def test_other_and_corrupted_images_are_predicted_by_the_same_views(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", ("a", "b", "c"))
    note(run.weights("last"), {TTA_KEY: "four"})
    folder = pictures(tmp_path / "photos", {"a": 20, "b": 20, "c": 20}, side=24)
    evaluated = viticulture.evaluate(str(run.path), str(folder))
    assert isinstance(evaluated, Mapping)
    (found,) = evaluated.values()
    assert isinstance(found, ClassificationResult)
    assert found.rule == "4 views"
    subject = of_run(run)
    images, _ = prepare_test(str(folder), subject.data_spec.classes, subject.image_settings, False)
    by_hand = asked_by_hand(run, images, "four").argmax(1)
    labels = images.records.labels
    assert found.top1 == pytest.approx(float((by_hand == labels).double().mean()))
    assert (by_hand != asked_by_hand(run, images, "one").argmax(1)).any(), "else one view would pass"
    pixels = torch.cat([batch["image"] for batch in subject.batches(images)])
    one_head = OutputHeads(("class",), ONE_HEAD)
    with torch.inference_mode():
        wrong = wrong_predictions(subject.network, one_head, pixels, labels, None, subject.tta_network)
    assert wrong.tolist() == [int((by_hand != labels).sum())]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.slow
def test_a_budgets_choice_is_exported_with_its_views(several: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    shown = DataSpec(("a", "b"), (32, 32), (0.5,) * 3, (0.5,) * 3, several)
    student = create_student("hybrid_nano", shown, None, {}).eval()
    once = to_onnx(student, tmp_path / "one.onnx", shown)
    four = to_onnx(with_tta(student, "four", shown), tmp_path / "four.onnx", shown)
    assert four.stat().st_size < 1.1 * once.stat().st_size
