# SPDX-License-Identifier: Apache-2.0
"""A server in a thread, and requests by hand: forms with files, headers, broken images."""

import http.client
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BOUNDARY = "----parts"


@contextmanager
def serving(run: Any) -> Iterator[int]:
    """Serve a run for the context; return the port."""
    from viticulture.deploy.serve import app as server_app
    from viticulture.deploy.serve.page import page
    from viticulture.deploy.serve.predictor import Predictor
    from viticulture.tasks.task import task_of

    task = task_of(run)
    predictor = Predictor(task)

    with server_app.listening("127.0.0.1", 0) as taken:
        served = server_app.server(server_app.application(predictor, page(task, predictor), ["127.0.0.1", "localhost"]))
        thread = threading.Thread(target=served.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield taken.getsockname()[1]
        finally:
            served.should_exit = True
            thread.join()


def form(files: list[tuple[str, bytes]]) -> bytes:
    """Encode the body of a form that holds files."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode() + content
        for name, content in files
    ]
    return b"\r\n".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send a request; return status, headers and content."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if body is not None else {}
    connection.request(method, path, body, {**kind, **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def sent(port: int, files: list[tuple[str, bytes]], query: str = "") -> Any:
    status, _, content = ask(port, "POST", f"/predict{query}", form(files))
    assert status == 200, content
    return json.loads(content)["predictions"]


def bomb(width: int, height: int) -> bytes:
    """Write a PNG whose header declares so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )
