# SPDX-License-Identifier: Apache-2.0
"""The server: a page for a person, `POST /predict` for a program, and nothing else.

    curl -F image=@leaf.jpg http://127.0.0.1:8000/predict
    {"predictions": [{"name": "leaf.jpg", "label": "merlot", "probability": 0.98, "probabilities": {...}, "error": ""}]}

of a detector   {"name": ..., "size": [H, W], "threshold": 0.4, "counts": {"berry": 1}, "objects": [{"category":
                "berry", "bbox": [left, top, width, height], "score": 0.9, ...}], "error": ""}: COCO's words; with
                masks, `segmentation` as run lengths; those from `threshold` on count
of a segmenter  {"name": ..., "size": [H, W], "shares": {"sky": 0.4, ...}, "mask": "data:image/png;base64,...", "error":
                ""}: the mask's values are classes, in the order of the shares

    ?format=csv   the same as `viticulture predict --out FILE.csv` writes it
    ?look=1       with each prediction, `look`, a picture as a data URI: where the student looks, what it finds

There is no route that reads a file: what is answered was loaded before the server began, or was sent.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import uvicorn
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...errors import UserError
from .limits import MAX_CONNECTIONS, MAX_FILES, Guard, PromptProtocol, Refused, refusal

if TYPE_CHECKING:  # an address is taken before what takes seconds to import
    from .answers import Answerer
    from .page import Page

MAX_NAME = 200  # letters of an image's name that are given back


def application(answerer: "Answerer", page: "Page", hosts: Sequence[str]) -> Starlette:
    """The server's two routes.

    Args:
        answerer: is asked by one request at a time; the others wait.
        page: what a person sees.
        hosts: names by which the server may be called, such as localhost; `*` for any.
    """
    one_at_a_time = CapacityLimiter(1)  # torch uses the cores by itself, and memory stays that of one request

    async def show(request: Request) -> Response:
        return HTMLResponse(page.html, headers={"Content-Security-Policy": page.policy, **HEADERS})

    async def predict(request: Request) -> Response:
        kind = request.query_params.get("format", "json")
        if kind not in ("json", "csv"):
            return refusal(400, f"format is json or csv, got {kind[:MAX_NAME]}")
        look = request.query_params.get("look", "") not in ("", "0")
        async with request.form(max_files=MAX_FILES, max_fields=MAX_FILES) as form:
            sent = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
            items = [((part.filename or "image")[:MAX_NAME], part.file) for part in sent]
            if not items:
                return refusal(400, "no image was sent; send files as multipart/form-data: curl -F image=@FILE")
            if kind == "csv":
                text = await run_sync(answerer.csv, items, abandon_on_cancel=True, limiter=one_at_a_time)
                attached = {"Content-Disposition": 'attachment; filename="predictions.csv"', **HEADERS}
                return PlainTextResponse(text, headers=attached, media_type="text/csv")
            rows = await run_sync(answerer.rows, items, look, abandon_on_cancel=True, limiter=one_at_a_time)
        return JSONResponse({"predictions": rows}, headers=HEADERS)

    return Starlette(
        routes=[Route("/", show), Route("/predict", predict, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(Guard)],
        exception_handlers={
            HTTPException: _refused,
            Refused: _unread,
            UserError: _unable,
            ClientDisconnect: _gone,
        },
    )


HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = refusal(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _unable(request: Request, error: Exception) -> Response:
    return refusal(500, str(error))


async def _unread(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error.status, error.words)


async def _gone(request: Request, error: Exception) -> Response:
    return refusal(400, "the request ended before its images did")  # nobody reads it


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address, taken before anything is loaded. Raises: UserError if that is not to be had."""
    if not 0 <= port < 1 << 16:
        raise UserError(f"a port lies in 0 to {(1 << 16) - 1}, got {port}")
    taken = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen()  # whoever comes before the server has begun, waits
    except (OSError, UnicodeError) as error:
        if taken is not None:
            taken.close()
        what = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen at {host}, port {port}: {what}; choose another --host or --port") from error
    return taken


def server(app: Starlette) -> uvicorn.Server:
    """What runs the application until it is told to stop, and writes no line a request."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every torn form
    config = uvicorn.Config(
        app,
        http=PromptProtocol,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


def run(app: Starlette, taken: socket.socket) -> None:
    """Answer until Ctrl-C."""
    asyncio.run(server(app).serve(sockets=[taken]))
