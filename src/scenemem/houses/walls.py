"""The building itself as boxes: walls with their openings, floors, ceilings, door frames and door leaves."""

from __future__ import annotations

from typing import NamedTuple

from scenemem.houses.landmarks import PANE_TOP, SILL, front_door_number, window_number
from scenemem.houses.records import CEILING, STOREY, WALL, Axis, Box, Door, House, Rect, Room
from scenemem.houses.solid import Solid, oriented

_RAIL_BARS = ((0.12, 0.2), (0.5, 0.56), (0.9, 1.0))  # heights of the bars round a porch, metres
_FRAME = 0.07  # width of a door frame


class _Gap(NamedTuple):
    """A door or window in one side of a room."""

    start: float
    stop: float
    bottom: float  # of the hole, above the floor
    top: float
    filling: str  # kind of what fills the hole, "" for nothing
    colour: str
    landmark: int


class _Side(NamedTuple):
    """One side of a room."""

    across: Axis
    line: float
    inward: int  # sign of the direction from the wall into the room
    start: float
    stop: float

    def box(self, start: float, stop: float, z0: float, z1: float) -> Box:
        """A piece of the wall."""
        return oriented(self.across, self.line, self.line + self.inward * WALL, start, stop, z0, z1)


def walls(house: House, number: int) -> list[Solid]:
    """The walls of a room (a porch has railings instead), seen from inside."""
    room = house.rooms[number]
    if room.kind == "porch":
        return _railings(house, number)
    solids = []
    for side in _sides(room.rect):
        at = side.start
        for gap in _gaps(house, number, side):
            solids.append(_wall(room, side, at, gap.start, 0.0, STOREY, shuts=True))
            solids += _round_gap(room, side, gap)
            at = gap.stop
        solids.append(_wall(room, side, at, side.stop, 0.0, STOREY, shuts=True))
    return solids


def floor_and_ceiling(house: House, number: int) -> list[Solid]:
    """Left out where the stairs pass from one storey to the next, and above a porch."""
    room = house.rooms[number]
    rect, base = room.rect, room.floor * STOREY
    below, above = house.stairs.rooms if house.stairs else (-1, -1)
    solids = []
    if number != above:
        box = Box(rect.x0, rect.y0, base - 0.12, rect.x1, rect.y1, base)
        solids.append(Solid(box, "floor", room.ground_colour, room.ground, room.floor))
    if number != below and room.kind != "porch":
        box = Box(rect.x0, rect.y0, base + CEILING, rect.x1, rect.y1, base + CEILING + 0.15)
        solids.append(Solid(box, "ceiling", "white", "plaster", room.floor))
    return solids


def door_parts(house: House, door: Door) -> list[Solid]:
    """The frame of a door and, where it has one, its open leaf."""
    room = house.rooms[door.rooms[0]]
    base, reach = room.floor * STOREY, WALL + 0.02
    start, stop, top = door.at - door.width / 2, door.at + door.width / 2, door.height
    colour = "white" if door.style == "opening" else "brown"
    beams = (
        (start - _FRAME / 2, start + _FRAME / 2, 0.0, top),
        (stop - _FRAME / 2, stop + _FRAME / 2, 0.0, top),
        (start - _FRAME / 2, stop + _FRAME / 2, top - 0.02, top + _FRAME),
    )
    solids = []
    for a, b, z0, z1 in beams:
        box = oriented(door.across, door.line - reach, door.line + reach, a, b, base + z0, base + z1)
        solids.append(Solid(box, "door frame", colour, "wood", room.floor))
    if door.leaf:
        solids.append(Solid(leaf_box(house, door), "door", door.colour, "wood", room.floor))
    return solids


def leaf_box(house: House, door: Door) -> Box:
    """The open door leaf: at right angles to the wall, hinged at the end nearer to a corner of the room."""
    room = house.rooms[door.rooms[0]]
    rect, base = room.rect, room.floor * STOREY
    low, high = (rect.y0, rect.y1) if door.across == "x" else (rect.x0, rect.x1)
    hinge = door.at - door.width / 2 if door.at - low < high - door.at else door.at + door.width / 2
    middle = rect.centre[0] if door.across == "x" else rect.centre[1]
    into = 1 if middle > door.line else -1
    near, far = door.line + into * 0.09, door.line + into * (0.03 + door.width)
    return oriented(
        door.across, near, far, hinge - 0.02, hinge + 0.02, base + 0.01, base + door.height - 0.03
    )


def _sides(rect: Rect) -> tuple[_Side, ...]:
    return (
        _Side("x", rect.x0, 1, rect.y0, rect.y1),
        _Side("x", rect.x1, -1, rect.y0, rect.y1),
        _Side("y", rect.y0, 1, rect.x0, rect.x1),
        _Side("y", rect.y1, -1, rect.x0, rect.x1),
    )


def _gaps(house: House, number: int, side: _Side) -> list[_Gap]:
    """Doors and windows of one side, in order."""
    gaps = []
    for door in house.doors_of(number):
        if (door.across, door.line) == (side.across, side.line) and side.start < door.at < side.stop:
            a, b, shut = door.at - door.width / 2, door.at + door.width / 2, door.style == "front door"
            filling, landmark = ("front door", front_door_number(house, door)) if shut else ("", -1)
            gaps.append(_Gap(a, b, 0.0, door.height, filling, door.colour, landmark))
    for place, pane in enumerate(house.windows):
        if pane.room == number and (pane.across, pane.line) == (side.across, side.line):
            a, b = pane.at - pane.width / 2, pane.at + pane.width / 2
            gaps.append(_Gap(a, b, SILL, PANE_TOP, "window", "blue", window_number(house, place)))
    return sorted(gaps)


def _wall(room: Room, side: _Side, start: float, stop: float, z0: float, z1: float, *, shuts: bool) -> Solid:
    base = room.floor * STOREY
    box = side.box(start, stop, base + z0, base + z1)
    return Solid(box, "wall", room.wall_colour, "plaster", room.floor, shuts=shuts)


def _round_gap(room: Room, side: _Side, gap: _Gap) -> list[Solid]:
    """The wall above and below a gap, and what fills it."""
    base, closed = room.floor * STOREY, bool(gap.filling)
    solids = [_wall(room, side, gap.start, gap.stop, gap.top, STOREY, shuts=closed)]
    if gap.bottom > 0:
        solids.append(_wall(room, side, gap.start, gap.stop, 0.0, gap.bottom, shuts=closed))
    if closed:
        box = side.box(gap.start, gap.stop, base + gap.bottom, base + gap.top)
        material = "glass" if gap.filling == "window" else "wood"
        solids.append(Solid(box, gap.filling, gap.colour, material, room.floor, gap.landmark, shuts=True))
    return solids


def _railings(house: House, number: int) -> list[Solid]:
    """Bars round a porch, except where the house stands."""
    room = house.rooms[number]
    others = [other.rect for n, other in enumerate(house.rooms) if n != number and other.floor == room.floor]
    solids = []
    for side in _sides(room.rect):
        outside = side.box(side.start, side.stop, 0, 1).footprint.grown(0.01)
        if not any(other.overlaps(outside) for other in others):
            for low, high in _RAIL_BARS:
                bar = side.box(side.start, side.stop, low, high)
                solids.append(Solid(bar, "railing", room.wall_colour, "wood", 0))
    return solids
