# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused before an image is read: too large, too slow, or sent by another website."""

import asyncio
import time

import h11
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BYTES = 64 * 1024**2  # per request
MAX_FILES = 64  # images per request
MAX_CONNECTIONS = 256  # at once; further ones get status 503
MAX_HELD = 4 * MAX_BYTES  # of all requests at once, in memory and in the temporary folder
HEADER_SECONDS = 10.0  # for the header of a request
BODY_SECONDS, MIN_BYTES_PER_SECOND = 30.0, 20_000  # for its body, and one more second for so many received bytes
TOO_LARGE = f"a request may hold {MAX_BYTES // 1024**2} MB; send fewer images at once"


class Refused(Exception):
    """A request that is not read to its end."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def refusal(status: int, reason: str) -> JSONResponse:
    """Return an error response with a sentence."""
    return JSONResponse({"error": reason}, status)


class Guard:
    """Middleware that accepts requests of limited size, from the server's page or from no page at all.

    Browsers send a form's origin (Origin), so that no other website can use the server through the user's browser. The
    list of trusted hosts prevents a website from giving this machine another name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.held = 0  # bytes of the requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin, length = headers.get("origin"), headers.get("content-length", "")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            response = refusal(403, f"requests from other pages are refused, got one from {origin[:200]}")
            await response(scope, receive, send)
            return
        if length.isdigit() and int(length) > MAX_BYTES:
            await refusal(413, TOO_LARGE)(scope, receive, send)
            return
        start, received, complete = time.monotonic(), 0, False

        async def counted() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                deadline = start + BODY_SECONDS + received / MIN_BYTES_PER_SECOND
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except TimeoutError as error:
                reason = f"the request came at less than {MIN_BYTES_PER_SECOND:,} bytes per second; send it again"
                raise Refused(408, reason) from error
            size, complete = len(message.get("body", b"")), not message.get("more_body", False)
            received += size
            self.held += size
            if received > MAX_BYTES:  # whatever its header said
                raise Refused(413, TOO_LARGE)
            if self.held > MAX_HELD:
                raise Refused(503, "other requests use all the space; send it again")
            return message

        try:
            await self.app(scope, counted, send)
        except asyncio.CancelledError:  # the server stops after its grace period
            await refusal(503, "the server has been stopped")(scope, receive, send)
        finally:
            self.held -= received


class PromptProtocol(H11Protocol):
    """A connection that is closed if the header of a request takes longer than `HEADER_SECONDS`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()

    def _update(self) -> None:
        """Start the timer while a header is incomplete; an idle connection has uvicorn's limit."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self._deadline is None and self.timeout_keep_alive_task is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
