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

    def wall(self, a: int, b: int) -> RectSide | None:
        """The wall two rooms share; None on different floors."""
        one, other = self.rooms[a], self.rooms[b]
        return shared_wall(one.rect, other.rect) if one.floor == other.floor else None

    def share(self, a: int, b: int) -> float:
        """Length of the wall two rooms share; 0 without one."""
        wall = self.wall(a, b)
        return wall.length if wall else 0.0

    def join(
        self, a: int, b: int, style: DoorStyle = "door", width: float = 0.9, at: float | None = None
    ) -> None:
        """Put a door into the wall two rooms share: at a given coordinate along it, else anywhere."""
        wall = self.wall(a, b)
        if wall is None:
            raise ValueError(f"rooms {a} and {b} share no wall")
        if at is None:
            width = min(width, wall.length - 2 * _CORNER)
            at = self._spot(wall, width)
        self.add_door((a, b), wall, at, width, style)

    def add_door(
        self, rooms: tuple[int, int], wall: RectSide, at: float, width: float, style: DoorStyle
    ) -> None:
        """Put a door into a wall, at a coordinate along it."""
        colour = _DOOR_COLOURS[self.rng.integers(len(_DOOR_COLOURS))]
        height = 2.3 if style == "opening" else 2.05
        leaf = style == "door" and bool(self.rng.random() < 0.6)
        x, y = wall.point(at)
        self.doors.append(Door(rooms, x, y, wall.across, round(width, 3), height, style, colour, leaf))

    def add_windows(self) -> None:
        """Put windows into the stretches of outer wall that are long enough."""
        for number, room in enumerate(self.rooms):
            outer = [] if room.kind in ("porch", "closet", "stairs") else self._outer_walls(number)
            for wall in outer:
                if wall.length < 1.5 or self.rng.random() > 0.8:
                    continue
                width = min(float(self.rng.uniform(0.9, 1.8)), wall.length - 2 * _CORNER)
                x, y = wall.point(self._spot(wall, width))
                self.windows.append(Window(number, x, y, wall.across, round(width, 3)))

    def _spot(self, wall: RectSide, width: float) -> float:
        """The middle of a gap anywhere in a wall."""
        low, high = wall.start + _CORNER + width / 2, wall.stop - _CORNER - width / 2
        return float(self.rng.uniform(low, high)) if high > low else (wall.start + wall.stop) / 2

    def _outer_walls(self, number: int) -> list[RectSide]:
        """The walls of a room that no other room and no front door touches."""
        others = (n for n in range(len(self.rooms)) if n != number)
        taken = {wall[:2] for other in others if (wall := self.wall(number, other))}
        taken |= {(door.across, door.line) for door in self.doors if door.rooms == (number, -1)}
        return [side for side in self.rooms[number].rect.sides if side[:2] not in taken]

    def finished(self, name: str) -> House:
        """The plan as a house, mirrored and turned at random so that no direction is special."""
        flip_x, flip_y, swap = (bool(bit) for bit in self.rng.integers(2, size=3))
        turn = _Turn(-1 if flip_x else 1, -1 if flip_y else 1, swap)
        return House(
            name=name,
            floors=1 + max(room.floor for room in self.rooms),
            rooms=tuple(replace(room, rect=turn.rect(room.rect)) for room in self.rooms),
            doors=tuple(turn.gap(door) for door in self.doors),
            windows=tuple(turn.gap(window) for window in self.windows),
            stairs=self.stairs and turn.stairs(self.stairs),
        )


class _Turn(NamedTuple):
    """One of the eight ways to mirror and turn a plan."""

    sign_x: int
    sign_y: int
    swap: bool

    def point(self, x: float, y: float) -> tuple[float, float]:
        x, y = self.sign_x * x + 0.0, self.sign_y * y + 0.0  # + 0.0 turns -0.0 into 0.0
        return (y, x) if self.swap else (x, y)

    def rect(self, rect: Rect) -> Rect:
        (xa, ya), (xb, yb) = self.point(rect.x0, rect.y0), self.point(rect.x1, rect.y1)
        return Rect(min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb))

    def gap(self, gap: _Gap) -> _Gap:
        x, y = self.point(gap.x, gap.y)
        across: Axis = "x" if (gap.across == "x") != self.swap else "y"
        return replace(gap, x=x, y=y, across=across)

    def stairs(self, stairs: Stairs) -> Stairs:
        x, y = self.point(*stairs.inward)
        lower, landing, upper = map(self.rect, (stairs.lower, stairs.landing, stairs.upper))
        return Stairs(stairs.rooms, lower, landing, upper, (int(x), int(y)))


class _Bands(NamedTuple):
    """How a floor is cut along y: rooms, hallway, rooms."""

    hall_low: float
    hall_high: float
    depth: float


class _Wing(NamedTuple):
    """A hallway with rooms on both sides, by their numbers."""

    bands: _Bands
    hall: int
    rooms: list[int]


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
    wing = _add_wing(draft, 0, (wide, long), bands, _shuffled(draft.rng, _GROUND_WISHES))
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [wing], _day_rooms(draft.rng))
    _add_ways_out(draft, zone, wing, Rect(-2.5, 0, 0, bands.depth))


def _draw_two_wings(draft: Draft) -> None:
    depth = _length(draft.rng, 8.5, 10.0)
    left, right = _bands(draft.rng, depth), _bands(draft.rng, depth)
    start = _length(draft.rng, 6.0, 7.0)
    stop = start + _length(draft.rng, 4.5, 5.5)
    long = stop + _length(draft.rng, 6.0, 7.0)
    wishes = _shuffled(draft.rng, _GROUND_WISHES)
    west = _add_wing(draft, 0, (0.0, start), left, wishes)
    east = _add_wing(draft, 0, (stop, long), right, wishes)
    zone = _add_zone(draft, 0, Rect(start, 0, stop, depth), [west, east], _day_rooms(draft.rng))
    _add_ways_out(draft, zone, east, Rect(start, -2.5, stop, 0))


def _draw_two_floors(draft: Draft) -> None:
    rng = draft.rng
    bands = _bands(rng, stairs=True)
    wide = _length(rng, 4.25, 5.25)
    long = wide + _length(rng, 6.5, 8.0)
    low_side = bool(rng.integers(2))
    left = wide if rng.random() < 0.5 else long - _STAIR_WIDTH
    low, high = (0.0, bands.hall_low) if low_side else (bands.hall_high, bands.depth)
    well = Rect(left, low, left + _STAIR_WIDTH, high)
    ground = _add_wing(draft, 0, (wide, long), bands, _shuffled(rng, _GROUND_WISHES[:5]), well)
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [ground], _day_rooms(rng))
    upper = _add_wing(draft, 1, (wide, long), bands, _shuffled(rng, _UPPER_WISHES), well)
    kinds = _shuffled(rng, ("bedroom", "family room", "office", "bedroom"))[:2]
    _add_zone(draft, 1, Rect(max(0.0, wide - 4.25), 0, wide, bands.depth), [upper], kinds)
    _add_stairs(draft, well, low_side, ground.hall, upper.hall)
    _add_ways_out(draft, zone, ground, Rect(-2.5, 0, 0, bands.depth))


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
    span: tuple[float, float],
    bands: _Bands,
    wishes: list[str],
    well: Rect | None = None,
) -> _Wing:
    """A hallway along ``span`` with rooms on both sides; ``well`` is left free for the stairs."""
    start, stop = span
    hall = draft.add_room("hallway", floor, Rect(start, bands.hall_low, stop, bands.hall_high))
    rooms: list[int] = []
    for low, high in ((0.0, bands.hall_low), (bands.hall_high, bands.depth)):
        free = [(start, well.x0), (well.x1, stop)] if well is not None and well.y0 == low else [span]
        for a, b in free:
            rooms += _fill_strip(draft, floor, Rect(a, low, b, high), hall, wishes)
    return _Wing(bands, hall, rooms)


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


def _add_zone(draft: Draft, floor: int, zone: Rect, wings: list[_Wing], kinds: list[str]) -> list[int]:
    """Cut a zone into rooms stacked along y, and join them with each other and with the wings."""
    edges = [0.0, *_cuts(draft.rng, zone.depth, wings, len(kinds) - 1), zone.depth]
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
    for wing in wings:
        _join_hall(draft, rooms, wing.hall)
    for room in itertools.chain.from_iterable(wing.rooms for wing in wings):
        _join_room(draft, rooms, room)
    return rooms


def _join_hall(draft: Draft, zone: list[int], hall: int) -> None:
    """Let a hallway open into the room of a zone at its end."""
    room = max(zone, key=lambda number: draft.share(number, hall))
    if draft.rng.random() < 0.65:
        draft.join(room, hall, "opening", draft.rooms[hall].rect.depth - 0.45)
    else:
        draft.join(room, hall)


def _join_room(draft: Draft, zone: list[int], room: int) -> None:
    """Give a room of a wing a second way, to a room of the zone beside it, in some houses."""
    private = draft.rooms[room].kind in ("bathroom", "closet")
    for number in zone:
        if draft.share(number, room) >= _LEAST_SHARED and not private and draft.rng.random() < 0.35:
            draft.join(number, room)
            return


def _cuts(rng: np.random.Generator, depth: float, wings: list[_Wing], most: int) -> list[float]:
    """Up to ``most`` places to cut ``depth``, rooms at least 2.75 m deep, none where a hallway ends."""
    halls = [wing.bands for wing in wings]
    places = np.arange(2.75, depth - 2.5, 0.25)
    free = [float(y) for y in places if all(y <= w.hall_low or y >= w.hall_high for w in halls)]
    for count in range(most, 0, -1):
        for _ in range(20):
            cuts = sorted(free[i] for i in rng.integers(len(free), size=count)) if free else []
            edges = np.array([0.0, *cuts, depth])
            if len(cuts) == count and np.diff(edges).min() >= 2.75:
                return cuts
    return []


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


def _add_ways_out(draft: Draft, zone: list[int], wing: _Wing, outside: Rect) -> None:
    """A front door at the end of the hallway and a porch beside a day room, each in most houses."""
    rng, hall = draft.rng, draft.rooms[wing.hall].rect
    if rng.random() < 0.8:
        draft.add_door((wing.hall, -1), hall.sides[1], hall.centre[1], 1.0, "front door")
    if rng.random() > 0.75:
        return
    beside = [n for n in zone if shared_wall(draft.rooms[n].rect, outside)]
    room = beside[int(rng.integers(len(beside)))]
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


def _shuffled(rng: np.random.Generator, items: tuple[str, ...]) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))]
