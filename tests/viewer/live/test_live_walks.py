"""Walks on a real server: several visitors, visitors who leave, a full queue, large requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
from torch import Tensor

from scenemem.agents.walker import TrainedAgent, take_best
from scenemem.viewer.live_state import PICTURES, BusyError, LiveServerState, LiveWorker
from scenemem.viewer.traces import trace_episodes

Serve = Callable[..., AbstractContextManager[str]]
CLIENTS, WALKS = 8, 6  # each client walks that often


@pytest.fixture
def state(make_state: Callable[..., LiveServerState]) -> LiveServerState:
    return make_state("ssm")


def _wishes(state: LiveServerState) -> list[dict[str, Any]]:
    """Different walks: every start, several headings and instructions of different lengths."""
    world = state.world
    starts = [number for number in range(len(world.viewpoints)) if int(world.degree[number])]
    return [
        {
            "house": world.scans[int(world.scan_of[start])],
            "start": world.viewpoints[start],
            "heading_degrees": 45.0 * turn,
            "instruction": f"Walk from {world.viewpoints[start]} {turn}." + " Go on past g11!" * turn,
        }
        for start in starts
        for turn in range(3)
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
            answer = await client.post("/api/walks", json=wishes[choice])
            assert answer.status_code == 200
            opened, *moves, ended = _data(answer.text)
            wanted = expected[choice]
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

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()
        self.times = 0

    def __call__(self, logits: Tensor, episode: Tensor) -> Tensor:
        self.times += 1
        self.asked.set()
        assert self.open.wait(20)
        return take_best(logits, episode)

    def guard(self, agent: TrainedAgent) -> None:
        """Let the agent choose this way."""
        agent.walk = partial(TrainedAgent.walk, agent, pick=self)  # type: ignore[method-assign]


def test_visitors_beyond_the_queue_are_asked_to_come_again(state: LiveServerState, serve: Serve) -> None:
    gate, wish = Gate(), _wishes(state)[0]
    gate.guard(state.agents["ssm"])
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
    gate = Gate()
    gate.guard(state.agents["ssm"])
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
    gate = Gate()
    gate.guard(state.agents["ssm"])

    async def visit() -> list[object]:
        worker, events = LiveWorker(state, waiting=1), list[object]()
        episode = state.episode("grid", "g00", 0.0, "Walk on.", None)
        walking, waiting = worker.walk(episode, {}), worker.walk(episode, {})
        with pytest.raises(BusyError):
            worker.walk(episode, {})
        await asyncio.get_running_loop().run_in_executor(None, gate.asked.wait, 20)
        threading.Timer(0.2, gate.open.set).start()
        await asyncio.get_running_loop().run_in_executor(None, worker.close)
        events += [event async for event in walking] + [event async for event in waiting]
        return events

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
    def pieces() -> Iterator[bytes]:
        yield from (b"x" * 100_000 for _ in range(100))

    with serve(state) as address, httpx.Client(base_url=address, timeout=30) as client:
        for body in (b"x" * 10_000_000, pieces()):
            answer = client.post("/api/walks", content=body)
            assert answer.status_code == 413
            assert answer.json() == {"detail": "the request is larger than 65536 bytes"}
