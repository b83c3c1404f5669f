"""What the live page plays with: agents and perhaps a speaker in one world, and what to ask of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import torch
from torch import Tensor

from scenemem.agents.trained import TrainedAgent
from scenemem.errors import UserError
from scenemem.formats.traces import Scene
from scenemem.learning.speaker import Speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import shortest_paths
from scenemem.viewer.openings import open_scene
from scenemem.viewer.scenery import Look, Sceneries, Scenery
from scenemem.world.graph import NONE, World

NO_SPEAKER = "no speaker was named; start the page with --speaker RUN"


class UnknownError(UserError):
    """A house or a place that is not there."""


class Example(msgspec.Struct, frozen=True):
    """An instruction somebody has written for a house, and where it begins and ends."""

    text: str
    start: int  # place
    heading: float  # radians clockwise from north
    goal: int | None = None  # place


class HouseView(msgspec.Struct, frozen=True):
    """A house to look at: its places, its rooms, and instructions to try."""

    scene: Scene
    scenery: Scenery
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Order:
    """One walk that somebody asked for."""

    scan: int
    start: int  # viewpoint
    heading: float  # radians
    text: str
    goal: int = NONE  # viewpoint


@dataclass(frozen=True)
class Route:
    """A shortest route to describe."""

    path: Tensor  # (T,) int64
    heading: float  # radians
    metres: float


@dataclass(frozen=True, eq=False)
class Stage:
    """Everything a live page needs; nothing here is changed by its visitors."""

    agents: Mapping[str, TrainedAgent]  # by the names people see; all in the same world
    sceneries: Sceneries
    speaker: Speaker | None = None
    speaker_name: str = "speaker"
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)  # by house

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("a live page needs at least one agent")
        worlds = [agent.sight.world for agent in self.agents.values()]
        worlds += [] if self.speaker is None else [self.speaker.environment.world]
        if any(world.viewpoints != worlds[0].viewpoints for world in worlds):
            raise UserError("the runs do not share one world; serve runs of the same data folder")

    @cached_property
    def world(self) -> World:
        """Where everybody walks."""
        return next(iter(self.agents.values())).sight.world

    @cached_property
    def houses(self) -> dict[str, int]:
        """The number of places of every house."""
        counts = torch.bincount(self.world.scan_of, minlength=len(self.world.scans)).tolist()
        return dict(zip(self.world.scans, counts, strict=True))

    def view(self, house: str) -> HouseView:
        """A house as people see it; may take a while.

        Raises:
            UnknownError: there is no such house.
        """
        scene = open_scene(self.world, self._scan(house), NONE)
        return HouseView(scene, self.sceneries.of(scene, ()), tuple(self.examples.get(house, ())))

    def look(self, view: HouseView, place: int) -> Look:
        """What one sees all around a place; may take a while.

        Raises:
            UnknownError: there is no such place.
        """
        if place >= len(view.scene.places):
            raise UnknownError(f"'{view.scene.scan}' has {len(view.scene.places)} places, no number {place}")
        return self.sceneries.of(view.scene, (place,)).looks.get(place, Look())

    def order(self, house: str, start: str, degrees: float, text: str, goal: str | None) -> Order:
        """A walk to take.

        Raises:
            UnknownError: there is no such house or place.
            UserError: no way leads on from the start, or none to the goal.
        """
        scan, begin = self._scan(house), self._viewpoint(house, start)
        if not int(self.world.degree[begin]):
            raise UserError(f"no way leads on from '{start}'; choose another start")
        end = NONE if goal is None else self._viewpoint(house, goal)
        if end != NONE:
            self._path(begin, end)
        return Order(scan, begin, math.radians(degrees) % math.tau, text, end)

    def route(self, house: str, start: str, goal: str, degrees: float | None) -> Route:
        """The shortest route between two places; without a heading the walker looks where it will go.

        Raises:
            UnknownError: there is no such house or place.
            UserError: the two are the same, or no way leads from one to the other.
        """
        self._scan(house)
        begin, end = self._viewpoint(house, start), self._viewpoint(house, goal)
        if begin == end:
            raise UserError("start and goal are the same place; choose two")
        path, world = self._path(begin, end), self.world
        heading = float(world.neighbour_heading[path[0], world.slot_of(path[0], path[1])])
        if degrees is not None:
            heading = math.radians(degrees)
        return Route(path, heading, float(world.geodesic(path[0], path[-1])))

    def episodes(self, orders: Sequence[Order]) -> EpisodeSet:
        """Walks side by side; either all of them have a goal or none has."""
        world = self.world
        paths = [
            torch.tensor([order.start]) if order.goal == NONE else self._path(order.start, order.goal).cpu()
            for order in orders
        ]
        path = torch.nn.utils.rnn.pad_sequence(paths, batch_first=True, padding_value=NONE)
        return EpisodeSet(
            name="live",
            scans=world.scans,
            instruction_ids=tuple("live" for _ in orders),
            texts=tuple(order.text for order in orders),
            record=torch.arange(len(orders)),
            scan=torch.tensor([order.scan for order in orders]),
            start=torch.tensor([order.start for order in orders]),
            goal=torch.tensor([order.goal for order in orders]),
            heading=torch.tensor([order.heading for order in orders]).to(world.position.dtype),
            path=path,
            path_length=(path != NONE).sum(1),
        ).to(world.device)

    def _path(self, start: int, goal: int) -> Tensor:
        ends = torch.tensor([[start], [goal]], device=self.world.device)
        return shortest_paths(self.world, *ends)[0].squeeze(0)

    def _scan(self, house: str) -> int:
        if house not in self.houses:
            raise UnknownError(f"unknown house '{house}'; this world has {len(self.houses)} houses")
        return self.world.scans.index(house)

    def _viewpoint(self, house: str, name: str) -> int:
        try:
            return self.world.index_of(house, name)
        except UserError:
            raise UnknownError(f"'{house}' has no place '{name}'") from None
