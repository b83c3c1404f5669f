"""What the live page has to offer, agents and perhaps a speaker in one world, and walks as they happen."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from scenemem.agents.walker import TrainedAgent
from scenemem.errors import UserError
from scenemem.formats.traces import Ending, Move, Origin, Scene, Task, Trace
from scenemem.learning.speaker import Speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import shortest_paths
from scenemem.tasks.vocabulary import as_sentences
from scenemem.viewer.narration import DrawnWalk, Marks
from scenemem.viewer.scenery import Look, Sceneries, Scenery
from scenemem.viewer.traces import open_scene, open_traces, trace_episodes
from scenemem.world.graph import NONE, World

NO_SPEAKER = "no packaged speaker knows these features; start the page with --speaker RUN"

FAILED = "this could not be finished; the log of the server says why"

PICTURES = 64
"""Pictures that may wait for the one that is drawn."""

_BEAMS = 3  # texts the speaker keeps at once

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class UnknownError(UserError):
    """A house or a place that is not there."""


class Example(msgspec.Struct, frozen=True):
    """An instruction written for a house, and where it begins and ends."""

    text: str
    start: int  # place
    heading: float  # radians clockwise from north
    goal: int | None = None  # place


class HouseView(msgspec.Struct, frozen=True):
    """A house to look at: its places, its rooms, and instructions to try."""

    scene: Scene
    scenery: Scenery
    examples: tuple[Example, ...] = ()


class Description(msgspec.Struct, frozen=True):
    """A route in words."""

    text: str
    path: list[int]  # numbers of the places on the route, both ends included
    metres: float
    log_likelihood: float  # of the text, given the route


@dataclass(frozen=True, eq=False)
class LiveServerState:
    """Everything a live page needs; requests do not change it.

    Methods raise ``UnknownError`` for a house or place that is not there, ``UserError`` for what cannot be.
    """

    agents: Mapping[str, TrainedAgent]  # by the names people see; all in the same world
    sceneries: Sceneries
    speaker: Speaker | None = None
    speaker_name: str = "speaker"
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)  # by house
    groups: Mapping[str, str] = field(default_factory=dict)  # house -> the split it belongs to
    origins: Mapping[str, Origin] = field(default_factory=dict)  # agent -> what its walks come from
    _views: dict[str, HouseView] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("a live page needs at least one agent")
        worlds = [agent.environment.world for agent in self.agents.values()]
        worlds += [] if self.speaker is None else [self.speaker.environment.world]
        if any(world.viewpoints != worlds[0].viewpoints for world in worlds):
            raise UserError("the runs do not share one world; serve runs of the same data folder")

    @cached_property
    def world(self) -> World:
        """The one world of all agents."""
        return next(iter(self.agents.values())).environment.world

    @cached_property
    def houses(self) -> dict[str, int]:
        """The number of places of every house."""
        counts = torch.bincount(self.world.scan_of, minlength=len(self.world.scans)).tolist()
        return dict(zip(self.world.scans, counts, strict=True))

    def view(self, house: str) -> HouseView:
        """A house as people see it; the first time takes a while."""
        if house not in self._views:
            scene = open_scene(self.world, self._scan(house), NONE)
            scenery = self.sceneries.of(scene, ())
            self._views[house] = HouseView(scene, scenery, tuple(self.examples.get(house, ())))
        return self._views[house]

    def look(self, house: str, place: int) -> Look:
        """What one sees all around a place; may take a while."""
        scene = self.view(house).scene
        if place >= len(scene.places):
            raise UnknownError(f"'{house}' has {len(scene.places)} places, no number {place}")
        return self.sceneries.of(scene, (place,)).looks.get(place, Look())

    def episode(self, house: str, start: str, degrees: float, text: str, goal: str | None) -> EpisodeSet:
        """One walk to take, as a set of one episode."""
        world, scan, begin = self.world, self._scan(house), self._viewpoint(house, start)
        if not int(world.degree[begin]):
            raise UserError(f"no way leads on from '{start}'; choose another start")
        end = NONE if goal is None else self._viewpoint(house, goal)
        path = torch.tensor([begin]) if end == NONE else self._path(begin, end).cpu()
        return EpisodeSet(
            name="live",
            scans=world.scans,
            instruction_ids=("live",),
            texts=(text,),
            record=torch.tensor([0]),
            scan=torch.tensor([scan]),
            start=torch.tensor([begin]),
            goal=torch.tensor([end]),
            heading=torch.tensor([math.radians(degrees) % math.tau]).to(world.position.dtype),
            path=path.unsqueeze(0),
            path_length=torch.tensor([len(path)]),
        ).to(world.device)

    def describe(self, house: str, start: str, goal: str, degrees: float | None) -> Description:
        """The shortest route between two places in the words of the speaker, begun along it by default."""
        begin, end = self._viewpoint(house, start), self._viewpoint(house, goal)
        if begin == end:
            raise UserError("start and goal are the same place; choose two")
        path, world = self._path(begin, end), self.world
        along = world.neighbour_heading[path[0], world.slot_of(path[0], path[1])]
        heading = along if degrees is None else torch.tensor(math.radians(degrees))
        if self.speaker is None:
            raise UserError(NO_SPEAKER)
        best = self.speaker.describe_best(path.unsqueeze(0), heading.to(world.position).reshape(1), _BEAMS)
        text = as_sentences(self.speaker.texts(best.tokens)[0])
        metres = round(float(world.geodesic(path[0], path[-1])), 2)
        return Description(text, world.local[path].tolist(), metres, float(best.log_likelihood[0]))

    def _path(self, start: int, goal: int) -> Tensor:
        ends = torch.tensor([[start], [goal]], device=self.world.device)
        return shortest_paths(self.world, *ends)[0].squeeze(0)

    def _scan(self, house: str) -> int:
        if house not in self.houses:
            raise UnknownError(f"unknown house '{house}'; this world has {len(self.houses)} houses")
        return self.world.scans.index(house)

    def _viewpoint(self, house: str, name: str) -> int:
        self._scan(house)
        try:
            return self.world.index_of(house, name)
        except UserError:
            raise UnknownError(f"'{house}' has no place '{name}'") from None


class BusyError(Exception):
    """Too much waits; try again later."""


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
    letters: Mapping[int, str]  # names of the unvisited places that could be chosen
    marks: Sequence[Marks | None]  # per decision: the words it marks


class WalkEnded(msgspec.Struct, frozen=True, tag="ended"):
    """An agent has stopped or was cut off."""

    agent: int
    ending: Ending | None
    caption: str
    headline: str
    story: str  # what happened in all, one sentence


class WalkFailed(msgspec.Struct, frozen=True, tag="failed"):
    """An agent could not finish."""

    agent: int
    detail: str


WalkEvent = WalkOpened | WalkMove | WalkEnded | WalkFailed
_Tell = Callable[[WalkEvent], None]


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
        """Do something when it is its turn; ``BusyError`` when too much waits."""
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
        """Let every agent walk an episode, one after the other; what happens is yielded as it happens."""
        loop, left = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[WalkEvent | None] = asyncio.Queue()

        def tell(event: WalkEvent) -> None:
            if left.is_set() or self._closing.is_set():
                raise asyncio.CancelledError
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(events.put_nowait, event)

        def work() -> None:
            with suppress(asyncio.CancelledError):
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

    def _walk(self, number: int, episode: EpisodeSet, room_of: Mapping[int, str], tell: _Tell) -> None:
        name, agent = list(self._state.agents.items())[number]
        try:
            (opened,) = open_traces(agent, episode, name=name)
            left = tuple(place.to_goal for place in opened.scene.places)
            tell(WalkOpened(number, name, opened.task, left, self._state.origins.get(name)))
            moves: list[Move] = []

            def on_move(_episode: int, move: Move) -> None:
                moves.append(move)
                walk = DrawnWalk.of(Trace(name, opened.task, opened.scene, tuple(moves)), room_of)
                words = walk.captions[-1], walk.letters[-1], walk.marks[-1]
                tell(WalkMove(number, len(moves) - 1, move, *words))

            (trace,) = trace_episodes(agent, episode, on_move, name=name)
            walk = DrawnWalk.of(trace, room_of)
            tell(WalkEnded(number, walk.ending, walk.captions[-1], walk.headline, walk.story))
        except Exception as error:
            log.warning("a walk on the live page failed", exc_info=error)
            tell(WalkFailed(number, str(error) if isinstance(error, UserError) else FAILED))
