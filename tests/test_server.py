# SPDX-License-Identifier: Apache-2.0
"""A served run predicts as `predict`, to many at once, and reveals nothing of its machine."""

import asyncio
import csv
import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from browser import CHROMIUM, Browser
from made_results import classified
from refusals import refused
from served import BOUNDARY, ask, bomb, form, sent, serving
from untrained import photo, untrained
from viticulture.api import export, predict
from viticulture.cli import main
from viticulture.evaluation.inputs import MAX_SENT_PIXELS
from viticulture.evaluation.outputs import Predictions
from viticulture.models.weights.files import load, save
from viticulture.tasks.classification_metrics import evaluate_predictions
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder

for needed in ("starlette", "uvicorn", "python_multipart"):
    pytest.importorskip(needed, reason="the extra `serve`")

from viticulture.deploy.serve import limits  # noqa: E402
from viticulture.deploy.serve.app import application  # noqa: E402
from viticulture.deploy.serve.page import page  # noqa: E402
from viticulture.deploy.serve.predictor import Predictor  # noqa: E402

CLASSES = ("=cmd()", "<i>merlot</i>, red")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return untrained(tmp_path_factory.mktemp("runs") / "run", CLASSES)


@pytest.fixture(scope="module")
def port(run: RunFolder) -> Iterator[int]:
    """Start a real server in a thread; return its port."""
    with serving(run) as port:
        yield port


def test_server_command_and_python_agree_to_the_last_bit(run: RunFolder, port: int, tmp_path: Path) -> None:
    photos = [photo(tmp_path / f"{i}.png", i, shape) for i, shape in enumerate([(24, 40), (40, 24), (300, 200)])]
    (tmp_path / "torn.png").write_bytes(b"torn")
    photos.insert(1, tmp_path / "torn.png")
    assert main(["predict", str(run.path), *map(str, photos), "--out", str(tmp_path / "said.json")]) == 0
    assert main(["predict", str(run.path), *map(str, photos), "--out", str(tmp_path / "said.csv")]) == 0
    files = [(path.name, path.read_bytes()) for path in photos]
    answers = sent(port, files)
    assert [answer["name"] for answer in answers] == [path.name for path in photos]
    for answer, of_command, of_python in zip(
        answers,
        json.loads((tmp_path / "said.json").read_text()),
        predict(str(run.path), list(map(str, photos))),
        strict=True,
    ):
        assert {**answer, "name": of_command["name"]} == of_command == json.loads(json.dumps(vars(of_python)))
    assert answers[1]["error"].startswith("not an image")
    _, headers, content = ask(port, "POST", "/predict?format=csv", form(files))
    rows = list(csv.reader(io.StringIO(content.decode())))
    with (tmp_path / "said.csv").open(newline="") as file:
        assert [row[1:] for row in rows] == [row[1:] for row in csv.reader(file)]
    assert rows[0][3:6] == ["known", "similarity", "'=cmd()"]
    assert "attachment" in headers["Content-Disposition"]


def test_concurrent_requests_get_their_predictions(port: int, tmp_path: Path) -> None:
    images = [photo(tmp_path / f"{i}.png", i).read_bytes() for i in range(10)]
    alone = [sent(port, [("x", image)])[0]["probability"] for image in images]
    assert len(set(alone)) == 10
    with ThreadPoolExecutor(100) as pool:
        together = list(pool.map(lambda i: sent(port, [("x", images[i % 10])])[0]["probability"], range(100)))
    assert together == alone * 10


def test_attention_is_drawn_with_the_same_predictions(port: int, tmp_path: Path) -> None:
    files = [("torn", b"GIF89a"), ("a", photo(tmp_path / "a.png", 1).read_bytes())]
    plain, drawn = sent(port, files), sent(port, files, "?draw=1")
    assert [answer.pop("picture")[:22] for answer in drawn] == ["", "data:image/png;base64,"]
    assert drawn == plain


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"#!/bin/sh\necho", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", "not an image"),
        (bomb(MAX_SENT_PIXELS // 1000 + 1, 1000), "more than 50,000,000 pixels"),
        (bomb(100_000, 100_000), "more than"),
        (bomb(64, 64), "truncated|broken"),
    ],
    ids=["empty", "script", "svg", "bomb", "large bomb", "torn"],
)
def test_an_invalid_image_is_reported_alone(port: int, content: bytes, reason: str) -> None:
    (answer,) = sent(port, [("../../etc/passwd", content)])
    assert re.search(reason, answer["error"])
    assert answer["name"] == "../../etc/passwd", "a name is a name"


def test_a_request_of_another_kind_is_refused_in_one_sentence(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = form([("a", b"x")])
    invalid: list[tuple[int, tuple[Any, ...]]] = [
        (405, ("GET", "/predict")),
        (405, ("DELETE", "/")),
        *((404, ("GET", path)) for path in ("/../../etc/passwd", "/..%2f..%2fetc/passwd", "/run.json", "//etc/passwd")),
        (400, ("POST", "/predict?format=xml", one)),
        (400, ("POST", "/predict", form([]))),
        (400, ("POST", "/predict", one, {"Content-Type": "application/json"})),
        (400, ("POST", "/predict", b"torn")),
        (400, ("POST", "/predict", form([("a", b"")] * (limits.MAX_FILES + 1)))),
        (403, ("POST", "/predict", one, {"Origin": "http://elsewhere.example"})),
        (403, ("POST", "/predict", one, {"Origin": "http://["})),
        (400, ("GET", "/", None, {"Host": "elsewhere.example"})),
        (413, ("POST", "/predict", b"", {"Content-Length": str(limits.MAX_BYTES + 1)})),
    ]
    for status, request in invalid:
        found, _, content = ask(port, *request)
        assert (found, b"Traceback" in content, b"root:" in content) == (status, False, False), request
    assert not caplog.records
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    status, _, content = ask(port, "POST", "/predict", iter([one, bytes(1000)]))  # chunked: no length is said
    assert status == 413
    assert "fewer images" in json.loads(content)["error"]


POST = {
    "type": "http",
    "method": "POST",
    "path": "/predict",
    "query_string": b"",
    "headers": [(b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())],
}


async def statuses(app: Any, *receives: Any) -> list[int]:
    """Return what an application replies to concurrent requests, by who sends the messages of each."""
    answers: list[list[Any]] = [[] for _ in receives]

    async def one(receive: Any, messages: list[Any]) -> None:
        async def send(message: Any) -> None:
            messages.append(message)

        await app(POST, receive, send)

    await asyncio.gather(*(one(*pair) for pair in zip(receives, answers, strict=True)))
    return [messages[0]["status"] for messages in answers]


def test_an_aborted_upload_is_no_error(run: RunFolder) -> None:
    network = Predictor(task_of(run))

    async def ended() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    assert asyncio.run(statuses(application(network, page(task_of(run), network), ["*"]), ended)) == [400]


def test_endless_uploads_are_limited_and_dropped(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Predictor(task_of(run))
    app = application(network, page(task_of(run), network), ["*"])
    monkeypatch.setattr(limits, "MAX_HELD", 1000)

    async def small() -> dict[str, Any]:
        return {"type": "http.request", "body": form([("a", bytes(200))]), "more_body": False}

    async def both(ends: bool) -> list[int]:
        held, rejected = asyncio.Event(), asyncio.Event()

        async def first() -> dict[str, Any]:
            if not held.is_set():
                held.set()
                return {"type": "http.request", "body": form([("a", bytes(900))])[:900], "more_body": True}
            await (rejected if ends else asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def second() -> list[int]:
            await held.wait()
            for _ in range(10):  # turns, for what has come to be counted
                await asyncio.sleep(0)
            answer = await statuses(app, small)
            rejected.set()
            return answer

        one, other = await asyncio.gather(statuses(app, first), second())
        return [*one, *other]

    assert asyncio.run(both(ends=True)) == [400, 503]
    monkeypatch.setattr(limits, "BODY_SECONDS", 1.0)
    assert asyncio.run(both(ends=False)) == [408, 503]
    monkeypatch.setattr(limits, "BODY_SECONDS", 60.0)
    assert asyncio.run(statuses(app, small)) == [200]


@pytest.mark.parametrize("earlier", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["first", "second"])
def test_a_connection_with_an_endless_header_is_closed(
    earlier: bytes, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.5)
    with serving(run) as port, socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(earlier + b"GET / HTTP/1.1\r\nX: ")
        received = b""
        while part := half.recv(2**16):
            received += part
        assert received.startswith(b"HTTP/1.1 200") == bool(earlier)
        monkeypatch.setattr(limits, "HEADER_SECONDS", 60.0)  # a busy machine takes its time
        assert ask(port, "GET", "/")[0] == 200


def test_a_server_stopped_within_a_request_says_so(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, over = threading.Event(), threading.Event()

    class Slow:
        def rows(self, *_: Any) -> list[Any]:
            begun.set()
            over.wait()
            return []

    async def one() -> dict[str, Any]:
        return {"type": "http.request", "body": form([("a", b"x")]), "more_body": False}

    async def stopped() -> list[int]:
        app = application(cast("Predictor", Slow()), page(task_of(run), Predictor(task_of(run))), ["*"])
        data_spec = asyncio.create_task(statuses(app, one))
        await asyncio.to_thread(begun.wait)
        for each in asyncio.all_tasks() - {asyncio.current_task(), data_spec}:
            each.cancel()
        try:
            return await data_spec
        finally:
            over.set()

    assert asyncio.run(stopped()) == [503]
    assert not caplog.records


def test_the_page_escapes_names_and_loads_nothing(port: int) -> None:
    status, headers, content = ask(port, "GET", "/")
    text = content.decode()
    assert status == 200
    assert "&lt;i&gt;merlot" in text
    assert "<i>merlot" not in text
    assert "=cmd(), &#39;&lt;i&gt;merlot&lt;/i&gt;, red&#39;" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "same-origin"
    assert not re.search(r'(src|href)="(?!data:)', text)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_servers_predictions(port: int, tmp_path: Path) -> None:
    """Wide and narrow, light and dark."""
    files = [photo(tmp_path / f"<b>{i}.png", i) for i in range(3)] + [tmp_path / "torn.png"]
    files[-1].write_bytes(b"torn")
    said = sent(port, [(path.name, path.read_bytes()) for path in files])
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1400, False), (1400, True), (420, False), (420, True)):
            browser.open(f"http://127.0.0.1:{port}/", width, dark=dark)
            browser.run("form.dataset.files = 3")  # the fourth goes in a request of its own
            browser.choose("input[type=file]", files)
            browser.wait("state.textContent === '4 images'")
            cards = "[...list.children].map(card => [card.querySelector('.file').textContent, card.querySelector("
            shown = browser.run(f"{cards}'tr, .error').textContent])")
            first = [f"{answer['label']}{100 * answer['probability']:.1f} %" for answer in said[:-1]]
            assert [words for _, words in shown] == [*first, said[-1]["error"]]
            assert [name for name, _ in shown] == [path.name for path in files]
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.complaints() == []
        browser.run("attention.click()")
        browser.wait("state.textContent === '4 images'")
        assert browser.run("list.querySelectorAll('img.picture').length") == 3
        browser.run("var saved, keep = URL.createObjectURL; URL.createObjectURL = (blob) => keep(saved = blob)")
        browser.run("HTMLAnchorElement.prototype.click = function () { this.remove() }; form.requestSubmit()")
        browser.wait("saved")
        rows = list(csv.DictReader(io.StringIO(browser.value("saved.text()"))))
        assert [row["name"] for row in rows] == [answer["name"] for answer in said]
        assert [row["error"] for row in rows] == [answer["error"] for answer in said]


def test_weights_with_nan_give_no_prediction(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    student, data_spec, _ = load(run.weights("last"))
    torch.nn.init.constant_(student.get_parameter("head.bias"), torch.nan)
    save(student, run.weights("last"), data_spec)
    image = photo(tmp_path / "a.png", 0)
    refused("outputs are not finite for 1 of 1", predict, str(run.path), [str(image)])
    with serving(run) as port:
        status, _, content = ask(port, "POST", "/predict", form([("a.png", image.read_bytes())]))
    assert status == 500
    assert "are not finite" in json.loads(content)["error"]
    refused(r"are not finite|not installed", export, run.path, tmp_path / "a.onnx")


def test_the_page_has_the_results_of_its_weights(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    labels = torch.arange(10) % 2
    said = {"best": labels, "last": labels.roll(1).where(torch.arange(10) < 3, labels)}
    results = {
        f"{name}/test": evaluate_predictions(Predictions(torch.eye(2)[each], labels, list("abcdefghij")), ("a", "b"))
        for name, each in said.items()
    }
    run.write("evaluation.json", classified("best/test", results).to_dict())
    student = Predictor(task_of(run))
    shown = {name: page(task_of(run), student, name).html for name in ("", "best", "last", "ema")}
    assert shown[""] == shown["best"]
    assert "top-1 100.0 %" in shown["best"]
    assert "top-1 70.0 %" in shown["last"]
    assert "top-1" not in shown["ema"]


def test_a_mistake_is_reported_before_serving(
    run: RunFolder, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in {
        (str(tmp_path),): "no run folder",
        (str(run.path), "--port", str(port)): "choose another --host or --port",
        (str(run.path), "--port", "70000"): "a port lies in",
        (str(run.path), "--port", "0", "--weights", "ema"): "ema",
        (str(untrained(tmp_path / "blind", ()).path), "--port", "0"): "trained without labels",
    }.items():
        assert main(["serve", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
