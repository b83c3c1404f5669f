"""Walks on the live page: one at a time in a thread of their own, each move told as soon as it is made."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import msgspec

from scenemem.errors import UserError
from scenemem.formats.traces import Ending, Move, Origin, Task, Trace
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.live_state import LiveServerState
from scenemem.viewer.narration import Marks, captions, headline, letters, marks, summary
from scenemem.viewer.traces import open_traces, trace_episodes

FAILED = "this could not be finished; the log of the server says why"

PICTURES = 64
"""Pictures that may wait for the one that is drawn."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class BusyError(Exception):
    """Too much waits; try again later."""


class _AbandonedError(Exception):
    """Nobody watches the walk any more."""


class WalkOpened(msgspec.Struct, frozen=True, tag="opened"):
    """An agent has read the instruction."""

    agent: int  # number in the list of agents
    name: str
    task: Task
    to_goal: tuple[float | None, ...]  # metres from every place; None without a goal or a way
    origin: Origin | None = None  # what the walk comes from


class WalkMove(msgspec.Struct, frozen=True, tag="move"):
    """An agent has decided and walked."""

    agent: int
    number: int  # from 0
    move: Move
    caption: str
    letters: dict[int, str]  # names of the unvisited places that could be chosen
    marks: list[Marks | None]  # per decision: the words it marks


class WalkEnded(msgspec.Struct, frozen=True, tag="ended"):
    """An agent has stopped or was cut off."""

    agent: int
    ending: Ending
    caption: str
    headline: str
    story: str  # what happened in all, one sentence


class WalkFailed(msgspec.Struct, frozen=True, tag="failed"):
    """An agent could not finish."""

    agent: int
    detail: str


WalkEvent = WalkOpened | WalkMove | WalkEnded | WalkFailed


def encoded(event: WalkEvent) -> bytes:
    """An event as it goes over the wire: named by its type, its data one line of JSON."""
    name = type(event).__struct_config__.tag
    return f"event: {name}\n".encode() + b"data: " + msgspec.json.encode(event) + b"\n\n"


class _Queue:
    """One thread; ``waiting`` pieces of work may wait for the one under way."""

    def __init__(self, what: str, waiting: int) -> None:
        self._what = what
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"live-{what}")
        self._free = threading.Semaphore(waiting + 1)

    def submit(self, work: Callable[..., Result], *values: object) -> asyncio.Future[Result]:
        """Do something when it is its turn.

        Raises:
            BusyError: too much waits.
        """
        if not self._free.acquire(blocking=False):
            raise BusyError(f"too many {self._what} are waiting; try again in a moment")
        future = asyncio.get_running_loop().run_in_executor(self._thread, work, *values)
        future.add_done_callback(lambda _: self._free.release())
        return future

    def close(self) -> None:
        """Give up whatever waits."""
        self._thread.shutdown(cancel_futures=True)


class LiveWorker:
    """Works for visitors without blocking the event loop: walks and descriptions one by one, pictures beside.

    Networks are shared and watched while they walk, so only one walk goes on at a time; ``waiting`` more may
    wait for it. Close it after use.
    """

    def __init__(self, state: LiveServerState, waiting: int) -> None:
        self._state = state
        self._walks, self._pictures = _Queue("walks", waiting), _Queue("pictures", PICTURES)
        self._closing = threading.Event()
        self.submit, self.draw = self._walks.submit, self._pictures.submit

    def close(self) -> None:
        """Give up what is under way at its next move, and whatever waits."""
        self._closing.set()
        self._walks.close()
        self._pictures.close()

    def walk(self, episode: EpisodeSet, room_of: Mapping[int, str]) -> AsyncIterator[WalkEvent]:
        """Let every agent walk an episode, one after the other; what happens is yielded as it happens.

        Raises:
            BusyError: too many wait.
        """
        loop, left = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[WalkEvent | None] = asyncio.Queue()

        def tell(event: WalkEvent) -> None:
            if left.is_set() or self._closing.is_set():
                raise _AbandonedError
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(events.put_nowait, event)

        def work() -> None:
            with suppress(_AbandonedError):
                for number in range(len(self._state.agents)):
                    self._walk(number, episode, room_of, tell)

        walking = self.submit(work)
        walking.add_done_callback(lambda _: events.put_nowait(None))

        async def follow() -> AsyncIterator[WalkEvent]:
            try:
                while (event := await events.get()) is not None:
                    yield event
            finally:
                left.set()
                walking.cancel()  # if it has not begun

        return follow()

    def _walk(
        self, number: int, episode: EpisodeSet, room_of: Mapping[int, str], tell: Callable[[WalkEvent], None]
    ) -> None:
        name, agent = list(self._state.agents.items())[number]
        try:
            (trace,) = open_traces(agent, episode, name=name)
            left, origin = tuple(place.to_goal for place in trace.scene.places), self._state.origins.get(name)
            tell(WalkOpened(number, name, trace.task, left, origin))

            def on_move(_episode: int, move: Move) -> None:
                nonlocal trace
                trace = Trace(name, trace.task, trace.scene, (*trace.moves, move))
                words = captions(trace, room_of)[-1], letters(trace)[-1], marks(trace)[-1]
                tell(WalkMove(number, len(trace.moves) - 1, move, *words))

            (whole,) = trace_episodes(agent, episode, on_move, name=name)
            tell(_ended(number, whole, room_of))
        except _AbandonedError:
            raise
        except Exception as error:
            log.warning("a walk on the live page failed", exc_info=error)
            tell(WalkFailed(number, str(error) if isinstance(error, UserError) else FAILED))


def _ended(number: int, trace: Trace, room_of: Mapping[int, str]) -> WalkEnded:
    ending = trace.ending
    if ending is None:
        raise ValueError("the walk has not ended")
    caption, title = captions(trace, room_of)[-1], headline(trace)
    if trace.task.goal is None:  # a walk without a goal is not scored
        how = "stopped" if ending.stopped else "was cut off"
        title = how.capitalize()
        caption = f"The end: it {how} after {len(trace.moves)} moves. No goal was set, so it is not scored."
    return WalkEnded(number, ending, caption, title, summary(trace, room_of))
