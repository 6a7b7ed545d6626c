# SPDX-License-Identifier: Apache-2.0
"""What is refused before an image is looked at: too large a request, and one that another website sent."""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BYTES = 64 * 1024**2
"""Of one request."""
MAX_FILES = 64
"""Images in one request."""
MAX_CONNECTIONS = 256
"""At once; whoever comes then is told to come again (503)."""


class TooLarge(Exception):
    """A request of more than `MAX_BYTES`."""


class Guard:
    """Lets through requests of bearable size that come from our own page or from no page at all.

    A website that a person visits can send a form to this machine, too. Browsers say where a form comes from (Origin).
    Together with a list of trusted hosts, without which a website could give this machine a name of its own, nobody but
    the person uses the server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

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
        length, seen = headers.get("content-length", ""), 0
        if length.isdigit() and int(length) > MAX_BYTES:
            await too_large()(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BYTES:  # whatever its header said
                raise TooLarge
            return message

        await self.app(scope, counted, send)


def too_large() -> JSONResponse:
    """What a request of more than `MAX_BYTES` is told."""
    return refusal(413, f"a request may hold {MAX_BYTES // 1024**2} MB; send fewer images at once")


def refusal(status: int, words: str) -> JSONResponse:
    """A mistake of the sender's, in a sentence."""
    return JSONResponse({"error": words}, status)
