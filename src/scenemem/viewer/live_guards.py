"""What stands between the network and the live page: who may ask, how much, and what goes out again."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

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

_DRAINED = 512  # times the largest request; more of a refused one is not even read


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

    Args:
        app: what is guarded.
        largest: bytes of a request's body.
        patience: seconds for a body to arrive.
        local: only answer requests that name this machine as their host, so that no page on the web can reach
            the server under a name of its own (DNS rebinding).
    """

    def __init__(self, app: App, *, largest: int, patience: float, local: bool) -> None:
        self._app = app
        self._largest = largest
        self._patience = patience
        self._local = local

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
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
            refusal = self._foreign(Headers(scope=scope))
            if refusal is None:
                refusal, receive = await self._whole(receive)
            await (refusal or self._app)(scope, receive, send_guarded)
        except Exception:
            log.exception("a request to the live page failed")
            if not started:
                await _refused(500, "something went wrong; the log of the server says what")(
                    scope, receive, send_guarded
                )

    def _foreign(self, headers: Headers) -> App | None:
        """A refusal for requests that other pages make."""
        host = headers.get("host", "")
        if self._local and not is_loopback(_name(host)):
            return _refused(421, f"this server only answers to localhost, not to '{host[:100]}'")
        origin = headers.get("origin")
        if origin is not None and _site(origin) != host.lower():
            return _refused(403, "requests from other pages are not answered")
        return None

    async def _whole(self, receive: Receive) -> tuple[App | None, Receive]:
        """Read the body before anybody works on it  ->  a refusal, or a receiver that has it."""
        body, size, more = bytearray(), 0, True

        async def read() -> None:
            nonlocal size, more
            while more and size <= self._largest * _DRAINED:
                message = await receive()
                content = message.get("body", b"")
                size += len(content)
                more = message["type"] == "http.request" and message.get("more_body", False)
                if size <= self._largest:
                    body.extend(content)

        try:
            await asyncio.wait_for(read(), self._patience)
        except asyncio.TimeoutError:
            return _refused(408, f"the request did not arrive within {self._patience:g} seconds"), receive
        if size > self._largest:
            return _refused(413, f"the request is larger than {self._largest} bytes"), receive
        whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def receive_again() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message, whole = whole, None
            return message

        return None, receive_again


def _refused(status: int, detail: str) -> App:
    headers = {"Connection": "close"} if status in (408, 413) else None
    return JSONResponse({"detail": detail}, status_code=status, headers=headers)


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _site(origin: str) -> str:
    """The host and port of an Origin header; empty when it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
