"""The server of the live page: visitors get in however many connections others hold open half-way."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256
"""Open at once; one more closes the one that has kept us waiting for longest, half-sent requests first."""

ACCEPTED_AT_ONCE = 32
"""Connections taken before those that are there are read again. It has to be far fewer than may be open: in a
flood a visitor whose request has arrived would else be closed before anybody has looked at it."""

HEADER_SECONDS = 10.0
"""In which the headers of a request have to arrive."""

_GRACE = 2  # seconds for open streams when the server is stopped
_IDLE = 60  # seconds an unused connection is kept; a visitor thinks before the next walk
_LARGEST_HEADERS = 16 * 1024  # bytes
_MOST_MESSAGES = 1000  # of the server in its log


def live_server(
    app: ASGIApp, *, most_connections: int = MOST_CONNECTIONS, header_seconds: float = HEADER_SECONDS
) -> uvicorn.Server:
    """A server for the live page, to be run on a socket that listens."""
    config = uvicorn.Config(
        app,
        http=_protocol(most_connections, header_seconds),
        ws="none",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=_IDLE,
        backlog=ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=_LARGEST_HEADERS,
    )
    logger = logging.getLogger("uvicorn.error")
    if not any(isinstance(known, LogLimit) for known in logger.filters):
        logger.addFilter(LogLimit(_MOST_MESSAGES))
    return uvicorn.Server(config)


class LogLimit(logging.Filter):
    """Lets a number of messages through, so that nobody can fill the disk with our complaints about them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the message; the last one says that no more will come."""
        if self._left == 1:
            record.msg, record.args = f"{record.getMessage()} (further messages are left out)", ()
        self._left -= 1
        return self._left >= 0


def _protocol(most: int, seconds: float) -> type[asyncio.Protocol]:
    """A protocol whose connections are bounded in number and in the time they take for their headers."""
    # connections without a request under way, those that wait longest first: half-sent ones, and silent ones
    begun: dict[Guarded, None] = {}
    silent: dict[Guarded, None] = {}

    class Guarded(H11Protocol):
        """One connection."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Take a connection; when there are too many, one that only waits has to go."""
            super().connection_made(transport)
            if len(self.connections) > most:
                oldest = next(iter(begun or silent), self)
                oldest._settle()
                oldest.transport.abort()
            self._expect_headers(silent)

        def data_received(self, data: bytes) -> None:
            """Take what has arrived; a request whose headers are complete has all the time it needs."""
            super().data_received(data)
            self._look(more=True)

        def on_response_complete(self) -> None:
            """Wait for the next request, the beginning of which may have come already."""
            super().on_response_complete()
            self._look(more=bool(self.conn.trailing_data[0]))

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget a connection."""
            self._settle()
            super().connection_lost(exc)

        def _look(self, *, more: bool) -> None:
            """See whether a request is under way; ``more`` than that has arrived."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._settle()
            elif more and not self.transport.is_closing():
                silent.pop(self, None)
                self._expect_headers(begun)
            else:
                silent[self] = None  # for as long as unused connections are kept

        def _expect_headers(self, among: dict[Guarded, None]) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.abort)
            among[self] = None

        def _settle(self) -> None:
            begun.pop(self, None)
            silent.pop(self, None)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Guarded
