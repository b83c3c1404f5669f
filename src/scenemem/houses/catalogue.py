"""Tables of the houses: colours, materials, kinds of furniture with their shapes, and kinds of rooms."""

from __future__ import annotations

from typing import Literal, NamedTuple

COLOURS: dict[str, tuple[int, int, int]] = {
    "white": (236, 234, 228),
    "black": (44, 44, 48),
    "gray": (142, 144, 148),
    "brown": (122, 80, 50),
    "beige": (216, 194, 158),
    "red": (178, 48, 46),
    "blue": (56, 94, 172),
    "green": (70, 132, 78),
    "yellow": (226, 190, 66),
    "purple": (122, 76, 146),
}
"""Colour names and what they look like (red, green, blue)."""

MATERIALS = ("wood", "metal", "glass", "leather", "fabric", "stone", "tile", "carpet", "plaster", "plant")
MATERIAL_WORDS = {
    "wood": "wooden",
    "metal": "metal",
    "glass": "glass",
    "leather": "leather",
    "stone": "stone",
    "tile": "tiled",
}
"""Adjectives; materials without one are not worth mentioning."""

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


_F = Furnishing
_BRIGHT = ("white", "gray", "beige", "red", "blue", "green", "yellow", "purple", "black")
_TIMBER = ("brown", "beige", "white", "black")
_CLEAN = ("white", "gray", "black")
_LIVED_IN = ("white", "beige", "gray", "green", "blue", "yellow")
_WARM_FLOORS = (("wood", "brown"), ("wood", "beige"), ("carpet", "gray"), ("carpet", "beige"))
_WET_FLOORS = (("tile", "white"), ("tile", "gray"), ("tile", "blue"), ("tile", "black"))

KINDS: dict[str, Kind] = {
    "sofa": Kind(("sofa", "couch", "settee"), (1.7, 2.2), (0.8, 0.9), (0.8, 0.85), _BRIGHT,
        ("fabric", "leather"), "wall", "sofa", "seat"),
    "armchair": Kind(("armchair", "easy chair"), (0.75, 0.85), (0.75, 0.8), (0.85, 0.9), _BRIGHT,
        ("fabric", "leather"), "corner", "sofa", "seat"),
    "coffee table": Kind(("coffee table",), (0.8, 1.0), (0.45, 0.6), (0.4, 0.45), _TIMBER,
        ("wood", "glass", "stone"), "centre", "table", "furniture"),
    "television": Kind(("television", "TV", "television screen"), (0.9, 1.3), (0.08, 0.1), (0.55, 0.7),
        ("black",), ("glass",), "hung", "block", "fixture", 1.0),
    "bookshelf": Kind(("bookshelf", "bookcase"), (0.9, 1.4), (0.3, 0.35), (1.8, 2.1), _TIMBER, ("wood",),
        "wall", "shelves", "furniture"),
    "fireplace": Kind(("fireplace", "hearth"), (1.3, 1.6), (0.35, 0.4), (1.1, 1.25),
        ("white", "gray", "red", "brown"), ("stone",), "wall", "fireplace", "fixture"),
    "piano": Kind(("piano",), (1.4, 1.5), (0.55, 0.6), (1.15, 1.25), ("black", "brown", "white"), ("wood",),
        "wall", "piano", "furniture"),
    "rug": Kind(("rug", "carpet", "mat"), (1.4, 2.2), (1.0, 1.5), (0.02, 0.02),
        ("red", "blue", "green", "beige", "gray", "purple", "yellow"), ("carpet",), "centre", "block",
        "decoration"),
    "plant": Kind(("plant", "potted plant", "houseplant"), (0.45, 0.55), (0.45, 0.55), (1.1, 1.5),
        ("green",), ("plant",), "corner", "plant", "decoration"),
    "lamp": Kind(("lamp", "floor lamp", "standing lamp"), (0.38, 0.42), (0.38, 0.42), (1.5, 1.7),
        ("white", "yellow", "red", "black"), ("metal",), "corner", "lamp", "decoration"),
    "painting": Kind(("painting", "picture", "framed picture"), (0.8, 1.3), (0.04, 0.04), (0.6, 0.9),
        ("red", "blue", "green", "yellow", "purple", "brown"), ("fabric",), "hung", "picture", "decoration",
        1.15),
    "mirror": Kind(("mirror", "wall mirror"), (0.5, 0.8), (0.04, 0.04), (0.7, 1.0), ("gray",), ("glass",),
        "hung", "picture", "decoration", 1.1),
    "clock": Kind(("grandfather clock", "clock"), (0.45, 0.5), (0.3, 0.35), (1.9, 2.0),
        ("brown", "black", "white"), ("wood",), "wall", "clock", "decoration"),
    "dining table": Kind(("dining table", "table"), (1.3, 1.8), (0.8, 0.9), (0.74, 0.76), _TIMBER,
        ("wood", "glass"), "centre", "table", "furniture"),
    "chair": Kind(("chair",), (0.42, 0.45), (0.42, 0.45), (0.88, 0.92),
        ("brown", "white", "black", "red", "blue", "green"), ("wood", "metal"), "attached", "chair", "seat"),
    "sideboard": Kind(("sideboard", "cabinet", "buffet"), (1.1, 1.5), (0.4, 0.45), (0.8, 0.9), _TIMBER,
        ("wood",), "wall", "drawers", "furniture"),
    "kitchen counter": Kind(("kitchen counter", "counter", "countertop"), (1.4, 2.0), (0.6, 0.6), (0.9, 0.9),
        ("white", "gray", "brown", "blue", "green"), ("wood", "stone"), "wall", "counter", "fixture"),
    "kitchen island": Kind(("kitchen island", "island"), (1.2, 1.6), (0.7, 0.8), (0.9, 0.9),
        ("white", "gray", "brown", "blue"), ("wood", "stone"), "centre", "counter", "fixture"),
    "stove": Kind(("stove", "oven", "cooker"), (0.6, 0.7), (0.6, 0.6), (0.9, 0.9), _CLEAN, ("metal",),
        "wall", "stove", "fixture"),
    "refrigerator": Kind(("refrigerator", "fridge"), (0.7, 0.9), (0.65, 0.7), (1.75, 1.9), _CLEAN,
        ("metal",), "wall", "fridge", "fixture"),
    "bed": Kind(("bed",), (1.4, 1.7), (2.0, 2.05), (0.95, 1.05),
        ("white", "blue", "red", "green", "gray", "purple", "yellow", "beige"), ("fabric",), "wall", "bed",
        "bed"),
    "bunk bed": Kind(("bunk bed", "bunk beds"), (0.95, 1.0), (1.95, 2.0), (1.7, 1.8),
        ("white", "blue", "red", "green", "yellow"), ("wood",), "wall", "bunk", "bed"),
    "nightstand": Kind(("nightstand", "bedside table"), (0.42, 0.5), (0.4, 0.42), (0.5, 0.6), _TIMBER,
        ("wood",), "attached", "drawers", "furniture"),
    "dresser": Kind(("dresser", "chest of drawers", "drawers"), (0.9, 1.2), (0.45, 0.5), (0.95, 1.1),
        _TIMBER, ("wood",), "wall", "drawers", "furniture"),
    "wardrobe": Kind(("wardrobe", "armoire", "cupboard"), (1.0, 1.4), (0.55, 0.6), (1.95, 2.1), _TIMBER,
        ("wood",), "wall", "wardrobe", "furniture"),
    "toilet": Kind(("toilet",), (0.42, 0.45), (0.65, 0.7), (0.75, 0.8), ("white",), ("tile",), "wall",
        "toilet", "fixture"),
    "bathtub": Kind(("bathtub", "tub", "bath"), (1.5, 1.7), (0.7, 0.75), (0.55, 0.6),
        ("white", "black", "blue"), ("tile",), "wall", "tub", "fixture"),
    "shower": Kind(("shower", "shower stall"), (0.85, 0.95), (0.85, 0.9), (2.0, 2.1),
        ("blue", "white", "green"), ("glass",), "corner", "shower", "fixture"),
    "sink": Kind(("sink", "washbasin", "basin"), (0.7, 1.0), (0.45, 0.5), (0.85, 0.88),
        ("white", "brown", "gray"), ("wood", "stone"), "wall", "sink", "fixture"),
    "towel rack": Kind(("towel rack", "towels"), (0.5, 0.7), (0.1, 0.12), (0.6, 0.7),
        ("white", "red", "blue", "green", "yellow", "purple"), ("fabric",), "hung", "block", "decoration",
        0.75),
    "desk": Kind(("desk", "writing desk"), (1.2, 1.5), (0.6, 0.7), (0.74, 0.76), _TIMBER,
        ("wood", "metal", "glass"), "wall", "desk", "furniture"),
    "office chair": Kind(("office chair", "swivel chair"), (0.5, 0.55), (0.5, 0.55), (0.95, 1.05),
        ("black", "gray", "red", "blue"), ("fabric", "leather"), "attached", "swivel", "seat"),
    "filing cabinet": Kind(("filing cabinet",), (0.45, 0.5), (0.5, 0.55), (1.2, 1.35),
        ("gray", "black", "green"), ("metal",), "wall", "drawers", "furniture"),
    "washing machine": Kind(("washing machine", "washer"), (0.6, 0.62), (0.58, 0.6), (0.85, 0.88),
        ("white", "gray", "black"), ("metal",), "wall", "washer", "fixture"),
    "laundry basket": Kind(("laundry basket", "basket", "hamper"), (0.45, 0.5), (0.4, 0.45), (0.55, 0.65),
        ("beige", "white", "blue", "yellow"), ("wood",), "corner", "block", "decoration"),
    "shelf": Kind(("shelf", "shelves"), (0.9, 1.3), (0.35, 0.4), (1.7, 1.9), ("white", "brown", "gray"),
        ("wood", "metal"), "wall", "open shelves", "furniture"),
    "clothes rack": Kind(("clothes rack", "rack of clothes"), (1.0, 1.4), (0.45, 0.5), (1.5, 1.6),
        ("red", "blue", "green", "purple", "gray"), ("fabric",), "wall", "clothes", "furniture"),
    "bench": Kind(("bench",), (1.0, 1.3), (0.35, 0.4), (0.45, 0.48),
        ("brown", "white", "black", "blue", "red"), ("wood", "leather"), "wall", "table", "seat"),
    "console table": Kind(("console table", "side table"), (0.8, 1.1), (0.3, 0.32), (0.78, 0.82), _TIMBER,
        ("wood", "metal", "glass"), "wall", "table", "furniture"),
    "coat rack": Kind(("coat rack", "coat stand"), (0.4, 0.45), (0.4, 0.45), (1.7, 1.8),
        ("brown", "black", "white"), ("wood", "metal"), "wall", "coats", "decoration"),
    "pool table": Kind(("pool table", "billiard table"), (2.0, 2.2), (1.1, 1.2), (0.8, 0.85),
        ("green", "blue", "red"), ("fabric",), "centre", "pool", "furniture"),
    "treadmill": Kind(("treadmill", "exercise machine"), (0.75, 0.8), (1.6, 1.7), (1.3, 1.35),
        ("black", "gray"), ("metal",), "wall", "treadmill", "fixture"),
    "grill": Kind(("grill", "barbecue"), (0.9, 1.0), (0.5, 0.55), (1.0, 1.1), ("black", "gray", "red"),
        ("metal",), "wall", "stove", "fixture"),
    "deck chair": Kind(("deck chair", "lounge chair"), (0.6, 0.65), (0.9, 1.0), (0.75, 0.8),
        ("white", "blue", "yellow", "red", "brown"), ("wood", "fabric"), "wall", "chair", "seat"),
}  # fmt: skip
"""Every kind of thing, by the name used in files."""

SEEN_KINDS = (*SURFACES, *OUTDOORS, *KINDS)
"""Everything a view can show, in the order of the feature columns."""

ROOM_KINDS: dict[str, RoomKind] = {
    "hallway": RoomKind(("hallway", "hall", "corridor", "passage"), (0, 0), ("white", "beige", "gray"),
        (("wood", "brown"), ("wood", "beige"), ("tile", "gray"), ("tile", "white")),
        (_F("clock", 0.3), _F("console table", 0.5), _F("bench", 0.35), _F("coat rack", 0.4),
         _F("plant", 0.5), _F("painting", 0.9, 3), _F("mirror", 0.4), _F("rug", 0.3))),
    "living room": RoomKind(("living room", "lounge", "sitting room"), (4.0, 6.0), _LIVED_IN, _WARM_FLOORS,
        (_F("fireplace", 0.45), _F("piano", 0.4), _F("sofa", 1.0, 2), _F("rug", 0.6),
         _F("coffee table", 0.9), _F("bookshelf", 0.5), _F("armchair", 0.7, 2), _F("television", 0.7),
         _F("plant", 0.6), _F("lamp", 0.6), _F("painting", 0.8, 2))),
    "family room": RoomKind(("family room", "game room", "den"), (4.0, 6.0), _LIVED_IN, _WARM_FLOORS,
        (_F("pool table", 0.6), _F("treadmill", 0.4), _F("sofa", 0.7), _F("television", 0.9),
         _F("bookshelf", 0.5), _F("armchair", 0.6), _F("rug", 0.4), _F("lamp", 0.5), _F("plant", 0.4),
         _F("painting", 0.6))),
    "dining room": RoomKind(("dining room", "dining area"), (3.0, 4.5), _LIVED_IN, _WARM_FLOORS,
        (_F("dining table", 1.0), _F("sideboard", 0.7), _F("plant", 0.5), _F("painting", 0.8, 2),
         _F("mirror", 0.3), _F("lamp", 0.3), _F("clock", 0.2))),
    "kitchen": RoomKind(("kitchen",), (3.0, 4.5), ("white", "beige", "yellow", "gray", "green"), _WET_FLOORS,
        (_F("refrigerator", 1.0), _F("stove", 1.0), _F("kitchen counter", 1.0, 3),
         _F("kitchen island", 0.55), _F("sink", 0.6), _F("plant", 0.25), _F("painting", 0.2))),
    "bedroom": RoomKind(("bedroom",), (3.0, 4.2), (*_LIVED_IN, "purple"), _WARM_FLOORS,
        (_F("bunk bed", 0.2), _F("bed", 1.0), _F("wardrobe", 0.6), _F("dresser", 0.6), _F("desk", 0.2),
         _F("armchair", 0.25), _F("rug", 0.35), _F("lamp", 0.3), _F("plant", 0.25), _F("painting", 0.7, 2),
         _F("mirror", 0.3), _F("television", 0.2))),
    "bathroom": RoomKind(("bathroom", "washroom", "restroom"), (2.0, 2.8),
        ("white", "blue", "green", "gray"), _WET_FLOORS,
        (_F("bathtub", 0.6), _F("shower", 0.55), _F("toilet", 1.0), _F("sink", 1.0), _F("mirror", 0.7),
         _F("towel rack", 0.8), _F("plant", 0.15))),
    "office": RoomKind(("office", "study", "home office"), (2.6, 3.4), _LIVED_IN, _WARM_FLOORS,
        (_F("desk", 1.0), _F("bookshelf", 0.8, 2), _F("filing cabinet", 0.6), _F("armchair", 0.3),
         _F("plant", 0.4), _F("lamp", 0.3), _F("painting", 0.5), _F("rug", 0.2))),
    "laundry room": RoomKind(("laundry room", "utility room"), (2.0, 2.5), ("white", "gray", "blue"),
        _WET_FLOORS,
        (_F("washing machine", 1.0, 2), _F("shelf", 0.7), _F("sink", 0.5), _F("laundry basket", 0.8, 2))),
    "closet": RoomKind(("closet", "walk-in closet"), (1.8, 2.2), ("white", "beige", "gray"), _WARM_FLOORS,
        (_F("clothes rack", 1.0, 2), _F("shelf", 0.8, 2), _F("mirror", 0.3))),
    "porch": RoomKind(("porch", "patio", "deck"), (3.0, 5.0), ("white", "brown"),
        (("wood", "brown"), ("wood", "gray"), ("stone", "gray")),
        (_F("deck chair", 0.9, 2), _F("bench", 0.5), _F("grill", 0.5), _F("plant", 0.8, 2))),
    "stairs": RoomKind(("stairs", "staircase"), (2.4, 2.4), ("white", "beige", "gray"),
        (("wood", "brown"),), ()),
}  # fmt: skip
"""Every kind of room, by the name used in files."""


def _legs(top: float, size: float = 0.07, paint: str | None = None) -> tuple[Part, ...]:
    ends = ((0.0, size), (1 - size, 1.0))
    return tuple(Part(*across, *along, 0, top, paint) for across in ends for along in ends)


SHAPES: dict[str, tuple[Part, ...]] = {
    "block": (Part(0, 1, 0, 1, 0, 1),),
    "sofa": (
        Part(0.1, 0.9, 0.2, 1, 0.08, 0.5), Part(0, 1, 0, 0.28, 0.08, 1), Part(0, 0.11, 0.2, 1, 0.08, 0.72),
        Part(0.89, 1, 0.2, 1, 0.08, 0.72),
    ),
    "table": (Part(0, 1, 0, 1, 0.9, 1), *_legs(0.9)),
    "shelves": (
        Part(0, 1, 0, 0.1, 0, 1), Part(0, 0.05, 0, 1, 0, 1), Part(0.95, 1, 0, 1, 0, 1),
        *(Part(0, 1, 0, 1, level, level + 0.03) for level in (0.0, 0.24, 0.48, 0.72, 0.97)),
        Part(0.06, 0.62, 0.1, 0.8, 0.27, 0.43, "red"), Part(0.3, 0.94, 0.1, 0.8, 0.51, 0.66, "blue"),
        Part(0.06, 0.7, 0.1, 0.8, 0.75, 0.9, "green"), Part(0.1, 0.94, 0.1, 0.8, 0.03, 0.18, "yellow"),
    ),
    "open shelves": (
        *_legs(1.0), *(Part(0, 1, 0, 1, level, level + 0.03) for level in (0.08, 0.38, 0.68, 0.97)),
        Part(0.1, 0.45, 0.15, 0.85, 0.11, 0.3, "beige"), Part(0.5, 0.9, 0.15, 0.85, 0.41, 0.58, "gray"),
        Part(0.12, 0.5, 0.15, 0.85, 0.71, 0.85, "brown"),
    ),
    "fireplace": (
        Part(0, 0.22, 0, 0.9, 0, 0.9), Part(0.78, 1, 0, 0.9, 0, 0.9), Part(0.22, 0.78, 0, 0.9, 0.65, 0.9),
        Part(0, 1, 0, 1, 0.9, 1), Part(0.22, 0.78, 0, 0.3, 0, 0.65, "black"),
        Part(0.3, 0.7, 0.3, 0.7, 0, 0.18, "brown"),
    ),
    "piano": (
        Part(0, 1, 0, 0.55, 0, 1), Part(0, 1, 0.5, 1, 0.5, 0.58),
        Part(0.04, 0.96, 0.58, 0.98, 0.58, 0.61, "white"), Part(0, 0.07, 0.5, 1, 0, 0.58),
        Part(0.93, 1, 0.5, 1, 0, 0.58),
    ),
    "plant": (
        Part(0.25, 0.75, 0.25, 0.75, 0, 0.28, "brown"), Part(0.44, 0.56, 0.44, 0.56, 0.28, 0.5, "brown"),
        Part(0, 1, 0.15, 0.85, 0.42, 0.78), Part(0.15, 0.85, 0, 1, 0.55, 1),
    ),
    "lamp": (
        Part(0.2, 0.8, 0.2, 0.8, 0, 0.03, "black"), Part(0.45, 0.55, 0.45, 0.55, 0, 0.8, "black"),
        Part(0, 1, 0, 1, 0.78, 1),
    ),
    "picture": (Part(0, 1, 0, 0.8, 0, 1, "brown"), Part(0.07, 0.93, 0.5, 1.05, 0.07, 0.93)),
    "clock": (
        Part(0, 1, 0, 1, 0, 0.12), Part(0.1, 0.9, 0, 0.9, 0.1, 0.7), Part(0, 1, 0, 1, 0.7, 1),
        Part(0.2, 0.8, 0.95, 1.03, 0.75, 0.95, "white"),
    ),
    "chair": (Part(0, 1, 0, 1, 0.46, 0.52), Part(0, 1, 0, 0.12, 0.5, 1), *_legs(0.46, 0.12)),
    "drawers": (
        Part(0, 1, 0, 0.94, 0, 1), Part(0.05, 0.95, 0.94, 1, 0.68, 0.94),
        Part(0.05, 0.95, 0.94, 1, 0.37, 0.63), Part(0.05, 0.95, 0.94, 1, 0.06, 0.32),
    ),
    "counter": (Part(0, 1, 0, 0.94, 0, 0.95), Part(0, 1, 0, 1, 0.95, 1, "gray")),
    "stove": (
        Part(0, 1, 0, 0.96, 0, 0.97), Part(0.1, 0.9, 0.96, 1, 0.2, 0.65, "black"),
        Part(0.03, 0.97, 0.03, 0.97, 0.97, 1, "black"),
    ),
    "fridge": (
        Part(0, 1, 0, 0.94, 0, 1), Part(0, 1, 0.94, 1, 0.4, 1), Part(0, 1, 0.94, 1, 0, 0.37),
        Part(0.88, 0.93, 1, 1.06, 0.45, 0.75, "gray"),
    ),
    "bed": (
        Part(0, 1, 0, 0.04, 0, 1, "brown"), Part(0, 1, 0, 1, 0.1, 0.3, "brown"),
        Part(0, 1, 0.3, 1, 0.28, 0.56), Part(0, 1, 0.04, 0.32, 0.28, 0.53, "white"),
        Part(0.08, 0.45, 0.06, 0.26, 0.53, 0.64, "white"), Part(0.55, 0.92, 0.06, 0.26, 0.53, 0.64, "white"),
    ),
    "bunk": (
        *_legs(1.0, 0.06, "brown"), Part(0, 1, 0, 1, 0.15, 0.28), Part(0, 1, 0, 1, 0.68, 0.8),
        Part(0, 1, 0.97, 1, 0.8, 0.95, "brown"),
    ),
    "wardrobe": (
        Part(0, 1, 0, 0.94, 0, 1), Part(0.01, 0.49, 0.94, 1, 0.04, 0.97),
        Part(0.51, 0.99, 0.94, 1, 0.04, 0.97),
    ),
    "toilet": (
        Part(0, 1, 0, 0.3, 0.45, 1), Part(0.25, 0.75, 0.1, 0.8, 0, 0.4), Part(0.05, 0.95, 0.3, 1, 0.4, 0.52),
    ),
    "tub": (
        Part(0, 1, 0, 1, 0, 0.4), Part(0, 0.06, 0, 1, 0.4, 1), Part(0.94, 1, 0, 1, 0.4, 1),
        Part(0, 1, 0, 0.1, 0.4, 1), Part(0, 1, 0.9, 1, 0.4, 1),
    ),
    "shower": (
        Part(0, 1, 0, 1, 0, 0.05, "white"), Part(0, 1, 0.96, 1, 0.05, 1), Part(0.96, 1, 0, 0.96, 0.05, 1),
        Part(0.45, 0.55, 0, 0.3, 0.92, 0.96, "gray"),
    ),
    "sink": (
        Part(0.03, 0.97, 0, 0.92, 0, 0.85), Part(0, 1, 0, 1, 0.85, 1, "white"),
        Part(0.46, 0.54, 0.05, 0.4, 1, 1.18, "gray"),
    ),
    "desk": (
        Part(0, 1, 0, 1, 0.94, 1), Part(0, 0.3, 0, 0.95, 0, 0.94), Part(0.95, 1, 0, 1, 0, 0.94),
        Part(0.35, 0.75, 0.1, 0.18, 1.05, 1.5, "black"), Part(0.5, 0.6, 0.1, 0.2, 1, 1.1, "black"),
    ),
    "swivel": (
        Part(0, 1, 0, 1, 0.42, 0.52), Part(0.05, 0.95, 0, 0.15, 0.55, 1),
        Part(0.44, 0.56, 0.44, 0.56, 0.06, 0.42, "gray"), Part(0.1, 0.9, 0.42, 0.58, 0, 0.07, "gray"),
        Part(0.42, 0.58, 0.1, 0.9, 0, 0.07, "gray"),
    ),
    "washer": (Part(0, 1, 0, 0.96, 0, 1), Part(0.2, 0.8, 0.96, 1.02, 0.2, 0.72, "black")),
    "clothes": (
        Part(0.02, 0.06, 0.4, 0.6, 0, 1, "gray"), Part(0.94, 0.98, 0.4, 0.6, 0, 1, "gray"),
        Part(0.02, 0.98, 0.45, 0.55, 0.96, 1, "gray"), Part(0.1, 0.3, 0, 1, 0.3, 0.94),
        Part(0.34, 0.5, 0.05, 0.95, 0.4, 0.94, "white"), Part(0.54, 0.72, 0, 1, 0.28, 0.94),
        Part(0.76, 0.9, 0.05, 0.95, 0.36, 0.94, "black"),
    ),
    "coats": (
        Part(0.44, 0.56, 0.44, 0.56, 0, 1), Part(0.15, 0.85, 0.15, 0.85, 0, 0.03),
        Part(0.05, 0.95, 0.46, 0.54, 0.9, 0.95), Part(0.05, 0.4, 0.3, 0.7, 0.45, 0.9, "gray"),
    ),
    "pool": (
        Part(0.03, 0.97, 0.05, 0.95, 0.75, 0.92), *_legs(0.75, 0.1, "brown"),
        Part(0, 1, 0, 0.06, 0.7, 1, "brown"), Part(0, 1, 0.94, 1, 0.7, 1, "brown"),
        Part(0, 0.04, 0, 1, 0.7, 1, "brown"), Part(0.96, 1, 0, 1, 0.7, 1, "brown"),
    ),
    "treadmill": (
        Part(0, 1, 0.05, 1, 0.06, 0.16), Part(0, 0.08, 0.05, 0.15, 0.1, 0.9, "gray"),
        Part(0.92, 1, 0.05, 0.15, 0.1, 0.9, "gray"), Part(0, 1, 0, 0.2, 0.85, 1),
    ),
}  # fmt: skip
"""How each shape is built from boxes, so that people recognise it in the pictures."""
