# SPDX-License-Identifier: Apache-2.0
"""A task in one file of user code trains, is evaluated, predicts and reports like those of the package."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import viticulture
from refusals import refused
from viticulture.deploy.hub.push import contents
from viticulture.errors import UserError

PLUGINS = Path(__file__).parent / "plugins"
RECIPE = """
student: {name: vit_nano, patch_size: 4, options: {embed_dim: 16, depth: 2, num_heads: 2}}
method: my_regression.AgeMethod
images: {image_size: 16, eval_views: best}
data: {val_fraction: 0.2, test_fraction: 0.2}
optim: {name: adamw, lr: 1.0e-3}
schedule: {warmup_epochs: 0}
train: {epochs: 2, batch_size: 8}
engine: {device: cpu}
"""


def numbered(folder: Path, count: int) -> Path:
    """Write a CSV of gray images and their brightness in [-50, 50]."""
    generator = np.random.default_rng(count)
    rows = []
    for i in range(count):
        level = generator.uniform(50, 200)
        pixels = np.clip(level + generator.normal(0, 8, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{count}_{i}.png")
        rows.append((f"{count}_{i}.png", f"{(level - 125) / 1.5:.3f}"))
    with (folder / f"{count}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return folder / f"{count}.csv"


def test_a_custom_task_trains_predicts_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGINS)
    monkeypatch.chdir(tmp_path)
    data, other = numbered(tmp_path, 40), numbered(tmp_path, 12)
    (tmp_path / "ages.yaml").write_text(RECIPE)
    run = viticulture.train(str(data), "ages.yaml", out="run", progress=False)
    results = run.results
    assert results.task.name == "age"
    assert results.headline is not None
    assert results.counting is not None
    assert (results.headline.images, results.counts) == (8, "best/test")
    assert 0 < results.counting.error < 100
    low, high = results.headline.interval
    assert low <= results.headline.value <= high
    assert run.metadata["data"]["images"] == {"train": 26, "val": 6, "test": 8}

    labels = {row["name"]: row["label"] for row in run.predictions.to_dict("records")}
    predicted = {each.name: each.age for each in run.predict([tmp_path / name for name in labels])}
    errors = [abs(predicted[str(tmp_path / name)] - label) for name, label in labels.items()]
    assert np.mean(errors) == pytest.approx(results.counting.error, rel=1e-4)
    viticulture.predict(str(run.path), [str(tmp_path / "40_0.png")], out=str(tmp_path / "ages.csv"))
    assert (tmp_path / "ages.csv").read_text().startswith("name,age\n")

    elsewhere = run.evaluate(str(other))
    assert elsewhere.counting is not None
    assert elsewhere.counting.images == 12
    assert "It errs by" in run.report.read_text(encoding="utf-8")
    assert viticulture.evaluate(str(run.path)).counting == results.counting


def test_regression_is_a_task_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = numbered(tmp_path, 60)
    (tmp_path / "own.yaml").write_text(
        RECIPE.replace("my_regression.AgeMethod", "regression").replace("epochs: 2", "epochs: 30")
    )
    run = viticulture.train(str(data), "own.yaml", out="run", progress=False)
    counting = run.results.counting
    assert counting is not None
    assert run.results.task.name == "regression"
    table = run.predictions
    errors = table["predicted"] - table["label"]
    assert counting.mae == pytest.approx(errors.abs().mean(), rel=1e-5)
    assert counting.rmse == pytest.approx((errors**2).mean() ** 0.5, rel=1e-5)
    assert counting.r2 == pytest.approx(1 - (errors**2).sum() / ((table["label"] - table["label"].mean()) ** 2).sum())
    assert counting.r2 > 0.5
    assert counting.interval[0] <= counting.r2 <= counting.interval[1]
    assert counting.mae_interval[0] <= counting.mae <= counting.mae_interval[1]
    assert counting.rmse_interval[0] <= counting.rmse <= counting.rmse_interval[1]
    assert (table["label"] < 0).any()
    assert counting.mae < counting.mean_mae
    page = run.report.read_text(encoding="utf-8")
    assert "Its numbers are wrong by" in page
    assert "Largest errors" in page
    run.export("run.onnx")
    assert (tmp_path / "run.onnx").exists()
    card = bytes(contents(run.folder, "me/brightness")["README.md"]).decode()
    assert "type: r_squared" in card
    assert f"R2 is {counting.r2:.4g}" in card
    assert ".value" in card
    (tmp_path / "short.yaml").write_text((tmp_path / "own.yaml").read_text().replace("epochs: 30", "epochs: 1"))
    study = viticulture.compare(str(data), ("short.yaml",), seeds=1, where=viticulture.Where(out="study"))
    page = (study.path / "report.html").read_text(encoding="utf-8")
    assert "reaches an R2 of" in page
    assert f"{study.outcomes[0].test:.3f}" in page


def test_numbers_of_a_data_frame_are_recognized_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    frame = pandas.read_csv(numbered(tmp_path, 40))
    frame["path"] = [str(tmp_path / name) for name in frame["path"]]
    frame.loc[0, "label"] = float("nan")
    (tmp_path / "own.yaml").write_text(RECIPE.replace("my_regression.AgeMethod", "regression"))
    run = viticulture.train(frame, "own.yaml", out="run", progress=False)
    assert sum(run.metadata["data"]["images"].values()) == 39
    assert viticulture.evaluate("run", frame).counting == run.results.counting
    refused("mix mixes classes", viticulture.train, frame, "own.yaml", overrides={"augment.mix": {}}, progress=False)
    with pytest.raises(UserError, match="needs training images with different numbers"):
        viticulture.train(frame.assign(label=3.5), "own.yaml", progress=False)
    refused("a probe predicts classes", viticulture.probe, "run", frame)
