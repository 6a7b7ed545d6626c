# SPDX-License-Identifier: Apache-2.0
"""A run's temperature and its similarity to training images: fitted on its validation images, and applied by
predictions, evaluations and exported files."""

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import viticulture
from viticulture.deploy.hub.push import contents
from viticulture.errors import UserError
from viticulture.evaluation.model import of_run
from viticulture.models.similarity import TrainFeatures, evenly, place, similarity, vary
from viticulture.training.run_inputs import config_of, dataset_of

RECIPE = """
student: {name: vit_nano, patch_size: 4, options: {embed_dim: 16, depth: 2, num_heads: 2}}
method: METHOD
images: {image_size: 16, eval_views: mirrored}
data: {val_fraction: 0.3, test_fraction: 0.2, near_duplicates: ignore}
optim: {name: adamw, lr: 3.0e-3}
schedule: {warmup_epochs: 0}
train: {epochs: 2, batch_size: 16}
engine: {device: cpu}
"""
METHODS = {"one": "{name: supervised, smoothing: 0}", "several": "multilabel"}


@pytest.fixture(scope="module", params=list(METHODS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    """Of images that are bright or dark, or both in parts, with noise that leaves doubt."""
    folder, generator = tmp_path_factory.mktemp(request.param), np.random.default_rng(0)
    rows = ["path,label"]
    for i in range(200):
        bright, red = generator.random(2) < 0.5
        pixels = generator.normal(110 + 12 * bright, 60, (16, 16, 3))
        pixels[..., 0] += 12 * red
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        several = "|".join(name for name, there in (("bright", bright), ("red", red)) if there)
        rows.append(f"{i}.png,{several if request.param == 'several' else ('dark', 'bright')[int(bright)]}")
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    (folder / "own.yaml").write_text(RECIPE.replace("METHOD", METHODS[request.param]))
    return viticulture.train(
        str(folder / "list.csv"), str(folder / "own.yaml"), out=str(folder / "run"), progress=False
    )


def temperature(run: viticulture.Run) -> list[float]:
    weights = run.folder.weights(run.folder.which()[0])
    return list(json.loads((weights / "config.json").read_text())["temperature"])


def test_all_that_a_run_predicts_is_calibrated(run: viticulture.Run, tmp_path: Path) -> None:
    """Catches: predictions, other images or a file that leave the temperature out; one fitted on test images or twice;
    a winner that it changes."""
    values, data = temperature(run), run.path.parent
    classes = run.classes
    assert len(values) == (1 if classes == ("bright", "dark") else 2)
    assert all(value != 1.0 for value in values)
    result = run.results.counting
    assert result is not None
    with np.load(run.path / "predictions.npz") as saved:
        best = saved[f"{saved['counts'].item()}/probabilities"].astype(float)
    names = run.folder.image_names["test"]
    predictions = run.predict([data / name for name in names])
    told = np.array([[each.probabilities[name] for name in classes] for each in predictions])
    np.testing.assert_allclose(told, best, atol=2e-3)
    again = viticulture.evaluate(str(run.path))
    assert temperature(run) == values
    assert again.counting.nll == result.nll
    other = viticulture.evaluate(str(run.path), str(data / "list.csv")).counting
    assert other is not None
    every = run.predict([data / f"{i}.png" for i in range(200)])
    assert other.images == 200

    weights = run.folder.weights(run.folder.which()[0]) / "config.json"
    text = weights.read_text()
    try:
        weights.write_text(json.dumps({**json.loads(text), "temperature": None}))
        raw = run.predict([data / f"{i}.png" for i in range(200)])
        odds = [np.log(e.probabilities["bright"] / (1 - e.probabilities["bright"])) for e in every]
        before = [np.log(e.probabilities["bright"] / (1 - e.probabilities["bright"])) for e in raw]
        np.testing.assert_allclose(np.array(odds) * values[0], before, rtol=1e-3, atol=1e-4)
        for wrong in ([0.0], "2", [1.0, 2.0, 3.0]):
            weights.write_text(json.dumps({**json.loads(text), "temperature": wrong}))
            with pytest.raises(UserError, match=r"temperature in config\.json must be"):
                run.predict([data / "0.png"])
    finally:
        weights.write_text(text)

    if find_spec("onnxruntime") and find_spec("onnxscript"):
        import onnxruntime

        run.export(tmp_path / "run.onnx", from_pixels=True)
        session = onnxruntime.InferenceSession(str(tmp_path / "run.onnx"), providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["temperature"]) == values
        pixels = np.asarray(Image.open(data / "0.png"))
        outputs = session.run(None, {session.get_inputs()[0].name: pixels})[0]
        outputs = torch.from_numpy(outputs)
        shares = outputs.softmax(-1)[0] if len(values) == 1 else outputs[0]
        np.testing.assert_allclose(shares.numpy(), [every[0].probabilities[name] for name in classes], atol=2e-3)


def test_the_page_shows_calibration_before_and_after(run: viticulture.Run) -> None:
    page = run.report.read_text(encoding="utf-8")
    assert ("before calibration" in page) == (len(temperature(run)) == 1)
    assert "Calibrated" in page


def test_predictions_say_which_images_are_unlike_the_training_images(run: viticulture.Run, tmp_path: Path) -> None:
    """Catches: features of other views or images than the threshold's; a threshold of training images where there are
    validation images; columns that are missing; features that do not belong to the weights, or are not pushed."""
    folder = run.folder.weights(run.folder.which()[0])
    config = json.loads((folder / "config.json").read_text())
    predictions = run.predict([run.path.parent / name for name in run.folder.image_names["val"]])
    if run.classes != ("bright", "dark"):  # several labels
        assert "min_similarity" not in config
        return
    similar = np.array([each.similarity for each in predictions])
    assert config["min_similarity"] == pytest.approx(np.sort(similar)[int(0.05 * (len(similar) + 1)) - 1], abs=1e-5)
    assert [each.known for each in predictions] == (similar >= config["min_similarity"]).tolist()

    student, features = run.student(), load_file(folder / "train_features.safetensors")["features"].float()
    assert len(features) == len(run.folder.image_names["train"])
    data = dataset_of(run.folder, config_of(run.folder))
    assert data.val is not None
    batch = next(of_run(run.folder).batches(data.val))
    with torch.inference_mode():
        vectors = torch.nn.functional.normalize(
            student.forward_head(student.forward_features(batch["image"]), pre_logits=True), dim=1
        )
    np.testing.assert_allclose((vectors @ features.T).sort(1).values[:, -5], similar, atol=1e-4)

    viticulture.predict(str(run.path), [str(run.path.parent / "0.png")], out=str(tmp_path / "p.csv"))
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert rows[0]["known"] in ("yes", "no")
    assert -1 <= float(rows[0]["similarity"]) <= 1
    assert f"weights/{folder.name}/train_features.safetensors" in contents(run.folder, "user/name")

    if find_spec("onnxruntime") and find_spec("onnxscript"):
        import onnxruntime

        run.export(tmp_path / "run.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "run.onnx"), providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["min_similarity"]) == config["min_similarity"]
        _, from_file = session.run(None, {"image": batch["image"].numpy()})
        np.testing.assert_allclose(from_file, similar, atol=1e-4)

    saved = (folder / "train_features.safetensors").read_bytes()
    try:
        save_file({"features": features[:, 1:].half().contiguous()}, folder / "train_features.safetensors")
        with pytest.raises(UserError, match="does not belong to these weights"):
            run.predict([run.path.parent / "0.png"])
    finally:
        (folder / "train_features.safetensors").write_bytes(saved)

    for val_fraction, there in ((0.0, False), (0.08, True)):  # of 160 images
        keys = {"data.val_fraction": val_fraction, "train.epochs": 1}
        recipe, out = str(run.path.parent / "own.yaml"), str(tmp_path / str(there))
        few = viticulture.train(str(run.path.parent / "list.csv"), recipe, out=out, overrides=keys, progress=False)
        config = json.loads((few.folder.weights(few.folder.which()[0]) / "config.json").read_text())
        assert ("min_similarity" in config) == there
        assert ("of new images" in few.report.read_text(encoding="utf-8")) == there


def test_similarity_is_that_to_the_fifth_nearest_other_image() -> None:
    """Catches: another neighbor; features that are not normalized; a training image compared with itself; an error for
    fewer images than neighbors."""
    generator = torch.Generator().manual_seed(0)
    train, val = torch.randn(40, 8, generator=generator), torch.randn(60, 8, generator=generator)
    unit = torch.nn.functional.normalize(train, dim=1)
    cosines = torch.nn.functional.normalize(val, dim=1) @ unit.T
    fitted = TrainFeatures.fitted(3 * train, 2 * val)
    np.testing.assert_allclose(similarity(val, unit), cosines.sort(1).values[:, -5], atol=1e-6)
    assert fitted.threshold == pytest.approx(float(cosines.sort(1).values[:, -5].sort().values[2]), abs=2e-3)
    others = (unit @ unit.T).fill_diagonal_(-2).sort(1).values[:, -5]
    assert TrainFeatures.fitted(train, None).threshold == pytest.approx(float(others.sort().values[1]), abs=2e-3)
    assert [place(count) for count in (9, 19, 38, 39, 1000)] == [1, 1, 1, 2, 50]
    np.testing.assert_allclose(similarity(val, unit[:3]), cosines[:, :3].min(1).values, atol=1e-6)
    assert len(evenly(2500)) == 1000
    assert evenly(3).tolist() == [0, 1, 2]


def test_features_vary_unless_all_are_the_same_up_to_rounding() -> None:
    """Catches: a single image that does not vary, a last image that is not compared, an absolute limit."""
    same = torch.full((5000, 3), 1e-3)
    assert not vary(same)
    assert not vary(same + 1e-10)
    assert not vary(torch.zeros(2, 3, dtype=torch.half))
    assert vary(same[:1])
    same[-1, 0] = 2e-3
    assert vary(same)
