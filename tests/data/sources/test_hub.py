# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's sets: what is refused, and what happens without a network."""

import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import pytest

from viticulture.data.decode import Unreadable
from viticulture.data.open import open_source
from viticulture.data.sources.hugging_face import HubReader
from viticulture.data.sources.source import Source
from viticulture.errors import UserError


@pytest.mark.parametrize("row", [None, {"bytes": None, "path": None}, {"bytes": None, "path": "/nowhere/x.png"}])
def test_a_row_without_an_image_is_unreadable(row: Any) -> None:
    """Fails if it ends in a TypeError, that nothing takes for an unreadable image."""
    reader = HubReader([[{"image": row}]], "image")
    source = Source("x", (), np.array([-1]), ["train/0"], {}, ["0"], reader)
    with pytest.raises(Unreadable, match="train/0"):
        source.read(0)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hf:", "hf: needs the name of a data set, such as hf:owner/name"),
        ("hf:two words", "hf: takes owner/name"),
        ("hf:" + "x" * 5000, "hf: takes owner/name"),
        ("hf:a/b/c", "hf: takes owner/name"),
    ],
)
def test_what_is_no_name_is_refused_without_asking_anybody(word: str, message: str) -> None:
    """Fails if Hugging Face is asked for it, for half a minute where there is no network."""
    with pytest.raises(UserError, match=message) as caught:
        open_source(word)
    assert len(str(caught.value)) < 300


@contextmanager
def server() -> Iterator[str]:
    """A server that answers everything by 404; yields its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def test_without_an_answer_the_libraries_look_into_their_caches_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tries over 25 seconds otherwise. Fails if it is asked for in vain, if a server that answers (by whatever
    number) counts as none, or if the process stays offline for those who come later."""
    datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    modes: list[tuple[bool, bool]] = []

    def load(*words: Any) -> None:
        modes.append((datasets.config.HF_HUB_OFFLINE, hub.constants.HF_HUB_OFFLINE))
        raise ConnectionError("not here")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "*")
    with server() as address:
        for endpoint in (address, "http://127.0.0.1:9"):
            monkeypatch.setattr(hub.constants, "ENDPOINT", endpoint)
            with pytest.raises(UserError, match="foo/bar"):
                open_source("hf:foo/bar")
            assert not hub.constants.HF_HUB_OFFLINE
    assert modes == [(False, False), (True, True)]
