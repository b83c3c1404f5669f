"""Floor plans: wings of rooms along a hallway and open zones of day rooms, on one or two floors.

Plans are drawn with hallways along x, then mirrored and turned (``Draft.finished``).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scenemem.houses.draft import LEAST_SHARED, Draft, snapped
from scenemem.houses.records import House, Rect, Stairs
from scenemem.houses.room_kinds import ROOM_KINDS
from scenemem.houses.staircase import FOOT

_NARROWEST = 1.75  # room along a hallway, metres
_STAIR_WIDTH = 2.5
_LANDING = 1.2
_TWO_FLOORS = 0.6  # share of houses
_DAY_ROOMS = ("living room", "dining room", "kitchen", "family room")
_GROUND_WISHES = ("bathroom", "office", "bedroom", "laundry room", "bedroom", "closet", "bathroom")
_UPPER_WISHES = ("bedroom", "bathroom", "bedroom", "office", "closet", "bedroom", "bathroom")


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
    wide = snapped(draft.rng.uniform(4.5, 6.0))
    long = wide + snapped(draft.rng.uniform(10.0, 12.5))
    hall, rooms = _add_wing(draft, 0, wide, long, bands, list(_shuffled(draft.rng, _GROUND_WISHES)))
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [bands], _day_rooms(draft.rng))
    _join_zone(draft, zone, [hall], rooms)
    _add_ways_out(draft, zone, hall, long, Rect(-2.5, 0, 0, bands.depth))


def _draw_two_wings(draft: Draft) -> None:
    depth = snapped(draft.rng.uniform(8.5, 10.0))
    left, right = _bands(draft.rng, depth), _bands(draft.rng, depth)
    start = snapped(draft.rng.uniform(6.0, 7.0))
    stop = start + snapped(draft.rng.uniform(4.5, 5.5))
    long = stop + snapped(draft.rng.uniform(6.0, 7.0))
    wishes = list(_shuffled(draft.rng, _GROUND_WISHES))
    west, west_rooms = _add_wing(draft, 0, 0.0, start, left, wishes)
    east, east_rooms = _add_wing(draft, 0, stop, long, right, wishes)
    zone = _add_zone(draft, 0, Rect(start, 0, stop, depth), [left, right], _day_rooms(draft.rng))
    _join_zone(draft, zone, [west, east], west_rooms + east_rooms)
    _add_ways_out(draft, zone, east, long, Rect(start, -2.5, stop, 0))


def _draw_two_floors(draft: Draft) -> None:
    rng = draft.rng
    bands = _bands(rng, stairs=True)
    wide = snapped(rng.uniform(4.25, 5.25))
    long = wide + snapped(rng.uniform(6.5, 8.0))
    low_side = bool(rng.integers(2))
    left = wide if rng.random() < 0.5 else long - _STAIR_WIDTH
    well = Rect(
        left,
        0.0 if low_side else bands.hall_high,
        left + _STAIR_WIDTH,
        bands.hall_low if low_side else bands.depth,
    )
    ground, ground_rooms = _add_wing(
        draft, 0, wide, long, bands, list(_shuffled(rng, _GROUND_WISHES[:5])), well
    )
    zone = _add_zone(draft, 0, Rect(0, 0, wide, bands.depth), [bands], _day_rooms(rng))
    _join_zone(draft, zone, [ground], ground_rooms)
    upper, upper_rooms = _add_wing(draft, 1, wide, long, bands, list(_shuffled(rng, _UPPER_WISHES)), well)
    start = max(0.0, wide - 4.25)
    kinds = list(_shuffled(rng, ("bedroom", "family room", "office", "bedroom")))[:2]
    above = _add_zone(draft, 1, Rect(start, 0, wide, bands.depth), [bands], kinds)
    _join_zone(draft, above, [upper], upper_rooms)
    _add_stairs(draft, well, low_side, ground, upper)
    _add_ways_out(draft, zone, ground, long, Rect(-2.5, 0, 0, bands.depth))


def _bands(rng: np.random.Generator, depth: float | None = None, *, stairs: bool = False) -> _Bands:
    hall = snapped(rng.uniform(1.5, 2.0))
    least, most = (3.25, 3.75) if stairs else (3.0, 4.25)
    low = snapped(rng.uniform(least, most))
    if depth is not None:
        return _Bands(low, low + hall, depth)
    return _Bands(low, low + hall, low + hall + snapped(rng.uniform(least, most)))


def _day_rooms(rng: np.random.Generator) -> list[str]:
    """Two or three day rooms, the kitchen always among them."""
    others = list(_shuffled(rng, ("living room", "dining room", "family room")))
    chosen = ["kitchen", *others[: int(rng.integers(1, 3))]]
    return list(_shuffled(rng, tuple(chosen)))


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
        width = min(snapped(draft.rng.uniform(*ROOM_KINDS[kind].width)), left_over)
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
    for place, kind in enumerate(wishes):
        least, most = ROOM_KINDS[kind].width
        if least <= space and (space <= most + 0.5 or space - least >= _NARROWEST):
            return wishes.pop(place)
    fallbacks = ((3.0, "bedroom"), (2.5, "office"), (2.0, "bathroom"), (0.0, "closet"))
    return next(kind for least, kind in fallbacks if space >= least)


def _bedroom_beside(draft: Draft, number: int, rooms: list[int]) -> int | None:
    """A bedroom next door that takes this bathroom or closet for its own, in some houses."""
    if draft.rooms[number].kind not in ("bathroom", "closet") or draft.rng.random() > 0.45:
        return None
    bedrooms = [other for other in rooms if draft.rooms[other].kind == "bedroom"]
    return next((other for other in bedrooms if draft.share(number, other) > 2), None)


def _add_zone(draft: Draft, floor: int, zone: Rect, mouths: list[_Bands], kinds: list[str]) -> list[int]:
    """Cut a zone into rooms stacked along y, none of the cuts in the mouth of a hallway."""
    cuts = _cuts(draft.rng, zone.depth, mouths, len(kinds) - 1)
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


def _cuts(rng: np.random.Generator, depth: float, mouths: list[_Bands], wanted: int) -> list[float]:
    """Up to ``wanted`` places to cut ``depth``, rooms at least 2.75 m deep, hallway mouths whole."""
    places = np.arange(2.75, depth - 2.5, 0.25)
    free = [float(y) for y in places if all(y <= m.hall_low or y >= m.hall_high for m in mouths)]
    for count in range(wanted, 0, -1):
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
        width = draft.rooms[hall].rect.depth - 0.45
        if draft.rng.random() < 0.65:
            draft.join(room, hall, "opening", width)
        else:
            draft.join(room, hall)
    for room in rooms:
        for number in zone:
            private = draft.rooms[room].kind in ("bathroom", "closet")
            if draft.share(number, room) >= LEAST_SHARED and not private and draft.rng.random() < 0.35:
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
    mouth = well.y1 if low_side else well.y0
    back = well.y0 + _LANDING if low_side else well.y1 - _LANDING
    foot = mouth + inward * FOOT
    low, high = min(foot, back), max(foot, back)
    draft.stairs = Stairs(
        rooms=(below, above),
        lower=Rect(first[0], low, first[1], high),
        landing=Rect(
            well.x0, min(back, back + inward * _LANDING), well.x1, max(back, back + inward * _LANDING)
        ),
        upper=Rect(second[0], low, second[1], high),
        inward=(0, inward),
    )
    draft.join_at(ground, below, sum(first) / 2, 1.05)
    draft.join_at(upper, above, sum(second) / 2, 1.05)


def _add_ways_out(draft: Draft, zone: list[int], hall: int, end: float, outside: Rect) -> None:
    """A front door at the end of the hallway and a porch beside a day room, each in most houses."""
    rng = draft.rng
    if rng.random() < 0.8:
        draft.add_front_door(hall, "x", end)
    if rng.random() > 0.75:
        return
    sides = [n for n in zone if draft.rooms[n].rect.x0 == outside.x1 or draft.rooms[n].rect.y0 == outside.y1]
    room = sides[int(rng.integers(len(sides)))]
    rect = draft.rooms[room].rect
    along_y = rect.x0 == outside.x1
    porch = (
        Rect(outside.x0, rect.y0, outside.x1, min(rect.y1, rect.y0 + 4.5))
        if along_y
        else Rect(rect.x0, outside.y0, min(rect.x1, rect.x0 + 4.5), outside.y1)
    )
    draft.join(room, draft.add_room("porch", 0, porch), "opening", 1.3)


def _shuffled(rng: np.random.Generator, items: tuple[str, ...]) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))]
