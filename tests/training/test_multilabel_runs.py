# SPDX-License-Identifier: Apache-2.0
"""Runs of several labels per image: the four equalities, and every command from training to serving."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import viticulture
from colored import COLORS, SMALL, colored_csv, picture
from plain_loop import check_plain_loop
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from viticulture.data.open import open_source
from viticulture.data.sources.several import separated
from viticulture.errors import UserError
from viticulture.evaluation.model import of_run
from viticulture.evaluation.outputs import Predictions
from viticulture.models.tta import TTAMode, describe
from viticulture.report.terminal import say
from viticulture.tasks.multilabel import LabelsPrediction, summary, thresholds_of
from viticulture.tasks.results import Results, SavedPredictions, read_predictions, save_predictions
from viticulture.tasks.task import task_of
from viticulture.training.data import CHOSEN, open_by_default
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session, begin, reopen

SETTINGS = {**SMALL, "images.image_size": 24}
EVERYTHING = {"augment.mix": {"mixup": 0.8}, "data.class_weights": "balanced", "train.ema_decay": 0.9}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colored_csv(tmp_path_factory.mktemp("colors"), 64)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    """Train and evaluate a run, and draw its page; the recipe follows the labels."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return viticulture.train(str(data), out=str(out), overrides={**SETTINGS, "train.epochs": 6}, progress=False)


def test_validation_images_choose_the_views(data: Path, tmp_path: Path) -> None:
    """By mAP."""
    asked: dict[str, Results[Any]] = {}
    for views in (*get_args(TTAMode), "best"):
        keys = {**SETTINGS, "images.eval_views": views, "train.epochs": 2}
        viticulture.train(str(data), out=str(tmp_path / views), overrides=keys, progress=False)
        found = task_of(RunFolder(tmp_path / views)).read_results()
        assert found is not None
        asked[views] = found
    chosen = of_run(RunFolder(tmp_path / "best")).eval_views
    precision = {views: found.results["best/val"].map for views, found in asked.items()}
    assert precision["best"] == max(precision.values()) == precision[chosen]
    likelihoods = {views: found.results["best/val"].nll for views, found in asked.items()}
    assert likelihoods["best"] == likelihoods[chosen]
    assert len({round(one, 9) for one in likelihoods.values()}) == len(get_args(TTAMode)), (
        "each is asked in its own way"
    )
    assert {views: found.results["best/val"].views for views, found in asked.items()} == {
        views: describe(chosen if views == "best" else views) for views in asked
    }
    assert "4 views" in summary(asked["four"]).note
    assert "views" not in summary(asked["one"]).note


def session(data: Path, out: Path, **more: Any) -> Session:
    recipe = "multilabel/photos"
    return begin(str(data), recipe, 0, str(out), False, {**SETTINGS, **EVERYTHING, **more}, "test")


def test_an_interrupted_run_resumes_exactly(tmp_path: Path, data: Path) -> None:
    """With mixing, weights and averages."""
    whole, again = whole_and_resumed(partial(session, data), tmp_path, steps=3)  # of four in two epochs
    check_same_weights(whole, again, ("last", "best", "ema"))


def test_the_trainer_is_a_plain_loop(tmp_path: Path, data: Path) -> None:
    plain = {"train.validate": "none", "train.ema_decay": None, "train.epochs": 1}
    check_plain_loop(*(session(data, tmp_path / name, **plain) for name in ("trainer", "plain")))


def test_joined_labels_choose_the_recipe_and_others_are_reported(data: Path, tmp_path: Path) -> None:
    chosen = begin(str(data), "default", 0, str(tmp_path / "a"), False, SETTINGS, "test")
    assert chosen.config.name == "multilabel/photos"
    reason = CHOSEN["multilabel/photos"].format("multilabel/photos")
    assert reason in chosen.warnings
    assert chosen.dataset.classes == ("blue", "green", "red")
    apart = separated(open_source(str(data)))  # as a function of a program gives them
    assert open_by_default(apart) == (apart, "multilabel/photos", (reason,))
    one = begin(str(data), "default/photos", 0, str(tmp_path / "b"), False, SETTINGS, "test")
    (told,) = [note for note in one.warnings if "several labels" in note]
    assert "--recipe multilabel/photos" in told
    named = begin(str(data), "multilabel/photos", 0, str(tmp_path / "c"), False, SETTINGS, "test")
    assert not [note for note in named.warnings if "several labels" in note]


def test_saved_results_agree_with_predictions(run: viticulture.Run) -> None:
    pytest.importorskip("pandas")
    results = run.results
    assert isinstance(results, Results)
    assert results.counts == "best/test"
    assert results.results.keys() == {"best/test", "best/val", "last/val"}
    result, answers = results.results["best/test"], run.predictions
    assert viticulture.evaluate(run) == results
    said = [(row["label"], row["predicted"]) for row in answers.to_dict("records")]
    assert sum(a == b for a, b in said) / len(said) == result.exact
    assert list(answers["name"]) == run.folder.read("split.json")["names"]["test"]
    assert float(run.metrics.set_index(["weights", "split"]).loc[("best", "test"), "map"]) == result.map
    assert {"train/label", "val/map", "val/loss"} <= set(run.history.columns)
    with pytest.raises(UserError, match="so it has no accuracy"):
        _ = run.accuracy
    assert "mAP" in run._repr_html_()


def test_a_split_without_positive_labels_has_no_average_precision(tmp_path: Path) -> None:
    colored_csv(tmp_path / "colors", 40, columns=True)
    lines = (tmp_path / "colors" / "labels.csv").read_text().splitlines()
    split = [
        "split",
        *("test" if line.endswith(",0,0,0") else "train" if i % 4 else "val" for i, line in enumerate(lines[1:])),
    ]
    (tmp_path / "colors" / "labels.csv").write_text("\n".join(map(",".join, zip(lines, split, strict=True))))
    overrides = {**SETTINGS, "train.epochs": 1}
    bare = viticulture.train(str(tmp_path / "colors" / "labels.csv"), out=str(tmp_path / "run"), overrides=overrides)
    assert "test" in bare.metadata["data"]["images"]
    assert bare.results is not None
    assert (bare.results.counts, [*bare.results]) == ("best/val", ["best/val", "last/val"])


def test_a_probability_just_below_a_threshold_stays_below(tmp_path: Path) -> None:
    close = Predictions(torch.tensor([[0.49999, 0.50001]]), torch.tensor([[0.0, 1.0]]), ["a.png"])
    saved = SavedPredictions(
        close.probabilities.numpy() >= 0.5, close.labels.numpy() > 0, close.probabilities.half().numpy()
    )
    save_predictions(RunFolder(tmp_path), "best/test", {"best/test": saved})
    said = read_predictions(RunFolder(tmp_path), "best/test")
    assert said.predicted.tolist() == said.labels.tolist() == [[False, True]]


def test_the_page_has_every_label(run: viticulture.Run, capsys: pytest.CaptureFixture[str]) -> None:
    page, result = run.report.read_text(), run.results.results["best/test"]  # type: ignore[union-attr]
    assert f"Its mAP is {100 * result.map:.1f} %" in page
    for score in result.per_label:
        assert f"{100 * score.threshold:.1f}" in page
    assert "Images of each class" in page
    assert "label frequency" in page
    assert "Confusion" not in page
    say(run)
    assert "mAP" in capsys.readouterr().out
    assert f"mAP {100 * result.map:.1f} %" in str(viticulture.runs(str(run.path.parent)).rows)


def test_predicted_labels_start_at_their_thresholds(run: viticulture.Run, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    for i, shown in enumerate(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]])):
        picture(shown, generator).save(tmp_path / f"{i}.png")
    (tmp_path / "broken.png").write_bytes(b"none")
    paths = [str(tmp_path / f"{name}.png") for name in (0, 1, 2, "broken")]
    found: Any = viticulture.predict(str(run.path), paths, out=str(tmp_path / "out.csv"))
    limits = dict(zip(run.classes, thresholds_of(task_of(run.folder), "best", 3), strict=True))
    for each in found[:3]:
        assert isinstance(each, LabelsPrediction)
        assert set(each.labels) == {name for name, p in each.probabilities.items() if p >= limits[name]}
    assert abs(sum(found[0].probabilities.values()) - 1) > 1e-3
    assert found[3].error
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["label"] for row in rows[:3]] == ["|".join(each.labels) for each in found[:3]]
    both: Any = run.predict(paths[0], top=2)[0]
    ranked = sorted(both.probabilities, key=lambda name: -both.probabilities[name])
    assert list(both.labels) == ranked[:2]


def test_other_images_are_evaluated_by_the_runs_thresholds(run: viticulture.Run, tmp_path: Path) -> None:
    other = colored_csv(tmp_path / "other", 40, columns=True, seed=7)
    lines = [line.rpartition(",")[0] for line in other.read_text().splitlines()]
    other.write_text("\n".join(lines))  # path,red,green
    judged = viticulture.evaluate(run, str(other), out=str(tmp_path / "other.html"))
    assert isinstance(judged, Results)
    result = judged.counting
    assert result is not None
    assert [score.threshold for score in result.per_label] == thresholds_of(task_of(run.folder), "best", 3)
    assert [score.ap is None for score in result.per_label] == [True, False, False]  # blue, green, red
    assert "mAP" in (tmp_path / "other.html").read_text()
    viticulture.evaluate(run, str(other), out=str(tmp_path / "other.json"))
    assert json.loads((tmp_path / "other.json").read_text())["results"].keys() == judged.results.keys()
    other.write_text("path,red,green,split\n000.png,1,0,train\n001.png,0,0,test\n")
    refused(r"no image of .*shows a label", viticulture.evaluate, run, str(other))
    other.write_text("path,label\n000.png,purple\n001.png,red|green\n")
    refused("purple", viticulture.evaluate, run, str(other))


def test_an_exported_file_returns_probabilities(run: viticulture.Run, data: Path, tmp_path: Path) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    import onnx
    from onnxruntime import InferenceSession
    from PIL import Image

    path: Any = viticulture.export(str(run.path), str(tmp_path / "labels.onnx"), from_pixels=True)
    about = {entry.key: json.loads(entry.value) for entry in onnx.load(str(path)).metadata_props}
    assert about["thresholds"] == thresholds_of(task_of(run.folder), "best", 3)
    image = data.parent / "001.png"
    said: Any = run.predict(image)[0]
    (found,) = InferenceSession(str(path)).run(None, {"pixels": np.asarray(Image.open(image).convert("RGB"))})
    # a gray level of a resize may tip between kernels
    np.testing.assert_allclose(found[0], list(said.probabilities.values()), atol=5e-3)
    refused("--int8", viticulture.export, str(run.path), str(tmp_path / "eight.onnx"), int8=True)


def test_served_and_pushed_weights_predict_alike(run: viticulture.Run, data: Path) -> None:
    pytest.importorskip("huggingface_hub")
    from viticulture.deploy.hub.push import contents
    from viticulture.deploy.serve.predictor import Predictor
    from viticulture.tasks.task import task_of

    image = data.parent / "001.png"
    served = Predictor(task_of(run.folder))
    with image.open("rb") as file:
        (said,) = served.rows([("001.png", file)], draw=True)
    known: Any = run.predict(image)[0]
    assert (said["labels"], said["probabilities"]) == (known.labels, known.probabilities)
    assert said["picture"].startswith("data:image")
    assert served.csv([("001.png", image)]).startswith("name,label,probability,blue,green,red,error")
    sent = contents(run.folder, "me/colors")
    card = sent["README.md"]
    assert isinstance(card, bytes)
    assert "evaluation.json" in sent
    assert b"mAP" in card
    assert b"top-1" not in card
    for name in COLORS:
        assert f"| {name} |".encode() in card


def test_results_belong_to_their_weights(run: viticulture.Run) -> None:
    pytest.importorskip("huggingface_hub")
    from viticulture.deploy.hub.push import contents
    from viticulture.deploy.serve.page import page
    from viticulture.deploy.serve.predictor import Predictor
    from viticulture.tasks.task import task_of

    sent = contents(run.folder, "me/colors", "last")["evaluation.json"]
    assert isinstance(sent, bytes)
    kept = json.loads(sent)
    assert (kept["counts"], {key.partition("/")[0] for key in kept["results"]}) == ("last/val", {"last"})
    assert run.results is not None
    told = f"mAP {100 * run.results.results['last/val'].map:.1f} %"
    assert told in page(task_of(run.folder), Predictor(task_of(run.folder), "last"), "last").html
    assert not run.results.of_weights("ema").results


@pytest.mark.parametrize("verb", ["robustness", "probe", "report --compare-with"])
def test_one_class_per_image_is_required_in_one_line(run: viticulture.Run, verb: str) -> None:
    calls: dict[str, Any] = {
        "robustness": viticulture.robustness,
        "probe": viticulture.probe,
        "report --compare-with": lambda path: viticulture.report(path, compare_with=path),
    }
    with pytest.raises(UserError, match="several labels") as error:
        calls[verb](str(run.path))
    assert "\n" not in str(error.value)


def test_a_run_of_a_python_object_is_opened_again(data: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(data, keep_default_na=False)
    frame = pandas.DataFrame(
        {"path": [str(data.parent / name) for name in table["path"]], "label": table["label"].str.split("|")}
    )
    begun = begin(frame, "default", 0, str(tmp_path / "run"), False, SETTINGS, "test")
    begun.run.unlock()
    again = reopen(str(tmp_path / "run"), frame)
    assert again.dataset.fingerprint == begun.dataset.fingerprint
    assert again.method.data_spec.multilabel


def test_self_supervision_holds_out_the_same_images(tmp_path: Path, data: Path) -> None:
    plain = {"images.image_size": 24, "student.name": "vit_nano", "student.patch_size": 4, "student.options": {}}
    start = begin(str(data), "mae/photos", 0, str(tmp_path / "start"), False, plain, "test")
    start.run.unlock()
    told = session(data, tmp_path / "told")
    told.run.unlock()
    assert set(start.dataset.split_names["train"]).isdisjoint(told.dataset.split_names["test"])
    assert start.dataset.classes == ()
    assert not start.method.data_spec.multilabel


def test_an_oblong_input_is_one_everywhere(data: Path, tmp_path: Path) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    from onnxruntime import InferenceSession
    from PIL import Image

    from viticulture.deploy.serve.predictor import Predictor
    from viticulture.tasks.task import task_of

    oblong = {**SETTINGS, "images.image_size": [16, 24], "images.fit": "stretch"}
    run = viticulture.train(str(data), out=str(tmp_path / "run"), overrides=oblong, progress=False)
    name = run.folder.read("split.json")["names"]["test"][0]
    measured = np.load(run.path / "predictions.npz")[f"{run.results.counts}/probabilities"][0]  # type: ignore[union-attr]
    said: Any = run.predict(data.parent / name)[0]
    np.testing.assert_allclose(list(said.probabilities.values()), measured, atol=2e-3)  # half precision
    with (data.parent / name).open("rb") as file:
        (served,) = Predictor(task_of(run.folder)).rows([(name, file)], draw=True)
    assert served["probabilities"] == said.probabilities
    path: Any = viticulture.export(str(run.path), str(tmp_path / "labels.onnx"), from_pixels=True)
    pixels = np.asarray(Image.open(data.parent / name).convert("RGB"))
    (found,) = InferenceSession(str(path)).run(None, {"pixels": pixels})
    # a gray level of a resize may tip between kernels
    np.testing.assert_allclose(found[0], list(said.probabilities.values()), atol=5e-3)
    viticulture.explain(run, images=4)
    assert "16 x 24 pixels" in run.report.read_text(encoding="utf-8")
