"""What a walker meets along a route: its legs, the doors passed and the landmarks in sight."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from scenemem.houses.house import House, Thing
from scenemem.houses.scene import NOTHING, FloatArray, IntArray, Panorama, Scene
from scenemem.houses.viewpoints import Route

Side = Literal["", "left", "right"]

_LEAST_RAYS = 8  # a landmark counts as seen when at least this many of the 4800 panorama rays meet it
_BEND = math.radians(35)  # a larger turn starts a new leg
_TOO_COMMON = ("chair", "nightstand", "office chair", "towel rack")
_BESIDE = 1.4  # metres within which one passes or stands beside a thing
_AHEAD = math.radians(18)
_AT_DOOR = 1.3  # metres between a door and a thing beside it


@dataclass(frozen=True)
class Surroundings:
    """A house with its landmarks and the viewpoints they are seen from; V viewpoints, M landmarks."""

    house: House
    landmarks: tuple[Thing, ...]  # M
    position: FloatArray  # (V, 3)
    rays: IntArray  # (V, M) panorama rays that meet the landmark

    @cached_property
    def seen(self) -> list[list[int]]:
        """The landmarks plainly visible from each viewpoint, the largest first."""
        order = np.argsort(-self.rays, axis=1, kind="stable")
        counts = (self.rays >= _LEAST_RAYS).sum(axis=1)
        return [row[:count].tolist() for row, count in zip(order, counts, strict=True)]

    def heading(self, source: int, target: int) -> float:
        """Of the way from one viewpoint to another, radians clockwise from +y."""
        east, north, _ = self.position[target] - self.position[source]
        return math.atan2(east, north)

    def bearing(self, stand: int, landmark: int) -> float:
        """Heading of the middle of a landmark from a viewpoint."""
        x, y = self.landmarks[landmark].box.footprint.centre
        return math.atan2(x - self.position[stand, 0], y - self.position[stand, 1])

    def gap(self, stand: int, landmark: int) -> float:
        """Metres between a viewpoint and the nearest edge of a landmark, on the floor."""
        x, y, _ = self.position[stand]
        return self.landmarks[landmark].box.footprint.distance(float(x), float(y))


def survey(house: House, scene: Scene, position: FloatArray, panoramas: list[Panorama]) -> Surroundings:
    """Count what the panoramas of all viewpoints show."""
    landmarks = house.landmarks()
    rows = []
    for panorama in panoramas:
        met = np.where(panorama.box == NOTHING, -1, scene.landmark[panorama.box]).ravel() + 1
        rows.append(np.bincount(met, minlength=len(landmarks) + 1)[1:])
    return Surroundings(house, landmarks, position, np.stack(rows))


def turn_between(before: float, after: float) -> float:
    """Signed turn from one heading to another, radians in [-pi, pi), positive to the right."""
    return (after - before + math.pi) % (2 * math.pi) - math.pi


@dataclass(frozen=True)
class Leg:
    """Part of a route described in one go; ``start`` and ``stop`` are indices into ``Route.stands``."""

    start: int
    stop: int
    room: int  # walked through
    before: float  # heading on arrival at ``start``, radians
    heading: float  # of its first edge
    climb: int  # -1 down the stairs, 1 up, 0 level
    door: int = -1  # passed at its end (or on its last edge), -1 for none
    into: int = -1  # the room behind that door

    @property
    def turn(self) -> float:
        """Radians at its start, positive to the right."""
        return turn_between(self.before, self.heading)


class _Edge(NamedTuple):
    leaves: int  # room it starts in
    enters: int  # room it ends in
    heading: float
    climb: int


def cut_into_legs(around: Surroundings, route: Route) -> list[Leg]:
    """The legs of a route in the order they are walked."""
    edges = [_edge(around, a, b) for a, b in itertools.pairwise(route.stands)]
    legs: list[Leg] = []
    for number, edge in enumerate(edges):
        before = edges[number - 1].heading if number else route.heading
        door, into = _door_passed(around, route, edges, number)
        last = legs[-1] if legs else None
        if last is not None and last.door < 0 and _goes_on(last, edge, before):
            legs[-1] = replace(last, stop=number + 1, door=door, into=into)
        else:
            legs.append(Leg(number, number + 1, edge.leaves, before, edge.heading, edge.climb, door, into))
    return legs


def _edge(around: Surroundings, source: int, target: int) -> _Edge:
    a, b = around.position[source], around.position[target]
    rise = float(b[2] - a[2])
    climb = (rise > 0.1) - (rise < -0.1)
    leaves, enters = (around.house.room_at(*(a + share * (b - a)).tolist()) for share in (0.12, 0.88))
    return _Edge(leaves, enters, around.heading(source, target), climb)


def _goes_on(last: Leg, edge: _Edge, before: float) -> bool:
    """Whether an edge belongs to the leg before it: still on the stairs, or straight on in the same room."""
    if last.climb or edge.climb:
        return last.climb == edge.climb
    return last.room == edge.leaves and abs(turn_between(before, edge.heading)) < _BEND


def _door_passed(around: Surroundings, route: Route, edges: list[_Edge], number: int) -> tuple[int, int]:
    """The door one goes through on an edge or at its end, and the room behind it; (-1, -1) for none."""
    edge, doors = edges[number], around.house.doors
    if edge.climb:
        return -1, -1
    source, target = route.stands[number], route.stands[number + 1]
    if edge.leaves != edge.enters:  # the door between the two rooms that is closest to the middle of the edge
        x, y = ((around.position[source] + around.position[target]) / 2)[:2].tolist()
        fits = [n for n, door in enumerate(doors) if set(door.rooms) == {edge.leaves, edge.enters}]
        nearest = min(fits, key=lambda n: math.hypot(doors[n].x - x, doors[n].y - y), default=-1)
        return nearest, edge.enters
    door = around.house.stands[target].door
    if door >= 0 and number + 1 < len(edges) and edges[number + 1].leaves != edge.enters:
        return door, edges[number + 1].leaves
    return -1, -1


def doors_ahead(house: House, room: int, x: float, y: float, heading: float, side: str) -> list[int]:
    """Doors on one side of someone walking through a room, in the order they come.

    Only doors in walls that run along the way count, and no wide openings.
    """
    found: list[tuple[float, int]] = []
    for number, door in enumerate(house.doors):
        along_wall = abs(math.cos(heading)) if door.across == "x" else abs(math.sin(heading))
        if room in door.rooms and door.style == "door" and along_wall > math.cos(math.radians(25)):
            forward, right = _relative(door.x - x, door.y - y, heading)
            if forward > 0.3 and (right > 0) == (side == "right"):
                found.append((forward, number))
    return [number for _, number in sorted(found)]


def _relative(east: float, north: float, heading: float) -> tuple[float, float]:
    """An offset as metres ahead and to the right of someone who looks along a heading."""
    sine, cosine = math.sin(heading), math.cos(heading)
    return east * sine + north * cosine, east * cosine - north * sine


class LandmarkFinder:
    """Finds landmarks worth mentioning along one route; a ``step`` is an index into ``Route.stands``."""

    def __init__(self, around: Surroundings, route: Route) -> None:
        self.around = around
        self.route = route

    def passed(self, leg: Leg) -> list[tuple[int, Side]]:
        """Landmarks beside the way, in sight before one comes past them, with their side."""
        start, stop = self._ends(leg)
        heading, length = self.around.heading(start, stop), self.length(leg)
        here_x, here_y = (float(value) for value in self.around.position[start][:2])
        found: list[tuple[int, Side]] = []
        for landmark in self._mentionable(start):
            thing = self.around.landmarks[landmark]
            if thing.room != leg.room:
                continue
            x, y = thing.box.footprint.centre
            forward, right = _relative(x - here_x, y - here_y, heading)
            if 0.4 < forward < length - 0.1 and self._beside_way(start, stop, thing):
                sure = abs(right) > 0.35 and thing.kind != "rug"
                found.append((landmark, ("right" if right > 0 else "left") if sure else ""))
        return found

    def ahead(self, leg: Leg) -> list[int]:
        """Landmarks one walks towards."""
        start, stop = self._ends(leg)
        heading, length = self.around.heading(start, stop), self.length(leg)
        return [
            landmark
            for landmark in self._mentionable(start)
            if abs(turn_between(heading, self.around.bearing(start, landmark))) < _AHEAD
            and length - 0.3 < self.around.gap(start, landmark) < length + 3.0
        ]

    def near(self, step: int, reach: float = _BESIDE) -> list[int]:
        """Landmarks beside a viewpoint of the route, the closest first."""
        stand = self.route.stands[step]
        gaps = [(self.around.gap(stand, landmark), landmark) for landmark in self._mentionable(stand)]
        return [landmark for gap, landmark in sorted(gaps) if gap < reach]

    def beside_door(self, door: int, step: int) -> list[int]:
        """Landmarks beside a door in the room one comes from, in sight from a viewpoint of the route."""
        opening, stand = self.around.house.doors[door], self.route.stands[step]
        room = self.around.house.stands[stand].room
        found = []
        for landmark in self._mentionable(stand):
            thing = self.around.landmarks[landmark]
            distance = thing.box.footprint.distance(opening.x, opening.y)
            if thing.room == room and thing.kind != "rug" and distance < _AT_DOOR:
                found.append(landmark)
        return found

    def same_kind(self, landmark: int, step: int) -> list[int]:
        """Other landmarks of the same kind in sight from a viewpoint of the route."""
        kind = self.around.landmarks[landmark].kind
        seen = self.around.seen[self.route.stands[step]]
        return [other for other in seen if other != landmark and self.around.landmarks[other].kind == kind]

    def length(self, leg: Leg) -> float:
        """Metres from the start of a leg straight to its end, on the floor."""
        start, stop = self._ends(leg)
        east, north, _ = self.around.position[stop] - self.around.position[start]
        return math.hypot(east, north)

    def _ends(self, leg: Leg) -> tuple[int, int]:
        return self.route.stands[leg.start], self.route.stands[leg.stop]

    def _mentionable(self, stand: int) -> list[int]:
        return [n for n in self.around.seen[stand] if self.around.landmarks[n].kind not in _TOO_COMMON]

    def _beside_way(self, start: int, stop: int, thing: Thing) -> bool:
        a, b = self.around.position[start], self.around.position[stop]
        points = (a + (b - a) * share / 8 for share in range(9))
        same_floor = abs(thing.box.z0 - float(a[2]) + 1.5) < 1.6
        return same_floor and min(thing.box.footprint.distance(*p[:2].tolist()) for p in points) < _BESIDE
