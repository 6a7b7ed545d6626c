# SPDX-License-Identifier: Apache-2.0
"""Images that deserve a second look, and trainings without them."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

import viticulture
from refusals import refused
from untrained import untrained
from viticulture.config.references import from_anywhere
from viticulture.data.data_settings import DataSettings
from viticulture.data.open import open_source
from viticulture.data.splits import Splits, select
from viticulture.errors import counted
from viticulture.evaluation.review import blurred, folds, out_of_fold, outliers, sharpness
from viticulture.models.weights.files import load, save
from viticulture.scores.confident_learning import class_thresholds, margins, suspected

COLORS = {"blue": (40, 60, 200), "green": (60, 180, 60), "red": (200, 50, 50)}
WRONG = ("blue/3.png", "green/7.png", "red/11.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty images of each color; one of each lies in another's folder. With a copy, a blank and a long image."""
    root, generator = tmp_path_factory.mktemp("review") / "photos", np.random.default_rng(0)
    names = list(COLORS)
    for k, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(30):
            shown = names[(k + 1) % 3] if f"{name}/{i}.png" in WRONG else name
            pixels = np.array(COLORS[shown]) + generator.normal(0, 45, (40, 40, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / name / f"{i}.png")
    Image.open(root / "red" / "0.png").save(root / "blue" / "copy.png")
    few = (np.array(COLORS["red"]) + generator.normal(0, 45, (4, 4, 3))).clip(0, 255).astype(np.uint8)
    Image.fromarray(few).resize((40, 40), Image.Resampling.BICUBIC).save(root / "red" / "blurred.png")
    Image.new("RGB", (40, 40), COLORS["green"]).save(root / "green" / "blank.png")
    pixels = (np.array(COLORS["red"]) + generator.normal(0, 45, (4, 12, 3))).repeat(10, 0).repeat(20, 1)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / "red" / "long.png")
    return root


@pytest.fixture(scope="module")
def listed(photos: Path) -> Path:
    """The list of a review by a network with random weights, which tell colors apart."""
    network = untrained(photos.parent / "network").weights("last")
    out = photos.parent / "review.html"
    keys = {"student.init": str(network), "engine.device": "cpu"}
    table = viticulture.review(str(photos), out=str(out), overrides=keys)
    assert {row[0]: row[1] for row in table.rows}["Blank images"] == 1
    assert "deserve a second look" in out.read_text(encoding="utf-8")
    refused("exists, and may hold decisions", viticulture.review, str(photos), out=str(out), overrides=keys)
    return out.with_suffix(".csv")


def test_a_review_lists_wrong_labels_copies_blank_and_odd_images(listed: Path) -> None:
    """Catches: labels ranked the wrong way round, a suggestion that is the label, reasons that are missing."""
    rows = list(csv.DictReader(listed.open(encoding="utf-8")))
    labels = [row for row in rows if row["reason"] == "label"]
    first = {row["image"]: (row["label"], row["suggested"]) for row in labels[:4]}
    wrong = {"blue/3.png": ("blue", "green"), "green/7.png": ("green", "red"), "red/11.png": ("red", "blue")}
    assert wrong.items() <= first.items()
    assert [float(row["score"]) for row in labels] == sorted(float(row["score"]) for row in labels)
    reasons = {(row["image"], row["reason"]) for row in rows}
    assert {("blue/copy.png", "near-duplicate"), ("red/0.png", "near-duplicate")} <= reasons
    assert [name for name, reason in reasons if reason == "blank"] == ["green/blank.png"]
    assert {row["image"] for row in rows if row["reason"] == "blurred"} == {"red/blurred.png", "red/long.png"}
    assert [name for name, reason in reasons if reason == "size"] == ["red/long.png"]


def test_blurred_images_are_far_less_sharp_than_others() -> None:
    """Catches: contrast or brightness taken for sharpness, images flagged where all are alike."""
    generator = np.random.default_rng(0)
    scenes = [gaussian_filter(generator.normal(120, 60, (96, 96)), generator.uniform(0.6, 1.2)) for _ in range(60)]
    sharp = np.array([sharpness(scene) for scene in scenes])
    assert sharpness(2 * scenes[0] + 20) == pytest.approx(sharp[0], abs=1e-3)
    assert blurred(sharp) == []
    assert blurred(np.full(20, -1.0)) == blurred(np.full(3, np.nan)) == []
    soft = [gaussian_filter(scenes[0], 6), gaussian_filter(scenes[1], 3)]
    worse = [sharpness(each * 60 / each.std()) for each in soft]
    assert blurred(np.array([*sharp, np.nan, *worse])) == [61, 62]


def test_training_images_of_a_list_are_left_out(photos: Path, listed: Path, tmp_path: Path) -> None:
    """Catches: held-out images that go, another split than without the list."""
    source = open_source(str(photos))
    whole, _ = select(source, DataSettings(), 0)
    rest, warnings = select(source, DataSettings(leave_out=str(listed)), 0)
    names = {row["image"] for row in csv.DictReader(listed.open(encoding="utf-8"))}
    assert {kind: rows.tolist() for kind, rows in rest.items() if kind != "train"} == {
        kind: rows.tolist() for kind, rows in whole.items() if kind != "train"
    }
    assert rest["train"].tolist() == [i for i in whole["train"].tolist() if source.names[i] not in names]
    there = [source.names[i] in names for kind in ("val", "test") for i in rest[kind]]
    assert any(there), "or the message below is not tested"
    assert [warning.partition("; ")[2] for warning in warnings if str(listed) in warning] == [
        f"{counted(sum(there), 'held-out image')} of it stay{'s' * (sum(there) == 1)}"
    ]

    def leave_out(text: str) -> Splits:
        (tmp_path / "list.csv").write_text(text, encoding="utf-8")
        return select(source, DataSettings(leave_out=str(tmp_path / "list.csv")), 0)[0]

    refused("needs a column image", leave_out, "name\nblue/3.png\n")
    refused("lists no image of", leave_out, "image\nelsewhere.png\n")
    refused("no training image of blue", leave_out, "image\n" + "\n".join(n for n in source.names if "blue" in n))
    refused("cannot read list", select, source, DataSettings(leave_out=str(tmp_path / "absent.csv")), 0)
    refused("lists no image of", leave_out, "label,image\nblue\nred,gone.png\n")
    for text in (
        "image\nblue/3.png\ngone.png\n",
        "\ufeffreason;Image\nlabel; blue/3.png\n\n",
        "image\tlabel\nblue/3.png\n",
    ):
        rest = leave_out(text)  # as spreadsheets save it
        assert set(whole["train"]) - set(rest["train"]) == {source.names.index("blue/3.png")} & set(whole["train"])


def test_a_recipe_names_its_list_by_a_path_that_holds_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "review.csv").write_text("image\n")
    monkeypatch.chdir(tmp_path)
    keys = {"data.leave_out": "review.csv", "data": {"leave_out": "gone.csv"}}
    assert from_anywhere(keys) == {**keys, "data.leave_out": str(tmp_path / "review.csv")}


def test_what_cannot_be_reviewed_is_one_line(photos: Path, tmp_path: Path) -> None:
    refused("add --init NETWORK", viticulture.review, str(photos), out=str(tmp_path / "r.html"))
    for name in ("a/0.png", "b/0.png", "b/1.png"):
        (tmp_path / "few" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 60).save(tmp_path / "few" / name)
    keys = {"student.init": str(untrained(tmp_path / "network").weights("last")), "engine.device": "cpu"}
    refused("have one|has one image", viticulture.review, str(tmp_path / "few"), str(tmp_path / "r.html"), keys)
    more = {**keys, "data.unlabeled": str(photos)}
    refused("data.unlabeled has none", viticulture.review, str(photos), str(tmp_path / "r.html"), more)
    assert not (tmp_path / "r.html").exists()
    network = untrained(tmp_path / "constant").weights("last")
    student, spec, _ = load(network)
    for weights in student.parameters():
        weights.data.zero_()
    save(student, network, spec)
    keys["student.init"] = str(network)
    refused("the same for all images", viticulture.review, str(photos), str(tmp_path / "r.html"), keys)
    assert not (tmp_path / "r.html").exists()


def test_images_of_a_group_lie_in_one_fold(photos: Path) -> None:
    """As many folds as the smallest class has groups. Catches: folds counted by images, which groups cannot fill."""
    rows = [f"photos/{c}/{i}.png,{c},{c}{i % groups}" for c, groups in (("blue", 2), ("red", 3)) for i in range(12)]
    table = photos.parent / "groups.csv"
    table.write_text("\n".join(["path,label,group", *rows]), encoding="utf-8")
    source = open_source(str(table))
    fold = folds(source, np.arange(24), None)
    assert fold.max() == 1
    assert source.groups is not None
    assert all(len(set(fold[source.groups == group])) == 1 for group in np.unique(source.groups))
    assert all(len(set(fold[source.labels == label])) == 2 for label in (0, 1))
    table.write_text(table.read_text("utf-8").replace("blue1", "blue0"), encoding="utf-8")
    refused("1 class of .* has one group: blue; add groups", folds, open_source(str(table)), np.arange(24), None)


def test_confident_learning_is_that_of_the_paper() -> None:
    """Thresholds are means over the images of a label (Eq. 2); an image counts as the most probable class that reaches
    its threshold (Eq. 1). Catches: means over all images, a suspect below the other class's threshold."""
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8], [0.52, 0.48]])
    labels = np.array([0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(class_thresholds(p, labels), [2 / 3, (0.6 + 0.8 + 0.48) / 3])
    assert suspected(p, labels).tolist() == [False, False, True, False, False, False]
    assert margins(p, labels).argmin() == 2
    thresholds = class_thresholds(p, labels)
    assert margins(p, labels)[2] == pytest.approx(np.log(0.3 / thresholds[0]) - np.log(0.7 / thresholds[1]))


def test_no_image_is_predicted_by_a_classifier_that_was_trained_on_it() -> None:
    """Catches: predictions of the training images: random labels would be predicted by more features than images."""
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(60, 80, generator=generator), torch.randint(0, 2, (60,), generator=generator).numpy()
    predicted = out_of_fold(x, labels, 2, np.arange(60) % 5)
    np.testing.assert_allclose(predicted.sum(1), 1)
    assert (predicted.argmax(1) == labels).mean() < 0.8
    x[7] = -x.mean(0) * 50
    clustered = torch.cat([torch.ones(60, 1) * 20, x], 1)
    clustered[7, 0] = -20
    assert [place for place, _ in outliers(clustered)] == [7]


def test_few_images_of_many_features_are_predicted() -> None:
    """Catches: eigenvalues that do not converge in float32, as most are zero: features are sparse."""
    x = (torch.randn(10, 1280, generator=torch.Generator().manual_seed(0)) - 1.5).relu()
    predicted = out_of_fold(x, np.arange(10) % 2, 2, np.arange(10) // 2)
    np.testing.assert_allclose(predicted.sum(1), 1)
