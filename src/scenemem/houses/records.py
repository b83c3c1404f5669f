"""What a house is made of: rooms, doors, windows, stairs, things and the places one can stand.

World frame: metres, x east, y north, z up. Rectangles and boxes are axis-aligned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

CEILING = 2.6  # height of a room, metres
STOREY = 3.0  # from one floor to the next
WALL = 0.06  # thickness of one room's side of a wall
EYE = 1.5  # height of the camera above the floor

Axis = Literal["x", "y"]


class Rect(NamedTuple):
    """A rectangle on the floor."""

    x0: float
    y0: float
    x1: float
    y1: float

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

    def grown(self, margin: float) -> Rect:
        """The same rectangle with ``margin`` more on every side (less when negative)."""
        return Rect(self.x0 - margin, self.y0 - margin, self.x1 + margin, self.y1 + margin)

    def overlaps(self, other: Rect) -> bool:
        """Whether the two share more than an edge."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies inside or on the edge."""
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1


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
    """One room; its number is its place in ``House.rooms``."""

    kind: str  # a key of room_kinds.ROOM_KINDS
    floor: int  # 0 is the ground floor
    rect: Rect
    wall_colour: str
    ground: str  # material of the floor
    ground_colour: str


@dataclass(frozen=True)
class Door:
    """A way through a wall between two rooms."""

    rooms: tuple[int, int]  # the second is -1 where the door leads out of the house and is shut
    x: float  # middle of the door
    y: float
    across: Axis  # the direction one walks in to pass it
    width: float
    height: float
    style: Literal["door", "opening", "front door"]
    colour: str
    leaf: bool = False  # whether a door leaf stands open into the first room

    @property
    def at(self) -> float:
        """Coordinate along its wall."""
        return self.y if self.across == "x" else self.x

    @property
    def line(self) -> float:
        """Coordinate of its wall."""
        return self.x if self.across == "x" else self.y


@dataclass(frozen=True)
class Window:
    """A window in an outer wall."""

    room: int
    x: float  # middle of the window
    y: float
    across: Axis  # the direction one looks in through it
    width: float

    @property
    def at(self) -> float:
        """Coordinate along its wall."""
        return self.y if self.across == "x" else self.x

    @property
    def line(self) -> float:
        """Coordinate of its wall."""
        return self.x if self.across == "x" else self.y


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
    """A piece of furniture or a fixture; its number is its place in ``House.things``."""

    kind: str  # a key of catalogue.KINDS
    colour: str
    material: str
    room: int
    box: Box
    facing: tuple[int, int]  # unit vector out of its front


@dataclass(frozen=True)
class Stand:
    """A viewpoint; its number is its place in ``House.stands``."""

    viewpoint: str  # 32 hexadecimal digits
    x: float
    y: float
    z: float  # of the camera
    room: int
    door: int = -1  # the door it stands in, if any
    stairs: Literal["", "bottom", "landing", "top"] = ""


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
