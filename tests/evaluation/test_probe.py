# SPDX-License-Identifier: Apache-2.0
"""Probes of frozen features: scikit-learn's classifiers on the heads' inputs; test images are used once."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import viticulture
from dense_scenes import mask_folder
from refusals import refused
from untrained import untrained
from viticulture import api
from viticulture.cache import cached
from viticulture.cli import main
from viticulture.data.dataset import Dataset, ImageSettings, prepare
from viticulture.errors import UserError
from viticulture.evaluation.model import EvaluatedModel, of_source
from viticulture.evaluation.probe import evaluate
from viticulture.evaluation.probe.evaluate import _find, model_features, read_probes, vote
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import features
from viticulture.models.weights.files import save
from viticulture.optim import logistic_regression
from viticulture.optim.logistic_regression import fit
from viticulture.training.linear_head import DECAYS, Part

TASK = DataSpec(("a", "b", "c"), (8, 8), (0.5,) * 3, (0.5,) * 3)


def clusters(images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw overlapping classes in 8 features of very different sizes; two nearly agree, one is constant."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 3
    x = torch.randn(images, 6, generator=generator, dtype=torch.float64)
    x[:, 0] += labels
    x[:, 1] += (labels == 2) * 2
    x = torch.cat([x, x[:, :1] + 0.01 * x[:, 2:3], torch.ones(images, 1)], dim=1)
    return x * torch.tensor([1, 100, 0.01, 1, 3, 1, 1, 5.0]) + 2, labels


@pytest.mark.parametrize("chunk", [2**22, 50])
def test_every_linear_probe_is_scikit_learns_logistic_regression(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """On standardized features, C = 1 / (N decay); in double precision, all decays in one pass."""
    monkeypatch.setattr(logistic_regression, "CHUNK", chunk)
    monkeypatch.setattr(logistic_regression, "ROWS", chunk)
    x, labels = clusters(90)
    decays = [1.0, 1e-2, 1e-4]
    heads = fit(x, labels, 3, decays, tolerance=1e-13)
    z = (x - heads.mean) / heads.std
    queries = clusters(60, seed=1)[0]
    for number, decay in enumerate(decays):
        theirs = LogisticRegression(C=1 / (90 * decay), tol=1e-10, max_iter=10_000).fit(z.numpy(), labels.numpy())
        np.testing.assert_allclose(heads.weight[number], theirs.coef_, rtol=1e-4, atol=1e-5)
        bias = heads.bias[number] - heads.bias[number].mean()  # a shift of all scores changes nothing
        np.testing.assert_allclose(bias, theirs.intercept_ - theirs.intercept_.mean(), rtol=1e-4, atol=1e-5)
        expected = theirs.predict(((queries - heads.mean) / heads.std).numpy())
        np.testing.assert_array_equal(heads.predict(queries)[number], expected)


@pytest.mark.parametrize("chunk", [2**24, 100])
def test_neighbors_vote_as_scikit_learns(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Weights exp(cos / 0.07), for several k in one pass."""
    monkeypatch.setattr(evaluate, "SIMILARITIES", chunk)
    (bank, labels), (queries, _) = clusters(90), clusters(40, seed=1)
    found = vote(queries, bank, labels, 3, [1, 7, 60])
    for chosen, k in zip(found, (1, 7, 60), strict=True):
        theirs = KNeighborsClassifier(k, metric="cosine", weights=lambda gap: np.exp((1 - gap) / 0.07))
        np.testing.assert_array_equal(chosen, theirs.fit(bank.numpy(), labels.numpy()).predict(queries.numpy()))
    assert len(found.unique(dim=0)) == 3
    query = torch.tensor([[1.0, 0.0]])
    for cosine, chosen in ((0.945, 0), (0.96, 1)):  # two weigh as much as the query itself at 1 - 0.07 log 2 = 0.951
        near = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]])
        assert vote(query, torch.cat([query, near, near]), torch.tensor([0, 1, 1]), 2, [3]).item() == chosen


@pytest.mark.parametrize(
    ("name", "options", "read"),
    [
        ("vit_nano", {}, "class"),
        ("vit_nano", {"reg_tokens": 2}, "class"),
        ("vit_nano", {"global_pool": "avg", "reg_tokens": 2}, "mean"),
        ("dhvt_tiny_cifar_patch2", {"embed_dim": 32, "depth": 2}, "class"),
        ("resnet10t", {}, "mean"),
    ],
)
def test_features_are_the_heads_input(name: str, options: dict[str, Any], read: str) -> None:
    """The network's head on them gives its logits."""
    torch.manual_seed(0)
    net: Any = create_student(name, TASK, None if name == "resnet10t" else 2, options).eval()
    for norm in (getattr(net, "norm", None), getattr(net, "fc_norm", None)):
        if isinstance(norm, nn.LayerNorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        found = features(net, images)
        torch.testing.assert_close(net.get_classifier()(found[read]), net(images))
    assert set(found) == ({"mean"} if name == "resnet10t" else {"class", "mean"})


def subject(heads: int = 2, seed: int = 0) -> EvaluatedModel:
    torch.manual_seed(seed)
    net = create_student("vit_nano", TASK, 2, {"embed_dim": 8, "depth": 1, "num_heads": heads}).eval()
    return EvaluatedModel(
        net, TASK, ImageSettings(image_size=8), torch.device("cpu"), 256, architecture=f"heads {heads}"
    )


def photos_of_noise(folder: Path, width: int) -> str:
    """Write 16 training and 8 test images of three classes, 8 pixels high."""
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (24, 8, width, 3), dtype=np.uint8)):
        file = folder / "photos" / ("test" if number > 15 else "train") / "abc"[number % 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return str(folder / "photos")


def test_features_are_computed_once(tmp_path: Path) -> None:
    photos = photos_of_noise(tmp_path, 8)
    calls = []

    def read(of: EvaluatedModel, data: Dataset) -> Tensor:
        of.network.register_forward_pre_hook(lambda *_: calls.append(1))
        of.network.get_submodule("norm").register_forward_hook(lambda *_: calls.append(1))
        return model_features(of, data)["train"]["class"]

    settings = ImageSettings(image_size=8)
    data = prepare(photos, image_settings=settings)
    first = read(subject(), data)
    assert len(calls) == 3  # a batch for each split
    assert torch.equal(read(subject(), data), first)
    assert len(calls) == 3
    assert not torch.equal(read(subject(seed=1), data), first)
    assert not torch.equal(read(subject(heads=4), data), first)
    Path(photos, "train/a/0.png").unlink()
    assert len(read(subject(), prepare(photos, image_settings=settings))) < len(first)
    assert len([name for name in cached() if name.startswith("features/")]) == 4
    assert "freed" in api.cache(clear=True)
    assert "0 stores" in api.cache()


def test_features_depend_on_the_shape_of_the_images(tmp_path: Path) -> None:
    photos = photos_of_noise(tmp_path, 20)

    def read(**settings: Any) -> Tensor:
        prepared = ImageSettings(image_size=8, cache_size=8, **settings)
        data = prepare(photos, image_settings=prepared)
        return model_features(replace(subject(), image_settings=prepared), data)["test"]["class"]

    assert not torch.equal(read(), read(fit="stretch"))
    whole = {"fit": "stretch", "stream": True}
    assert not torch.equal(read(**whole), read(**whole, range=[0, 100]))


def test_settings_are_chosen_on_validation_and_tested_once() -> None:
    """5 and 10 neighbors find the validation image's class, 20 are outvoted; the test image would choose 20."""

    def on(degrees: list[float]) -> Tensor:
        angle = torch.tensor(degrees).deg2rad()
        return torch.stack([angle.cos(), angle.sin()], dim=1)

    train: Part = on([0.0] * 20 + [30] * 5), torch.tensor([0] * 20 + [1] * 5)
    val: Part = on([20.0]), torch.tensor([1])
    found = _find("class", "k-NN", {"train": train, "val": val, "test": (on([18.0]), torch.tensor([0]))}, 2)
    assert (found.setting, found.sweep, found.top1) == (5, {5: 1.0, 10: 1.0, 20: 0.0}, 0.0)
    few: Part = on([0.0, 90]), torch.tensor([0, 1])
    found = _find("class", "k-NN", {"train": few, "val": few, "test": few}, 2)
    assert found.sweep == {2: 1.0}
    lone: Part = on([180.0]), torch.tensor([2])
    found = _find("class", "linear probe", {"train": few, "val": lone, "test": lone}, 3)
    assert found.setting == DECAYS[0]
    assert found.top1 == 1.0, "class 2 is known from the validation image alone"


SMALL: dict[str, Any] = {
    "student.options": {"depth": 2},
    "data.per_class": 10,
    "train.epochs": 1,
    "student.name": "vit_nano",
}


def numbers(found: dict[str, Any]) -> dict[Any, Any]:
    """Return a sweep with its keys as before JSON, and intervals as pairs."""
    if all(key[0].isdigit() for key in found):
        return {float(key): value for key, value in found.items()}
    return {key: tuple(value) if key in ("findings", "top1_interval") else value for key, value in found.items()}


def test_runs_with_and_without_labels_are_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {**SMALL, "schedule.warmup_epochs": 0}
    run = viticulture.train("digits", "default/digits", out=str(tmp_path / "run"), overrides=small)
    assert main(["probe", str(run.path)]) == 0
    assert "90 training, 10 validation and 900 test images" in " ".join(capsys.readouterr().out.split())
    kept = json.loads((run.path / "probe.json").read_text())["last/digits/100"]
    assert len(kept["findings"]) == 4
    assert len(kept["findings"][0]["sweep"]) == len(DECAYS)
    assert [asdict(found) for found in read_probes(run.folder)] == [json.loads(json.dumps(kept), object_hook=numbers)]
    assert "Frozen features of" in (run.path / "report.html").read_text()
    assert main(["probe", str(run.path), "digits", "--features", "class"]) == 0
    assert "807 training" in " ".join(capsys.readouterr().out.split())
    assert set(json.loads((run.path / "probe.json").read_text())) == {"last/digits/100", "last/digits/897"}
    bare = tmp_path / "bare"
    bare.mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (24, 8, 8), dtype=np.uint8)):
        Image.fromarray(pixels).save(bare / f"{number}.png")
    blind = {**small, "method.name": "mae", "data.per_class": None, "train.validate": "none", "images.image_size": 8}
    run = viticulture.train(str(bare), "default/digits", out=str(tmp_path / "mae"), overrides=blind)
    command = ["probe", str(run.path), "digits", "--features", "mean", "--out", str(tmp_path / "out.json")]
    assert [main(command), main(command)] == [0, 0]
    once, again = capsys.readouterr().out.split("Frozen features")[1:]
    assert once == again
    assert "class token" not in once
    assert "807 training, 90 validation and 900 test images" in " ".join(once.split())
    assert not (run.path / "probe.json").exists()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["findings"][0]["top1"] > 0.3
    folder = run.folder.weights("last")
    assert main(["probe", str(folder), "digits", "--out", str(tmp_path / "again.json")]) == 0
    one, other = found["findings"][0], json.loads((tmp_path / "again.json").read_text())["findings"][2]
    few = pytest.approx(one["sweep"], abs=3 / 90)  # sums in another order may turn the answer to an image in doubt
    assert (other["features"], other["classifier"], other["sweep"]) == (one["features"], one["classifier"], few)
    assert other["top1"] == pytest.approx(one["top1"], abs=0.03)
    capsys.readouterr()
    for words, said in (
        ([str(run.path)], "has no labels"),
        ([str(folder)], "labeled images are needed"),
        ([str(folder), "digits", "--weights", "best"], "is no run"),
        ([str(run.path), "digits", "--features", "token"], "unknown features"),
        ([str(run.path), "digits", "--weights", "best"], "no folder of weights"),
        ([str(tmp_path / "nowhere"), "digits"], "does not exist: neither a run"),
        (["nowhere", "digits"], "nor is there such a file or folder"),
    ):
        assert main(["probe", *words]) == 2
        assert said in capsys.readouterr().err


def test_other_images_are_probed_in_their_own_splits(tmp_path: Path) -> None:
    (tmp_path / "review.csv").write_text("image\nblue/3.png\n")
    photos = photos_of_noise(tmp_path, 8)
    for key, value in (("leave_out", str(tmp_path / "review.csv")), ("test_on", "none"), ("test_on", "val")):
        run = untrained(tmp_path / f"{key}-{Path(value).stem}", **{f"data.{key}": value}).path
        table: Any = viticulture.probe(str(run), photos)
        assert "8 test images" in table.note


def test_images_with_masks_have_no_classes_to_probe(tmp_path: Path) -> None:
    folder = untrained(tmp_path / "run").weights("last")
    data = mask_folder(tmp_path / "masks", {"train": 4, "test": 2})
    with pytest.raises(UserError, match="masks of classes and no classes of images"):
        viticulture.probe(str(folder), str(data), out=str(tmp_path / "probe.json"))


def test_weights_without_a_run_have_their_crop(tmp_path: Path) -> None:
    save(create_student("vit_nano", TASK, 2), tmp_path, TASK, {"pretrained_cfg": {"crop_pct": 0.5}})
    found = of_source(str(tmp_path))
    assert (found.image_settings.eval_crop, found.image_settings.image_size, found.data_spec) == (0.5, 8, TASK)
    refused("vit_nan", of_source, "vit_nan")


def test_a_squashed_crop_of_timm_becomes_the_whole_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = {"crop_pct": 0.9, "crop_mode": "squash"}
    save(create_student("vit_nano", TASK, 2), tmp_path, TASK, {"pretrained_cfg": described})
    settings = of_source(str(tmp_path)).image_settings
    assert (settings.fit, settings.eval_crop) == ("stretch", 1.0)
    assert "whole images are used, where timm cuts their edges off as well (crop_pct 0.9)" in capsys.readouterr().err
