"""What a walker meets along a route: its legs, the doors passed and the landmarks in sight."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

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

    def goes_on(self, edge: Leg) -> bool:
        """Whether the next edge belongs to this leg: still on the stairs, or straight on in the same room."""
        if self.door >= 0:
            return False
        if self.climb or edge.climb:
            return self.climb == edge.climb
        return self.room == edge.room and abs(edge.turn) < _BEND


class Walk:
    """One route in its surroundings; a ``step`` is an index into ``Route.stands``."""

    def __init__(self, around: Surroundings, route: Route) -> None:
        self.around = around
        self.house = around.house
        self.stands = route.stands
        edges = list(itertools.pairwise(route.stands))
        self._headings = [route.heading, *itertools.starmap(around.heading, edges)]
        self._rooms = [self._rooms_of(source, target) for source, target in edges]
        self.legs: list[Leg] = []
        for number in range(len(edges)):
            edge = self._edge(number)
            if self.legs and self.legs[-1].goes_on(edge):
                self.legs[-1] = replace(self.legs[-1], stop=edge.stop, door=edge.door, into=edge.into)
            else:
                self.legs.append(edge)

    def _rooms_of(self, source: int, target: int) -> tuple[int, int]:
        """The rooms an edge starts and ends in."""
        a, b = self.around.position[source], self.around.position[target]
        leaves, enters = (self.house.room_at(*(a + share * (b - a)).tolist()) for share in (0.12, 0.88))
        return leaves, enters

    def _edge(self, number: int) -> Leg:
        """One edge as a leg of its own."""
        before, heading = self._headings[number : number + 2]
        rise = self.spot(number + 1)[2] - self.spot(number)[2]
        climb = (rise > 0.1) - (rise < -0.1)
        door, into = (-1, -1) if climb else self._door_passed(number)
        return Leg(number, number + 1, self._rooms[number][0], before, heading, climb, door, into)

    def _door_passed(self, number: int) -> tuple[int, int]:
        """The door one goes through on an edge or at its end, and the room behind it; (-1, -1) for none."""
        (leaves, enters), doors = self._rooms[number], self.house.doors
        source, target = self.stands[number : number + 2]
        if leaves != enters:  # the door between the two rooms that is closest to the middle of the edge
            x, y = ((self.around.position[source] + self.around.position[target]) / 2)[:2].tolist()
            fits = [n for n, door in enumerate(doors) if set(door.rooms) == {leaves, enters}]
            nearest = min(fits, key=lambda n: math.hypot(doors[n].x - x, doors[n].y - y), default=-1)
            return nearest, enters
        door = self.house.stands[target].door
        if door >= 0 and number + 1 < len(self._rooms) and self._rooms[number + 1][0] != enters:
            return door, self._rooms[number + 1][0]
        return -1, -1

    def spot(self, step: int) -> tuple[float, float, float]:
        """The position of the camera."""
        x, y, z = self.around.position[self.stands[step]].tolist()
        return x, y, z

    def length(self, leg: Leg) -> float:
        """Metres from the start of a leg straight to its end, on the floor."""
        east, north, _ = np.subtract(self.spot(leg.stop), self.spot(leg.start)).tolist()
        return math.hypot(east, north)

    def doors_ahead(self, leg: Leg, side: str) -> list[int]:
        """Doors on one side of the room one walks through, in the order they come.

        Only doors in walls that run along the way count, and no wide openings.
        """
        found: list[tuple[float, int]] = []
        x, y, _ = self.spot(leg.start)
        for number, door in enumerate(self.house.doors):
            along_wall = abs(math.cos(leg.heading)) if door.across == "x" else abs(math.sin(leg.heading))
            if leg.room in door.rooms and door.style == "door" and along_wall > math.cos(math.radians(25)):
                forward, right = _relative(door.x - x, door.y - y, leg.heading)
                if forward > 0.3 and (right > 0) == (side == "right"):
                    found.append((forward, number))
        return [number for _, number in sorted(found)]

    def passed(self, leg: Leg) -> list[tuple[int, Side]]:
        """Landmarks beside the way, in sight before one comes past them, with their side."""
        heading, length = self._heading(leg), self.length(leg)
        here_x, here_y, _ = self.spot(leg.start)
        found: list[tuple[int, Side]] = []
        for landmark in self._mentionable(leg.start):
            thing = self.around.landmarks[landmark]
            x, y = thing.box.footprint.centre
            forward, right = _relative(x - here_x, y - here_y, heading)
            beside = thing.room == leg.room and 0.4 < forward < length - 0.1
            if beside and self._beside_way(leg, thing):
                sure = abs(right) > 0.35 and thing.kind != "rug"
                found.append((landmark, ("right" if right > 0 else "left") if sure else ""))
        return found

    def ahead(self, leg: Leg) -> list[int]:
        """Landmarks one walks towards."""
        start, heading, length = self.stands[leg.start], self._heading(leg), self.length(leg)
        return [
            landmark
            for landmark in self._mentionable(leg.start)
            if abs(turn_between(heading, self.around.bearing(start, landmark))) < _AHEAD
            and length - 0.3 < self.around.gap(start, landmark) < length + 3.0
        ]

    def near(self, step: int, reach: float = _BESIDE) -> list[int]:
        """Landmarks beside a viewpoint of the route, the closest first."""
        stand = self.stands[step]
        gaps = [(self.around.gap(stand, landmark), landmark) for landmark in self._mentionable(step)]
        return [landmark for gap, landmark in sorted(gaps) if gap < reach]

    def beside_door(self, leg: Leg) -> list[int]:
        """Landmarks beside the door of a leg in the room one comes from, in sight before its last edge."""
        door, step = self.house.doors[leg.door], leg.stop - 1
        room = self.house.stands[self.stands[step]].room
        found = []
        for landmark in self._mentionable(step):
            thing = self.around.landmarks[landmark]
            near = thing.box.footprint.distance(door.x, door.y) < _AT_DOOR
            if thing.room == room and thing.kind != "rug" and near:
                found.append(landmark)
        return found

    def same_kind(self, landmark: int, step: int) -> list[Thing]:
        """Other landmarks of the same kind in sight from a viewpoint of the route."""
        thing, seen = self.around.landmarks[landmark], self.around.seen[self.stands[step]]
        others = (self.around.landmarks[other] for other in seen if other != landmark)
        return [other for other in others if other.kind == thing.kind]

    def _heading(self, leg: Leg) -> float:
        return self.around.heading(self.stands[leg.start], self.stands[leg.stop])

    def _mentionable(self, step: int) -> list[int]:
        seen = self.around.seen[self.stands[step]]
        return [number for number in seen if self.around.landmarks[number].kind not in _TOO_COMMON]

    def _beside_way(self, leg: Leg, thing: Thing) -> bool:
        a, b = np.array(self.spot(leg.start)), np.array(self.spot(leg.stop))
        points = (a + (b - a) * share / 8 for share in range(9))
        same_floor = abs(thing.box.z0 - float(a[2]) + 1.5) < 1.6
        return same_floor and min(thing.box.footprint.distance(*p[:2].tolist()) for p in points) < _BESIDE


def _relative(east: float, north: float, heading: float) -> tuple[float, float]:
    """An offset as metres ahead and to the right of someone who looks along a heading."""
    sine, cosine = math.sin(heading), math.cos(heading)
    return east * sine + north * cosine, east * cosine - north * sine
