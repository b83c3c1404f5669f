"""What the live page has to offer: agents and perhaps a speaker in one world, its houses and routes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import torch
from torch import Tensor

from scenemem.agents.walker import TrainedAgent
from scenemem.errors import UserError
from scenemem.formats.traces import Origin, Scene
from scenemem.learning.speaker import Speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import shortest_paths
from scenemem.tasks.vocabulary import as_sentences
from scenemem.viewer.scenery import Look, Sceneries, Scenery
from scenemem.viewer.traces import open_scene
from scenemem.world.graph import NONE, World

NO_SPEAKER = "no packaged speaker knows these features; start the page with --speaker RUN"

_BEAMS = 3  # texts the speaker keeps at once


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


class Description(msgspec.Struct, frozen=True):
    """A route in words."""

    text: str
    path: list[int]  # numbers of the places on the route, both ends included
    metres: float
    log_likelihood: float  # of the text, given the route


@dataclass(frozen=True, eq=False)
class LiveServerState:
    """Everything a live page needs; nothing here is changed by its visitors."""

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
        """Where everybody walks."""
        return next(iter(self.agents.values())).environment.world

    @cached_property
    def houses(self) -> dict[str, int]:
        """The number of places of every house."""
        counts = torch.bincount(self.world.scan_of, minlength=len(self.world.scans)).tolist()
        return dict(zip(self.world.scans, counts, strict=True))

    def view(self, house: str) -> HouseView:
        """A house as people see it; the first time takes a while.

        Raises:
            UnknownError: there is no such house.
        """
        if house not in self._views:
            scene = open_scene(self.world, self._scan(house), NONE)
            scenery = self.sceneries.of(scene, ())
            self._views[house] = HouseView(scene, scenery, tuple(self.examples.get(house, ())))
        return self._views[house]

    def look(self, house: str, place: int) -> Look:
        """What one sees all around a place; may take a while.

        Raises:
            UnknownError: there is no such house or place.
        """
        scene = self.view(house).scene
        if place >= len(scene.places):
            raise UnknownError(f"'{house}' has {len(scene.places)} places, no number {place}")
        return self.sceneries.of(scene, (place,)).looks.get(place, Look())

    def episode(self, house: str, start: str, degrees: float, text: str, goal: str | None) -> EpisodeSet:
        """One walk to take, as a set of one episode.

        Raises:
            UnknownError: there is no such house or place.
            UserError: no way leads on from the start, or none to the goal.
        """
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
        """The shortest route between two places in the words of the speaker.

        Without a heading one looks along the route.

        Raises:
            UnknownError: there is no such house or place.
            UserError: the two are the same, no way leads from one to the other, or there is no speaker.
        """
        self._scan(house)
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
        try:
            return self.world.index_of(house, name)
        except UserError:
            raise UnknownError(f"'{house}' has no place '{name}'") from None
