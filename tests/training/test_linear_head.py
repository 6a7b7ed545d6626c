# SPDX-License-Identifier: Apache-2.0
"""A frozen network with a trained classifier is a run like any other."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import viticulture
from networks import data_spec, randomized
from refusals import refused
from untrained import photo
from viticulture.cli import main
from viticulture.config.load import load_config
from viticulture.data.dataset import FOLDS
from viticulture.errors import UserError
from viticulture.evaluation.model import of_run
from viticulture.models.data_spec import DataSpec
from viticulture.models.similarity import HeadInputs
from viticulture.models.students import create_student
from viticulture.models.weights.files import load, save
from viticulture.models.weights.load_matching import classifiers
from viticulture.optim import logistic_regression
from viticulture.scores.calibration import calibrated
from viticulture.study.step_times import measure_step_times
from viticulture.training import linear_head
from viticulture.training.linear_head import Head, out_of_fold_temperature, parts, put, train_head
from viticulture.training.run_inputs import config_of, dataset_of

HALF = (0.5, 0.5, 0.5)


def frozen(folder: Path, name: str = "vit_nano", **options: Any) -> nn.Module:
    """Save a network of three classes for images of 8 pixels."""
    torch.manual_seed(0)
    spec = DataSpec(("a", "b", "c"), (8, 8), HALF, HALF)
    net = create_student(name, spec, 2 if name == "vit_nano" else None, options).eval()
    save(net, folder, spec)
    return net


def probed(folder: Path, **keys: Any) -> viticulture.Run:
    """Train a classifier for digits on a saved network."""
    overrides = {"student.init": str(folder / "net"), **{key.replace("__", "."): value for key, value in keys.items()}}
    return viticulture.train("digits", "probe/photos", out=str(folder / "run"), overrides=overrides)


def test_the_classifier_is_scikit_learns_optimum_in_the_networks_own_head(tmp_path: Path) -> None:
    """The network stays as it was, timm loads what is saved, and evaluation sees those scores. Fails if features are
    augmented, standardization is lost or applied twice, or a layer of the network is trained."""
    net = frozen(tmp_path / "net", depth=2)
    run = probed(tmp_path, method__decay=1e-2)
    dataset = dataset_of(run.folder, config_of(run.folder))
    assert {split: len(images) for split, images in dataset.splits.items()} == {"train": 897, "test": 900}
    student, spec, config = load(run.folder.weights("last"))
    assert config["decay"] == 1e-2
    heads = tuple(classifiers(student))
    ours, theirs = student.state_dict(), net.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items() if not name.startswith(heads))

    model = of_run(run.folder)
    with torch.inference_mode(), HeadInputs(model.network) as inputs:
        features = {split: torch.cat([inputs(batch["image"]) for batch in model.batches(images)]).double().numpy()
                    for split, images in dataset.splits.items()}  # fmt: skip
    mean, std = features["train"].mean(0), features["train"].std(0)
    labels = dataset.train.records.labels.numpy()
    best = LogisticRegression(C=1 / (897 * 1e-2), tol=1e-8, max_iter=10_000).fit(
        (features["train"] - mean) / std, labels
    )
    expected = best.predict_proba((features["test"] - mean) / std)
    expected = calibrated(torch.from_numpy(expected), config["temperature"], several=False).numpy()
    made = run.predictions
    found = np.array(made[list(spec.classes)]) if hasattr(made, "columns") else None
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert run.accuracy == pytest.approx((expected.argmax(1) == dataset.test.records.labels.numpy()).mean(), abs=0.01)
    assert run.accuracy > 0.8
    assert run.metadata["status"] == "finished"
    assert "vit_nano, trained on digits (897 train, 900 test images" in run.report.read_text()

    folder = run.folder.weights("last")
    timms: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(timms.eval()(x), student(x))


def test_a_stopped_probe_resumes_and_a_finished_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped between its features and its weights. Fails if it cannot go on, or ends elsewhere than uninterrupted."""
    frozen(tmp_path / "net")
    whole = probed(tmp_path).path.rename(tmp_path / "whole")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(linear_head, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            probed(tmp_path)
    viticulture.resume(tmp_path / "run")
    states = [load(folder / "weights/last")[0].state_dict() for folder in (whole, tmp_path / "run")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert json.loads((whole / "run.json").read_text())["chosen_by"].keys() == {"cross-validation"}
    capsys.readouterr()
    assert main(["resume", str(whole)]) == 0
    assert "is already finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {}),
        ("deit_tiny_distilled_patch16_224", {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8}),
        ("dhvt_nano", {}),
    ],
)
def test_a_head_is_put_into_any_layout(name: str, options: dict[str, Any]) -> None:
    """One layer, or two whose scores are averaged. Fails if a network's scores are not those of the classifier."""
    patch = options.pop("patch_size", None)
    net = randomized(create_student(name, data_spec(3, 32, 32), patch, options)).eval()
    images = torch.rand(4, 3, 32, 32)
    with torch.inference_mode(), HeadInputs(net) as inputs:
        z = inputs(images)
        head = Head(torch.randn(3, z.shape[1]), torch.randn(3), 1.0, {})
        put(net, head)
        torch.testing.assert_close(net(images), z @ head.weight.T + head.bias, rtol=1e-4, atol=1e-4)


def clusters(images: int, seed: int = 0, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 3
    return noise * torch.randn(images, 20, generator=generator) + nn.functional.one_hot(labels, 20), labels


def test_held_out_images_choose_the_decay() -> None:
    """Noise asks for a strong one, and folds hold every image out once, with the classes evenly in each."""
    x, labels = clusters(60)
    chosen = train_head(x, labels, 3, None, None)
    assert chosen.decay > 1e-3
    assert 1 / 3 < chosen.accuracy["cross-validation"] < 1
    val = x + 0.01, labels  # which reward what was learned by heart
    assert train_head(x, labels, 3, val, None).accuracy["validation"] > chosen.accuracy["cross-validation"]
    divided = parts(torch.arange(60.0)[:, None], labels)
    assert len(divided) == FOLDS
    assert torch.cat([held[0] for _, held in divided]).flatten().sort().values.tolist() == list(range(60))
    assert all(torch.bincount(held[1]).tolist() == [4, 4, 4] for _, held in divided)
    groups = np.repeat(np.arange(15), 4)
    divided = parts(torch.from_numpy(groups)[:, None], labels, groups)
    assert all(not set(kept[0].flatten().tolist()) & set(held[0].flatten().tolist()) for kept, held in divided)
    assert sum(len(held[0]) for _, held in divided) == 60
    for lone in (np.zeros(60, np.int64), labels.numpy()):  # all images of a class are one group
        assert all(kept[1].unique().tolist() == [0, 1, 2] for kept, _ in parts(x, labels, lone))


def test_images_of_a_group_do_not_tell_of_each_other(tmp_path: Path) -> None:
    """Patients whose images look alike and say nothing of the label. Catches: a weight decay, an accuracy and a
    temperature of folds that part a patient's images."""
    photos, generator = tmp_path / "photos", np.random.default_rng(0)
    photos.mkdir()
    lines = ["path,label,group"]
    for patient in range(40):
        pixels = generator.integers(0, 256, (8, 8, 3))
        for k in range(5):
            near = np.clip(pixels + generator.integers(-20, 21, pixels.shape), 0, 255).astype(np.uint8)
            Image.fromarray(near).save(photos / f"{patient}-{k}.png")
            lines.append(f"{patient}-{k}.png,{'ab'[patient % 2]},{patient}")
    (photos / "list.csv").write_text("\n".join(lines) + "\n")
    frozen(tmp_path / "net")
    run = viticulture.probe(str(tmp_path / "net"), str(photos / "list.csv"), out=str(tmp_path / "run"))
    assert run.metadata["chosen_by"]["cross-validation"] < 0.7


def test_a_classifier_without_validation_images_is_calibrated_out_of_fold(tmp_path: Path) -> None:
    """Catches: a temperature of images that were trained on, one that a later evaluation removes, or that is fitted
    where validation images do it."""
    (x, labels), (others, true) = clusters(150, noise=1.0), clusters(3000, 1, noise=1.0)
    for decay, under_confident in ((1.0, True), (1e-6, False)):
        (temperature,) = out_of_fold_temperature(x, labels, 3, decay)
        assert (temperature < 1) == under_confident
        head = train_head(x, labels, 3, None, decay)
        logits = others @ head.weight.T + head.bias
        gain = nn.functional.cross_entropy(logits, true) - nn.functional.cross_entropy(logits / temperature, true)
        assert gain > 0.02
    assert out_of_fold_temperature(x[:20], labels[:20], 3, 1.0) == ()
    frozen(tmp_path / "net")
    run = probed(tmp_path, data__per_class=20)
    config = run.folder.weights("last") / "config.json"
    fitted = json.loads(config.read_text())["temperature"]
    assert len(fitted) == 1
    result = viticulture.evaluate(str(run.path)).counting
    assert result is not None
    assert result.uncalibrated is not None
    assert result.nll < result.uncalibrated.nll
    assert json.loads(config.read_text())["temperature"] == fitted == run.metadata["temperature"]
    shutil.move(run.path, tmp_path / "first")
    assert probed(tmp_path, data__per_class=20, data__val_fraction=0.3).metadata["temperature"] == []
    shutil.move(run.path, tmp_path / "second")
    assert json.loads((tmp_path / "second/weights/last/config.json").read_text())["min_similarity"] < 1
    untested = probed(tmp_path, data__per_class=20, data__test_on="none")
    assert not untested.results
    config = json.loads((untested.folder.weights("last") / "config.json").read_text())
    assert config["temperature"] == untested.metadata["temperature"] == fitted
    assert config["min_similarity"] < 1


def test_half_precision_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a size, standardized features are held in float16. Fails if a mean far from zero costs the precision."""
    x, labels = clusters(90)
    x = (x + 30).half()
    whole = train_head(x, labels, 3, None, 0.1)
    monkeypatch.setattr(logistic_regression, "HALF_FROM", 1)
    half = train_head(x, labels, 3, None, 0.1)
    torch.testing.assert_close(half.weight, whole.weight, rtol=0.05, atol=0.02)


def test_what_a_frozen_network_cannot_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written. Fails if a key is without effect in silence."""
    frozen(tmp_path / "net")
    for keys, said in (
        ({"student__init": None}, "keeps a trained network, and student.init is null; name one: --init NETWORK"),
        ({"augment__flip": {}}, "sees images as in evaluation and takes no steps; take augment.flip out"),
        ({"data__sampling": "balanced"}, "data.sampling is balanced; leave it out"),
        ({"engine__devices": 2}, "runs in one process, got 2"),
        ({"data__class_weights": "balanced"}, "which method linear_probe lacks"),
    ):
        with pytest.raises(UserError, match=said):
            probed(tmp_path, **keys)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="takes no steps whose time could be measured; compare frozen networks by"):
        measure_step_times(load_config("probe/photos"), Any, tmp_path / "study")  # type: ignore[arg-type]
    monkeypatch.setattr(
        linear_head, "evaluation_batches", lambda *_: iter([{"image": torch.full((1, 3, 8, 8), torch.nan)}])
    )
    with pytest.raises(UserError, match="the network's features are not finite; take other weights"):
        probed(tmp_path)


def test_scores_that_are_no_linear_function_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every score is squared after the classifier."""
    frozen(tmp_path / "net")
    plain = VisionTransformer.forward
    monkeypatch.setattr(VisionTransformer, "forward", lambda net, images: plain(net, images) ** 2)
    refused("no linear function of its features", probed, tmp_path)


def test_networks_are_ranked_on_the_same_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last word names the images; a network with a better head comes first. Fails if runs stay that no one named,
    or intervals are not of pairs: those of a network and itself are zero."""
    frozen(tmp_path / "net")
    frozen(tmp_path / "tiny", embed_dim=8, num_heads=2, depth=1)
    names = [str(tmp_path / name) for name in ("tiny", "net")]
    table: Any = viticulture.probe([*names, "digits"])
    rows = {row[0]: row for row in table.rows}
    assert [row[0] for row in table.rows] == names[::-1]
    assert rows[names[1]][4] > rows[names[0]][4] > 0.2
    assert rows[names[1]][6] == ""
    assert rows[names[0]][6].startswith("-")
    assert [column.name for column in table.columns][3] == "cross-validation"
    copied = shutil.copytree(names[1], tmp_path / "copy")
    again: Any = viticulture.probe([names[1], str(copied)], "digits", out=str(tmp_path / "runs"))
    assert again.rows[1][6] == "+0.0 (+0.0 to +0.0)"
    assert {run.name for run in (tmp_path / "runs").iterdir()} == {"1-net", "2-copy"}
    capsys.readouterr()
    assert main(["probe", names[1], "digits", "--out", str(tmp_path / "run"), "--method.decay", "0.01"]) == 0
    assert "top-1 accuracy" in capsys.readouterr().out
    for words, said in (
        (["--features", "mean", "--out", str(tmp_path / "other")], "--features is for one network without a new run"),
        (["--out", str(tmp_path / "other"), "--data.unlabeled", "x"], "fitted to labels, and data.unlabeled has none"),
        (["--image-size", "16"], "images.image_size is a key of a recipe, and no run is trained; add --out FOLDER"),
    ):
        assert main(["probe", names[1], "digits", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["probe", *names, "digits", "--out", str(tmp_path / "x.json")]) == 2
    assert "several networks leave a run each in a folder" in capsys.readouterr().err


def test_networks_cannot_be_ranked_without_held_out_images(tmp_path: Path) -> None:
    """Before any network is loaded."""
    for i in range(8):
        photo(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", i)
    keys = {"data.val_fraction": 0, "data.test_fraction": 0}
    for out in ("", str(tmp_path / "runs")):
        refused("ranked by held-out images", viticulture.probe, ["a", "b"], str(tmp_path / "photos"), "", "", out, keys)
    assert not (tmp_path / "runs").exists()


def test_features_are_those_of_the_networks_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options without weights, as of pooling, tell two networks of the same weights apart in the cache."""
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))
    found = []
    for pool in ("avg", "max"):
        frozen(tmp_path / pool / "net", "test_resnet", global_pool=pool)
        student, *_ = load(probed(tmp_path / pool, data__per_class=5, images__image_size=64).folder.weights("last"))
        found.append(dict(student.named_parameters())["fc.weight"])
    assert not torch.allclose(*found, rtol=0.1)


def test_eigenvalues_that_float32_loses_are_computed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK returned NaN, without an error, for a covariance of rank 62."""
    matrix, eigh = torch.diag(torch.tensor([1.0, 2.0, 3.0])), torch.linalg.eigh

    def lossy(covariance: Tensor) -> tuple[Tensor, Tensor]:
        values, basis = eigh(covariance)
        return (values, basis) if covariance.dtype == torch.float64 else (values * torch.nan, basis)

    monkeypatch.setattr(torch.linalg, "eigh", lossy)
    values, basis = logistic_regression.eigen(matrix)
    assert values.dtype == torch.float32
    torch.testing.assert_close(basis @ torch.diag(values) @ basis.T, matrix)
