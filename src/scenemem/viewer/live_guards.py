"""What stands between the network and the live page: who may ask, how much, and what goes out again."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

LARGEST = 64 * 1024
"""Bytes of a request's body."""

BODY_SECONDS = 20.0
"""In which the body of a request has to arrive."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with every answer: the page may load nothing but itself and may not be framed."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guards:
    """Refuses foreign requests and large ones, and lets no error out as anything but one line.

    With ``local`` it only answers requests that name this machine as their host, so that no page on the web
    can reach the server under a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app, self._local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            app = self._foreign(Headers(scope=scope)) or self._app
            try:
                body = await asyncio.wait_for(_read(receive), BODY_SECONDS)
            except asyncio.TimeoutError:
                body, app = b"", _refused(408, f"the request took longer than {BODY_SECONDS:g} seconds")
            if len(body) > LARGEST:
                app = _refused(413, f"the request is larger than {LARGEST} bytes")
            await app(scope, _again(body, receive), send_guarded)
        except Exception:
            log.exception("a request to the live page failed")
            if not started:
                refusal = _refused(500, "something went wrong; the log of the server says what")
                await refusal(scope, receive, send_guarded)

    def _foreign(self, headers: Headers) -> ASGIApp | None:
        """A refusal for requests that other pages make."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._local and not is_loopback(_split(f"//{host}")[0]):
            return _refused(421, f"this server only answers to localhost, not to '{host[:100]}'")
        if origin is not None and _split(origin)[1] != host.lower():
            return _refused(403, "requests from other pages are not answered")
        return None


async def _read(receive: Receive) -> bytes:
    """A whole body, so that the sender gets a refusal; of a large one only the beginning is kept."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
        body.extend(message.get("body", b"")[: LARGEST + 1 - len(body)])
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """A receiver that begins with a body that has been read."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again


def _refused(status: int, detail: str) -> ASGIApp:
    return JSONResponse({"detail": detail}, status_code=status)


def _split(address: str) -> tuple[str, str]:
    """The host name of an address, and its host with the port; both empty when it makes no sense."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.netloc.lower()
    except ValueError:
        return "", ""
