"""A house as solid boxes: walls with their openings, floors, ceilings, doors, stairs and furniture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenemem.houses.catalogue import COLOURS, KINDS, MATERIALS, SEEN_KINDS, SHAPES, Part
from scenemem.houses.house import (
    CEILING,
    FOOT,
    PANE_TOP,
    SILL,
    STOREY,
    WALL,
    Box,
    Door,
    House,
    Rect,
    RectSide,
    Room,
    Stairs,
    Thing,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NO_OBSTACLES = ("floor", "ceiling", "grass", "rug", "stairs")  # walked on, or far above one's head
_RAIL_BARS = ((0.12, 0.2), (0.5, 0.56), (0.9, 1.0))  # heights of the bars round a porch, metres
_FRAME = 0.07  # width of a door frame
_RISES = 6  # per flight of stairs
_BANISTER = 0.9


@dataclass(frozen=True)
class Scene:
    """B boxes and what each of them is."""

    low: FloatArray  # (B, 3) metres
    high: FloatArray  # (B, 3)
    kind: IntArray  # (B,) index into SEEN_KINDS
    colour: IntArray  # (B,) index into COLOURS
    material: IntArray  # (B,) index into MATERIALS
    landmark: IntArray  # (B,) index into House.landmarks(), -1 for the rest of the building
    storey: IntArray  # (B,)
    blocks_view: BoolArray  # (B,) whether nothing of the same storey can be seen behind it
    blocks_walking: BoolArray  # (B,)


class _Solid(NamedTuple):
    """One box of a scene."""

    box: Box
    kind: str  # one of SEEN_KINDS
    colour: str
    material: str
    storey: int
    landmark: int = -1  # index into House.landmarks()
    blocks_view: bool = False


def build_scene(house: House) -> Scene:
    """All boxes of a house."""
    solids: list[_Solid] = []
    for number, room in enumerate(house.rooms):
        solids += _railings(house, number) if room.kind == "porch" else _walls(house, number)
        solids += _floor_and_ceiling(house, number)
    for door in house.doors:
        solids += _door_parts(house, door)
    if house.stairs is not None:
        solids += _steps(house.stairs)
    for number, thing in enumerate(house.things):
        storey = house.rooms[thing.room].floor
        for part in SHAPES[KINDS[thing.kind].shape]:
            colour = part.paint or thing.colour
            solids.append(_Solid(part_box(thing, part), thing.kind, colour, thing.material, storey, number))
    solids.append(_Solid(Box(-60, -60, -0.4, 60, 60, -0.15), "grass", "green", "plant", 0))
    boxes, colours = np.array([solid.box for solid in solids]), list(COLOURS)
    return Scene(
        low=boxes[:, :3],
        high=boxes[:, 3:],
        kind=np.array([SEEN_KINDS.index(solid.kind) for solid in solids]),
        colour=np.array([colours.index(solid.colour) for solid in solids]),
        material=np.array([MATERIALS.index(solid.material) for solid in solids]),
        landmark=np.array([solid.landmark for solid in solids]),
        storey=np.array([solid.storey for solid in solids]),
        blocks_view=np.array([solid.blocks_view for solid in solids]),
        blocks_walking=np.array([solid.kind not in _NO_OBSTACLES for solid in solids]),
    )


class _Gap(NamedTuple):
    """A door or window in one side of a room."""

    start: float
    stop: float
    bottom: float  # of the hole, above the floor
    top: float
    filling: str  # kind of what fills the hole, "" for nothing
    colour: str
    landmark: int


def _walls(house: House, number: int) -> Iterator[_Solid]:
    """The walls of a room, seen from inside."""
    room = house.rooms[number]
    for side in room.rect.sides:
        at = side.start
        for gap in _gaps(house, number, side):
            yield _wall(room, side, at, gap.start, 0.0, STOREY)
            yield from _round_gap(room, side, gap)
            at = gap.stop
        yield _wall(room, side, at, side.stop, 0.0, STOREY)


def _gaps(house: House, number: int, side: RectSide) -> list[_Gap]:
    """Doors and windows of one side, in order."""
    gaps, wall = [], (side.across, side.line)
    first_window = len(house.things)
    for door in house.doors_of(number):
        if (door.across, door.line) == wall and side.start < door.at < side.stop:
            filling, landmark = "", -1
            if door.style == "front door":
                filling = "front door"
                landmark = first_window + len(house.windows) + house.front_doors().index(door)
            gaps.append(_Gap(*door.ends, 0.0, door.height, filling, door.colour, landmark))
    for landmark, window in enumerate(house.windows, start=first_window):
        if window.room == number and (window.across, window.line) == wall:
            gaps.append(_Gap(*window.ends, SILL, PANE_TOP, "window", "blue", landmark))
    return sorted(gaps)


def _wall(
    room: Room, side: RectSide, start: float, stop: float, z0: float, z1: float, *, blocks_view: bool = True
) -> _Solid:
    base = room.floor * STOREY
    box = side.strip(start, stop, WALL).box(base + z0, base + z1)
    return _Solid(box, "wall", room.wall_colour, "plaster", room.floor, blocks_view=blocks_view)


def _round_gap(room: Room, side: RectSide, gap: _Gap) -> Iterator[_Solid]:
    """The wall above and below a gap, and what fills it."""
    base, closed = room.floor * STOREY, bool(gap.filling)
    yield _wall(room, side, gap.start, gap.stop, gap.top, STOREY, blocks_view=closed)
    if gap.bottom > 0:
        yield _wall(room, side, gap.start, gap.stop, 0.0, gap.bottom, blocks_view=closed)
    if closed:
        box = side.strip(gap.start, gap.stop, WALL).box(base + gap.bottom, base + gap.top)
        material = "glass" if gap.filling == "window" else "wood"
        yield _Solid(box, gap.filling, gap.colour, material, room.floor, gap.landmark, blocks_view=True)


def _railings(house: House, number: int) -> Iterator[_Solid]:
    """Bars round a porch, except where the house stands."""
    room = house.rooms[number]
    others = [other.rect for n, other in enumerate(house.rooms) if n != number and other.floor == room.floor]
    for side in room.rect.sides:
        edge = side.strip(side.start, side.stop, WALL)
        if not any(other.overlaps(edge.grown(0.01)) for other in others):
            for low, high in _RAIL_BARS:
                yield _Solid(edge.box(low, high), "railing", room.wall_colour, "wood", 0)


def _floor_and_ceiling(house: House, number: int) -> Iterator[_Solid]:
    """Left out where the stairs pass from one storey to the next, and above a porch."""
    room = house.rooms[number]
    base = room.floor * STOREY
    below, above = house.stairs.rooms if house.stairs else (-1, -1)
    if number != above:
        yield _Solid(room.rect.box(base - 0.12, base), "floor", room.ground_colour, room.ground, room.floor)
    if number != below and room.kind != "porch":
        box = room.rect.box(base + CEILING, base + CEILING + 0.15)
        yield _Solid(box, "ceiling", "white", "plaster", room.floor)


def _door_parts(house: House, door: Door) -> Iterator[_Solid]:
    """The frame of a door and, where it has one, its open leaf."""
    floor = house.rooms[door.rooms[0]].floor
    base, reach, half = floor * STOREY, WALL + 0.02, _FRAME / 2
    (start, stop), top = door.ends, door.height
    colour = "white" if door.style == "opening" else "brown"
    beams = (
        (start - half, start + half, 0.0, top),
        (stop - half, stop + half, 0.0, top),
        (start - half, stop + half, top - 0.02, top + _FRAME),
    )
    for a, b, z0, z1 in beams:
        beam = Rect.of_wall(door.across, door.line - reach, door.line + reach, a, b)
        yield _Solid(beam.box(base + z0, base + z1), "door frame", colour, "wood", floor)
    if door.leaf:
        yield _Solid(house.leaf_box(door), "door", door.colour, "wood", floor)


def _steps(stairs: Stairs) -> Iterator[_Solid]:
    """All boxes of the stairs; flights are solid down to the ground."""
    rise = STOREY / (2 * _RISES)
    outward = (-stairs.inward[0], -stairs.inward[1])
    yield _step(stairs.landing, _RISES * rise)
    for number, tread in enumerate(treads(stairs.lower, stairs.inward), start=1):
        yield _step(tread, number * rise)
    for number, tread in enumerate(treads(stairs.upper, outward), start=1):
        top = (_RISES + number) * rise
        yield _step(tread, top)
        yield _banister(tread, stairs, top, storey=0)
    last = stairs.upper.beyond(outward, FOOT)
    yield _Solid(last.box(STOREY - 0.3, STOREY), "floor", "brown", "wood", 1)
    yield _banister(last, stairs, STOREY, storey=1)


def treads(flight: Rect, walked: tuple[int, int]) -> list[Rect]:
    """The treads of a flight in the order they are walked over."""
    low, high = (flight.x0, flight.x1) if walked[0] else (flight.y0, flight.y1)
    spans = list(itertools.pairwise(float(edge) for edge in np.linspace(low, high, _RISES)))
    if sum(walked) < 0:
        spans.reverse()
    if walked[0]:
        return [flight._replace(x0=a, x1=b) for a, b in spans]
    return [flight._replace(y0=a, y1=b) for a, b in spans]


def _step(tread: Rect, top: float) -> _Solid:
    return _Solid(tread.box(0.0, top), "stairs", "brown", "wood", 0)


def _banister(tread: Rect, stairs: Stairs, bottom: float, *, storey: int) -> _Solid:
    """A piece of the banister, on the edge of ``tread`` that faces the lower flight."""
    half, lower = 0.02, stairs.lower
    if stairs.inward[0]:
        edge = tread.y1 if tread.y1 <= lower.y0 else tread.y0
        rect = tread._replace(y0=edge - half, y1=edge + half)
    else:
        edge = tread.x1 if tread.x1 <= lower.x0 else tread.x0
        rect = tread._replace(x0=edge - half, x1=edge + half)
    return _Solid(rect.box(bottom, bottom + _BANISTER), "railing", "brown", "wood", storey)


def part_box(thing: Thing, part: Part) -> Box:
    """The box of a part in the house, turned the way the thing faces."""
    rect, (dx, dy) = thing.box.footprint, thing.facing
    right_x, right_y = dy, -dx  # to the right of someone looking the way the thing faces
    wide = abs(right_x) * rect.width + abs(right_y) * rect.depth
    deep = abs(dx) * rect.width + abs(dy) * rect.depth

    def corner(across: float, along: float) -> tuple[float, float]:
        a, b = (across - 0.5) * wide, (along - 0.5) * deep
        return rect.centre[0] + a * right_x + b * dx, rect.centre[1] + a * right_y + b * dy

    (xa, ya), (xb, yb) = corner(part.left, part.back), corner(part.right, part.front)
    z0, tall = thing.box.z0, thing.box.z1 - thing.box.z0
    footprint = Rect(min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb))
    return footprint.box(z0 + part.bottom * tall, z0 + part.top * tall)
