# SPDX-License-Identifier: Apache-2.0
"""`viticulture robustness`: from a run and a name to errors by corruption and severity."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.imagenet_info import ImageNetInfo
from torch import nn
from torchvision.models._meta import _IMAGENET_CATEGORIES

from refusals import refused
from viticulture import api
from viticulture.cli import main
from viticulture.evaluation.model import OutputHeads
from viticulture.evaluation.robustness import evaluate as out_of_distribution
from viticulture.evaluation.robustness.corrupt import CleanImages, corrupt, corrupted_batches
from viticulture.evaluation.robustness.evaluate import _save, evaluate_robustness, read_robustness
from viticulture.evaluation.robustness.imagenet import are_imagenets
from viticulture.evaluation.robustness.metrics import ALEXNET, Robustness, wrong_predictions
from viticulture.evaluation.robustness.strengths import CORRUPTIONS, MAIN
from viticulture.models.tta import TTA_KEY
from viticulture.models.weights.files import load, note
from viticulture.study.outcomes import other_measure
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of

SIDE = 16
CLASSES = ("n00000001", "n00000002", "n00000003")


def photos(folder: Path, count: int, seed: int, names: tuple[str, ...] = CLASSES) -> None:
    """Draw noise whose brightness depends on the class."""
    draw = np.random.default_rng(seed)
    for c, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(60 * c, 60 * c + 120, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    """Train a CiT with three heads for two epochs on three classes."""
    root = tmp_path_factory.mktemp("robust")
    photos(root / "photos" / "train", 8, 0)
    photos(root / "photos" / "test", 4, 1)
    options = {"embed_dim": 32, "depth": 1, "num_heads": 2, "tokens": 2}
    overrides = {
        "student.name": "cit_tiny", "student.patch_size": 8, "student.options": options, "method.every_head": True,
        "train.epochs": 2, "train.batch_size": 8, "images.image_size": SIDE, "engine.device": "cpu",
        "schedule.warmup_epochs": 0,
    }  # fmt: skip
    return api.train(str(root / "photos"), "default/small-images", out=str(root / "run"), overrides=overrides)


@pytest.fixture
def run(trained: api.Run) -> api.Run:
    for name in ("robustness.json", "robustness.csv"):
        (trained.path / name).unlink(missing_ok=True)
    return trained


def some_errors(value: float = 0.5, heads: int = 1) -> Robustness:
    """Return the same error everywhere."""
    errors = dict.fromkeys(CORRUPTIONS, ((value,) * heads,) * 5)
    return Robustness("test", "last", 10, 1000, 1000, "", "", ("student",) * heads, (), errors, imagenet=True)


def test_the_mean_corruption_error_of_alexnet_is_one() -> None:
    """CE_c = sum E / sum E of AlexNet, then the mean over 15: Table 1 of arXiv:1903.12261, here in percent."""
    table = [89, 89, 92, 82, 83, 79, 80, 87, 83, 82, 56, 85, 65, 72, 61]
    assert [round(100 * ALEXNET[name]) for name in MAIN] == table
    errors = {name: ((ALEXNET.get(name, 0.0),),) * 5 for name in CORRUPTIONS}
    alexnet = Robustness("test", "last", 10, 1000, 1000, "", "", ("student",), (), errors, imagenet=True)
    assert alexnet.mean_corruption_error() == pytest.approx(1)
    assert alexnet.mean_error() == pytest.approx(sum(ALEXNET.values()) / 15)
    expected = np.mean([0.5 / error for error in ALEXNET.values()])
    assert some_errors(0.5).mean_corruption_error() == pytest.approx(expected)


def test_the_mean_needs_every_corruption_and_imagenets_classes() -> None:
    few = {name: errors for name, errors in some_errors().errors.items() if name != "fog"}
    assert Robustness("d", "last", 1, 9, 9, "", "", ("student",), (), few).mean_error() is None
    other = dataclasses.replace(some_errors(), imagenet=False)
    assert other.mean_error() == 0.5
    assert other.mean_corruption_error() is None


def test_a_thousand_classes_are_imagenets_by_name() -> None:
    info: Any = ImageNetInfo("imagenet-1k")
    wnids, words = info.label_names(), info.label_descriptions()
    for names in (wnids, words, _IMAGENET_CATEGORIES):
        assert are_imagenets(names)
        assert not are_imagenets(names[:999])
        assert not are_imagenets([*names[1:], names[0]])
    assert not are_imagenets([f"n{number:08d}" for number in range(1000)])


def test_a_result_survives_json() -> None:
    found = some_errors(0.25, heads=3)
    assert Robustness.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_errors_are_counted_among_the_present_classes() -> None:
    """By hand, for two heads and three classes; ImageNet-A and -R have 200 classes."""
    one, two = torch.tensor([[1.0, 2, 9], [3, 1, 9]]), torch.tensor([[4.0, 0, 9], [0, 6, 9]])

    class Both(nn.Module):
        training_heads = False

        def set_distilled_training(self, enable: bool = True) -> None: ...

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return one, two

    images, labels, allowed = torch.zeros(2, 3, 4, 4), torch.tensor([1, 0]), torch.tensor([True, True, False])
    for rule, student in (("class token", 0), ("mean of 2 heads", 2)):  # mean: [2.5, 1] and [1.5, 3.5]
        heads = OutputHeads(("class", "conv"), rule)
        assert wrong_predictions(Both(), heads, images, labels, allowed).tolist() == [student, 0, 2]
        assert wrong_predictions(Both(), heads, images, labels).tolist() == [2, 2, 2]


def test_a_run_is_evaluated_on_its_corrupted_test_images(run: api.Run) -> None:
    found = evaluate_robustness(run.folder, limit=4)
    assert (found.images, found.heads) == (4, ("student", "class", "head 2", "head 3"))
    assert (found.rule, found.corrupted_by) == ("class token", "CIFAR-10-C")
    assert list(found.errors) == list(CORRUPTIONS)
    dataset = dataset_of(run.folder, config_of(run.folder))
    student, data_spec, _ = load(run.folder.weights(run.folder.which()[0]))
    assert dataset.test is not None
    for name, severity in (("gaussian_noise", 5), ("contrast", 5)):
        wrong = 0
        for number in (0, 4, 7, 11):
            pixels = corrupt(dataset.test.original(number), name, severity, 0, number).transpose(2, 0, 1) / 255
            image = (pixels - np.reshape(data_spec.mean, (3, 1, 1))) / np.reshape(data_spec.std, (3, 1, 1))
            answer = student(torch.from_numpy(image).float()[None]).argmax()
            wrong += int(answer != dataset.test.records.labels[number])
        assert found.errors[name][severity - 1][0] == wrong / 4


def test_cached_corruptions_equal_computed_ones(run: api.Run, tmp_path: Path) -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (5, 3, 12, 12), dtype=np.uint8))
    labels = torch.arange(5)

    def opened() -> object:
        return iter([(pixels[:3], labels[:3]), (pixels[3:], labels[3:])])

    images = CleanImages(opened, labels, torch.tensor([3, 5, 6, 8, 9]), (12, 12))  # type: ignore[arg-type]
    for budget in (0, 10**9, 10**9):
        batches, found = zip(*corrupted_batches(images, "impulse_noise", 2, budget), strict=True)
        for image, clean, number in zip(torch.cat(batches), pixels, (3, 5, 6, 8, 9), strict=True):
            expected = corrupt(clean.permute(1, 2, 0).numpy(), "impulse_noise", 2, 0, number)
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)
        assert torch.cat(found).tolist() == [0, 1, 2, 3, 4]
        assert len(list((tmp_path / "cache" / "decoded").iterdir())) == (2 if budget else 0), "a store and its lock"
    for name, severity in (("impulse_noise", 3), ("shot_noise", 2)):
        assert (next(corrupted_batches(images, name, severity, 10**9))[0] != batches[0]).any()


def test_an_interrupted_evaluation_resumes(run: api.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    real = out_of_distribution.corrupted_batches  # type: ignore[attr-defined]

    def counting(images: CleanImages, name: str, severity: int, budget: int) -> object:
        asked.append((name, severity))
        if len(asked) == 27:
            raise KeyboardInterrupt
        return real(images, name, severity, budget)

    monkeypatch.setattr(out_of_distribution, "corrupted_batches", counting)
    with pytest.raises(KeyboardInterrupt):
        evaluate_robustness(run.folder, limit=3)
    assert len(read_robustness(run.folder)["test"].errors) == 5
    asked.append(("stopped", 0))
    found = evaluate_robustness(run.folder, limit=3)
    assert asked[28] == (CORRUPTIONS[5], 1)
    assert len(asked) == 28 + 5 * 14
    (run.path / "robustness.json").unlink()
    assert evaluate_robustness(run.folder, limit=3) == found
    before = len(asked)
    evaluate_robustness(run.folder, limit=4)
    assert len(asked) == before + 95, "other images"
    config = run.folder.weights("best") / "config.json"
    as_it_was = config.read_bytes()
    try:
        note(run.folder.weights("best"), {TTA_KEY: "mirrored"})
        evaluate_robustness(run.folder, limit=4)
        assert len(asked) == before + 2 * 95, "answers by other views"
    finally:
        config.write_bytes(as_it_was)


def test_imagenet_c_is_read_by_its_layout(run: api.Run, tmp_path: Path) -> None:
    """CORRUPTION/SEVERITY/CLASS, also one folder deeper."""
    for name in ("blur/zoom_blur", "fog"):
        for severity in range(1, 6):
            photos(tmp_path / "c" / name / str(severity), 2, seed=severity)
    found = evaluate_robustness(run.folder, str(tmp_path / "c"))
    assert list(found.errors) == ["zoom_blur", "fog"]
    assert (found.clean, found.mean_error(), found.corrupted_by) == ((), None, "")
    for severity in (1, 5):
        plain = api.evaluate(str(run.path), str(tmp_path / "c" / "fog" / str(severity)))
        assert found.errors["fog"][severity - 1][0] == pytest.approx(1 - next(iter(plain.values())).top1)
    (tmp_path / "c" / "fog" / "3").rename(tmp_path / "gone")
    refused("severities 1 to 5", evaluate_robustness, run.folder, str(tmp_path / "c"))


@pytest.mark.parametrize("absent", range(3))
def test_a_subset_of_imagenets_classes_is_predicted_from_alone(run: api.Run, tmp_path: Path, absent: int) -> None:
    first, second = (place for place in range(3) if place != absent)
    photos(tmp_path / "a", 5, 3, (CLASSES[first], CLASSES[second]))
    found = evaluate_robustness(run.folder, str(tmp_path / "a"))
    assert (found.images, found.classes, found.trained_classes, dict(found.errors)) == (10, 2, 3, {})
    student, data_spec, _ = load(run.folder.weights(run.folder.which()[0]))
    wrong = 0
    for place in (first, second):
        for i in range(5):
            pixels = np.asarray(Image.open(tmp_path / "a" / CLASSES[place] / f"{i}.png")).transpose(2, 0, 1) / 255
            image = (pixels - np.reshape(data_spec.mean, (3, 1, 1))) / np.reshape(data_spec.std, (3, 1, 1))
            scores = student(torch.from_numpy(image).float()[None])[0]
            wrong += int((scores[first] > scores[second]) != (place == first))
    assert found.clean[0] == wrong / 10
    assert other_measure(run.folder, "robustness/a/head 3") == {"test": 1 - found.clean[3]}


def test_the_command_prints_a_table_and_leaves_files_and_a_part_of_the_page(
    run: api.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["robustness", str(run.path), "--limit", "2"]) == 0
    printed = capsys.readouterr().out
    assert "JPEG compression" in printed
    assert "mean of the 15" in printed
    assert "predicts by its class token" in printed
    with (run.path / "robustness.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (1 + 95) * 4
    found = read_robustness(run.folder)["test"]
    assert other_measure(run.folder, "robustness/test/class") == {"test": found.mean_error(1)}
    assert other_measure(run.folder, "robustness/imagenet-a/class") == {}
    row = next(row for row in rows if (row["corruption"], row["severity"], row["head"]) == ("snow", "4", "class"))
    assert float(row["error"]) == pytest.approx(found.errors["snow"][3][1])
    page = (run.path / "report.html").read_text()
    assert "Robustness" in page
    assert "elastic transform" in page
    assert "A test image, corrupted" in page
    assert page.count("<td>extra") == 4
    assert "all but extra" in page


def test_validation_images_are_not_called_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "photos", 8, 0)
    overrides = {
        "student.name": "vit_nano", "student.patch_size": 8, "train.epochs": 1, "train.batch_size": 8,
        "images.image_size": SIDE, "engine.device": "cpu", "schedule.warmup_epochs": 0, "data.test_fraction": 0,
    }  # fmt: skip
    run = api.train(str(tmp_path / "photos"), "default/small-images", out=str(tmp_path / "run"), overrides=overrides)
    table = api.robustness(run, limit=1)
    assert table.title == "Errors on the run's validation images, by severity"
    assert list(read_robustness(run.folder)) == ["validation"]
    assert list(other_measure(run.folder, "robustness/validation/student")) == ["val"]
    page = (run.path / "report.html").read_text()
    assert "A validation image, corrupted" in page
    assert "test image" not in page

    for name in ("validation", "val"):
        photos(tmp_path / name, 1, 1)
    monkeypatch.chdir(tmp_path)
    assert api.robustness(run, "validation").title == "Errors on ./validation, by severity"
    assert list(read_robustness(run.folder)) == ["validation", "./validation"]
    assert list(api.evaluate(run, "val")) == ["best/./val", "last/./val"]


def test_mistakes_are_one_line(run: api.Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    photos(tmp_path / "other", 1, 0, ("cats", "dogs"))
    for words, expected in (
        (["--limit", "-3"], "0 takes all images"),
        ([str(tmp_path / "other")], "unknown class of other 'cats'"),
        ([str(tmp_path / "nowhere")], "no such file or folder"),
    ):
        assert main(["robustness", str(run.path), *words]) == 2
        assert expected in capsys.readouterr().err


def test_names_are_single_cells_of_the_csv(tmp_path: Path) -> None:
    found = dataclasses.replace(some_errors(heads=2), data='my, "set"', heads=("student", "=cmd(),x"))
    _save(RunFolder(tmp_path), found)
    with (tmp_path / "robustness.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["data"] for row in rows} == {'my, "set"'}
    assert {row["head"] for row in rows} == {"student", "'=cmd(),x"}
    assert {float(row["error"]) for row in rows} == {0.5}
