# SPDX-License-Identifier: Apache-2.0
"""A small Hub for tests, on this machine: the requests of `huggingface_hub` for upload and download."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from huggingface_hub import constants

TOKEN = "hf_test"
COMMIT = "c0ffee" * 6 + "cafe"


class FakeHub(ThreadingHTTPServer):
    """Repositories in memory; writing needs `TOKEN`. Existing ones stay as private as they were."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.stored: dict[str, bytes] = {}  # large files by their SHA-256
        self.fetched: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        path, body = urlsplit(self.path).path, self._body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            hidden = asked.get("visibility") == "private" or asked.get("private")  # by the library's version
            if hidden and name not in self.server.repositories:
                self.server.private.add(name)
            self.server.repositories.setdefault(name, {})
            self._answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif path == "/api/validate-yaml":
            head = json.loads(body)["content"].split("---\n")[1]
            errors = [] if isinstance(yaml.safe_load(head), dict) else [{"message": "no metadata"}]
            self._answer({"errors": errors, "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in json.loads(body)["files"]
            ]
            self._answer({"files": [{**f, "shouldIgnore": False} for f in files]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            href = [f"{self.server.address}/store/{entry['oid']}" for entry in asked]
            objects = [
                {**entry, "actions": {"upload": {"href": place, "header": {}}}}
                for entry, place in zip(asked, href, strict=True)
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            repository = self.server.repositories[path.removeprefix("/api/models/").partition("/commit/")[0]]
            for line in map(json.loads, body.decode().strip().split("\n")):
                value = line["value"]
                if line["key"] == "file":
                    repository[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del repository[value["path"]]
                elif line["key"] == "lfsFile":
                    repository[value["path"]] = self.server.stored[value["oid"]]
            url = f"{self.server.address}{path.removeprefix('/api/models')}/{COMMIT}"
            self._answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        else:
            self._answer({"error": f"this Hub knows no {path}"}, 500)

    def do_PUT(self) -> None:
        body = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.stored[oid] = body
        self._answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        name = "/".join(path.removeprefix("/api/models/").strip("/").split("/")[:2])
        repository = self.server.repositories.get(name)
        if repository is None:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/api/models/{name}/tree/"):
            self._answer([self._entry(file, content) for file, content in repository.items()])
        elif path.startswith("/api/models/"):
            files = [{"rfilename": file} for file in repository]
            self._answer(
                {"id": name, "sha": COMMIT, "siblings": files, "private": name in self.server.private, "tags": []}
            )
        else:
            file = path.split("/", 5)[5]  # /USER/NAME/resolve/REVISION/FILE
            if file not in repository:
                self._answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            if self.command == "GET":
                self.server.fetched.append(file)
            self._answer(repository[file])

    @staticmethod
    def _entry(file: str, content: bytes) -> dict[str, Any]:
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": file, "size": len(content), "oid": oid}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        tag = hashlib.sha1(body).hexdigest()
        known = {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}
        for key, value in {**known, "Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub() -> Iterator[FakeHub]:
    """Start a Hub for the context."""
    served = FakeHub()
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


@contextmanager
def used_instead(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[FakeHub]:
    """Replace the real Hub of `huggingface_hub` for the context; the folder holds downloads."""
    with hub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace("https://huggingface.co", served.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # large files go by git-lfs, as without hf_xet
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


def check_anonymous(sent: Mapping[str, bytes | Path], folder: Path) -> None:
    """Check that the files of a pushed run are complete, and that none names the folder of its images or its own."""
    assert set(sent) == {
        *("README.md", "run.json", "recipe.yaml", "evaluation.json", "config.json", "model.safetensors"),
        *("weights/last/config.json", "weights/last/model.safetensors"),
    }
    for name, content in sent.items():
        held = content if isinstance(content, bytes) else content.read_bytes()
        assert b"somebody/vineyard" not in held, name
        assert str(folder).encode() not in held, name
