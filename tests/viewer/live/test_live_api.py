"""The live page's interface: what it answers, what it refuses and in which words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenemem.errors import UserError
from scenemem.formats.traces import Trace
from scenemem.viewer.live_server import HEADERS
from scenemem.viewer.live_state import FAILED, LiveServerState
from scenemem.viewer.traces import trace_episodes

MakeState = Callable[..., LiveServerState]
Serve = Callable[..., AbstractContextManager[str]]
START: dict[str, Any] = {"house": "grid", "start": "g00"}
ROUTE = START | {"goal": "g22"}
WISH = START | {"heading_degrees": 90.0, "instruction": "Walk from g00 to g22."}


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events, each of which is named by its type."""
    blocks = [block.split("\n") for block in text.split("\n\n") if not block.startswith(":")][:-1]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    return events


def traced(state: LiveServerState, name: str, wish: dict[str, Any]) -> Trace:
    """The walk computed without any server."""
    place, text = (wish["house"], wish["start"], wish["heading_degrees"]), wish["instruction"]
    episode = state.episode(*place, text, wish.get("goal"))
    return trace_episodes(state.agents[name], episode, name=name)[0]


def body(**change: Any) -> bytes:
    """A wish as it is sent."""
    return json.dumps(WISH | change).encode()


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


WORDS = ["🏠➡️🛋️", "去厨房", "\u202eback\u0000wards\n\n\ndata: x", "a" * 2000, "İ ﬁ \U0001f600", "?!", "  x "]
WALKS: list[dict[str, str]] = [{}, {"goal": "g22"}, *({"instruction": text} for text in WORDS)]


@pytest.mark.parametrize("change", WALKS)
def test_streamed_moves_are_those_of_the_walk(
    client: httpx.Client, state: LiveServerState, change: dict[str, str]
) -> None:
    wish = WISH | change
    answer = client.post("/api/walks", json=wish)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    for number, name in enumerate(state.agents):
        trace = traced(state, name, wish)
        own = [event for event in events if event["agent"] == number]
        assert [event["type"] for event in own] == ["opened", *["move"] * len(trace.moves), "ended"]
        assert own[0]["task"] == plain(trace.task)
        assert own[0]["task"]["text"] == wish["instruction"]
        assert own[0]["to_goal"] == [place.to_goal for place in trace.scene.places]
        assert [event["move"] for event in own[1:-1]] == plain(trace.moves)
        assert [event["number"] for event in own[1:-1]] == list(range(len(trace.moves)))
        assert all(event["caption"].startswith("Move ") for event in own[1:-1])
        assert own[-1]["ending"] == plain(trace.ending)
        assert ("m from the goal" if "goal" in change else "not scored") in own[-1]["caption"]


BROKEN = "unable to parse raw data as a unicode string"
REFUSED = [
    (body(house="atlantis"), 404, "unknown house 'atlantis'; this world has 3 houses"),
    (body(start="g99"), 404, "'grid' has no place 'g99'"),
    (body(goal="s0"), 404, "'grid' has no place 's0'"),
    (body(start="g-alone"), 422, "no way leads on from 'g-alone'; choose another start"),
    (body(goal="g-alone"), 422, "no way leads from grid_g00 to grid_g-alone"),
    (body(instruction=""), 422, "instruction: String should have at least 1 character"),
    (body(instruction=" \t\u3000\n"), 422, "instruction: the instruction is empty; say where to go"),
    (body(instruction="a" * 2001), 422, "instruction: String should have at most 2000 characters"),
    (body(instruction=7), 422, "instruction: Input should be a valid string"),
    (body(instruction="\ud800"), 422, f"instruction: Input should be a valid string, {BROKEN}"),
    (body(heading_degrees=361), 422, "heading_degrees: Input should be less than or equal to 360"),
    (body(heading_degrees=math.nan), 422, "heading_degrees: Input should be a finite number"),
    (body(hedding=1), 422, "hedding: Extra inputs are not permitted"),
    (b"{", 422, "the body is not JSON"),
    (b"", 422, "the body: Field required"),
    (b"\xff\xff", 400, "There was an error parsing the body"),
    (b"[" * 30_000, 400, "There was an error parsing the body"),
    (b"[]", 422, "the body: Input should be a valid dictionary or object to extract fields from"),
]


@pytest.mark.parametrize(("content", "status", "detail"), REFUSED, ids=[detail for *_, detail in REFUSED])
def test_wrong_wishes_are_explained(client: httpx.Client, content: bytes, status: int, detail: str) -> None:
    answer = client.post("/api/walks", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})


HIDDEN = (
    *("/static/../live.py", "/static/%2e%2e/live.py", "/static/..%2f..%2f..%2fpyproject.toml"),
    *("/static//etc/passwd", "/static/live.html", "/api/houses/..%2f..%2fetc"),
    *("/docs", "/redoc", "/openapi.json", "/nowhere"),
)


def test_the_page_is_served_with_its_guards_and_nothing_beside_it(client: httpx.Client) -> None:
    kinds = {"/": "text/html", "/static/live.js": "text/javascript", "/static/live.css": "text/css"}
    for path, kind in kinds.items():
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers
    page = client.get("/").text
    assert "<script src=" in page
    assert page.count("<script") == 1, "nothing inline, the policy would not run it"
    assert " style=" not in page
    for path in HIDDEN:
        answer = client.get(path)
        assert (answer.status_code, set(answer.json())) == (404, {"detail"}), path


OWN = ("127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]:8765", "127.0.0.9")
EVIL = ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "[::1", "")
OTHERS = ("0.0.0.0", "10.0.0.1", "[::]")


@pytest.mark.parametrize("host", [*OWN, *EVIL, *OTHERS])
def test_only_names_of_this_machine_are_answered(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/session", headers={"Host": host})
    assert answer.status_code == (200 if host in OWN else 421)
    told = {"detail": f"this server only answers to localhost, not to '{host}'"}
    assert host in OWN or answer.json() == told


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "http://[::1"])
def test_other_pages_are_not_answered(client: httpx.Client, origin: str) -> None:
    answer = client.post("/api/walks", json=WISH, headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json() == {"detail": "requests from other pages are not answered"}
    own = client.get("/api/session", headers={"Origin": str(client.base_url).rstrip("/")})
    assert own.status_code == 200


def test_the_session_says_what_there_is_and_houses_and_looks_can_be_read(client: httpx.Client) -> None:
    session = client.get("/api/session").json()
    assert session["agents"] == ["ssm", "basic"]
    assert session["speaker"] == {"name": "parrot", "off_because": None}
    assert {"house": "grid", "places": 13, "examples": 1, "split": "train"} in session["houses"]
    house = client.get("/api/houses/grid").json()
    assert len(house["scene"]["places"]) == 13
    assert house["examples"] == [{"text": "Walk on.", "start": 0, "heading": 0.5, "goal": 3}]
    assert client.get("/api/houses/grid/looks/3").json() == {"picture": None, "labels": [], "captions": {}}
    for path, detail in {
        "atlantis": "unknown house 'atlantis'; this world has 3 houses",
        "atlantis/looks/0": "unknown house 'atlantis'; this world has 3 houses",
        "grid/looks/13": "'grid' has 13 places, no number 13",
    }.items():
        answer = client.get(f"/api/houses/{path}")
        assert (answer.status_code, answer.json()) == (404, {"detail": detail})
    assert client.get("/api/houses/grid/looks/-1").status_code == 422


def test_the_speaker_describes_routes(client: httpx.Client, state: LiveServerState) -> None:
    answer = client.post("/api/descriptions", json=ROUTE)
    assert answer.status_code == 200
    world, path = state.world, answer.json()["path"]
    begin, end = (world.index_of("grid", name) for name in ("g00", "g22"))
    assert (path[0], path[-1]) == (int(world.local[begin]), int(world.local[end]))
    metres = float(world.geodesic(torch.tensor(begin), torch.tensor(end)))
    assert answer.json()["metres"] == pytest.approx(metres, abs=0.01)
    edges = {frozenset(edge) for edge in client.get("/api/houses/grid").json()["scene"]["edges"]}
    assert all(frozenset(step) in edges for step in pairwise(path))
    again = client.post("/api/descriptions", json=ROUTE | {"heading_degrees": 0.0}).json()
    assert answer.json()["log_likelihood"] != again["log_likelihood"], "the first view differs"
    same = client.post("/api/descriptions", json=ROUTE | {"goal": "g00"})
    assert (same.status_code, same.json()["detail"]) == (422, "start and goal are the same place; choose two")


def test_a_public_page_without_a_speaker_answers_other_hosts_and_says_why(
    state: LiveServerState, serve: Serve
) -> None:
    mute = LiveServerState(state.agents, state.sceneries)
    with serve(mute, local=False) as address, httpx.Client(base_url=address) as client:
        reason = "no packaged speaker knows these features; start the page with --speaker RUN"
        session = client.get("/api/session", headers={"Host": "rover.example"})
        assert session.json()["speaker"] == {"name": None, "off_because": reason}
        answer = client.post("/api/descriptions", json=ROUTE)
        assert (answer.status_code, answer.json()["detail"]) == (409, reason)


def test_failures_tell_nothing_of_the_inside(
    make_state: MakeState, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    state = make_state("ssm", "basic")

    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("secret path /home/someone")

    state.agents["ssm"].walk = explode  # type: ignore[method-assign, assignment]
    with serve(state) as address, httpx.Client(base_url=address, timeout=30) as client:
        events = events_of(client.post("/api/walks", json=WISH).text)
        assert {"type": "failed", "agent": 0, "detail": FAILED} in events
        assert events[-1]["type"] == "ended", "the other agent is not concerned"
        state.speaker.describe_best = explode  # type: ignore[method-assign, union-attr]
        answer = client.post("/api/descriptions", json=ROUTE)
        assert answer.status_code == 500
        assert answer.json() == {"detail": "something went wrong; the log of the server says what"}
    assert "secret path" in caplog.text


def test_a_state_is_checked(state: LiveServerState, make_state: MakeState) -> None:
    with pytest.raises(ValueError, match="at least one agent"):
        LiveServerState({}, state.sceneries)
    other = make_state("basic").agents["basic"]
    world = other.environment.world
    object.__setattr__(other.environment, "world", replace(world, viewpoints=world.viewpoints[::-1]))
    with pytest.raises(UserError, match="the runs do not share one world"):
        LiveServerState({**state.agents, "other": other}, state.sceneries)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)
BODIES = st.fixed_dictionaries(
    {}, optional={name: st.just(value) | VALUES for name, value in (WISH | ROUTE).items()}
)


@given(
    body=BODIES | VALUES,
    house=st.just("grid") | st.text(max_size=30),
    place=st.integers() | st.text(max_size=10),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(
    client: httpx.Client, body: Any, house: str, place: int | str
) -> None:
    content = json.dumps(body).encode()
    for path in ("/api/walks", "/api/descriptions"):
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404, 422), answer.text
        assert answer.status_code == 200 or list(answer.json()) == ["detail"]
    path, number = (quote(str(part), safe="", errors="surrogatepass") for part in (house, place))
    for address in (f"/api/houses/{path}", f"/api/houses/{path}/looks/{number}"):
        answer = client.get(address)
        assert answer.status_code in (200, 307, 404, 422), answer.text
