"""A live page at work: carries visitors' wishes to the thread that walks and describes, and results back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from scenemem.errors import SettingError, UserError
from scenemem.formats.traces import Move
from scenemem.viewer.live_bench import AbandonedError, Bench, BusyError, Job
from scenemem.viewer.live_events import Narration, WalkEnded, WalkEvent, WalkFailed
from scenemem.viewer.live_schema import Description
from scenemem.viewer.live_stage import HouseView, Order, Route, Stage
from scenemem.viewer.scenery import Look
from scenemem.viewer.tracing import open_traces, trace_episodes
from scenemem.world.graph import NONE

FAILED = "this could not be finished; the log of the server says why"

_BEAMS = 3  # texts the speaker keeps at once
_ALIVE = 10.0  # seconds between two signs of life while nothing happens

Drawn = TypeVar("Drawn")
Letter = TypeVar("Letter")


@dataclass(frozen=True)
class LiveLimits:
    """How much a live page takes on."""

    waiting: int = 128
    """walks and descriptions that may wait; one walk per agent counts"""
    together: int = 16
    """visitors' walks that share one rollout"""
    drawing: int = 32
    """pictures and houses that may wait to be drawn"""
    body: int = 64 * 1024
    """bytes of a request"""
    patience: float = 10.0
    """seconds for a request to arrive"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise SettingError(f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class _Walk:
    """What one agent has to do for one visitor."""

    agent: int
    order: Order
    room_of: Mapping[int, str]


class LiveSession:
    """Answers visitors without blocking the event loop; close it after use.

    Args:
        stage: what there is to play with.
        limits: how much of it at once.
    """

    def __init__(self, stage: Stage, limits: LiveLimits | None = None) -> None:
        self.stage = stage
        self.limits = limits or LiveLimits()
        self._bench = Bench(self._work, waiting=self.limits.waiting, together=self.limits.together)
        self._studio = ThreadPoolExecutor(1, thread_name_prefix="live-studio")
        self._drawing = 0
        self._views: dict[str, asyncio.Future[HouseView]] = {}

    def close(self) -> None:
        """Finish what is being done, refuse the rest."""
        self._bench.close()
        self._studio.shutdown(cancel_futures=True)

    async def view(self, house: str) -> HouseView:
        """A house as people see it.

        Raises:
            UnknownError: there is no such house.
            BusyError: too many visitors wait for pictures.
        """
        if house not in self._views:  # drawn once, however many visitors come at the same moment
            drawing = asyncio.ensure_future(self._draw(lambda: self.stage.view(house)))
            drawing.add_done_callback(partial(self._keep_if_drawn, house))
            self._views[house] = drawing
        return await asyncio.shield(self._views[house])

    def _keep_if_drawn(self, house: str, drawing: asyncio.Future[HouseView]) -> None:
        if drawing.cancelled() or drawing.exception() is not None:
            del self._views[house]

    async def look(self, house: str, place: int) -> Look:
        """What one sees all around a place; errors as ``view``."""
        view = await self.view(house)
        return await self._draw(lambda: self.stage.look(view, place))

    def walk(self, order: Order, room_of: Mapping[int, str]) -> AsyncIterator[WalkEvent | None]:
        """Let every agent walk; yields what happens as it happens, and None when nothing did for a while.

        Raises:
            BusyError: too many visitors wait.
        """
        mailbox = _Mailbox[WalkEvent]()
        jobs = [
            Job[_Walk | Route](
                key=("walk", name, order.goal == NONE),
                wish=_Walk(number, order, room_of),
                tell=mailbox.put,
                fail=partial(_report_failure, mailbox, number),
            )
            for number, name in enumerate(self.stage.agents)
        ]
        self._bench.submit(jobs)
        return _until_all_ended(mailbox, jobs)

    async def describe(self, route: Route) -> Description:
        """Let the speaker describe a route.

        Raises:
            BusyError: too many visitors wait.
        """
        mailbox = _Mailbox[Description | Exception]()
        job = Job[_Walk | Route]("speak", route, mailbox.put, mailbox.put)
        self._bench.submit([job])
        try:
            result = await mailbox.get()
        finally:
            job.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    async def _draw(self, draw: Callable[[], Drawn]) -> Drawn:
        if self._drawing >= self.limits.drawing:
            raise BusyError
        self._drawing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._studio, draw)
        finally:
            self._drawing -= 1

    def _work(self, jobs: Sequence[Job[_Walk | Route]]) -> None:
        if isinstance(jobs[0].wish, Route):
            self._describe(jobs)
        else:
            self._walk(jobs)

    def _walk(self, jobs: Sequence[Job[_Walk | Route]]) -> None:
        walks = [job.wish for job in jobs if isinstance(job.wish, _Walk)]
        name, agent = list(self.stage.agents.items())[walks[0].agent]
        episodes = self.stage.episodes([walk.order for walk in walks])
        opened = open_traces(agent, episodes, name=name)
        told = [Narration(walk.agent, trace, walk.room_of) for walk, trace in zip(walks, opened, strict=True)]
        for job, narration in zip(jobs, told, strict=True):
            job.report(0, narration.opened())

        def on_round(lane: int, turn: Move) -> None:
            if all(job.cancelled for job in jobs):
                raise AbandonedError
            event = told[lane].round(turn)
            jobs[lane].report(told[lane].rounds, event)

        for lane, trace in enumerate(trace_episodes(agent, episodes, on_round, name=name)):
            jobs[lane].report(told[lane].rounds + 1, told[lane].ended(trace))

    def _describe(self, jobs: Sequence[Job[_Walk | Route]]) -> None:
        speaker, world = self.stage.speaker, self.stage.world
        routes = [job.wish for job in jobs if isinstance(job.wish, Route)]
        if speaker is None:
            raise RuntimeError("there is no speaker")
        path = pad_sequence([route.path for route in routes], batch_first=True, padding_value=NONE)
        heading = torch.tensor([route.heading for route in routes]).to(world.position)
        sayings = speaker.describe_best(path, heading, _BEAMS)
        texts, likelihoods = speaker.texts(sayings.tokens), sayings.log_likelihood.tolist()
        for job, route, text, likelihood in zip(jobs, routes, texts, likelihoods, strict=True):
            places = world.local[route.path].tolist()
            job.report(
                0,
                Description(text=text, path=places, metres=round(route.metres, 2), log_likelihood=likelihood),
            )


def _report_failure(mailbox: _Mailbox[WalkEvent], agent: int, error: Exception) -> None:
    mailbox.put(WalkFailed(agent, reason(error)))


def reason(error: Exception) -> str:
    """What visitors are told about an error: nothing about the inside of the server."""
    return str(error) if isinstance(error, UserError) else FAILED


class _Mailbox(Generic[Letter]):
    """Carries results from a thread to the coroutine that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Letter] = asyncio.Queue()

    def put(self, letter: Letter) -> None:
        """Called in any thread; letters to a server that is gone are lost."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, letter)

    async def get(self) -> Letter:
        """The next letter."""
        return await self._queue.get()

    async def get_within(self, seconds: float) -> Letter | None:
        """The next letter, or None when there is none for a while."""
        try:
            return await asyncio.wait_for(self._queue.get(), seconds)
        except asyncio.TimeoutError:
            return None


async def _until_all_ended(
    mailbox: _Mailbox[WalkEvent], jobs: Sequence[Job[_Walk | Route]]
) -> AsyncIterator[WalkEvent | None]:
    walking = len(jobs)
    try:
        while walking:
            event = await mailbox.get_within(_ALIVE)
            walking -= isinstance(event, (WalkEnded, WalkFailed))
            yield event
    finally:
        for job in jobs:
            job.cancel()
