"""A house as solid boxes: walls with their openings, floors, ceilings, stairs and the parts of all things."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenemem.houses.catalogue import COLOURS, KINDS, MATERIALS, SEEN_KINDS
from scenemem.houses.records import CEILING, STOREY, WALL, Axis, Box, Door, House, Rect, Room, Stairs, Thing, Window
from scenemem.houses.shapes import SHAPES, placed

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

KIND_NUMBER = {kind: number for number, kind in enumerate(SEEN_KINDS)}
COLOUR_NUMBER = {colour: number for number, colour in enumerate(COLOURS)}
MATERIAL_NUMBER = {material: number for number, material in enumerate(MATERIALS)}
STEPS = 6  # rises per flight
SILL, PANE_TOP = 0.9, 2.1  # of windows, above the floor
_RAIL = 1.0
_FRAME = 0.07


@dataclass(frozen=True)
class Scene:
    """B boxes and what each of them is."""

    low: FloatArray  # (B, 3) metres
    high: FloatArray  # (B, 3)
    kind: IntArray  # (B,) index into SEEN_KINDS
    colour: IntArray  # (B,) index into COLOURS
    material: IntArray  # (B,) index into MATERIALS
    landmark: IntArray  # (B,) index into landmarks(house), -1 for the rest of the building
    storey: IntArray  # (B,)
    shuts: BoolArray  # (B,) whether nothing of the same storey can be seen behind it
    hinders: BoolArray  # (B,) whether one cannot walk through it

    def only(self, boxes: IntArray) -> Scene:
        """The scene with some of its boxes."""
        return Scene(**{field.name: getattr(self, field.name)[boxes] for field in fields(self)})


class _Solid(NamedTuple):
    box: Box
    kind: str
    colour: str
    material: str
    storey: int
    landmark: int = -1
    shuts: bool = False


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
        a, b = self.line, self.line + self.inward * WALL
        low, high = min(a, b), max(a, b)
        return Box(low, start, z0, high, stop, z1) if self.across == "x" else Box(start, low, z0, stop, high, z1)


def build_scene(house: House) -> Scene:
    """All boxes of a house."""
    solids: list[_Solid] = []
    for number, room in enumerate(house.rooms):
        solids += _walls(house, number, room)
        solids += _floor_and_ceiling(house, number, room)
    for door in house.doors:
        solids += _door_parts(house, door)
    if house.stairs is not None:
        solids += _steps(house.stairs)
    solids += _thing_parts(house)
    solids.append(_Solid(Box(-60, -60, -0.4, 60, 60, -0.15), "grass", "green", "plant", 0))
    return _arrays(solids)


def _arrays(solids: list[_Solid]) -> Scene:
    boxes = np.array([solid.box for solid in solids])
    tall_enough = np.array([solid.kind not in ("floor", "ceiling", "grass", "rug", "stairs") for solid in solids])
    return Scene(
        low=boxes[:, :3],
        high=boxes[:, 3:],
        kind=np.array([KIND_NUMBER[solid.kind] for solid in solids]),
        colour=np.array([COLOUR_NUMBER[solid.colour] for solid in solids]),
        material=np.array([MATERIAL_NUMBER[solid.material] for solid in solids]),
        landmark=np.array([solid.landmark for solid in solids]),
        storey=np.array([solid.storey for solid in solids]),
        shuts=np.array([solid.shuts for solid in solids]),
        hinders=tall_enough,
    )


def front_doors(house: House) -> tuple[Door, ...]:
    """The shut doors that lead out of the house."""
    return tuple(door for door in house.doors if door.style == "front door")


def landmarks(house: House) -> tuple[Thing, ...]:
    """Everything one can name on the way: things, then windows, then front doors."""
    found = list(house.things)
    for opening in (*house.windows, *front_doors(house)):
        is_window = isinstance(opening, Window)
        room = opening.room if isinstance(opening, Window) else opening.rooms[0]
        rect, base, half = house.rooms[room].rect, house.rooms[room].floor * STOREY, opening.width / 2
        z0, z1 = (base + SILL, base + PANE_TOP) if is_window else (base, base + 2.05)
        middle = rect.centre[0] if opening.across == "x" else rect.centre[1]
        into = 1 if middle > opening.line else -1
        if opening.across == "x":
            box, facing = Box(opening.x, opening.y - half, z0, opening.x, opening.y + half, z1), (into, 0)
        else:
            box, facing = Box(opening.x - half, opening.y, z0, opening.x + half, opening.y, z1), (0, into)
        kind, colour, material = ("window", "blue", "glass") if is_window else ("front door", "", "wood")
        colour = opening.colour if isinstance(opening, Door) else colour
        found.append(Thing(kind, colour, material, room, box, facing))
    return tuple(found)


def room_sides(rect: Rect) -> tuple[_Side, ...]:
    """The four sides of a room."""
    return (
        _Side("x", rect.x0, 1, rect.y0, rect.y1),
        _Side("x", rect.x1, -1, rect.y0, rect.y1),
        _Side("y", rect.y0, 1, rect.x0, rect.x1),
        _Side("y", rect.y1, -1, rect.x0, rect.x1),
    )


def _gaps(house: House, number: int, side: _Side) -> list[_Gap]:
    """Doors and windows of one side, in order."""
    gaps = []
    shut_doors = front_doors(house)
    for door in house.doors_of(number):
        if (door.across, door.line) == (side.across, side.line) and side.start < door.at < side.stop:
            half, shut = door.width / 2, door.style == "front door"
            landmark = len(house.things) + len(house.windows) + shut_doors.index(door) if shut else -1
            filling = "front door" if shut else ""
            gaps.append(_Gap(door.at - half, door.at + half, 0.0, door.height, filling, door.colour, landmark))
    for place, pane in enumerate(house.windows):
        if pane.room == number and (pane.across, pane.line) == (side.across, side.line):
            half, landmark = pane.width / 2, len(house.things) + place
            gaps.append(_Gap(pane.at - half, pane.at + half, SILL, PANE_TOP, "window", "blue", landmark))
    return sorted(gaps)


def _walls(house: House, number: int, room: Room) -> list[_Solid]:
    base, storey = room.floor * STOREY, room.floor
    if room.kind == "porch":
        return _railings(house, number, room)
    solids = []
    for side in room_sides(room.rect):
        at = side.start
        for gap in _gaps(house, number, side):
            closed = bool(gap.filling)
            pieces = [(at, gap.start, 0.0, STOREY, True), (gap.start, gap.stop, gap.top, STOREY, closed)]
            if gap.bottom > 0:
                pieces.append((gap.start, gap.stop, 0.0, gap.bottom, closed))
            for start, stop, z0, z1, shuts in pieces:
                box = side.box(start, stop, base + z0, base + z1)
                solids.append(_Solid(box, "wall", room.wall_colour, "plaster", storey, shuts=shuts))
            if closed:
                box = side.box(gap.start, gap.stop, base + gap.bottom, base + gap.top)
                material = "glass" if gap.filling == "window" else "wood"
                solids.append(_Solid(box, gap.filling, gap.colour, material, storey, gap.landmark, shuts=True))
            at = gap.stop
        box = side.box(at, side.stop, base, base + STOREY)
        solids.append(_Solid(box, "wall", room.wall_colour, "plaster", storey, shuts=True))
    return solids


def _railings(house: House, number: int, room: Room) -> list[_Solid]:
    """Low walls round a porch, except where the house stands."""
    others = [other.rect for n, other in enumerate(house.rooms) if n != number and other.floor == room.floor]
    solids = []
    for side in room_sides(room.rect):
        outside = side.box(side.start, side.stop, 0, _RAIL).footprint.grown(0.01)
        if not any(other.overlaps(outside) for other in others):
            for low, high in ((0.12, 0.2), (0.5, 0.56), (_RAIL - 0.1, _RAIL)):
                bar = side.box(side.start, side.stop, low, high)
                solids.append(_Solid(bar, "railing", room.wall_colour, "wood", 0))
    return solids


def _floor_and_ceiling(house: House, number: int, room: Room) -> list[_Solid]:
    rect, base, storey = room.rect, room.floor * STOREY, room.floor
    stairs = house.stairs.rooms if house.stairs else (-1, -1)
    solids = []
    if number != stairs[1]:
        box = Box(rect.x0, rect.y0, base - 0.12, rect.x1, rect.y1, base)
        solids.append(_Solid(box, "floor", room.ground_colour, room.ground, storey))
    if number != stairs[0] and room.kind != "porch":
        box = Box(rect.x0, rect.y0, base + CEILING, rect.x1, rect.y1, base + CEILING + 0.15)
        solids.append(_Solid(box, "ceiling", "white", "plaster", storey))
    return solids


def _door_parts(house: House, door: Door) -> list[_Solid]:
    """The frame of a door and, where it has one, its open leaf."""
    room = house.rooms[door.rooms[0]]
    base, half, reach = room.floor * STOREY, door.width / 2, WALL + 0.02
    colour = "white" if door.style == "opening" else "brown"

    def beam(start: float, stop: float, z0: float, z1: float) -> _Solid:
        near, far = door.line - reach, door.line + reach
        box = (
            Box(near, start, base + z0, far, stop, base + z1)
            if door.across == "x"
            else Box(start, near, base + z0, stop, far, base + z1)
        )
        return _Solid(box, "door frame", colour, "wood", room.floor)

    start, stop, top = door.at - half, door.at + half, door.height
    solids = [
        beam(start - _FRAME / 2, start + _FRAME / 2, 0, top),
        beam(stop - _FRAME / 2, stop + _FRAME / 2, 0, top),
        beam(start - _FRAME / 2, stop + _FRAME / 2, top - 0.02, top + _FRAME),
    ]
    if door.leaf:
        solids.append(_Solid(leaf_box(house, door), "door", door.colour, "wood", room.floor))
    return solids


def leaf_box(house: House, door: Door) -> Box:
    """The open door leaf: at right angles to the wall, hinged at the end nearer to a corner of the room."""
    room = house.rooms[door.rooms[0]]
    rect, base = room.rect, room.floor * STOREY
    low, high = (rect.y0, rect.y1) if door.across == "x" else (rect.x0, rect.x1)
    hinge = door.at - door.width / 2 if door.at - low < high - door.at else door.at + door.width / 2
    middle = rect.centre[0] if door.across == "x" else rect.centre[1]
    into = 1 if middle > door.line else -1
    near, far = sorted((door.line + into * 0.09, door.line + into * (0.09 + door.width - 0.06)))
    a, b, top = hinge - 0.02, hinge + 0.02, base + door.height - 0.03
    return Box(near, a, base + 0.01, far, b, top) if door.across == "x" else Box(a, near, base + 0.01, b, far, top)


def _steps(stairs: Stairs) -> list[_Solid]:
    """Two flights, the landing between them, the top step on the upper floor and the banister."""
    rise = STOREY / (2 * STEPS)
    solids = [_step(Box(*stairs.landing[:2], 0, *stairs.landing[2:], STEPS * rise))]
    for number, tread in enumerate(_treads(stairs.lower, stairs.inward), start=1):
        solids.append(_step(Box(*tread[:2], 0, *tread[2:], number * rise)))
    outward = (-stairs.inward[0], -stairs.inward[1])
    for number, tread in enumerate(_treads(stairs.upper, outward), start=1):
        top = (STEPS + number) * rise
        solids.append(_step(Box(*tread[:2], 0, *tread[2:], top)))
        rail = _banister(tread, stairs)
        solids.append(_Solid(Box(*rail[:2], top, *rail[2:], top + 0.9), "railing", "brown", "wood", 0))
    shelf = _beyond(stairs.upper, outward)
    solids.append(_Solid(Box(*shelf[:2], STOREY - 0.3, *shelf[2:], STOREY), "floor", "brown", "wood", 1))
    rail = _banister(shelf, stairs)
    solids.append(_Solid(Box(*rail[:2], STOREY, *rail[2:], STOREY + 0.9), "railing", "brown", "wood", 1))
    return solids


def _step(box: Box) -> _Solid:
    return _Solid(box, "stairs", "brown", "wood", 0)


def _treads(flight: Rect, walked: tuple[int, int]) -> list[Rect]:
    """The treads of a flight, in the order they are climbed."""
    count = STEPS - 1
    if walked[0]:
        edges = np.linspace(flight.x0, flight.x1, count + 1)
        treads = [Rect(float(a), flight.y0, float(b), flight.y1) for a, b in zip(edges, edges[1:], strict=False)]
    else:
        edges = np.linspace(flight.y0, flight.y1, count + 1)
        treads = [Rect(flight.x0, float(a), flight.x1, float(b)) for a, b in zip(edges, edges[1:], strict=False)]
    return treads if sum(walked) > 0 else treads[::-1]


def _beyond(flight: Rect, walked: tuple[int, int], depth: float = 0.35) -> Rect:
    """The strip of floor where a flight ends."""
    dx, dy = walked
    if dx:
        edge = flight.x1 if dx > 0 else flight.x0
        return Rect(min(edge, edge + dx * depth), flight.y0, max(edge, edge + dx * depth), flight.y1)
    edge = flight.y1 if dy > 0 else flight.y0
    return Rect(flight.x0, min(edge, edge + dy * depth), flight.x1, max(edge, edge + dy * depth))


def _banister(tread: Rect, stairs: Stairs) -> Rect:
    """A thin rail on the edge of ``tread`` that faces the lower flight."""
    half, lower = 0.02, stairs.lower
    if stairs.inward[0]:
        edge = tread.y1 if tread.y1 <= lower.y0 else tread.y0
        return Rect(tread.x0, edge - half, tread.x1, edge + half)
    edge = tread.x1 if tread.x1 <= lower.x0 else tread.x0
    return Rect(edge - half, tread.y0, edge + half, tread.y1)


def _thing_parts(house: House) -> list[_Solid]:
    solids = []
    for number, thing in enumerate(house.things):
        storey = house.rooms[thing.room].floor
        for part in SHAPES[KINDS[thing.kind].shape]:
            colour = part.paint or thing.colour
            solids.append(_Solid(placed(thing, part), thing.kind, colour, thing.material, storey, number))
    return solids
