"""Furniture: things typical of each room, along walls, in the middle and on walls; doors stay clear."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from scenemem.houses.house import KINDS, ROOM_KINDS, STOREY, WALL, Box, House, Kind, Rect, RectSide, Thing

_TRIES = 30  # spots tried before a thing is left out
_FRONT_OF_DOOR = 0.95  # metres kept clear on both sides of a door
_FRONT_OF_THING = 0.45  # metres kept clear in front of a thing
_PASSAGE = 0.75  # width of floor kept free around a thing in the middle of a room
_TALL = 1.0  # things higher than this are not put before a window


def furnish(house: House, rng: np.random.Generator) -> House:
    """The house with things in all its rooms."""
    things: list[Thing] = []
    for number in range(len(house.rooms)):
        things += _Furnisher(house, number, rng).furnish()
    return replace(house, things=tuple(things))


@dataclass
class _Furnisher:
    """Puts things into one room."""

    house: House
    number: int
    rng: np.random.Generator
    things: list[Thing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = self.house.rooms[self.number]
        self.inside = self.room.rect.grown(-WALL)
        self.base = self.room.floor * STOREY
        self.doors = self.house.doors_of(self.number)
        self.clear = [door.area(_FRONT_OF_DOOR, 0.1) for door in self.doors]
        self.clear += [
            self.house.leaf_box(door).footprint.grown(0.05)
            for door in self.doors
            if door.leaf and door.rooms[0] == self.number
        ]
        self.windows = [pane.area(0.4) for pane in self.house.windows if pane.room == self.number]

    def furnish(self) -> list[Thing]:
        for furnishing in ROOM_KINDS[self.room.kind].furnishings:
            if self.rng.random() < furnishing.chance:
                for _ in range(int(self.rng.integers(1, furnishing.most + 1))):
                    self._put(furnishing.kind)
        return self.things

    def _put(self, kind: str) -> None:
        model = KINDS[kind]
        if kind == "bed" and any(thing.kind == "bunk bed" for thing in self.things):
            return
        look = self._pick(model.colours), self._pick(model.materials)
        twin = next((thing for thing in self.things if thing.kind == kind), None)
        if twin is not None and model.group == "fixture":  # counters and the like match
            look = twin.colour, twin.material
        width, depth, height = (
            float(self.rng.uniform(*span)) for span in (model.width, model.depth, model.height)
        )
        for _ in range(_TRIES):
            footprint, facing = self._propose(model, width, depth)
            if self._fits(kind, footprint, facing, height):
                self._add(kind, look, footprint, facing, height)
                self._attach(self.things[-1])
                return

    def _pick(self, options: tuple[str, ...]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def _add(
        self, kind: str, look: tuple[str, str], footprint: Rect, facing: tuple[int, int], height: float
    ) -> None:
        bottom = self.base + KINDS[kind].above
        box = Box(*(round(number, 3) for number in footprint.box(bottom, bottom + height)))
        self.things.append(Thing(kind, *look, self.number, box, facing))

    def _propose(self, model: Kind, width: float, depth: float) -> tuple[Rect, tuple[int, int]]:
        if model.placement == "centre":
            return self._in_the_middle(width, depth)
        wall = self.inside.sides[int(self.rng.integers(4))]
        low, high = wall.start + width / 2, wall.stop - width / 2
        if high <= low:
            at = (low + high) / 2
        elif model.placement == "corner":
            at = (low + 0.05, high - 0.05)[int(self.rng.integers(2))]
        else:
            at = float(self.rng.uniform(low, high))
        return wall.strip(at - width / 2, at + width / 2, depth), wall.facing

    def _in_the_middle(self, width: float, depth: float) -> tuple[Rect, tuple[int, int]]:
        inside = self.inside
        facing = (0, 1)
        if (inside.width < inside.depth) == (self.rng.random() < 0.85):
            width, depth, facing = depth, width, (1, 0)
        x = inside.centre[0] + self.rng.uniform(-0.12, 0.12) * inside.width
        y = inside.centre[1] + self.rng.uniform(-0.12, 0.12) * inside.depth
        return Rect(x - width / 2, y - depth / 2, x + width / 2, y + depth / 2), facing

    def _fits(self, kind: str, footprint: Rect, facing: tuple[int, int], height: float) -> bool:
        model = KINDS[kind]
        if not self.inside.grown(0.001).encloses(footprint):
            return False
        if kind == "rug":
            return min(self.inside.width, self.inside.depth) > 1.6
        top = model.above + height
        if top > _TALL and any(window.overlaps(footprint) for window in self.windows):
            return False
        if model.placement == "hung":
            return self._wall_is_free(footprint, model.above)
        if model.placement == "centre" and not self.inside.grown(-_PASSAGE).encloses(footprint):
            return False
        if any(zone.overlaps(footprint) for zone in self.clear):
            return False
        gap = 0.03 if model.placement in ("wall", "corner") else 0.5
        return not any(self._collides(thing, footprint, facing, gap, top) for thing in self.things)

    def _collides(
        self, thing: Thing, footprint: Rect, facing: tuple[int, int], gap: float, top: float
    ) -> bool:
        """Whether a thing of the room leaves no space for another that is ``top`` metres high."""
        other, model = thing.box.footprint, KINDS[thing.kind]
        if thing.kind == "rug":
            return False
        if model.placement == "hung":
            return top > model.above and other.overlaps(footprint)
        return (
            other.overlaps(footprint.grown(gap))
            or other.overlaps(footprint.beyond(facing, _FRONT_OF_THING))
            or other.beyond(thing.facing, _FRONT_OF_THING).overlaps(footprint)
        )

    def _wall_is_free(self, footprint: Rect, above: float) -> bool:
        """Whether a thing on the wall hangs clear of doors, windows and whatever stands below it."""
        taken = [door.area(door.width / 2 + 0.1, 0.1) for door in self.doors] + self.windows
        taken += [thing.box.footprint for thing in self.things if thing.box.z1 - self.base > above - 0.05]
        return not any(zone.overlaps(footprint.grown(0.05)) for zone in taken)

    def _attach(self, host: Thing) -> None:
        """Add what comes with a thing: chairs at tables, nightstands at beds, a chair at a desk."""
        rect, (dx, dy) = host.box.footprint, host.facing
        if host.kind == "dining table":  # two or three chairs along both long sides
            model, count = KINDS["chair"], 3 if max(rect.width, rect.depth) > 1.6 else 2
            look = self._pick(model.colours), self._pick(model.materials)
            for side in rect.sides[2:] if rect.width > rect.depth else rect.sides[:2]:
                for number in range(count):
                    at = side.start + (number + 0.5) / count * side.length
                    self._add_beside(host, "chair", look, side, at, under=0.12)
        elif host.kind == "desk":
            look = self._pick(KINDS["office chair"].colours), KINDS["office chair"].materials[0]
            front = rect.side((-dx, -dy))
            self._add_beside(host, "office chair", look, front, front.start + 0.5 * front.length, under=0.1)
        elif host.kind == "bed":
            model = KINDS["nightstand"]
            look, away = (self._pick(model.colours), model.materials[0]), model.width[0] / 2 + 0.05
            wall, bed = self.inside.side(host.facing), rect.side(host.facing)
            for at in (bed.start - away, bed.start + bed.length + away):
                self._add_beside(host, "nightstand", look, wall, at)

    def _add_beside(
        self, host: Thing, kind: str, look: tuple[str, str], side: RectSide, at: float, under: float = 0.0
    ) -> None:
        """Add a thing centred at ``at`` along a wall, or along a side of ``host`` and partly ``under`` it."""
        model = KINDS[kind]
        half, depth = model.width[0] / 2, model.depth[0]
        if under:
            side = side._replace(line=side.line + side.inward * (under - depth))
        spot = side.strip(at - half, at + half, depth)
        if self._free(spot, host):
            self._add(kind, look, spot, side.facing, model.height[0])

    def _free(self, spot: Rect, host: Thing) -> bool:
        """Whether a spot beside ``host`` is inside the room and clear of doors and other things."""
        others = [
            thing.box.footprint
            for thing in self.things
            if thing is not host and thing.kind != "rug" and KINDS[thing.kind].placement != "hung"
        ]
        inside = self.inside.grown(0.001).encloses(spot)
        return inside and not any(zone.overlaps(spot) for zone in self.clear + others)
