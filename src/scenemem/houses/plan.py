"""Floor plans: wings of rooms along a hallway and open zones of day rooms, on one or two floors.

Plans are drawn with hallways along x, then mirrored and turned (``Draft.finished``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from scenemem.houses.house import (
    FOOT,
    ROOM_KINDS,
    Axis,
    Door,
    DoorStyle,
    House,
    Rect,
    RectSide,
    Room,
    Stairs,
    Window,
)

_GRID = 0.25  # walls lie on multiples of this, metres
_CORNER = 0.22  # kept free between a door or window and the corner of a room
_LEAST_SHARED = 1.25  # shortest shared wall that takes a second door
_NARROWEST = 1.75  # room along a hallway
_STAIR_WIDTH = 2.5
_LANDING = 1.2
_TWO_FLOORS = 0.6  # share of houses
_DAY_ROOMS = ("living room", "dining room", "kitchen", "family room")
_GROUND_WISHES = ("bathroom", "office", "bedroom", "laundry room", "bedroom", "closet", "bathroom")
_UPPER_WISHES = ("bedroom", "bathroom", "bedroom", "office", "closet", "bedroom", "bathroom")
_DOOR_COLOURS = ("white", "white", "brown", "brown", "gray", "blue", "green", "red")

_Gap = TypeVar("_Gap", Door, Window)


def shared_wall(a: Rect, b: Rect) -> RectSide | None:
    """The part of a side of ``a`` that lies along ``b``, if any."""
    west, east, south, north = b.sides
    for mine, theirs in zip(a.sides, (east, west, north, south), strict=True):
        start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
        if mine.line == theirs.line and stop > start:
            return mine._replace(start=start, stop=stop)
    return None


@dataclass
class Draft:
    """A plan while it is being drawn: rooms are added, then joined by doors where they share a wall."""

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

    def join(
        self, a: int, b: int, style: DoorStyle = "door", width: float = 0.9, at: float | None = None
    ) -> None:
        """Put a door into the wall two rooms share: at a given coordinate along it, else anywhere."""
        wall = shared_wall(self.rooms[a].rect, self.rooms[b].rect)
        if wall is None:
            raise ValueError(f"rooms {a} and {b} share no wall")
        if at is None:
            width = min(width, wall.stop - wall.start - 2 * _CORNER)
            at = self._spot(wall.start, wall.stop, width)
        self._add_door((a, b), wall.across, wall.line, at, width, style)

    def add_front_door(self, room: int, line: float) -> None:
        """Put a shut door into the middle of the outer wall at x = ``line``."""
        self._add_door((room, -1), "x", line, self.rooms[room].rect.centre[1], 1.0, "front door")

    def add_windows(self) -> None:
        """Put windows into the stretches of outer wall that are long enough."""
        for number, room in enumerate(self.rooms):
            if room.kind in ("porch", "closet", "stairs"):
                continue
            for wall in self._outer_walls(number):
                if wall.stop - wall.start < 1.5 or self.rng.random() > 0.8:
                    continue
                width = min(float(self.rng.uniform(0.9, 1.8)), wall.stop - wall.start - 2 * _CORNER)
                x, y = _point(wall.across, wall.line, self._spot(wall.start, wall.stop, width))
                self.windows.append(Window(number, x, y, wall.across, round(width, 3)))

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
            doors=tuple(turn.gap(door) for door in self.doors),
            windows=tuple(turn.gap(window) for window in self.windows),
            stairs=stairs,
        )

    def _add_door(
        self, rooms: tuple[int, int], across: Axis, line: float, at: float, width: float, style: DoorStyle
    ) -> None:
        colour = _DOOR_COLOURS[self.rng.integers(len(_DOOR_COLOURS))]
        height = 2.3 if style == "opening" else 2.05
        leaf = style == "door" and bool(self.rng.random() < 0.6)
        x, y = _point(across, line, at)
        self.doors.append(Door(rooms, x, y, across, round(width, 3), height, style, colour, leaf))

    def _spot(self, start: float, stop: float, width: float) -> float:
        low, high = start + _CORNER + width / 2, stop - _CORNER - width / 2
        return float(self.rng.uniform(low, high)) if high > low else (start + stop) / 2

    def _outer_walls(self, number: int) -> list[RectSide]:
        """The walls of a room that no other room and no front door touches."""
        room = self.rooms[number]
        others = [r.rect for n, r in enumerate(self.rooms) if n != number and r.floor == room.floor]
        taken = {wall[:2] for other in others if (wall := shared_wall(room.rect, other))}
        taken |= {(door.across, door.line) for door in self.doors if door.rooms == (number, -1)}
        return [side for side in room.rect.sides if side[:2] not in taken]


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

    def gap(self, gap: _Gap) -> _Gap:
        x, y = self.point(gap.x, gap.y)
        across: Axis = "x" if (gap.across == "x") != self.swap else "y"
        return replace(gap, x=x, y=y, across=across)


class _Bands(NamedTuple):
    """How a floor is cut along y: rooms, hallway, rooms."""

    hall_low: float
    hall_high: float
    depth: float


def draw_plan(rng: np.random.Generator, name: str) -> House:
    """A house without furniture."""
    draft = Draft(rng)
    if rng.random() < _TWO_FLOORS:
        _draw_two_floors(draft)
    elif rng.random() < 0.5:
        _draw_one_wing(draft)
    else:
        _draw_two_wings(draft)
    draft.add_windows()
    return draft.finished(name)


def _draw_one_wing(draft: Draft) -> None:
    bands = _bands(draft.rng)
    wide = _length(draft.rng, 4.5, 6.0)
    long = wide + _length(draft.rng, 10.0, 12.5)
    hall, rooms = _add_wing(draft, 0, wide, long, bands, _shuffled(draft.rng, _GROUND_WISHES))
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [bands], _day_rooms(draft.rng))
    _join_zone(draft, zone, [hall], rooms)
    _add_ways_out(draft, zone, hall, long, Rect(-2.5, 0, 0, bands.depth))


def _draw_two_wings(draft: Draft) -> None:
    depth = _length(draft.rng, 8.5, 10.0)
    left, right = _bands(draft.rng, depth), _bands(draft.rng, depth)
    start = _length(draft.rng, 6.0, 7.0)
    stop = start + _length(draft.rng, 4.5, 5.5)
    long = stop + _length(draft.rng, 6.0, 7.0)
    wishes = _shuffled(draft.rng, _GROUND_WISHES)
    west, west_rooms = _add_wing(draft, 0, 0.0, start, left, wishes)
    east, east_rooms = _add_wing(draft, 0, stop, long, right, wishes)
    zone = _add_zone(draft, 0, Rect(start, 0, stop, depth), [left, right], _day_rooms(draft.rng))
    _join_zone(draft, zone, [west, east], west_rooms + east_rooms)
    _add_ways_out(draft, zone, east, long, Rect(start, -2.5, stop, 0))


def _draw_two_floors(draft: Draft) -> None:
    rng = draft.rng
    bands = _bands(rng, stairs=True)
    wide = _length(rng, 4.25, 5.25)
    long = wide + _length(rng, 6.5, 8.0)
    low_side = bool(rng.integers(2))
    left = wide if rng.random() < 0.5 else long - _STAIR_WIDTH
    low, high = (0.0, bands.hall_low) if low_side else (bands.hall_high, bands.depth)
    well = Rect(left, low, left + _STAIR_WIDTH, high)
    ground, ground_rooms = _add_wing(draft, 0, wide, long, bands, _shuffled(rng, _GROUND_WISHES[:5]), well)
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [bands], _day_rooms(rng))
    _join_zone(draft, zone, [ground], ground_rooms)
    upper, upper_rooms = _add_wing(draft, 1, wide, long, bands, _shuffled(rng, _UPPER_WISHES), well)
    start = max(0.0, wide - 4.25)
    kinds = _shuffled(rng, ("bedroom", "family room", "office", "bedroom"))[:2]
    above = _add_zone(draft, 1, Rect(start, 0, wide, bands.depth), [bands], kinds)
    _join_zone(draft, above, [upper], upper_rooms)
    _add_stairs(draft, well, low_side, ground, upper)
    _add_ways_out(draft, zone, ground, long, Rect(-2.5, 0, 0, bands.depth))


def _bands(rng: np.random.Generator, depth: float | None = None, *, stairs: bool = False) -> _Bands:
    hall = _length(rng, 1.5, 2.0)
    least, most = (3.25, 3.75) if stairs else (3.0, 4.25)
    low = _length(rng, least, most)
    if depth is None:
        depth = low + hall + _length(rng, least, most)
    return _Bands(low, low + hall, depth)


def _day_rooms(rng: np.random.Generator) -> list[str]:
    """Two or three day rooms, the kitchen always among them."""
    others = _shuffled(rng, ("living room", "dining room", "family room"))
    return _shuffled(rng, ("kitchen", *others[: int(rng.integers(1, 3))]))


def _add_wing(
    draft: Draft,
    floor: int,
    start: float,
    stop: float,
    bands: _Bands,
    wishes: list[str],
    well: Rect | None = None,
) -> tuple[int, list[int]]:
    """A hallway from ``start`` to ``stop`` with rooms on both sides; ``well`` is left free for the stairs."""
    hall = draft.add_room("hallway", floor, Rect(start, bands.hall_low, stop, bands.hall_high))
    rooms: list[int] = []
    for low, high in ((0.0, bands.hall_low), (bands.hall_high, bands.depth)):
        spans = [(start, stop)]
        if well is not None and (well.y0, well.y1) == (low, high):
            spans = [(a, b) for a, b in ((start, well.x0), (well.x1, stop)) if b > a]
        for a, b in spans:
            rooms += _fill_strip(draft, floor, Rect(a, low, b, high), hall, wishes)
    return hall, rooms


def _fill_strip(draft: Draft, floor: int, strip: Rect, hall: int, wishes: list[str]) -> list[int]:
    """Rooms side by side along a hallway, each with a door to the hallway or to a bedroom beside it."""
    rooms: list[int] = []
    at = strip.x0
    while strip.x1 - at >= _NARROWEST:
        left_over = strip.x1 - at
        kind = _next_kind(wishes, left_over)
        width = min(_length(draft.rng, *ROOM_KINDS[kind].width), left_over)
        if left_over - width < _NARROWEST:
            width = left_over
        rooms.append(draft.add_room(kind, floor, Rect(at, strip.y0, at + width, strip.y1)))
        at += width
    for number in rooms:
        host = _bedroom_beside(draft, number, rooms)
        draft.join(number, hall if host is None else host)
    return rooms


def _next_kind(wishes: list[str], space: float) -> str:
    """The first wish that fits and would not be stretched too far; else a kind that suits the space."""
    for index, kind in enumerate(wishes):
        least, most = ROOM_KINDS[kind].width
        if least <= space and (space <= most + 0.5 or space - least >= _NARROWEST):
            return wishes.pop(index)
    fallbacks = ((3.0, "bedroom"), (2.5, "office"), (2.0, "bathroom"), (0.0, "closet"))
    return next(kind for least, kind in fallbacks if space >= least)


def _bedroom_beside(draft: Draft, number: int, rooms: list[int]) -> int | None:
    """A bedroom next door that takes this bathroom or closet for its own, in some houses."""
    if draft.rooms[number].kind not in ("bathroom", "closet") or draft.rng.random() > 0.45:
        return None
    bedrooms = (other for other in rooms if draft.rooms[other].kind == "bedroom")
    return next((other for other in bedrooms if draft.share(number, other) > 2), None)


def _add_zone(draft: Draft, floor: int, zone: Rect, wings: list[_Bands], kinds: list[str]) -> list[int]:
    """Cut a zone into rooms stacked along y, none of the cuts where a hallway opens into it."""
    cuts = _cuts(draft.rng, zone.depth, wings, len(kinds) - 1)
    edges = [0.0, *cuts, zone.depth]
    rooms = [
        draft.add_room(kind, floor, Rect(zone.x0, low, zone.x1, high))
        for kind, (low, high) in zip(kinds, itertools.pairwise(edges), strict=False)
    ]
    for a, b in itertools.pairwise(rooms):
        day = {draft.rooms[a].kind, draft.rooms[b].kind} <= set(_DAY_ROOMS)
        if day and draft.rng.random() < 0.7:
            draft.join(a, b, "opening", float(draft.rng.uniform(1.5, 2.4)))
        else:
            draft.join(a, b)
    return rooms


def _cuts(rng: np.random.Generator, depth: float, wings: list[_Bands], most: int) -> list[float]:
    """Up to ``most`` places to cut ``depth``, rooms at least 2.75 m deep, ends of hallways whole."""
    places = np.arange(2.75, depth - 2.5, 0.25)
    free = [float(y) for y in places if all(y <= w.hall_low or y >= w.hall_high for w in wings)]
    for count in range(most, 0, -1):
        for _ in range(20):
            cuts = sorted(free[i] for i in rng.integers(len(free), size=count)) if free else []
            edges = np.array([0.0, *cuts, depth])
            if len(cuts) == count and np.diff(edges).min() >= 2.75:
                return cuts
    return []


def _join_zone(draft: Draft, zone: list[int], halls: list[int], rooms: list[int]) -> None:
    """Join each hallway to the zone, and sometimes a room of the wing to it as well (a second way)."""
    for hall in halls:
        room = max(zone, key=lambda number: draft.share(number, hall))
        if draft.rng.random() < 0.65:
            draft.join(room, hall, "opening", draft.rooms[hall].rect.depth - 0.45)
        else:
            draft.join(room, hall)
    for room in rooms:
        private = draft.rooms[room].kind in ("bathroom", "closet")
        for number in zone:
            if draft.share(number, room) >= _LEAST_SHARED and not private and draft.rng.random() < 0.35:
                draft.join(number, room)
                break


def _add_stairs(draft: Draft, well: Rect, low_side: bool, ground: int, upper: int) -> None:
    below, above = draft.add_room("stairs", 0, well), draft.add_room("stairs", 1, well)
    draft.rooms[above] = replace(draft.rooms[below], floor=1)  # one stairwell, one paint
    middle = (well.x0 + well.x1) / 2
    halves = [(well.x0, middle), (middle, well.x1)]
    if draft.rng.random() < 0.5:
        halves.reverse()
    first, second = halves
    inward = -1 if low_side else 1
    foot = (well.y1 if low_side else well.y0) + inward * FOOT
    back = well.y0 + _LANDING if low_side else well.y1 - _LANDING
    draft.stairs = Stairs(
        rooms=(below, above),
        lower=Rect.of_wall("y", foot, back, *first),
        landing=Rect.of_wall("y", back, back + inward * _LANDING, well.x0, well.x1),
        upper=Rect.of_wall("y", foot, back, *second),
        inward=(0, inward),
    )
    draft.join(ground, below, "opening", 1.05, at=sum(first) / 2)
    draft.join(upper, above, "opening", 1.05, at=sum(second) / 2)


def _add_ways_out(draft: Draft, zone: list[int], hall: int, end: float, outside: Rect) -> None:
    """A front door at the end of the hallway and a porch beside a day room, each in most houses."""
    rng = draft.rng
    if rng.random() < 0.8:
        draft.add_front_door(hall, end)
    if rng.random() > 0.75:
        return
    sides = [n for n in zone if draft.rooms[n].rect.x0 == outside.x1 or draft.rooms[n].rect.y0 == outside.y1]
    room = sides[int(rng.integers(len(sides)))]
    rect = draft.rooms[room].rect
    porch = (
        Rect(outside.x0, rect.y0, outside.x1, min(rect.y1, rect.y0 + 4.5))
        if rect.x0 == outside.x1
        else Rect(rect.x0, outside.y0, min(rect.x1, rect.x0 + 4.5), outside.y1)
    )
    draft.join(room, draft.add_room("porch", 0, porch), "opening", 1.3)


def _length(rng: np.random.Generator, least: float, most: float) -> float:
    """A random length on the grid."""
    return round(rng.uniform(least, most) / _GRID) * _GRID


def _point(across: Axis, line: float, at: float) -> tuple[float, float]:
    """The point ``at`` along a wall, to the millimetre."""
    x, y = (line, at) if across == "x" else (at, line)
    return round(x, 3), round(y, 3)


def _shuffled(rng: np.random.Generator, items: tuple[str, ...]) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))]
