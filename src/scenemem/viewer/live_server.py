"""The server of the live page: which requests are answered, and how long a client may keep it waiting."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

LARGEST = 64 * 1024
"""Bytes of a request's body."""

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

_GRACE = 2  # seconds for open streams when the server is stopped
_LARGEST_HEADERS = 16 * 1024  # bytes


@dataclass(frozen=True)
class Limits:
    """How many connections may be open, and how long each may keep the server waiting."""

    connections: int = 256
    """in all"""
    of_address: int = 64
    """from one address"""
    seconds: float = 20.0
    """for a request to arrive, and as many for its answer to be taken"""


def live_server(app: ASGIApp, limits: Limits | None = None) -> uvicorn.Server:
    """A server for the live page, to be run on a socket that listens."""
    limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="critical",  # complaints about requests must not fill a disk; Guards logs our own errors
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=round(limits.seconds + 1),  # _LiveServer closes idle connections before
        backlog=limits.connections,
        h11_max_incomplete_event_size=_LARGEST_HEADERS,
    )
    return _LiveServer(config, limits)


@dataclass(frozen=True)
class _Wait:
    """What a connection kept the server waiting for, and how long in all."""

    cycle: object | None  # request and answer, as uvicorn counts them
    what: Literal["request", "answer"]
    seconds: float = 0.0


class _LiveServer(uvicorn.Server):
    """Closes slow connections ten times a second; uvicorn has no limit for headers, bodies and readers.

    Those that waited longer than allowed go, and of too many those that waited longest. A connection on
    which an answer is being made never goes.
    """

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._limits = limits
        self._waits: dict[H11Protocol, _Wait] = {}
        self._looked = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn every 0.1 seconds."""
        connections = [one for one in self.server_state.connections if isinstance(one, H11Protocol)]
        now, before = time.monotonic(), self._looked
        self._looked = now
        waits = {one: self._wait(one, now - before) for one in connections}
        self._waits = {one: wait for one, wait in waits.items() if wait is not None}
        self._close_slow(connections)
        return await super().on_tick(counter)

    def _wait(self, connection: H11Protocol, passed: float) -> _Wait | None:
        """What a connection waits for, ``passed`` seconds later; None if it has waited for nothing."""
        known, what = self._waits.get(connection), _waits_for(connection)
        if what is None:  # an answer that was waited for before may be waited for again
            return known if known is not None and known.cycle is connection.cycle else None
        if known is None or (known.cycle, known.what) != (connection.cycle, what):
            return _Wait(connection.cycle, what)
        return _Wait(connection.cycle, what, known.seconds + passed)

    def _close_slow(self, connections: list[H11Protocol]) -> None:
        there, of_address = len(connections), Counter(map(_address, connections))
        slow = [
            (wait.seconds, one)
            for one, wait in self._waits.items()
            if wait.seconds > 0 and _waits_for(one) is not None  # not one that came since the last time
        ]
        for seconds, one in sorted(slow, key=lambda pair: -pair[0]):
            address = _address(one)
            late = seconds > self._limits.seconds
            crowd = there > self._limits.connections or of_address[address] > self._limits.of_address
            if late or crowd:
                _close(one, "408 Request Timeout" if late else "503 Service Unavailable")
                there -= 1
                of_address[address] -= 1


def _waits_for(connection: H11Protocol) -> Literal["request", "answer"] | None:
    """What the client keeps the server waiting for; None while the server is at work."""
    cycle = connection.cycle
    if connection.flow.write_paused or connection.transport.get_write_buffer_size():
        return "answer"
    if connection.transport.is_closing():
        return None
    return "request" if cycle is None or cycle.response_complete or cycle.more_body else None


def _address(connection: H11Protocol) -> str:
    return connection.client[0] if connection.client else ""


def _close(connection: H11Protocol, status: str) -> None:
    """Close a connection, with an answer when one is due."""
    cycle, transport = connection.cycle, connection.transport
    if _waits_for(connection) == "answer":
        transport.abort()  # closing would wait until everything is taken
        return
    due = connection.conn.trailing_data[0] or (cycle is not None and cycle.more_body)
    if due and not (cycle is not None and cycle.response_started and not cycle.response_complete):
        transport.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
    transport.close()


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
            body = await _read(receive)
            if body is None:
                return
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


async def _read(receive: Receive) -> bytes | None:
    """A whole body, of a large one only the beginning, so that its sender gets a refusal; None if cut off."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        more = message.get("more_body", False)
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
