"""Furniture: things typical of each room, along walls, in the middle and on walls; doors stay clear."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from scenemem.houses.catalogue import KINDS, Kind
from scenemem.houses.records import STOREY, WALL, Box, Door, House, Rect, Room, Thing, Window
from scenemem.houses.room_kinds import ROOM_KINDS
from scenemem.houses.walls import leaf_box

_TRIES = 30  # places tried before a thing is left out
_FRONT_OF_DOOR = 0.95  # metres kept clear on both sides of a door
_PASSAGE = 0.75  # width of floor kept free in front of a thing
_TALL = 1.0  # things higher than this are not put before a window


class _Wall(NamedTuple):
    """One wall of a room, seen from inside."""

    facing: tuple[int, int]  # unit vector into the room
    line: float  # of its surface, along ``facing``
    start: float
    stop: float

    def footprint(self, at: float, width: float, depth: float) -> Rect:
        """What a thing centred at ``at`` along the wall covers of the floor."""
        dx, dy = self.facing
        near, far = self.line, self.line + (dx + dy) * depth
        low, high = min(near, far), max(near, far)
        a, b = at - width / 2, at + width / 2
        return Rect(low, a, high, b) if dx else Rect(a, low, b, high)


@dataclass
class _Furnisher:
    """Puts things into one room."""

    house: House
    number: int
    rng: np.random.Generator
    things: list[Thing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room: Room = self.house.rooms[self.number]
        self.inside = self.room.rect.grown(-WALL)
        self.clear = [_kept_clear(door) for door in self.house.doors_of(self.number)]
        self.clear += [
            leaf_box(self.house, door).footprint.grown(0.05)
            for door in self.house.doors
            if door.leaf and door.rooms[0] == self.number
        ]
        self.panes = [_before_window(pane) for pane in self.house.windows if pane.room == self.number]

    def furnish(self) -> list[Thing]:
        for wanted in ROOM_KINDS[self.room.kind].furnishings:
            if self.rng.random() < wanted.chance:
                for _ in range(int(self.rng.integers(1, wanted.most + 1))):
                    self._put(wanted.kind)
        return self.things

    def _put(self, kind: str) -> None:
        model = KINDS[kind]
        if kind == "bed" and any(thing.kind == "bunk bed" for thing in self.things):
            return
        colour, material = self._pick(model.colours), self._pick(model.materials)
        twin = next((thing for thing in self.things if thing.kind == kind), None)
        if twin is not None and model.group == "fixture":  # counters and the like match
            colour, material = twin.colour, twin.material
        size = [float(self.rng.uniform(*span)) for span in (model.width, model.depth, model.height)]
        for _ in range(_TRIES):
            footprint, facing = self._propose(model, size[0], size[1])
            if self._fits(kind, model, footprint, facing, size[2]):
                thing = self._add(kind, colour, material, footprint, facing, size[2])
                self._attach(thing)
                return

    def _pick(self, options: tuple[str, ...]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def _add(
        self, kind: str, colour: str, material: str, footprint: Rect, facing: tuple[int, int], height: float
    ) -> Thing:
        base = self.room.floor * STOREY + KINDS[kind].above
        numbers = (footprint.x0, footprint.y0, base, footprint.x1, footprint.y1, base + height)
        box = Box(*(round(number, 3) for number in numbers))
        self.things.append(Thing(kind, colour, material, self.number, box, facing))
        return self.things[-1]

    def _propose(self, model: Kind, width: float, depth: float) -> tuple[Rect, tuple[int, int]]:
        if model.place == "centre":
            return self._in_the_middle(width, depth)
        walls = _walls(self.inside)
        wall = walls[int(self.rng.integers(4))]
        low, high = wall.start + width / 2, wall.stop - width / 2
        if high <= low:
            return wall.footprint((low + high) / 2, width, depth), wall.facing
        if model.place == "corner":
            at = (low + 0.05, high - 0.05)[int(self.rng.integers(2))]
        else:
            at = float(self.rng.uniform(low, high))
        return wall.footprint(at, width, depth), wall.facing

    def _in_the_middle(self, width: float, depth: float) -> tuple[Rect, tuple[int, int]]:
        inside = self.inside
        if (inside.width < inside.depth) == (self.rng.random() < 0.85):
            width, depth = depth, width
            facing = (1, 0)
        else:
            facing = (0, 1)
        x = inside.centre[0] + self.rng.uniform(-0.12, 0.12) * inside.width
        y = inside.centre[1] + self.rng.uniform(-0.12, 0.12) * inside.depth
        return Rect(x - width / 2, y - depth / 2, x + width / 2, y + depth / 2), facing

    def _fits(self, kind: str, model: Kind, footprint: Rect, facing: tuple[int, int], height: float) -> bool:
        room = self.inside.grown(0.001)
        if not (room.holds(footprint.x0, footprint.y0) and room.holds(footprint.x1, footprint.y1)):
            return False
        if kind == "rug":
            return min(self.inside.width, self.inside.depth) > 1.6
        tall = model.above + height > _TALL
        if tall and any(pane.overlaps(footprint) for pane in self.panes):
            return False
        if model.place == "hung":
            return self._wall_is_free(footprint, model.above)
        if model.place == "centre" and not self._walkable_round(footprint):
            return False
        if any(zone.overlaps(footprint) for zone in self.clear):
            return False
        front = _in_front(footprint, facing)
        gap = 0.03 if model.place in ("wall", "corner") else 0.5
        for thing in self.things:
            if thing.kind == "rug":
                continue
            other = thing.box.footprint
            if KINDS[thing.kind].place == "hung":
                if model.above + height > KINDS[thing.kind].above and other.overlaps(footprint):
                    return False
            elif (
                other.overlaps(footprint.grown(gap))
                or other.overlaps(front)
                or _in_front(other, thing.facing).overlaps(footprint)
            ):
                return False
        return True

    def _walkable_round(self, footprint: Rect) -> bool:
        inside = self.inside
        least = _PASSAGE
        return (
            footprint.x0 - inside.x0 >= least
            and inside.x1 - footprint.x1 >= least
            and footprint.y0 - inside.y0 >= least
            and inside.y1 - footprint.y1 >= least
        )

    def _wall_is_free(self, footprint: Rect, above: float) -> bool:
        """Whether a thing on the wall hangs clear of doors, windows and whatever stands below it."""
        doors = [Rect(d.x, d.y, d.x, d.y).grown(d.width / 2 + 0.1) for d in self.house.doors_of(self.number)]
        taken = doors + self.panes
        base = self.room.floor * STOREY
        taken += [thing.box.footprint for thing in self.things if thing.box.z1 - base > above - 0.05]
        return not any(zone.overlaps(footprint.grown(0.05)) for zone in taken)

    def _attach(self, thing: Thing) -> None:
        """Things that come with others: chairs at tables, nightstands at beds, a chair at a desk."""
        if thing.kind == "dining table":
            self._chairs_round(thing)
        elif thing.kind == "desk":
            self._beside(
                thing, "office chair", self._pick(KINDS["office chair"].colours), [(0.5, 0.0)], front=True
            )
        elif thing.kind == "bed":
            colour = self._pick(KINDS["nightstand"].colours)
            self._beside(thing, "nightstand", colour, [(0.0, -1), (1.0, 1)], front=False)

    def _beside(
        self, thing: Thing, kind: str, colour: str, spots: list[tuple[float, float]], *, front: bool
    ) -> None:
        """Copies of ``kind`` in front of a thing or against the wall on its two sides."""
        model = KINDS[kind]
        width, depth, height = (span[0] for span in (model.width, model.depth, model.height))
        wall = next(wall for wall in _walls(self.inside) if wall.facing == thing.facing)
        rect = thing.box.footprint
        low, high = (rect.y0, rect.y1) if thing.facing[0] else (rect.x0, rect.x1)
        for share, sign in spots:
            at = low + share * (high - low) + sign * (width / 2 + 0.05)
            spot = wall.footprint(at, width, depth)
            facing = thing.facing
            if front:
                deep = rect.width if facing[0] else rect.depth
                moved = deep - 0.1
                spot = Rect(
                    spot.x0 + facing[0] * moved,
                    spot.y0 + facing[1] * moved,
                    spot.x1 + facing[0] * moved,
                    spot.y1 + facing[1] * moved,
                )
                facing = (-facing[0], -facing[1])
            if self._free(spot, thing):
                self._add(kind, colour, model.materials[0], spot, facing, height)

    def _chairs_round(self, table: Thing) -> None:
        model = KINDS["chair"]
        colour, material = self._pick(model.colours), self._pick(model.materials)
        size, rect = model.width[0], table.box.footprint
        along_x = rect.width > rect.depth
        length = rect.width if along_x else rect.depth
        count = 3 if length > 1.6 else 2
        for sign in (-1, 1):
            for place in range(count):
                along = (place + 0.5) / count
                if along_x:
                    x = rect.x0 + along * rect.width
                    y = (rect.y0 if sign < 0 else rect.y1) + sign * (size / 2 - 0.12)
                    facing = (0, -sign)
                else:
                    x = (rect.x0 if sign < 0 else rect.x1) + sign * (size / 2 - 0.12)
                    y = rect.y0 + along * rect.depth
                    facing = (-sign, 0)
                spot = Rect(x, y, x, y).grown(size / 2)
                if self._free(spot, table):
                    self._add("chair", colour, material, spot, facing, model.height[0])

    def _free(self, spot: Rect, host: Thing) -> bool:
        inside = self.inside.grown(0.001)
        others = [
            thing.box.footprint
            for thing in self.things
            if thing is not host and thing.kind != "rug" and KINDS[thing.kind].place != "hung"
        ]
        return (
            inside.holds(spot.x0, spot.y0)
            and inside.holds(spot.x1, spot.y1)
            and not any(zone.overlaps(spot) for zone in self.clear + others)
        )


def furnish(house: House, rng: np.random.Generator) -> House:
    """The house with things in all its rooms."""
    things: list[Thing] = []
    for number in range(len(house.rooms)):
        things += _Furnisher(house, number, rng).furnish()
    return replace(house, things=tuple(things))


def _walls(inside: Rect) -> tuple[_Wall, _Wall, _Wall, _Wall]:
    return (
        _Wall((1, 0), inside.x0, inside.y0, inside.y1),
        _Wall((-1, 0), inside.x1, inside.y0, inside.y1),
        _Wall((0, 1), inside.y0, inside.x0, inside.x1),
        _Wall((0, -1), inside.y1, inside.x0, inside.x1),
    )


def _kept_clear(door: Door) -> Rect:
    """The floor on both sides of a door."""
    half, reach = door.width / 2 + 0.1, _FRONT_OF_DOOR
    if door.across == "x":
        return Rect(door.x - reach, door.y - half, door.x + reach, door.y + half)
    return Rect(door.x - half, door.y - reach, door.x + half, door.y + reach)


def _before_window(pane: Window) -> Rect:
    """The floor right before a window."""
    half, reach = pane.width / 2, 0.4
    if pane.across == "x":
        return Rect(pane.x - reach, pane.y - half, pane.x + reach, pane.y + half)
    return Rect(pane.x - half, pane.y - reach, pane.x + half, pane.y + reach)


def _in_front(footprint: Rect, facing: tuple[int, int], depth: float = 0.45) -> Rect:
    """The floor in front of a thing that must stay free."""
    dx, dy = facing
    return Rect(
        footprint.x1 if dx > 0 else footprint.x0 - depth * (dx < 0),
        footprint.y1 if dy > 0 else footprint.y0 - depth * (dy < 0),
        footprint.x0 if dx < 0 else footprint.x1 + depth * (dx > 0),
        footprint.y0 if dy < 0 else footprint.y1 + depth * (dy > 0),
    )
