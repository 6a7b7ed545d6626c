# SPDX-License-Identifier: Apache-2.0
"""A served detector or segmenter predicts and draws as `predict` does."""

import base64
import csv
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from browser import CHROMIUM, Browser
from served import ask, bomb, form, sent, serving
from untrained import photo
from untrained_dense import CLASSES, object_results, untrained_dense
from viticulture.cli import main
from viticulture.data.targets.outlines import encoded
from viticulture.tasks import segmentation
from viticulture.tasks.annotated_task import AnnotatedPredictor
from viticulture.tasks.detection import DetectionPrediction
from viticulture.tasks.detection_metrics import DetectedObjects
from viticulture.tasks.drawing import draw_found
from viticulture.tasks.segmentation import ClassMap, SegmentationPrediction
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder

for needed in ("starlette", "uvicorn", "python_multipart", "pycocotools"):
    pytest.importorskip(needed, reason="the extras `serve` and `dense`")

from viticulture.deploy.serve.page import page  # noqa: E402
from viticulture.deploy.serve.predictor import Predictor  # noqa: E402

KINDS = ("detection", "segmentation")


def image_predictor(run: RunFolder, weights: str = "") -> Predictor:
    predictor = Predictor(task_of(run), weights)
    assert isinstance(predictor, Predictor)
    return predictor


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    return {kind: untrained_dense(root / kind, kind, masks=True) for kind in KINDS}


@pytest.fixture(scope="module")
def ports(runs: dict[str, RunFolder]) -> Iterator[dict[str, int]]:
    """Start real servers, each in a thread."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(serving(run)) for kind, run in runs.items()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write images of several shapes, the second truncated."""
    root = tmp_path_factory.mktemp("photos")
    found = [photo(root / f"{i}.png", i, shape) for i, shape in enumerate([(64, 80), (90, 37), (300, 200)])]
    (root / "torn.png").write_bytes(b"torn")
    return [found[0], root / "torn.png", *found[1:]]


def contents(paths: list[Path]) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in paths]


def test_a_served_detector_predicts_as_the_command(
    runs: dict[str, RunFolder], ports: dict[str, int], photos: list[Path], tmp_path: Path
) -> None:
    run, port = str(runs["detection"].path), ports["detection"]
    for out in ("said.json", "said.csv"):
        assert main(["predict", run, *map(str, photos), "--out", str(tmp_path / out)]) == 0
    answers = sent(port, contents(photos))
    listed = [
        {"image_id": number, "file_name": str(photos[number - 1]), **row}
        for number, answer in enumerate(answers, 1)
        for row in answer["objects"]
    ]
    assert listed == json.loads((tmp_path / "said.json").read_text())
    assert {row["image_id"] for row in listed} == {1, 3, 4}
    assert all(row["segmentation"]["size"] == answers[row["image_id"] - 1]["size"] for row in listed)
    assert [answer["size"] for answer in answers] == [[64, 80], [0, 0], [90, 37], [300, 200]]
    assert [answer["error"][:12] for answer in answers] == ["", "not an image", "", ""]
    _, _, content = ask(port, "POST", "/predict?format=csv", form(contents(photos)))
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    with (tmp_path / "said.csv").open(newline="") as file:
        assert [{**row, "name": ""} for row in rows] == [{**row, "name": ""} for row in csv.DictReader(file)]
    assert [float(row["score"]) for row in rows if row["name"] == "0.png"] == [
        o["score"] for o in answers[0]["objects"]
    ]
    assert [(row["label"], row["score"]) for row in rows if row["name"] == "torn.png"] == [("", "")]
    assert {row["label"] for row in rows} <= {"", "'=cmd()", *CLASSES[1:]}


def test_a_served_segmenter_predicts_as_the_command(
    runs: dict[str, RunFolder], ports: dict[str, int], photos: list[Path], tmp_path: Path
) -> None:
    run, port = str(runs["segmentation"].path), ports["segmentation"]
    assert main(["predict", run, *map(str, photos), "--out", str(tmp_path / "drawn")]) == 0
    assert main(["predict", run, *map(str, photos), "--out", str(tmp_path / "said.csv")]) == 0
    answers = sent(port, contents(photos))
    assert answers[1] == {"name": "torn.png", "size": [0, 0], "shares": {}, "mask": "", "error": answers[1]["error"]}
    several = 0
    for number, (path, answer) in enumerate(zip(photos, answers, strict=True), 1):
        if answer["error"]:
            continue
        kept = np.asarray(Image.open(tmp_path / "drawn" / f"{number:04}-{path.stem}-classes.png"))
        mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"].partition(",")[2]))))
        np.testing.assert_array_equal(mask, kept)
        assert list(mask.shape) == answer["size"]
        assert answer["shares"] == {name: np.mean(mask == label) for label, name in enumerate(CLASSES)}
        several += len(np.unique(mask)) > 1
    assert several
    _, _, content = ask(port, "POST", "/predict?format=csv", form(contents(photos)))
    rows = list(csv.reader(io.StringIO(content.decode())))
    with (tmp_path / "said.csv").open(newline="") as file:
        assert [row[1:] for row in rows] == [row[1:] for row in csv.reader(file)]
    assert rows[0] == ["name", "'=cmd()", *CLASSES[1:], "error"]
    assert [float(value) for value in rows[1][1:-1]] == list(answers[0]["shares"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawing_leaves_the_predictions_unchanged(kind: str, ports: dict[str, int], photos: list[Path]) -> None:
    plain, told = sent(ports[kind], contents(photos)), sent(ports[kind], contents(photos), "?draw=1")
    looks = [answer.pop("picture") for answer in told]
    assert told == plain
    assert [look.partition(",")[0] for look in looks] == ["data:image/jpeg;base64", "", *["data:image/jpeg;base64"] * 2]
    sizes = [Image.open(io.BytesIO(base64.b64decode(look.partition(",")[2]))).size[::-1] for look in looks if look]
    assert [list(size) for size in sizes] == [answer["size"] for answer in plain if not answer["error"]]


def test_drawings_on_a_smaller_picture_keep_their_place() -> None:
    mask = np.zeros((180, 120), bool)
    mask[70:150, 20:50] = mask[130:150, 20:100] = True
    boxes, sure = np.array([[20, 70, 100, 150], [60, 10, 110, 40]], np.float32), np.array([0.9, 0.8], np.float32)
    found = DetectedObjects(boxes, sure, np.array([0, 1]), [encoded(mask), encoded(np.zeros_like(mask))])
    prediction = DetectionPrediction("x", found, CLASSES, threshold=0.5, size=(180, 120))
    image = np.full((180, 120, 3), 90, np.uint8)  # of less than 200 pixels, so without letters
    large = prediction.drawn(image)
    np.testing.assert_array_equal(large, draw_found(image, found, CLASSES, 0.5))
    painted = (large != image).any(2).reshape(90, 2, 60, 2).any((1, 3))
    less = (prediction.drawn(image[::2, ::2]) != 90).any(2)
    assert 0.1 < painted.mean() < 0.5
    assert (painted == less).mean() > 0.99  # but for a line that falls between two pixels
    classes = SegmentationPrediction("x", ClassMap.of(mask.astype(np.uint8)), CLASSES, size=(180, 120))
    np.testing.assert_array_equal(classes.drawn(image)[::2, ::2], classes.drawn(image[::2, ::2]))


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_requests_get_their_predictions(kind: str, ports: dict[str, int], tmp_path: Path) -> None:
    images = [photo(tmp_path / f"{i}.png", i, (30, 40)).read_bytes() for i in range(5)]
    alone = [sent(ports[kind], [("x", image)]) for image in images]
    assert len({json.dumps(answer) for answer in alone}) == 5
    with ThreadPoolExecutor(40) as pool:
        together = list(pool.map(lambda i: sent(ports[kind], [("x", images[i % 5])]), range(40)))
    assert together == alone * 8


@pytest.mark.parametrize("kind", KINDS)
def test_an_invalid_image_is_reported_alone(kind: str, ports: dict[str, int]) -> None:
    bad = {"../../etc/passwd": b"", "a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "b": bomb(50_001, 1000)}
    answers = sent(ports[kind], list(bad.items()), "?draw=1")
    assert [answer["error"][:9] for answer in answers] == ["empty fil", "not an im", "50001 x 1"]
    assert [(answer["name"], answer["picture"]) for answer in answers] == [(name, "") for name in bad]
    status, _, content = ask(ports[kind], "POST", "/predict?format=csv", form(list(bad.items())))
    assert status == 200
    assert len(content.splitlines()) == 4
    for status, request in (
        (400, ("POST", "/predict?format=xml", form(list(bad.items())))),
        (404, ("GET", "/run.json")),
    ):
        assert ask(ports[kind], *request)[0] == status


def test_a_large_image_is_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(1, 7, 6, 8, generator=torch.Generator().manual_seed(0))
    logits[:, 5] = logits[:, 2]
    whole = F.interpolate(logits, size=(50, 70), mode="bilinear")[0].argmax(0).to(torch.uint8)
    for held in (1, 2 * 50 * 70, 1 << 26):
        monkeypatch.setattr(segmentation, "STRETCHED", held)
        assert torch.equal(segmentation.most_probable(logits, (50, 70)), whole), held
    assert 5 not in whole


def test_the_page_has_the_results_of_its_weights(tmp_path: Path) -> None:
    run = untrained_dense(tmp_path / "run", "detection")
    network = image_predictor(run, "last")
    assert isinstance(network.predictor, AnnotatedPredictor)
    assert (network.predictor.threshold, "AP" in page(task_of(run), network).html) == (0.5, False)
    object_results(run)
    network = image_predictor(run, "last")
    html = page(task_of(run), network, "last").html
    assert isinstance(network.predictor, AnnotatedPredictor)
    assert network.predictor.threshold == 0.25
    assert "It was trained on cells (3 classes). Result: AP 40.0 % (95 % interval 30.0 to 50.0) on 20 test" in html
    assert "boxes with a score of at least 0.25 are drawn" in html
    assert "&lt;i&gt;merlot" in html
    assert "<i>merlot" not in html
    (prediction, image), *_ = list(network.predictor.predict([("x", np.zeros((40, 40, 3), np.uint8))]))
    assert (prediction.threshold, image) == (0.25, None)


def test_a_score_at_the_threshold_counts(tmp_path: Path) -> None:
    run, image = untrained_dense(tmp_path / "run", "detection"), np.full((70, 50, 3), 200, np.uint8)
    ((first, _),) = list(image_predictor(run).predictor.predict([("x", image)]))
    assert first.objects is not None
    object_results(run)
    kept = run.read("evaluation.json")
    for number, score in enumerate(first.objects.scores.tolist()[:10], 1):
        kept["results"]["last/test"]["threshold"] = score
        run.write("evaluation.json", kept)
        (row,) = image_predictor(run, "last").rows([("x", image)])
        assert sum(row["counts"].values()) == number
        assert sum(each["score"] >= row["min_score"] for each in row["objects"]) == number


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("kind", KINDS)
def test_a_browser_draws_detections_over_the_image(
    kind: str, ports: dict[str, int], photos: list[Path], tmp_path: Path
) -> None:
    """Wide and narrow, light and dark."""
    said: list[dict[str, Any]] = sent(ports[kind], contents(photos))
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1400, False), (1400, True), (420, False), (420, True)):
            browser.open(f"http://127.0.0.1:{ports[kind]}/", width, dark=dark)
            browser.choose("input[type=file]", photos)
            browser.wait("state.textContent === '4 images'")
            # what cannot be shown is taken out once the browser has found so, which no clock tells
            browser.wait("String([...list.children].map(card => card.querySelectorAll('img').length)) === '1,0,1,1'")
            assert browser.run("list.querySelectorAll('img.picture').length") == 3
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.complaints() == []
        cells = browser.run("[...list.children[0].querySelectorAll('tr')].map(row => row.textContent)")
        if kind == "detection":
            assert sorted(cells) == sorted(f"{name}{count}" for name, count in said[0]["counts"].items())
        else:
            shown = {name: share for name, share in said[0]["shares"].items() if share >= 0.005}
            assert sorted(cells) == sorted(f"{name}{100 * share:.1f} %" for name, share in shown.items())
        assert cells
        assert browser.run("getComputedStyle(list.querySelector('.swatch')).backgroundColor") in (
            "rgb(0, 114, 178)",
            "rgb(230, 159, 0)",
            "rgb(0, 158, 115)",
        )
        browser.run("list.querySelector('.picture').click()")
        assert browser.run("list.children[0].classList.contains('wide')")
