"""Tables of the houses, read from ``catalogue.toml``: colours, kinds of things and rooms, shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

MATERIALS = ("wood", "metal", "glass", "leather", "fabric", "stone", "tile", "carpet", "plaster", "plant")
SURFACES = ("wall", "ceiling", "floor", "door frame", "door", "front door", "window", "stairs", "railing")
"""Parts of the building itself."""

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


class _Tables(msgspec.Struct):
    colours: dict[str, tuple[int, int, int]]
    kinds: dict[str, Kind]
    rooms: dict[str, RoomKind]
    shapes: dict[str, tuple[Part, ...]]
    material_words: dict[str, str]


_TABLES = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Tables)

COLOURS = _TABLES.colours
"""Colour names and what they look like (red, green, blue)."""

MATERIAL_WORDS = _TABLES.material_words
"""Adjectives; materials without one are not worth mentioning."""

KINDS = _TABLES.kinds
"""Every kind of thing, by the name used in files."""

SEEN_KINDS = (*SURFACES, *OUTDOORS, *KINDS)
"""Everything a view can show, in the order of the feature columns."""

ROOM_KINDS = _TABLES.rooms
"""Every kind of room, by the name used in files."""

SHAPES = _TABLES.shapes
"""How each shape is built from boxes, so that people recognise it in the pictures."""
