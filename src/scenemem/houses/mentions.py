"""Which landmarks are worth mentioning on a leg, and what is claimed by mentioning them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scenemem.houses.legs import Leg
from scenemem.houses.routes import Route
from scenemem.houses.surroundings import Surroundings, gap_to, turn_between

_TOO_COMMON = ("chair", "nightstand", "office chair", "towel rack")
_BESIDE = 1.4  # metres within which one passes or stands beside a thing
_IN_SIGHT_AHEAD = math.radians(18)
_AT_DOOR = 1.3  # metres between a door and a thing beside it

Side = Literal["", "left", "right"]
Subject = Literal[
    "sees",  # the landmark can be seen from the place
    "passes",  # it lies beside the way, on ``side`` if that is said
    "ahead",  # it lies straight ahead on the way
    "near",  # it is close to the place
    "turn",  # the way turns to ``side``
    "door side",  # the door lies on ``side`` of someone arriving at the place
    "ordinal",  # it is door ``number`` on ``side``, counted from the place
    "room",  # the place lies in the room, or in a door of it
    "stairs",  # the way leads up or down the stairs
    "doorway",  # the place is in the door, or on the part of the stairs that was named
]


@dataclass(frozen=True)
class Claim:
    """Something an instruction says that must be true; places are indices into ``Route.stands``."""

    about: Subject
    place: int  # where it is said
    until: int = -1  # the place it reaches to, where that matters
    landmark: int = -1  # index into Surroundings.landmarks
    side: Side | Literal["around", "up", "down"] = ""
    room: int = -1
    door: int = -1
    number: int = 0  # of an ordinal


class Finder:
    """Looks for landmarks along one route."""

    def __init__(self, around: Surroundings, route: Route) -> None:
        self.around = around
        self.route = route

    def passed(self, leg: Leg) -> list[tuple[int, Side]]:
        """Landmarks beside the way, in sight before one comes past them, with their side."""
        start, stop = self._ends(leg)
        heading, length = self.around.heading(start, stop), self.length(leg)
        found: list[tuple[int, Side]] = []
        for landmark in self._worthy(start):
            if self.around.landmarks[landmark].room != leg.room:
                continue
            forward, right = self._relative(start, landmark, heading)
            if 0.4 < forward < length - 0.1 and self._beside_way(start, stop, landmark):
                sure = abs(right) > 0.35 and self.around.landmarks[landmark].kind != "rug"
                found.append((landmark, ("right" if right > 0 else "left") if sure else ""))
        return found

    def ahead(self, leg: Leg) -> list[int]:
        """Landmarks one walks towards."""
        start, stop = self._ends(leg)
        heading, length = self.around.heading(start, stop), self.length(leg)
        return [
            landmark
            for landmark in self._worthy(start)
            if abs(turn_between(heading, self.around.bearing(start, landmark))) < _IN_SIGHT_AHEAD
            and length - 0.3 < self.around.gap(start, landmark) < length + 3.0
        ]

    def near(self, place: int, reach: float = _BESIDE) -> list[int]:
        """Landmarks beside a place of the route, the closest first."""
        stand = self.route.stands[place]
        close = [landmark for landmark in self._worthy(stand) if self.around.gap(stand, landmark) < reach]
        return sorted(close, key=lambda landmark: (self.around.gap(stand, landmark), landmark))

    def beside_door(self, door: int, place: int) -> list[int]:
        """Landmarks beside a door that are in sight from a place of the route, in the room one comes from."""
        opening, stand = self.around.house.doors[door], self.route.stands[place]
        room = self.around.house.stands[stand].room
        return [
            landmark
            for landmark in self._worthy(stand)
            if self.around.landmarks[landmark].room == room
            and self.around.landmarks[landmark].kind != "rug"
            and gap_to(self.around.landmarks[landmark].box.footprint, opening.x, opening.y) < _AT_DOOR
        ]

    def rivals(self, landmark: int, place: int) -> list[int]:
        """Other landmarks of the same kind in sight from a place."""
        kind = self.around.landmarks[landmark].kind
        seen = self.around.seen(self.route.stands[place])
        return [other for other in seen if other != landmark and self.around.landmarks[other].kind == kind]

    def _ends(self, leg: Leg) -> tuple[int, int]:
        return self.route.stands[leg.start], self.route.stands[leg.stop]

    def length(self, leg: Leg) -> float:
        """Metres from the start of a leg straight to its end, on the floor."""
        start, stop = self._ends(leg)
        east, north, _ = self.around.position[stop] - self.around.position[start]
        return math.hypot(east, north)

    def _worthy(self, stand: int) -> list[int]:
        return [n for n in self.around.seen(stand) if self.around.landmarks[n].kind not in _TOO_COMMON]

    def _relative(self, stand: int, landmark: int, heading: float) -> tuple[float, float]:
        """Metres ahead and to the right of someone at a stand."""
        x, y = self.around.landmarks[landmark].box.footprint.centre
        east, north = x - float(self.around.position[stand, 0]), y - float(self.around.position[stand, 1])
        sine, cosine = math.sin(heading), math.cos(heading)
        return east * sine + north * cosine, east * cosine - north * sine

    def _beside_way(self, start: int, stop: int, landmark: int) -> bool:
        a, b = self.around.position[start], self.around.position[stop]
        rect = self.around.landmarks[landmark].box.footprint
        points = (a + (b - a) * share / 8 for share in range(9))
        same_floor = abs(self.around.landmarks[landmark].box.z0 - float(a[2]) + 1.5) < 1.6
        return same_floor and min(gap_to(rect, float(p[0]), float(p[1])) for p in points) < _BESIDE
