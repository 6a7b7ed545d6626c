# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused before an image is read: too large, too slow, or sent by another website."""

import asyncio
import time

import h11
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BYTES = 64 * 1024**2
"""Of one request."""
MAX_FILES = 64
"""Images in one request."""
MAX_CONNECTIONS = 256
"""At once; whoever comes then is told to come again (503)."""


MAX_HELD = 4 * MAX_BYTES
"""Of all requests at once, in memory and in the temporary folder."""
HEADER_SECONDS = 10.0
"""For the header of a request."""
BODY_SECONDS, SLOWEST = 30.0, 20_000
"""For its body, and one second more for so many bytes that have come."""


class Refused(Exception):
    """A request that is not read to its end.

    Args:
        status: of the response.
        words: why, in a sentence.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


class Guard:
    """Lets through requests of bearable size that come from our own page or from no page at all.

    A website that a person visits can send a form to this machine, too. Browsers say where a form comes from (Origin).
    Together with a list of trusted hosts, without which a website could give this machine a name of its own, nobody but
    the person uses the server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.held = 0  # bytes of the requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            await refusal(403, f"requests from other pages are not answered, got one from {origin[:200]}")(
                scope, receive, send
            )
            return
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > MAX_BYTES:
            await refusal(413, TOO_LARGE)(scope, receive, send)
            return
        began, seen, whole = time.monotonic(), 0, False

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), began + BODY_SECONDS + seen / SLOWEST - time.monotonic())
            except TimeoutError as error:
                raise Refused(
                    408, f"the request came at less than {SLOWEST:,} bytes a second; send it again"
                ) from error
            arrived, whole = len(message.get("body", b"")), not message.get("more_body", False)
            seen += arrived
            self.held += arrived
            if seen > MAX_BYTES:  # whatever its header said
                raise Refused(413, TOO_LARGE)
            if self.held > MAX_HELD:
                raise Refused(503, "other requests fill what there is room for; send it again")
            return message

        try:
            await self.app(scope, counted, send)
        except asyncio.CancelledError:  # the server stops, and has waited for as long as it does
            await refusal(503, "the server has been stopped")(scope, receive, send)
        finally:
            self.held -= seen


class PromptProtocol(H11Protocol):
    """A connection that is closed where the header of a request takes longer than `HEADER_SECONDS`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        """Let the time run while a header is incomplete; an idle connection has uvicorn's own limit."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._deadline is None and self.timeout_keep_alive_task is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


TOO_LARGE = f"a request may hold {MAX_BYTES // 1024**2} MB; send fewer images at once"


def refusal(status: int, words: str) -> JSONResponse:
    """A mistake of the sender's, in a sentence."""
    return JSONResponse({"error": words}, status)
