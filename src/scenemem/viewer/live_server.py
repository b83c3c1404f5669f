"""The server of the live page: its routes, what it answers, and how long a client may keep it waiting."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import uvicorn
from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import AfterValidator, BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scenemem.errors import UserError
from scenemem.viewer.live_state import (
    NO_SPEAKER,
    BusyError,
    LiveServerState,
    LiveWorker,
    UnknownError,
    encoded,
)
from scenemem.viewer.pages import render, scripts, styles
from scenemem.viewer.replay import DRAWING, replay_frame

log = logging.getLogger(__name__)

WAITING = 16
"""Walks and descriptions that may wait for the one under way."""

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
_OWN_SCRIPTS = ("live_stream", "live_map", "live_player", "live_keep", "live")


def _says_something(text: str) -> str:
    if not text.strip():
        raise ValueError("the instruction is empty; say where to go")
    return text


Name = Annotated[str, Field(max_length=200)]
Degrees = Annotated[float, Field(ge=-360.0, le=360.0, allow_inf_nan=False)]
Instruction = Annotated[str, Field(min_length=1, max_length=2_000), AfterValidator(_says_something)]


class WalkRequest(BaseModel, extra="forbid"):
    """Let every agent follow an instruction; the agents never see the goal."""

    house: Name
    start: Name  # viewpoint
    heading_degrees: Degrees = 0.0  # clockwise from north
    instruction: Instruction
    goal: Name | None = None  # viewpoint


class DescriptionRequest(BaseModel, extra="forbid"):
    """Let the speaker describe the shortest route between two viewpoints."""

    house: Name
    start: Name
    goal: Name
    heading_degrees: Degrees | None = None  # along the route when left out


def live_app(state: LiveServerState, *, local: bool = True, waiting: int = WAITING) -> ASGIApp:
    """The live page as an application; ``local`` as in ``Guards``, ``waiting`` as in ``LiveWorker``."""
    worker = LiveWorker(state, waiting)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    for error in (RequestValidationError, UserError, BusyError, Exception):
        app.add_exception_handler(error, _explained)
    _add_files(app)
    _add_houses(app, state, worker)
    _add_walks(app, state, worker)
    return Guards(app, local=local)


def _add_files(app: FastAPI) -> None:
    files = {
        "/": (render("live.html"), "text/html"),
        "/static/replay.html": (replay_frame(), "text/plain"),  # no page before its data is in it
        "/static/live.js": (scripts(*DRAWING, *_OWN_SCRIPTS), "text/javascript"),
        "/static/live.css": (styles("replay", "live"), "text/css"),
    }
    for path, (content, kind) in files.items():
        app.add_route(path, partial(_file, content, kind))


async def _file(content: str, kind: str, _request: Request) -> Response:
    return Response(content, media_type=kind)


def _add_houses(app: FastAPI, state: LiveServerState, worker: LiveWorker) -> None:
    @app.get("/api/session")
    async def session() -> dict[str, Any]:
        """Agents, houses and the speaker, or why there is none."""
        off = None if state.speaker else NO_SPEAKER
        speaker = {"name": state.speaker_name if state.speaker else None, "off_because": off}
        houses = [
            {
                "house": name,
                "places": places,
                "examples": len(state.examples.get(name, ())),
                "split": state.groups.get(name, ""),
            }
            for name, places in state.houses.items()
        ]
        return {"agents": list(state.agents), "speaker": speaker, "houses": houses}

    @app.get("/api/houses/{house}")
    async def view(house: str) -> Response:
        """The places of a house, its rooms, and instructions to try in it."""
        return _json(await worker.draw(state.view, house))

    @app.get("/api/houses/{house}/looks/{place}")
    async def look(house: str, place: Annotated[int, Path(ge=0, le=1_000_000)]) -> Response:
        """What one sees all around a place: a picture, or the names of things."""
        return _json(await worker.draw(state.look, house, place))


def _add_walks(app: FastAPI, state: LiveServerState, worker: LiveWorker) -> None:
    @app.post("/api/walks")
    async def walk(request: WalkRequest) -> StreamingResponse:
        """Let every agent follow an instruction; each move is sent as it happens (server-sent events)."""
        episode = state.episode(
            request.house, request.start, request.heading_degrees, request.instruction, request.goal
        )
        view = await worker.draw(state.view, request.house)
        events = worker.walk(episode, view.scenery.room_of)
        return StreamingResponse((encoded(event) async for event in events), media_type="text/event-stream")

    @app.post("/api/descriptions")
    async def describe(request: DescriptionRequest) -> Response:
        """Let the speaker put the shortest route between two places into words."""
        if state.speaker is None:
            raise HTTPException(409, NO_SPEAKER)
        route = request.house, request.start, request.goal, request.heading_degrees
        return _json(await worker.submit(state.describe, *route))


async def _explained(_request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that failed."""
    if isinstance(error, RequestValidationError):
        return _refused(422, _first_mistake(error))
    if not isinstance(error, (UserError, BusyError)):
        log.error("a request to the live page failed", exc_info=error)
        return _refused(500, "something went wrong; the log of the server says what")
    status = 503 if isinstance(error, BusyError) else 404 if isinstance(error, UnknownError) else 422
    return _refused(status, str(error))


def _first_mistake(error: RequestValidationError) -> str:
    """One line; what was sent is not repeated, it may be large or impossible to encode."""
    mistake = error.errors()[0]
    if mistake["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in mistake["loc"][1:]) or "the body"
    return f"{where}: {mistake['msg'].removeprefix('Value error, ')}"


def _refused(status: int, detail: str) -> JSONResponse:
    plain = detail.encode("utf-8", "replace").decode()  # names of houses come from outside
    return JSONResponse({"detail": plain}, status_code=status)


def _json(record: object) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")


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
        log_level="critical",  # complaints about requests must not fill a disk; our own errors are logged
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
        before, self._looked = self._looked, time.monotonic()
        waits = {one: self._wait(one, self._looked - before) for one in connections}
        self._waits = {one: wait for one, wait in waits.items() if wait is not None}
        self._close_slow(connections)
        return await super().on_tick(counter)

    def _wait(self, connection: H11Protocol, passed: float) -> _Wait | None:
        """What a connection waits for, ``passed`` seconds later; None if it has waited for nothing."""
        known, what = self._waits.get(connection), _waits_for(connection)
        if what is None:  # an answer that was waited for before may be waited for again
            return known if known is not None and known.cycle is connection.cycle else None
        goes_on = known is not None and (known.cycle, known.what) == (connection.cycle, what)
        return _Wait(connection.cycle, what, known.seconds + passed if known and goes_on else 0.0)

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
    """Refuses foreign requests and large ones, and sends the headers of this module with every answer.

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

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._foreign(Headers(scope=scope)) or self._app
        await app(scope, partial(_whole_body, receive), send_guarded)

    def _foreign(self, headers: Headers) -> ASGIApp | None:
        """A refusal for requests that other pages make."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._local and not is_loopback(_split(f"//{host}")[0]):
            return _refused(421, f"this server only answers to localhost, not to '{host[:100]}'")
        if origin is not None and _split(origin)[1] != host.lower():
            return _refused(403, "requests from other pages are not answered")
        return None


async def _whole_body(receive: Receive) -> Message:
    """A body in one message; a large one is read to its end, so that its sender gets the refusal."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return message
        more = message.get("more_body", False)
        body.extend(message.get("body", b"")[: LARGEST + 1 - len(body)])
    if len(body) > LARGEST:
        raise HTTPException(413, f"the request is larger than {LARGEST} bytes")
    return {"type": "http.request", "body": bytes(body), "more_body": False}


def _split(address: str) -> tuple[str, str]:
    """The host name of an address, and its host with the port; both empty when it makes no sense."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.netloc.lower()
    except ValueError:
        return "", ""
