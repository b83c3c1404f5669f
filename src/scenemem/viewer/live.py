"""The live page as a web application: agents walk wherever a visitor sends them, move by move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import AfterValidator, BaseModel, Field

from scenemem.errors import UserError
from scenemem.viewer.live_server import Guards
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

WAITING = 16
"""Walks and descriptions that may wait for the one under way."""

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


def live_app(state: LiveServerState, *, local: bool = True, waiting: int = WAITING) -> FastAPI:
    """The live page as an application; ``local`` as in ``Guards``, ``waiting`` as in ``LiveWorker``."""
    worker = LiveWorker(state, waiting)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.add_middleware(Guards, local=local)
    _add_errors(app)
    _add_files(app)
    _add_houses(app, state, worker)
    _add_walks(app, state, worker)
    return app


def _add_files(app: FastAPI) -> None:
    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(render("live.html"))

    @app.get("/static/replay.html")
    async def frame() -> Response:
        return Response(replay_frame(), media_type="text/plain")  # no page before its data is in it

    @app.get("/static/live.js")
    async def script() -> Response:
        return Response(scripts(*DRAWING, *_OWN_SCRIPTS), media_type="text/javascript")

    @app.get("/static/live.css")
    async def style() -> Response:
        return Response(styles("replay", "live"), media_type="text/css")


def _add_houses(app: FastAPI, state: LiveServerState, worker: LiveWorker) -> None:
    @app.get("/api/session")
    async def session() -> dict[str, Any]:
        """Agents, houses and the speaker, or why there is none."""
        off = None if state.speaker else NO_SPEAKER
        return {
            "agents": list(state.agents),
            "speaker": {"name": state.speaker_name if state.speaker else None, "off_because": off},
            "houses": [
                {
                    "house": name,
                    "places": places,
                    "examples": len(state.examples.get(name, ())),
                    "split": state.groups.get(name, ""),
                }
                for name, places in state.houses.items()
            ],
        }

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


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def not_valid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, _first_mistake(error))

    @app.exception_handler(UserError)
    async def impossible(_request: Request, error: UserError) -> JSONResponse:
        return _problem(404 if isinstance(error, UnknownError) else 422, str(error))

    @app.exception_handler(BusyError)
    async def busy(_request: Request, error: BusyError) -> JSONResponse:
        return _problem(503, str(error))


def _first_mistake(error: RequestValidationError) -> str:
    """One line; what was sent is not repeated, it may be large or impossible to encode."""
    mistake = error.errors()[0]
    if mistake["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in mistake["loc"][1:]) or "the body"
    return f"{where}: {mistake['msg'].removeprefix('Value error, ')}"


def _problem(status: int, detail: str) -> JSONResponse:
    plain = detail.encode("utf-8", "replace").decode()  # names of houses come from outside
    return JSONResponse({"detail": plain}, status_code=status)


def _json(record: object) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")
