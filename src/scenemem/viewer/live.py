"""The live page as a web application: agents walk wherever a visitor sends them, round by round."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from scenemem import __version__
from scenemem.errors import UserError
from scenemem.viewer.live_bench import BusyError
from scenemem.viewer.live_events import WalkEnded, WalkFailed, WalkOpened, WalkRound, encoded
from scenemem.viewer.live_guards import Guards
from scenemem.viewer.live_page import page, script, style
from scenemem.viewer.live_schema import (
    Description,
    DescriptionRequest,
    HouseSummary,
    Problem,
    Session,
    SpeakerState,
    WalkRequest,
)
from scenemem.viewer.live_session import LiveLimits, LiveSession
from scenemem.viewer.live_stage import NO_SPEAKER, HouseView, Stage, UnknownError
from scenemem.viewer.replay import replay_frame
from scenemem.viewer.scenery import Look

_RETRY = "2"  # seconds
_SUMMARY = """Agents that follow instructions through houses they may never have seen.

Numbers of *places* count the places of a house in the order of `scene.places`, numbers of *nodes* the places
an agent remembers. Angles in answers are radians, headings clockwise from north. Refusals are
`{"detail": "why"}`."""

Answers = dict[int | str, dict[str, Any]]
"""What a route may answer, by status."""

_BROWSED = {
    403: "asked by another page",
    408: "the request took too long",
    421: "asked under a foreign host name",
}
_POSTED = {400: "not JSON that can be read", 413: "the request is too large"}
_RECORDS = (HouseView, Look, WalkOpened, WalkRound, WalkEnded, WalkFailed)


def live_app(stage: Stage, *, local: bool = True, limits: LiveLimits | None = None) -> FastAPI:
    """The application that serves a stage.

    Args:
        stage: agents, houses and perhaps a speaker.
        local: only answer requests that name this machine as their host.
        limits: how much is done at once.
    """
    session = LiveSession(stage, limits)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        session.close()

    app = FastAPI(
        title="SceneMem live page",
        summary="Watch agents decide",
        description=_SUMMARY,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both pages would load scripts from the web
        redoc_url=None,
    )
    app.add_middleware(
        Guards,
        largest=session.limits.body,
        patience=session.limits.patience,
        local=local,
    )
    _add_errors(app)
    _add_page(app)
    _add_houses(app, session)
    _add_walks(app, session)
    _add_descriptions(app, session)
    app.openapi_schema = _with_records(app.openapi())
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return HTMLResponse(page())

    @app.get("/static/replay.html", include_in_schema=False)
    async def frame() -> Response:
        return Response(replay_frame(), media_type="text/plain")  # no page before its data is in it

    @app.get("/static/live.js", include_in_schema=False)
    async def scripts() -> Response:
        return Response(script(), media_type="text/javascript")

    @app.get("/static/live.css", include_in_schema=False)
    async def styles() -> Response:
        return Response(style(), media_type="text/css")


def _add_houses(app: FastAPI, session: LiveSession) -> None:
    stage = session.stage

    @app.get("/api/session", tags=["houses"], responses=_problems(_BROWSED))
    async def what_there_is() -> Session:
        """Agents, houses and the speaker, or why there is none."""
        off = None if stage.speaker else NO_SPEAKER
        return Session(
            agents=list(stage.agents),
            speaker=SpeakerState(name=stage.speaker_name if stage.speaker else None, off_because=off),
            houses=[
                HouseSummary(house=name, places=places, examples=len(stage.examples.get(name, ())))
                for name, places in stage.houses.items()
            ],
        )

    @app.get(
        "/api/houses/{house}",
        tags=["houses"],
        responses=_problems(_BROWSED, {404: "unknown house"}, busy=True) | _record(HouseView, "the house"),
    )
    async def house_view(house: Annotated[str, Path(description="a house of this world")]) -> Response:
        """The places of a house, its rooms, and instructions to try in it."""
        return _json(await session.view(house))

    @app.get(
        "/api/houses/{house}/looks/{place}",
        tags=["houses"],
        responses=_problems(_BROWSED, {404: "unknown house or place"}, busy=True) | _record(Look, "the look"),
    )
    async def look(
        house: Annotated[str, Path(description="a house of this world")],
        place: Annotated[int, Path(ge=0, le=1_000_000, description="number of a place in that house")],
    ) -> Response:
        """What one sees all around a place: a picture, or the names of things."""
        return _json(await session.look(house, place))


def _add_walks(app: FastAPI, session: LiveSession) -> None:
    events = (
        "a stream of `opened`, `round`, `ended` and `failed` events; the data of each is one line of JSON"
    )
    schemas = [_reference(kind) for kind in (WalkOpened, WalkRound, WalkEnded, WalkFailed)]
    stream: Answers = {
        200: {"description": events, "content": {"text/event-stream": {"schema": {"anyOf": schemas}}}}
    }

    @app.post(
        "/api/walks",
        tags=["walks"],
        response_class=StreamingResponse,
        responses=_problems(_BROWSED, _POSTED, {404: "unknown house or place"}, busy=True) | stream,
    )
    async def walk(wish: WalkRequest) -> StreamingResponse:
        """Let every agent follow an instruction; each round is sent as it happens (server-sent events)."""
        order = session.stage.order(wish.house, wish.start, wish.heading_degrees, wish.instruction, wish.goal)
        view = await session.view(wish.house)
        walking = session.walk(order, view.scenery.room_of)

        async def sent() -> AsyncIterator[bytes]:
            async for event in walking:
                yield b": still here\n\n" if event is None else encoded(event)

        return StreamingResponse(sent(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _add_descriptions(app: FastAPI, session: LiveSession) -> None:
    @app.post(
        "/api/descriptions",
        tags=["descriptions"],
        responses=_problems(
            _BROWSED, _POSTED, {404: "unknown house or place", 409: "there is no speaker"}, busy=True
        ),
    )
    async def describe(wish: DescriptionRequest) -> Description:
        """Let the speaker put the shortest route between two places into words."""
        route = session.stage.route(wish.house, wish.start, wish.goal, wish.heading_degrees)
        if session.stage.speaker is None:
            raise _NoSpeakerError
        return await session.describe(route)


class _NoSpeakerError(Exception):
    """Nobody can describe a route here."""


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def not_valid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, _first_mistake(error))

    @app.exception_handler(UnknownError)
    async def unknown(_request: Request, error: UnknownError) -> JSONResponse:
        return _problem(404, str(error))

    @app.exception_handler(UserError)
    async def impossible(_request: Request, error: UserError) -> JSONResponse:
        return _problem(422, str(error))

    @app.exception_handler(_NoSpeakerError)
    async def no_speaker(_request: Request, _error: _NoSpeakerError) -> JSONResponse:
        return _problem(409, NO_SPEAKER)

    @app.exception_handler(BusyError)
    async def busy(_request: Request, _error: BusyError) -> JSONResponse:
        return _problem(503, "too many visitors at once; try again in a moment", {"Retry-After": _RETRY})


def _first_mistake(error: RequestValidationError) -> str:
    """One line; what was sent is not repeated, it may be large or impossible to encode."""
    mistake = error.errors()[0]
    if mistake["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in mistake["loc"][1:]) or "the body"
    return f"{where}: {mistake['msg'].removeprefix('Value error, ')}"


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    plain = detail.encode("utf-8", "replace").decode()  # names of houses come from outside
    return JSONResponse({"detail": plain}, status_code=status, headers=headers)


def _problems(*tables: dict[int, str], busy: bool = False) -> Answers:
    """Refusals a route declares."""
    every = {status: text for table in tables for status, text in table.items()}
    every[422] = "something in the request is not possible"
    answers: Answers = {
        status: {"model": Problem, "description": text} for status, text in sorted(every.items())
    }
    if busy:
        retry = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
        answers[503] = {"model": Problem, "description": "too many visitors at once", "headers": retry}
    return answers


def _record(kind: type, text: str) -> Answers:
    return {200: {"description": text, "content": {"application/json": {"schema": _reference(kind)}}}}


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _json(record: Any) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")


def _with_records(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the records of traces, which are described by their own types."""
    _, records = msgspec.json.schema_components(_RECORDS, ref_template="#/components/schemas/{name}")
    schema["components"]["schemas"] |= records
    return schema
