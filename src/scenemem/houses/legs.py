"""A route cut into legs: stretches that a person would walk and describe in one go."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from scenemem.houses.records import Door, House
from scenemem.houses.routes import Route
from scenemem.houses.surroundings import Surroundings, room_at, turn_between

_BEND = math.radians(35)  # a larger turn starts a new leg


@dataclass(frozen=True)
class Leg:
    """Part of a route; ``start`` and ``stop`` are places in ``Route.stands``."""

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


@dataclass(frozen=True)
class _Edge:
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
        door, into = _passed(around, route, edges, number)
        last = legs[-1] if legs else None
        if last is not None and last.door < 0 and _goes_on(last, edge, before):
            legs[-1] = replace(last, stop=number + 1, door=door, into=into)
        else:
            legs.append(Leg(number, number + 1, edge.leaves, before, edge.heading, edge.climb, door, into))
    return legs


def _goes_on(last: Leg, edge: _Edge, before: float) -> bool:
    """Whether an edge belongs to the leg before it: still on the stairs, or straight on in the same room."""
    if last.climb or edge.climb:
        return last.climb == edge.climb
    return last.room == edge.leaves and abs(turn_between(before, edge.heading)) < _BEND


def _edge(around: Surroundings, source: int, target: int) -> _Edge:
    a, b = around.position[source], around.position[target]
    rise = float(b[2] - a[2])
    climb = (rise > 0.1) - (rise < -0.1)
    near, far = a + 0.12 * (b - a), a + 0.88 * (b - a)
    house = around.house
    leaves, enters = (room_at(house, float(p[0]), float(p[1]), float(p[2])) for p in (near, far))
    return _Edge(leaves, enters, around.heading(source, target), climb)


def _passed(around: Surroundings, route: Route, edges: list[_Edge], number: int) -> tuple[int, int]:
    """The door one goes through on an edge or at its end, and the room behind it; (-1, -1) for none."""
    edge, house = edges[number], around.house
    if edge.climb:
        return -1, -1
    if edge.leaves != edge.enters:
        return _joining_door(around, route, number, {edge.leaves, edge.enters}), edge.enters
    door = house.stands[route.stands[number + 1]].door
    if door >= 0 and number + 1 < len(edges) and edges[number + 1].leaves != edge.enters:
        return door, edges[number + 1].leaves
    return -1, -1


def _joining_door(around: Surroundings, route: Route, number: int, rooms: set[int]) -> int:
    """The door between two rooms that lies closest to the middle of an edge."""
    house = around.house
    a, b = (around.position[route.stands[place]] for place in (number, number + 1))
    x, y = (float(value) for value in (a[:2] + b[:2]) / 2)
    fits = [n for n, door in enumerate(house.doors) if set(door.rooms) == rooms]
    return min(fits, key=lambda n: math.hypot(house.doors[n].x - x, house.doors[n].y - y), default=-1)


def doors_ahead(house: House, room: int, x: float, y: float, heading: float, side: str) -> list[int]:
    """Doors on one side of someone walking through a room, in the order they come.

    Only doors in walls that run along the way count, and no wide openings.
    """
    step = (math.sin(heading), math.cos(heading))
    found: list[tuple[float, int]] = []
    for number, door in enumerate(house.doors):
        if room in door.rooms and door.style == "door" and _runs_along(door, step):
            east, north = door.x - x, door.y - y
            forward = east * step[0] + north * step[1]
            right = east * step[1] - north * step[0]
            if forward > 0.3 and (right > 0) == (side == "right"):
                found.append((forward, number))
    return [number for _, number in sorted(found)]


def _runs_along(door: Door, step: tuple[float, float]) -> bool:
    """Whether the wall of a door is roughly parallel to a direction."""
    along_wall = abs(step[1]) if door.across == "x" else abs(step[0])
    return along_wall > math.cos(math.radians(25))
