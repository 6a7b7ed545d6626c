# SPDX-License-Identifier: Apache-2.0
"""The server: a page, `POST /predict` for programs, and nothing else.

    curl -F image=@leaf.jpg http://127.0.0.1:8000/predict
    {"predictions": [{"name": "leaf.jpg", "label": "merlot", "probability": 0.98, "probabilities": {...}, "error": "",
                      "known": true, "similarity": 0.83}]}

of a detector   {"name": ..., "size": [H, W], "min_score": 0.4, "counts": {"berry": 1}, "objects": [{"category":
                "berry", "bbox": [left, top, width, height], "score": 0.9, ...}], "error": ""}, as in COCO; with masks,
                `segmentation` as run lengths; objects from `min_score` on count
of a segmenter  {"name": ..., "size": [H, W], "shares": {"sky": 0.4, ...}, "mask": "data:image/png;base64,...", "error":
                ""}: the mask's values are classes, in the order of the shares

    ?format=csv   the text of `viticulture predict --out FILE.csv`
    ?draw=1       with each prediction, `picture`, a data URI: what the student attends to, or its predictions drawn

No route reads a file: responses are computed from what was loaded before the start, or was sent.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:  # an address is taken before imports that take seconds
    from .page import Page
    from .predictor import Predictor

MAX_NAME = 200  # letters of an image's name in a response
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}


def application(predictor: "Predictor", page: "Page", hosts: Sequence[str]) -> Starlette:
    """Return the application with its two routes. `hosts`: accepted host names, such as localhost; `*` for any."""
    one_at_a_time = CapacityLimiter(1)  # torch uses all cores, and memory stays that of one request

    async def root(request: Request) -> Response:
        return HTMLResponse(page.html, headers={"Content-Security-Policy": page.policy, **HEADERS})

    async def predict(request: Request) -> Response:
        form_name = request.query_params.get("format", "json")
        if form_name not in ("json", "csv"):
            return refusal(400, f"format is json or csv, got {form_name[:MAX_NAME]}")
        draw = request.query_params.get("draw", "") not in ("", "0")
        async with request.form(max_files=MAX_FILES, max_fields=MAX_FILES) as form:
            sent = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
            items = [((part.filename or "image")[:MAX_NAME], part.file) for part in sent]
            if not items:
                return refusal(400, "no image was sent; send files as multipart/form-data: curl -F image=@FILE")
            if form_name == "csv":
                text = await run_sync(predictor.csv, items, abandon_on_cancel=True, limiter=one_at_a_time)
                attached = {"Content-Disposition": 'attachment; filename="predictions.csv"', **HEADERS}
                return PlainTextResponse(text, headers=attached, media_type="text/csv")
            rows = await run_sync(predictor.rows, items, draw, abandon_on_cancel=True, limiter=one_at_a_time)
        return JSONResponse({"predictions": rows}, headers=HEADERS)

    return Starlette(
        routes=[Route("/", root), Route("/predict", predict, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(Guard)],
        exception_handlers=dict.fromkeys((HTTPException, Refused, UserError, ClientDisconnect), _error),
    )


async def _error(request: Request, error: Any) -> Response:
    if isinstance(error, ClientDisconnect):
        return refusal(400, "the request ended before its images did")  # the client is gone
    if isinstance(error, HTTPException):
        response = refusal(error.status_code, error.detail)
        response.headers.update(error.headers or {})
        return response
    return refusal(error.status if isinstance(error, Refused) else 500, str(error))


def listening(host: str, port: int) -> socket.socket:
    """Open a socket at an address, before anything is loaded. Raises: UserError if the address is not available."""
    if not 0 <= port < 1 << 16:
        raise UserError(f"a port lies in 0 to {(1 << 16) - 1}, got {port}")
    opened = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()  # connections before the server's start wait
    except (OSError, UnicodeError) as error:
        if opened is not None:
            opened.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen at {host}, port {port}: {reason}; choose another --host or --port") from error
    return opened


def server(app: Starlette) -> uvicorn.Server:
    """Return a server that logs no requests."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every incomplete form
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


def run(app: Starlette, opened: socket.socket) -> None:
    """Serve until Ctrl-C."""
    asyncio.run(server(app).serve(sockets=[opened]))
