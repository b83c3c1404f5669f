"""What a house is made of: rooms, doors, windows, stairs, furniture, viewpoints; its file and the catalogue.

All that other rooms need of the houses is here and in ``pictures``; everything else generates them.
World frame: metres, x east, y north, z up. Rectangles and boxes are axis-aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from scenemem.formats.decoding import read_json

TRACK = "houses"  # of the view features
SENSOR = "a perfect detector and a depth sensor, in the embedded houses"  # what they stand for
ENCODER = "scenemem.houses.features"  # what made them

CEILING = 2.6  # height of a room, metres
STOREY = 3.0  # from one floor to the next
WALL = 0.06  # thickness of one room's side of a wall
EYE = 1.5  # height of the camera above the floor
SILL, PANE_TOP = 0.9, 2.1  # of windows, above the floor
FOOT = 0.35  # level floor between the hallway and the first or last step of the stairs

Axis = Literal["x", "y"]
DoorStyle = Literal["door", "opening", "front door"]
StairsPart = Literal["", "bottom", "landing", "top"]


class Rect(NamedTuple):
    """A rectangle on the floor."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def of_wall(cls, across: Axis, near: float, far: float, start: float, stop: float) -> Rect:
        """A rectangle by its extent across a wall (``near``, ``far``) and along it (``start``, ``stop``)."""
        low, high = min(near, far), max(near, far)
        return cls(low, start, high, stop) if across == "x" else cls(start, low, stop, high)

    @property
    def width(self) -> float:
        """Extent along x."""
        return self.x1 - self.x0

    @property
    def depth(self) -> float:
        """Extent along y."""
        return self.y1 - self.y0

    @property
    def centre(self) -> tuple[float, float]:
        """The middle."""
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2

    @property
    def sides(self) -> tuple[RectSide, RectSide, RectSide, RectSide]:
        """Its four sides: west, east, south, north."""
        return (
            RectSide("x", self.x0, 1, self.y0, self.y1),
            RectSide("x", self.x1, -1, self.y0, self.y1),
            RectSide("y", self.y0, 1, self.x0, self.x1),
            RectSide("y", self.y1, -1, self.x0, self.x1),
        )

    def grown(self, margin: float) -> Rect:
        """The same rectangle with ``margin`` more on every side (less when negative)."""
        return Rect(self.x0 - margin, self.y0 - margin, self.x1 + margin, self.y1 + margin)

    def side(self, facing: tuple[int, int]) -> RectSide:
        """The side through which a unit vector points into the rectangle."""
        return next(side for side in self.sides if side.facing == facing)

    def beyond(self, facing: tuple[int, int], depth: float) -> Rect:
        """The strip of ``depth`` metres in front of the side that a unit vector points out of."""
        side = self.side((-facing[0], -facing[1]))
        return side.strip(side.start, side.stop, -depth)

    def box(self, z0: float, z1: float) -> Box:
        """The box above this rectangle between two heights."""
        return Box(self.x0, self.y0, z0, self.x1, self.y1, z1)

    def overlaps(self, other: Rect) -> bool:
        """Whether the two share more than an edge."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies inside or on the edge."""
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1

    def encloses(self, other: Rect) -> bool:
        """Whether another rectangle lies inside."""
        return self.holds(other.x0, other.y0) and self.holds(other.x1, other.y1)

    def distance(self, x: float, y: float) -> float:
        """Metres to a point, 0 inside."""
        return math.hypot(max(self.x0 - x, x - self.x1, 0.0), max(self.y0 - y, y - self.y1, 0.0))


class RectSide(NamedTuple):
    """One side of a rectangle, such as a wall of a room."""

    across: Axis  # the direction that crosses it
    line: float  # its coordinate along that direction
    inward: int  # sign of the direction into the rectangle
    start: float
    stop: float

    @property
    def length(self) -> float:
        """Metres from one end to the other."""
        return self.stop - self.start

    @property
    def facing(self) -> tuple[int, int]:
        """Unit vector into the rectangle."""
        return (self.inward, 0) if self.across == "x" else (0, self.inward)

    def point(self, at: float) -> tuple[float, float]:
        """The point at a coordinate along the side, to the millimetre."""
        x, y = (self.line, at) if self.across == "x" else (at, self.line)
        return round(x, 3), round(y, 3)

    def strip(self, start: float, stop: float, depth: float) -> Rect:
        """The floor along a piece of the side, ``depth`` metres deep."""
        return Rect.of_wall(self.across, self.line, self.line + self.inward * depth, start, stop)


class Box(NamedTuple):
    """A solid box."""

    x0: float
    y0: float
    z0: float
    x1: float
    y1: float
    z1: float

    @property
    def footprint(self) -> Rect:
        """What the box covers of the floor."""
        return Rect(self.x0, self.y0, self.x1, self.y1)


@dataclass(frozen=True)
class Room:
    """One room; its number is its index in ``House.rooms``."""

    kind: str  # a key of ROOM_KINDS
    floor: int  # 0 is the ground floor
    rect: Rect
    wall_colour: str
    ground: str  # material of the floor
    ground_colour: str


class _Opening:
    """What doors and windows have in common: a gap in a wall."""

    bottom = 0.0  # above the floor, metres
    height: float  # of its upper edge
    x: float  # middle of the gap
    y: float
    across: Axis  # the direction one walks or looks in through it
    width: float

    @property
    def at(self) -> float:
        """Coordinate of the middle along its wall."""
        return self.y if self.across == "x" else self.x

    @property
    def line(self) -> float:
        """Coordinate of its wall."""
        return self.x if self.across == "x" else self.y

    @property
    def ends(self) -> tuple[float, float]:
        """Coordinates of both ends along its wall."""
        return self.at - self.width / 2, self.at + self.width / 2

    def area(self, reach: float, margin: float = 0.0) -> Rect:
        """The floor up to ``reach`` on both sides of the wall, ``margin`` wider than the gap at each end."""
        half = self.width / 2 + margin
        dx, dy = (reach, half) if self.across == "x" else (half, reach)
        return Rect(self.x - dx, self.y - dy, self.x + dx, self.y + dy)

    def towards(self, rect: Rect) -> int:
        """Sign of the direction through the wall towards a room."""
        return 1 if rect.centre[0 if self.across == "x" else 1] > self.line else -1


@dataclass(frozen=True)
class Door(_Opening):
    """A way through a wall between two rooms."""

    rooms: tuple[int, int]  # the second is -1 where the door leads out of the house and is shut
    x: float
    y: float
    across: Axis
    width: float
    height: float
    style: DoorStyle
    colour: str
    leaf: bool = False  # whether a door leaf stands open into the first room


@dataclass(frozen=True)
class Window(_Opening):
    """A window in an outer wall."""

    bottom = SILL
    height = PANE_TOP
    room: int
    x: float
    y: float
    across: Axis
    width: float


@dataclass(frozen=True)
class Stairs:
    """A flight up to a landing and a second one back: from the ground floor to the first floor."""

    rooms: tuple[int, int]  # the stair room on the ground floor and the one above it
    lower: Rect  # first flight; walked away from the hallway
    landing: Rect  # half way up
    upper: Rect  # second flight; walked back towards the hallway
    inward: tuple[int, int]  # unit vector from the hallway into the stair room


@dataclass(frozen=True)
class Thing:
    """A piece of furniture or a fixture; its number is its index in ``House.things``."""

    kind: str  # a key of KINDS
    colour: str
    material: str
    room: int
    box: Box
    facing: tuple[int, int]  # unit vector out of its front


@dataclass(frozen=True)
class Stand:
    """Where a camera stands: a viewpoint; its number is its index in ``House.stands``."""

    viewpoint: str  # 32 hexadecimal digits
    x: float
    y: float
    z: float  # of the camera
    room: int
    door: int = -1  # the door it stands in, if any
    stairs: StairsPart = ""  # the part of the stairs it stands on, if any


@dataclass(frozen=True)
class House:
    """A whole house: the content of ``plans/<scan>.json``."""

    name: str
    floors: int
    rooms: tuple[Room, ...]
    doors: tuple[Door, ...]
    windows: tuple[Window, ...]
    stairs: Stairs | None = None
    things: tuple[Thing, ...] = ()
    stands: tuple[Stand, ...] = ()

    def doors_of(self, room: int) -> tuple[Door, ...]:
        """The doors in the walls of a room."""
        return tuple(door for door in self.doors if room in door.rooms)

    def front_doors(self) -> tuple[Door, ...]:
        """The shut doors that lead out of the house."""
        return tuple(door for door in self.doors if door.style == "front door")

    def landmarks(self) -> tuple[Thing, ...]:
        """Everything an instruction can name: things, then windows, then front doors as flat boxes."""
        panes = (self._flat(pane, pane.room, "window", "blue", "glass") for pane in self.windows)
        doors = (self._flat(d, d.rooms[0], "front door", d.colour, "wood") for d in self.front_doors())
        return (*self.things, *panes, *doors)

    def _flat(self, gap: Door | Window, number: int, kind: str, colour: str, material: str) -> Thing:
        room = self.rooms[number]
        base, into = room.floor * STOREY, gap.towards(room.rect)
        box = gap.area(0.0).box(base + gap.bottom, base + gap.height)
        return Thing(kind, colour, material, number, box, (into, 0) if gap.across == "x" else (0, into))

    def leaf_box(self, door: Door) -> Box:
        """The open leaf of a door: at right angles to the wall, hinged at the end nearer to a corner."""
        room = self.rooms[door.rooms[0]]
        rect, base = room.rect, room.floor * STOREY
        low, high = (rect.y0, rect.y1) if door.across == "x" else (rect.x0, rect.x1)
        hinge = door.ends[0] if door.at - low < high - door.at else door.ends[1]
        into = door.towards(rect)
        near, far = door.line + into * 0.09, door.line + into * (0.03 + door.width)
        leaf = Rect.of_wall(door.across, near, far, hinge - 0.02, hinge + 0.02)
        return leaf.box(base + 0.01, base + door.height - 0.03)

    def room_at(self, x: float, y: float, z: float) -> int:
        """The room that holds a point (z of a camera); -1 outside."""
        floor = 0 if z < STOREY else 1
        fits = (n for n, room in enumerate(self.rooms) if room.floor == floor and room.rect.holds(x, y))
        return next(fits, -1)

    def rooms_of(self, stand: Stand) -> tuple[int, ...]:
        """The rooms a viewpoint belongs to: two in a doorway and on the stairs."""
        if stand.door >= 0:
            return self.doors[stand.door].rooms
        return self.stairs.rooms if self.stairs is not None and stand.stairs else (stand.room,)

    def storeys_seen(self, stand: Stand) -> Sequence[int]:
        """The storeys that can be seen from a viewpoint: all from stairs and from a porch."""
        beyond = any(self.rooms[room].kind in ("stairs", "porch") for room in self.rooms_of(stand))
        return range(self.floors) if beyond else (self.rooms[stand.room].floor,)


def read_plan(folder: Path, scan: str) -> House:
    """The plan of a house in a data folder.

    Raises:
        DataError: there is no such plan or it is not one.
    """
    return read_json(Path(folder) / "plans" / f"{scan}.json", House)


MATERIALS = ("wood", "metal", "glass", "leather", "fabric", "stone", "tile", "carpet", "plaster", "plant")
SURFACES = ("wall", "ceiling", "floor", "door frame", "door", "front door", "window", "stairs", "railing")
OUTDOORS = ("grass", "sky")

Placement = Literal["wall", "hung", "centre", "corner", "attached"]
Group = Literal["seat", "bed", "furniture", "fixture", "decoration"]


class Kind(NamedTuple):
    """One kind of thing."""

    words: tuple[str, ...]  # what people call it
    width: tuple[float, float]  # along the wall, metres, least and most
    depth: tuple[float, float]  # away from the wall
    height: tuple[float, float]
    colours: tuple[str, ...]
    materials: tuple[str, ...]
    placement: Placement  # how it is put into a room
    shape: str  # a key of SHAPES
    group: Group
    above: float = 0.0  # metres between the floor and its underside


class Part(NamedTuple):
    """One box of a shape in fractions of the thing's own box: left to right, back to front, bottom to top."""

    left: float
    right: float
    back: float
    front: float
    bottom: float
    top: float
    paint: str | None = None  # a colour name; None for the thing's own colour


class Furnishing(NamedTuple):
    """A kind of thing a room may hold."""

    kind: str  # a key of KINDS
    chance: float  # of being there
    most: int = 1  # copies tried when it is there


class RoomKind(NamedTuple):
    """One kind of room."""

    words: tuple[str, ...]  # what people call it
    width: tuple[float, float]  # along the hallway, metres, least and most
    walls: tuple[str, ...]  # colours
    grounds: tuple[tuple[str, str], ...]  # materials and colours of the floor
    furnishings: tuple[Furnishing, ...]  # in the order they are put in: the large ones first


class _Catalogue(msgspec.Struct):
    colours: dict[str, tuple[int, int, int]]  # red, green, blue
    kinds: dict[str, Kind]  # of things, by the name used in files
    rooms: dict[str, RoomKind]  # kinds of rooms, by the name used in files
    shapes: dict[str, tuple[Part, ...]]  # boxes by which people recognise a thing in the pictures
    material_words: dict[str, str]  # adjectives; materials without one are not worth mentioning
    phrases: dict[str, tuple[str, ...]]  # ways to say the same in an instruction


_CATALOGUE = msgspec.toml.decode(Path(__file__).with_name("catalogue.toml").read_bytes(), type=_Catalogue)

COLOURS = _CATALOGUE.colours
MATERIAL_WORDS = _CATALOGUE.material_words
PHRASES = _CATALOGUE.phrases
KINDS = _CATALOGUE.kinds
ROOM_KINDS = _CATALOGUE.rooms
SHAPES = _CATALOGUE.shapes
SEEN_KINDS = (*SURFACES, *OUTDOORS, *KINDS)  # all that a view can show, in the order of the feature columns
