"""A floor plan while it is being drawn: rooms are added, then joined by doors wherever they share a wall."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from scenemem.houses.records import Axis, Door, House, Rect, Room, Stairs, Window
from scenemem.houses.room_kinds import ROOM_KINDS

GRID = 0.25  # walls lie on multiples of this, metres
LEAST_SHARED = 1.25  # shortest shared wall that can take a door
_CORNER = 0.22  # kept free between a door or window and the corner of a room
_DOOR_COLOURS = ("white", "white", "brown", "brown", "gray", "blue", "green", "red")


class SharedWall(NamedTuple):
    """The stretch of wall between two rooms."""

    across: Axis  # the direction one walks in to cross it
    line: float  # coordinate of the wall along that direction
    start: float
    stop: float


def shared_wall(a: Rect, b: Rect) -> SharedWall | None:
    """The wall two rectangles have in common, if any."""
    y0, y1 = max(a.y0, b.y0), min(a.y1, b.y1)
    if (a.x1 == b.x0 or b.x1 == a.x0) and y1 > y0:
        return SharedWall("x", a.x1 if a.x1 == b.x0 else a.x0, y0, y1)
    x0, x1 = max(a.x0, b.x0), min(a.x1, b.x1)
    if (a.y1 == b.y0 or b.y1 == a.y0) and x1 > x0:
        return SharedWall("y", a.y1 if a.y1 == b.y0 else a.y0, x0, x1)
    return None


def snapped(value: float) -> float:
    """The nearest multiple of the grid."""
    return round(value / GRID) * GRID


@dataclass
class Draft:
    """Rooms, doors and windows so far."""

    rng: np.random.Generator
    rooms: list[Room] = field(default_factory=list)
    doors: list[Door] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    stairs: Stairs | None = None

    def add_room(self, kind: str, floor: int, rect: Rect) -> int:
        """Add a room with surfaces typical of its kind; returns its number."""
        model = ROOM_KINDS[kind]
        wall = model.walls[self.rng.integers(len(model.walls))]
        ground, colour = model.grounds[self.rng.integers(len(model.grounds))]
        self.rooms.append(Room(kind, floor, rect, wall, ground, colour))
        return len(self.rooms) - 1

    def share(self, a: int, b: int) -> float:
        """Length of the wall two rooms share; 0 on different floors."""
        if self.rooms[a].floor != self.rooms[b].floor:
            return 0.0
        wall = shared_wall(self.rooms[a].rect, self.rooms[b].rect)
        return wall.stop - wall.start if wall else 0.0

    def join(self, a: int, b: int, style: Literal["door", "opening"] = "door", width: float = 0.9) -> None:
        """Put a door somewhere in the wall two rooms share."""
        wall = shared_wall(self.rooms[a].rect, self.rooms[b].rect)
        if wall is None:
            raise ValueError(f"rooms {a} and {b} share no wall")
        width = min(width, wall.stop - wall.start - 2 * _CORNER)
        at = self._spot(wall.start, wall.stop, width)
        self._add_door((a, b), wall.across, wall.line, at, width, style)

    def join_at(self, a: int, b: int, at: float, width: float) -> None:
        """Put an opening at a given place in the wall two rooms share."""
        wall = shared_wall(self.rooms[a].rect, self.rooms[b].rect)
        if wall is None:
            raise ValueError(f"rooms {a} and {b} share no wall")
        self._add_door((a, b), wall.across, wall.line, at, width, "opening")

    def add_front_door(self, room: int, across: Axis, line: float) -> None:
        """Put a shut door into the middle of an outer wall."""
        rect = self.rooms[room].rect
        at = rect.centre[1] if across == "x" else rect.centre[0]
        self._add_door((room, -1), across, line, at, 1.0, "front door")

    def add_windows(self) -> None:
        """Put windows into the stretches of outer wall that are long enough."""
        for number, room in enumerate(self.rooms):
            if room.kind in ("porch", "closet", "stairs"):
                continue
            for across, line, start, stop in self._outer_walls(number):
                if stop - start < 1.5 or self.rng.random() > 0.8:
                    continue
                width = min(float(self.rng.uniform(0.9, 1.8)), stop - start - 2 * _CORNER)
                at = self._spot(start, stop, width)
                x, y = (line, at) if across == "x" else (at, line)
                self.windows.append(Window(number, round(x, 3), round(y, 3), across, round(width, 3)))

    def finished(self, name: str) -> House:
        """The plan as a house, mirrored and turned at random so that no direction is special."""
        flip_x, flip_y, swap = (bool(bit) for bit in self.rng.integers(2, size=3))
        turn = _Turn(-1 if flip_x else 1, -1 if flip_y else 1, swap)
        stairs = self.stairs and replace(
            self.stairs,
            lower=turn.rect(self.stairs.lower),
            landing=turn.rect(self.stairs.landing),
            upper=turn.rect(self.stairs.upper),
            inward=turn.vector(self.stairs.inward),
        )
        return House(
            name=name,
            floors=1 + max(room.floor for room in self.rooms),
            rooms=tuple(replace(room, rect=turn.rect(room.rect)) for room in self.rooms),
            doors=tuple(turn.door(door) for door in self.doors),
            windows=tuple(turn.window(window) for window in self.windows),
            stairs=stairs,
        )

    def _add_door(
        self,
        rooms: tuple[int, int],
        across: Axis,
        line: float,
        at: float,
        width: float,
        style: Literal["door", "opening", "front door"],
    ) -> None:
        x, y = (line, at) if across == "x" else (at, line)
        colour = _DOOR_COLOURS[self.rng.integers(len(_DOOR_COLOURS))]
        height = 2.3 if style == "opening" else 2.05
        leaf = style == "door" and bool(self.rng.random() < 0.6)
        self.doors.append(
            Door(rooms, round(x, 3), round(y, 3), across, round(width, 3), height, style, colour, leaf)
        )

    def _spot(self, start: float, stop: float, width: float) -> float:
        low, high = start + _CORNER + width / 2, stop - _CORNER - width / 2
        return float(self.rng.uniform(low, high)) if high > low else (start + stop) / 2

    def _outer_walls(self, number: int) -> list[tuple[Axis, float, float, float]]:
        """The walls of a room that no other room and no front door touches."""
        room = self.rooms[number]
        rect = room.rect
        others = [r.rect for n, r in enumerate(self.rooms) if n != number and r.floor == room.floor]
        taken = [wall for other in others if (wall := shared_wall(rect, other))]
        shut = {(door.across, door.x if door.across == "x" else door.y) for door in self._shut_doors(number)}
        sides: list[tuple[Axis, float, float, float]] = [
            ("x", rect.x0, rect.y0, rect.y1),
            ("x", rect.x1, rect.y0, rect.y1),
            ("y", rect.y0, rect.x0, rect.x1),
            ("y", rect.y1, rect.x0, rect.x1),
        ]
        return [
            side
            for side in sides
            if side[:2] not in shut and not any((wall.across, wall.line) == side[:2] for wall in taken)
        ]

    def _shut_doors(self, number: int) -> list[Door]:
        return [door for door in self.doors if door.rooms == (number, -1)]


class _Turn(NamedTuple):
    """One of the eight ways to mirror and turn a plan."""

    sign_x: int
    sign_y: int
    swap: bool

    def point(self, x: float, y: float) -> tuple[float, float]:
        x, y = self.sign_x * x + 0.0, self.sign_y * y + 0.0  # + 0.0 turns -0.0 into 0.0
        return (y, x) if self.swap else (x, y)

    def vector(self, vector: tuple[int, int]) -> tuple[int, int]:
        x, y = self.sign_x * vector[0], self.sign_y * vector[1]
        return (y, x) if self.swap else (x, y)

    def rect(self, rect: Rect) -> Rect:
        (xa, ya), (xb, yb) = self.point(rect.x0, rect.y0), self.point(rect.x1, rect.y1)
        return Rect(min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb))

    def door(self, door: Door) -> Door:
        x, y = self.point(door.x, door.y)
        return replace(door, x=x, y=y, across=self.axis(door.across))

    def window(self, window: Window) -> Window:
        x, y = self.point(window.x, window.y)
        return replace(window, x=x, y=y, across=self.axis(window.across))

    def axis(self, axis: Axis) -> Axis:
        if not self.swap:
            return axis
        return "y" if axis == "x" else "x"
