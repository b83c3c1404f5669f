"""The server under load: slow clients, several visitors, visitors who leave, a full queue, large requests."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from torch import Tensor

from scenemem.agents.walker import TrainedAgent, take_best
from scenemem.viewer.live_server import Guards, Limits, live_server
from scenemem.viewer.live_state import PICTURES, BusyError, LiveServerState, LiveWorker
from scenemem.viewer.traces import trace_episodes
from tests.viewer.live.conftest import running

HEAD = b"Host: 127.0.0.1\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n"
SLOW = {
    "silent": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: local",
    "one byte of a body": b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\nx",
    "never reading": b"GET /300000 HTTP/1.1\r\n" + HEAD + b"\r\n",  # bytes; the page itself sends less
}


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        message = await receive()
        if message["body"] == b"busy":
            time.sleep(1)  # the whole server waits
        size = scope["path"].removeprefix("/")
        await PlainTextResponse("x" * int(size) if size else message["body"])(scope, receive, send)


@contextmanager
def _serving(limits: Limits | None = None) -> Iterator[int]:
    """The port of a server."""
    with running(live_server(Guards(_echo, local=True), limits)) as port:
        yield port


def _sent(port: int, text: bytes, source: str = "127.0.0.1") -> socket.socket:
    """A connection on which that much was sent and nothing is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    connection.sendall(text)
    return connection


def _received(connection: socket.socket, seconds: float = 5) -> bytes:
    """Everything until the server closes the connection."""
    connection.settimeout(seconds)
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of 500 connections are open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("kind", ["half a head", "one byte of a body", "never reading"])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["own address", "other address"])
def test_500_slow_clients_do_not_keep_a_visitor_waiting(kind: str, source: str) -> None:
    with _serving() as port, ExitStack() as opened:
        for _ in range(500):
            opened.enter_context(_sent(port, SLOW[kind], source))
        for _ in range(3):
            begun = time.monotonic()
            with _sent(port, GET) as visitor:
                assert visitor.recv(1000).startswith(b"HTTP/1.1 200")
            assert time.monotonic() - begun < 2


def test_a_flood_does_not_close_visitors_whose_request_has_arrived() -> None:
    with _serving(Limits(connections=64)) as port, ExitStack() as opened:
        busy = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\nbusy"
        opened.enter_context(_sent(port, busy))
        time.sleep(0.3)  # from here on nothing is read for a while
        visitor = opened.enter_context(_sent(port, GET))
        for _ in range(150):
            flood = opened.enter_context(socket.socket())
            flood.setblocking(False)
            flood.connect_ex(("127.0.0.1", port))
        assert visitor.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_request_that_does_not_arrive_in_time_is_given_up() -> None:
    texts = (*list(SLOW.values())[:3], GET + SLOW["half a head"])
    with _serving(Limits(seconds=0.3)) as port, ExitStack() as opened:
        connections = [opened.enter_context(_sent(port, text)) for text in texts]
        answers = [_received(connection)[:12] for connection in connections]
    assert answers == [b"", b"HTTP/1.1 408", b"HTTP/1.1 408", b"HTTP/1.1 200"]


def test_bytes_now_and_then_are_no_way_round_the_deadline() -> None:
    with _serving(Limits(seconds=1)) as port, _sent(port, SLOW["one byte of a body"]) as connection:
        begun = time.monotonic()
        with pytest.raises(OSError, match=r"reset|pipe"):
            while time.monotonic() - begun < 10:
                connection.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - begun < 5


def test_an_answer_that_is_not_taken_in_time_is_given_up() -> None:
    large = 8_000_000  # bytes, more than the kernel keeps for a client
    request = SLOW["never reading"].replace(b"300000", str(large).encode())
    with _serving(Limits(seconds=0.5)) as port, _sent(port, request) as connection:
        time.sleep(1.5)
        assert len(_received(connection)) < large


def test_too_many_of_one_address_are_told_so() -> None:
    with _serving(Limits(of_address=5)) as port, ExitStack() as opened:
        slow = [opened.enter_context(_sent(port, SLOW["half a head"])) for _ in range(8)]
        other = opened.enter_context(_sent(port, SLOW["half a head"], "127.0.0.2"))
        time.sleep(0.5)
        closed = []
        for connection in (*slow, other):
            connection.setblocking(False)
            try:
                closed.append(connection.recv(1000).split(b"\r\n")[0])
            except BlockingIOError:
                closed.append(b"open")
    assert sorted(closed[:8]) == [b"HTTP/1.1 503 Service Unavailable"] * 3 + [b"open"] * 5
    assert closed[8] == b"open"


Serve = Callable[..., AbstractContextManager[str]]
CLIENTS, WALKS = 8, 6  # each client walks that often


@pytest.fixture
def state(make_state: Callable[..., LiveServerState]) -> LiveServerState:
    return make_state("ssm")


def _wishes(state: LiveServerState) -> list[dict[str, Any]]:
    """Different walks: every start, several headings and instructions of different lengths."""
    world = state.world
    return [
        {
            "house": world.scans[int(world.scan_of[number])],
            "start": start,
            "heading_degrees": 45.0 * turn,
            "instruction": f"Walk from {start} {turn}." + " Go on past g11!" * turn,
        }
        for number, start in enumerate(world.viewpoints)
        for turn in range(3 if int(world.degree[number]) else 0)
    ]


def _alone(state: LiveServerState, wish: dict[str, Any]) -> Any:
    episode = state.episode(wish["house"], wish["start"], wish["heading_degrees"], wish["instruction"], None)
    return json.loads(msgspec.json.encode(trace_episodes(state.agents["ssm"], episode)[0]))


def _data(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_walks_of_several_visitors_are_not_mixed_up(state: LiveServerState, serve: Serve) -> None:
    agent = state.agents["ssm"]
    agent.limits = replace(agent.limits, max_steps=4)
    wishes = _wishes(state)
    expected = [_alone(state, wish) for wish in wishes]

    async def visit(client: httpx.AsyncClient, number: int) -> None:
        for turn in range(WALKS):
            choice = (7 * number + 11 * turn) % len(wishes)
            wish, wanted = wishes[choice], expected[choice]
            opened, *moves, ended = _data((await client.post("/api/walks", json=wish)).text)
            assert opened["task"] == wanted["task"]
            assert [event["move"] for event in moves] == wanted["moves"]
            assert ended["ending"] == wanted["ending"]

    async def crowd(address: str) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            await asyncio.gather(*(visit(client, number) for number in range(CLIENTS)))

    with serve(state) as address:
        asyncio.run(crowd(address))


class Gate:
    """A way to choose that waits until it is let through, so that a walk takes as long as a test wants."""

    def __init__(self, agent: TrainedAgent) -> None:
        self.open, self.asked = threading.Event(), threading.Event()
        self.times = 0
        agent.walk = partial(TrainedAgent.walk, agent, pick=self)  # type: ignore[method-assign]

    def __call__(self, logits: Tensor, episode: Tensor) -> Tensor:
        self.times += 1
        self.asked.set()
        assert self.open.wait(20)
        return take_best(logits, episode)


def test_visitors_beyond_the_queue_are_asked_to_come_again(state: LiveServerState, serve: Serve) -> None:
    gate, wish = Gate(state.agents["ssm"]), _wishes(state)[0]
    with (
        serve(state, waiting=1) as address,
        httpx.Client(base_url=address, timeout=30) as client,
        client.stream("POST", "/api/walks", json=wish) as walking,
    ):
        assert gate.asked.wait(20)
        with client.stream("POST", "/api/walks", json=wish) as waiting:
            refused = client.post("/api/walks", json=wish)
            assert refused.status_code == 503
            assert refused.json() == {"detail": "too many walks are waiting; try again in a moment"}
            assert client.get("/api/session").status_code == 200, "the page itself does not wait"
            assert client.get("/api/houses/grid").status_code == 200, "nor do its pictures"
            gate.open.set()
            assert _data(waiting.read().decode())[-1]["type"] == "ended"
        assert _data(walking.read().decode())[-1]["type"] == "ended"
        again = client.post("/api/walks", json=wish)
        assert again.status_code == 200, "there is space again"


def test_a_visitor_who_leaves_takes_the_walk_along(state: LiveServerState, serve: Serve) -> None:
    wish = _wishes(state)[0]
    moves = len(_alone(state, wish)["moves"])
    assert moves > 2
    gate = Gate(state.agents["ssm"])
    with serve(state, waiting=1) as address, httpx.Client(base_url=address, timeout=30) as client:
        with client.stream("POST", "/api/walks", json=wish):
            assert gate.asked.wait(20)
            with client.stream("POST", "/api/walks", json=wish):
                pass  # leaves before it is its turn
        time.sleep(0.3)  # the server hears of it
        gate.open.set()
        again = _data(client.post("/api/walks", json=wish).text)
        assert again[-1]["type"] == "ended"
        decisions = sum(len(event["move"]["decisions"]) for event in again[1:-1])
        assert len(again) - 2 == moves
        assert gate.times < 2 * decisions, "the first walk was given up on the way, the second never begun"


def test_closing_gives_up_the_walk_under_way_and_what_waits(state: LiveServerState) -> None:
    gate = Gate(state.agents["ssm"])

    async def visit() -> list[Any]:
        worker = LiveWorker(state, waiting=1)
        episode = state.episode("grid", "g00", 0.0, "Walk on.", None)
        walking, waiting = worker.walk(episode, {}), worker.walk(episode, {})
        with pytest.raises(BusyError):
            worker.walk(episode, {})
        await asyncio.to_thread(gate.asked.wait, 20)
        threading.Timer(0.2, gate.open.set).start()
        await asyncio.to_thread(worker.close)
        return [event async for event in walking] + [event async for event in waiting]

    (opened,) = asyncio.run(visit())
    assert type(opened).__name__ == "WalkOpened"


def test_pictures_beyond_their_queue_are_refused(state: LiveServerState) -> None:
    async def visit() -> None:
        worker, gate = LiveWorker(state, waiting=1), threading.Event()
        drawn = [worker.draw(gate.wait, 20) for _ in range(PICTURES + 1)]
        with pytest.raises(BusyError, match="too many pictures are waiting; try again in a moment"):
            worker.draw(gate.wait, 20)
        gate.set()
        assert all(await asyncio.gather(*drawn))
        worker.close()

    asyncio.run(visit())


def test_ten_megabytes_are_refused_with_an_answer(state: LiveServerState, serve: Serve) -> None:
    pieces = (b"x" * 100_000 for _ in range(100))
    with serve(state) as address, httpx.Client(base_url=address, timeout=30) as client:
        for body in (b"x" * 10_000_000, pieces):
            answer = client.post("/api/walks", content=body)
            assert answer.status_code == 413
            assert answer.json() == {"detail": "the request is larger than 65536 bytes"}
