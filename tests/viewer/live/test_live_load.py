"""The live page on a real server: many visitors at once, visitors who leave, a full queue, any request."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from scenemem.viewer.live_bench import Bench, BusyError, Job
from scenemem.viewer.live_session import LiveLimits
from scenemem.viewer.live_stage import HouseView, Stage
from scenemem.viewer.tracing import trace_episodes
from torch import Tensor

from scenemem.agents.policy import take_best

Serve = Callable[..., AbstractContextManager[str]]
CLIENTS, WALKS = 50, 20  # each client walks that often


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage("ssm")


def _wishes(stage: Stage) -> list[dict[str, Any]]:
    """Different walks: every start, several headings and instructions of different lengths."""
    world = stage.world
    starts = [number for number in range(len(world.viewpoints)) if int(world.degree[number])]
    return [
        {
            "house": world.scans[int(world.scan_of[start])],
            "start": world.viewpoints[start],
            "heading_degrees": 45.0 * turn,
            "instruction": " ".join(
                [f"Walk from {world.viewpoints[start]} {turn}.", *["Go on past g11!"] * turn]
            ),
        }
        for start in starts
        for turn in range(3)
    ]


def _alone(stage: Stage, wish: dict[str, Any]) -> Any:
    order = stage.order(wish["house"], wish["start"], wish["heading_degrees"], wish["instruction"], None)
    return json.loads(msgspec.json.encode(trace_episodes(stage.agents["ssm"], stage.episodes([order]))[0]))


def _same(a: Any, b: Any) -> bool:
    """Equal, numbers up to what the size of a batch may change in their last digits."""
    if a == b:
        return True
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, abs_tol=2e-3)
    return False


def _data(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def _resident() -> int:
    """Bytes of memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a Linux process")
def test_fifty_visitors_and_a_thousand_walks_are_not_mixed_up(stage: Stage, serve: Serve) -> None:
    stage.agents["ssm"].max_ticks = 4
    wishes = _wishes(stage)
    expected = [_alone(stage, wish) for wish in wishes]
    resident = list[int]()

    async def visit(client: httpx.AsyncClient, number: int) -> int:
        right = 0
        for turn in range(WALKS):
            choice = (7 * number + 11 * turn) % len(wishes)
            answer = await client.post("/api/walks", json=wishes[choice])
            assert answer.status_code == 200
            opened, *rounds, ended = _data(answer.text)
            wanted = expected[choice]
            assert opened["task"] == wanted["task"]
            right += _same([event["round"] for event in rounds], wanted["rounds"]) and _same(
                ended["ending"], wanted["ending"]
            )
            if number == 0 and turn % 5 == 0:
                resident.append(_resident())
        return right

    async def crowd(address: str) -> list[int]:
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
            return await asyncio.gather(*(visit(client, number) for number in range(CLIENTS)))

    with serve(stage) as address:
        assert sum(asyncio.run(crowd(address))) == CLIENTS * WALKS
    assert resident[-1] - resident[1] < 50e6, "a thousand walks leave nothing behind"


class Gate:
    """A way to choose that waits until it is let through, so that a walk takes as long as a test wants."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()
        self.times = 0

    def __call__(self, logits: Tensor) -> Tensor:
        self.times += 1
        self.asked.set()
        assert self.open.wait(20)
        return take_best(logits)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_visitors_beyond_the_queue_are_asked_to_come_again(stage: Stage, serve: Serve) -> None:
    gate, wish = Gate(), _wishes(stage)[0]
    stage.agents["ssm"].choose = gate
    with (
        serve(stage, limits=LiveLimits(waiting=1)) as address,
        httpx.Client(base_url=address, timeout=30) as client,
        client.stream("POST", "/api/walks", json=wish) as walking,
    ):
        assert gate.asked.wait(20)
        with client.stream("POST", "/api/walks", json=wish) as waiting:
            refused = client.post("/api/walks", json=wish)
            assert refused.status_code == 503
            assert refused.json() == {"detail": "too many visitors at once; try again in a moment"}
            assert refused.headers["retry-after"] == "2"
            assert client.get("/api/session").status_code == 200, "the page itself does not wait"
            gate.open.set()
            assert _data(waiting.read().decode())[-1]["type"] == "ended"
        assert _data(walking.read().decode())[-1]["type"] == "ended"


def test_a_visitor_who_leaves_takes_the_walk_along(stage: Stage, serve: Serve) -> None:
    wish = _wishes(stage)[0]
    rounds = len(_alone(stage, wish)["rounds"])
    assert rounds > 2
    gate = Gate()
    stage.agents["ssm"].choose = gate
    with serve(stage) as address, httpx.Client(base_url=address, timeout=30) as client:
        with client.stream("POST", "/api/walks", json=wish):
            assert gate.asked.wait(20)
        time.sleep(0.3)  # the server hears of it
        gate.open.set()
        again = _data(client.post("/api/walks", json=wish).text)
        assert again[-1]["type"] == "ended"
        alone = len(again) - 2
        decisions = sum(len(event["round"]["decisions"]) for event in again[1:-1])
        assert alone == rounds
        assert gate.times < 2 * decisions, "the first walk was given up on the way"


def test_pictures_have_a_queue_of_their_own(stage: Stage, serve: Serve) -> None:
    begun, gate = threading.Event(), threading.Event()
    view = stage.view("grid")

    def slow_view(_house: str) -> HouseView:
        begun.set()
        gate.wait(20)
        return view

    object.__setattr__(stage, "view", slow_view)
    with (
        serve(stage, limits=LiveLimits(drawing=1)) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        first = threading.Thread(target=lambda: client.get("/api/houses/grid"))
        first.start()
        assert begun.wait(20)
        assert client.get("/api/houses/yard").status_code == 503
        gate.set()
        first.join()
        assert client.get("/api/houses/grid").status_code == 200


def test_a_slow_request_is_not_waited_for(stage: Stage, serve: Serve) -> None:
    with serve(stage, limits=LiveLimits(patience=0.2)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as slow:
            slow.sendall(b"POST /api/walks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{")
            assert b"408" in slow.recv(4096).split(b"\r\n")[0]


def test_ten_megabytes_are_refused_with_an_answer(stage: Stage, serve: Serve) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b"x" * 100_000 for _ in range(100))

    with serve(stage) as address, httpx.Client(base_url=address, timeout=30) as client:
        for body in (b"x" * 10_000_000, pieces()):
            answer = client.post("/api/walks", content=body)
            assert (answer.status_code, answer.json()["detail"]) == (
                413,
                "the request is larger than 65536 bytes",
            )


def test_one_failure_in_a_batch_is_nobody_elses() -> None:
    told: dict[int, list[object]] = {}
    hold = threading.Event()

    def work(jobs: Any) -> None:
        hold.wait(10)
        for job in jobs:
            job.report(0, "begun")
        if any(job.wish == 3 for job in jobs):
            raise RuntimeError("three")
        for job in jobs:
            job.report(1, "done")

    def job(number: int) -> Job[int]:
        told[number] = []
        return Job("same", number, told[number].append, told[number].append)

    bench = Bench(work, waiting=8, together=8)
    bench.submit([job(0)])
    gone = job(9)
    bench.submit([job(number) for number in range(1, 6)])
    bench.submit([gone])
    gone.cancel()
    hold.set()
    _wait_for(lambda: all(len(told[number]) == 2 for number in range(6)))
    bench.close()
    assert all(told[number] == ["begun", "done"] for number in (0, 1, 2, 4, 5))
    assert told[3][0] == "begun"
    assert isinstance(told[3][1], RuntimeError)
    assert told[9] == []
    with pytest.raises(BusyError):
        bench.submit([job(7)])


def test_closing_refuses_what_still_waits() -> None:
    told, hold = list[object](), threading.Event()

    def work(_jobs: object) -> None:
        hold.wait(10)

    bench = Bench[int](work, waiting=8, together=1)
    bench.submit([Job("a", 1, told.append, told.append), Job("b", 2, told.append, told.append)])
    threading.Timer(0.2, hold.set).start()
    bench.close()
    assert len(told) in (1, 2)
    assert all(isinstance(item, BusyError) for item in told)
