"""The things houses hold: size, shape, colours, materials and the words people use for them."""

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

Place = Literal["wall", "hung", "centre", "corner", "attached"]
Group = Literal["seat", "bed", "furniture", "fixture", "decoration"]


class Kind(NamedTuple):
    """One kind of thing."""

    words: tuple[str, ...]  # what people call it
    width: tuple[float, float]  # along the wall, metres, least and most
    depth: tuple[float, float]  # away from the wall
    height: tuple[float, float]
    colours: tuple[str, ...]
    materials: tuple[str, ...]
    place: Place  # how it is put into a room
    shape: str  # a key of shapes.SHAPES
    group: Group
    above: float = 0.0  # metres between the floor and its underside


_BRIGHT = ("white", "gray", "beige", "red", "blue", "green", "yellow", "purple", "black")
_TIMBER = ("brown", "beige", "white", "black")
_CLEAN = ("white", "gray", "black")

KINDS: dict[str, Kind] = {
    "sofa": Kind(
        ("sofa", "couch", "settee"), (1.7, 2.2), (0.8, 0.9), (0.8, 0.85),
        _BRIGHT, ("fabric", "leather"), "wall", "sofa", "seat",
    ),
    "armchair": Kind(
        ("armchair", "easy chair"), (0.75, 0.85), (0.75, 0.8), (0.85, 0.9),
        _BRIGHT, ("fabric", "leather"), "corner", "sofa", "seat",
    ),
    "coffee table": Kind(
        ("coffee table",), (0.8, 1.0), (0.45, 0.6), (0.4, 0.45),
        _TIMBER, ("wood", "glass", "stone"), "centre", "table", "furniture",
    ),
    "television": Kind(
        ("television", "TV", "television screen"), (0.9, 1.3), (0.08, 0.1), (0.55, 0.7),
        ("black",), ("glass",), "hung", "block", "fixture", 1.0,
    ),
    "bookshelf": Kind(
        ("bookshelf", "bookcase"), (0.9, 1.4), (0.3, 0.35), (1.8, 2.1),
        _TIMBER, ("wood",), "wall", "shelves", "furniture",
    ),
    "fireplace": Kind(
        ("fireplace", "hearth"), (1.3, 1.6), (0.35, 0.4), (1.1, 1.25),
        ("white", "gray", "red", "brown"), ("stone",), "wall", "fireplace", "fixture",
    ),
    "piano": Kind(
        ("piano",), (1.4, 1.5), (0.55, 0.6), (1.15, 1.25),
        ("black", "brown", "white"), ("wood",), "wall", "piano", "furniture",
    ),
    "rug": Kind(
        ("rug", "carpet", "mat"), (1.4, 2.2), (1.0, 1.5), (0.02, 0.02),
        ("red", "blue", "green", "beige", "gray", "purple", "yellow"), ("carpet",),
        "centre", "block", "decoration",
    ),
    "plant": Kind(
        ("plant", "potted plant", "houseplant"), (0.45, 0.55), (0.45, 0.55), (1.1, 1.5),
        ("green",), ("plant",), "corner", "plant", "decoration",
    ),
    "lamp": Kind(
        ("lamp", "floor lamp", "standing lamp"), (0.38, 0.42), (0.38, 0.42), (1.5, 1.7),
        ("white", "yellow", "red", "black"), ("metal",), "corner", "lamp", "decoration",
    ),
    "painting": Kind(
        ("painting", "picture", "framed picture"), (0.8, 1.3), (0.04, 0.04), (0.6, 0.9),
        ("red", "blue", "green", "yellow", "purple", "brown"), ("fabric",),
        "hung", "picture", "decoration", 1.15,
    ),
    "mirror": Kind(
        ("mirror", "wall mirror"), (0.5, 0.8), (0.04, 0.04), (0.7, 1.0),
        ("gray",), ("glass",), "hung", "picture", "decoration", 1.1,
    ),
    "clock": Kind(
        ("grandfather clock", "clock"), (0.45, 0.5), (0.3, 0.35), (1.9, 2.0),
        ("brown", "black", "white"), ("wood",), "wall", "clock", "decoration",
    ),
    "dining table": Kind(
        ("dining table", "table"), (1.3, 1.8), (0.8, 0.9), (0.74, 0.76),
        _TIMBER, ("wood", "glass"), "centre", "table", "furniture",
    ),
    "chair": Kind(
        ("chair",), (0.42, 0.45), (0.42, 0.45), (0.88, 0.92),
        ("brown", "white", "black", "red", "blue", "green"), ("wood", "metal"), "attached", "chair", "seat",
    ),
    "sideboard": Kind(
        ("sideboard", "cabinet", "buffet"), (1.1, 1.5), (0.4, 0.45), (0.8, 0.9),
        _TIMBER, ("wood",), "wall", "drawers", "furniture",
    ),
    "kitchen counter": Kind(
        ("kitchen counter", "counter", "countertop"), (1.4, 2.0), (0.6, 0.6), (0.9, 0.9),
        ("white", "gray", "brown", "blue", "green"), ("wood", "stone"), "wall", "counter", "fixture",
    ),
    "kitchen island": Kind(
        ("kitchen island", "island"), (1.2, 1.6), (0.7, 0.8), (0.9, 0.9),
        ("white", "gray", "brown", "blue"), ("wood", "stone"), "centre", "counter", "fixture",
    ),
    "stove": Kind(
        ("stove", "oven", "cooker"), (0.6, 0.7), (0.6, 0.6), (0.9, 0.9),
        _CLEAN, ("metal",), "wall", "stove", "fixture",
    ),
    "refrigerator": Kind(
        ("refrigerator", "fridge"), (0.7, 0.9), (0.65, 0.7), (1.75, 1.9),
        _CLEAN, ("metal",), "wall", "fridge", "fixture",
    ),
    "bed": Kind(
        ("bed",), (1.4, 1.7), (2.0, 2.05), (0.95, 1.05),
        ("white", "blue", "red", "green", "gray", "purple", "yellow", "beige"), ("fabric",),
        "wall", "bed", "bed",
    ),
    "bunk bed": Kind(
        ("bunk bed", "bunk beds"), (0.95, 1.0), (1.95, 2.0), (1.7, 1.8),
        ("white", "blue", "red", "green", "yellow"), ("wood",), "wall", "bunk", "bed",
    ),
    "nightstand": Kind(
        ("nightstand", "bedside table"), (0.42, 0.5), (0.4, 0.42), (0.5, 0.6),
        _TIMBER, ("wood",), "attached", "drawers", "furniture",
    ),
    "dresser": Kind(
        ("dresser", "chest of drawers", "drawers"), (0.9, 1.2), (0.45, 0.5), (0.95, 1.1),
        _TIMBER, ("wood",), "wall", "drawers", "furniture",
    ),
    "wardrobe": Kind(
        ("wardrobe", "armoire", "cupboard"), (1.0, 1.4), (0.55, 0.6), (1.95, 2.1),
        _TIMBER, ("wood",), "wall", "wardrobe", "furniture",
    ),
    "toilet": Kind(
        ("toilet",), (0.42, 0.45), (0.65, 0.7), (0.75, 0.8),
        ("white",), ("tile",), "wall", "toilet", "fixture",
    ),
    "bathtub": Kind(
        ("bathtub", "tub", "bath"), (1.5, 1.7), (0.7, 0.75), (0.55, 0.6),
        ("white", "black", "blue"), ("tile",), "wall", "tub", "fixture",
    ),
    "shower": Kind(
        ("shower", "shower stall"), (0.85, 0.95), (0.85, 0.9), (2.0, 2.1),
        ("blue", "white", "green"), ("glass",), "corner", "shower", "fixture",
    ),
    "sink": Kind(
        ("sink", "washbasin", "basin"), (0.7, 1.0), (0.45, 0.5), (0.85, 0.88),
        ("white", "brown", "gray"), ("wood", "stone"), "wall", "sink", "fixture",
    ),
    "towel rack": Kind(
        ("towel rack", "towels"), (0.5, 0.7), (0.1, 0.12), (0.6, 0.7),
        ("white", "red", "blue", "green", "yellow", "purple"), ("fabric",),
        "hung", "block", "decoration", 0.75,
    ),
    "desk": Kind(
        ("desk", "writing desk"), (1.2, 1.5), (0.6, 0.7), (0.74, 0.76),
        _TIMBER, ("wood", "metal", "glass"), "wall", "desk", "furniture",
    ),
    "office chair": Kind(
        ("office chair", "swivel chair"), (0.5, 0.55), (0.5, 0.55), (0.95, 1.05),
        ("black", "gray", "red", "blue"), ("fabric", "leather"), "attached", "swivel", "seat",
    ),
    "filing cabinet": Kind(
        ("filing cabinet",), (0.45, 0.5), (0.5, 0.55), (1.2, 1.35),
        ("gray", "black", "green"), ("metal",), "wall", "drawers", "furniture",
    ),
    "washing machine": Kind(
        ("washing machine", "washer"), (0.6, 0.62), (0.58, 0.6), (0.85, 0.88),
        ("white", "gray", "black"), ("metal",), "wall", "washer", "fixture",
    ),
    "laundry basket": Kind(
        ("laundry basket", "basket", "hamper"), (0.45, 0.5), (0.4, 0.45), (0.55, 0.65),
        ("beige", "white", "blue", "yellow"), ("wood",), "corner", "block", "decoration",
    ),
    "shelf": Kind(
        ("shelf", "shelves"), (0.9, 1.3), (0.35, 0.4), (1.7, 1.9),
        ("white", "brown", "gray"), ("wood", "metal"), "wall", "open shelves", "furniture",
    ),
    "clothes rack": Kind(
        ("clothes rack", "rack of clothes"), (1.0, 1.4), (0.45, 0.5), (1.5, 1.6),
        ("red", "blue", "green", "purple", "gray"), ("fabric",), "wall", "clothes", "furniture",
    ),
    "bench": Kind(
        ("bench",), (1.0, 1.3), (0.35, 0.4), (0.45, 0.48),
        ("brown", "white", "black", "blue", "red"), ("wood", "leather"), "wall", "table", "seat",
    ),
    "console table": Kind(
        ("console table", "side table"), (0.8, 1.1), (0.3, 0.32), (0.78, 0.82),
        _TIMBER, ("wood", "metal", "glass"), "wall", "table", "furniture",
    ),
    "coat rack": Kind(
        ("coat rack", "coat stand"), (0.4, 0.45), (0.4, 0.45), (1.7, 1.8),
        ("brown", "black", "white"), ("wood", "metal"), "wall", "coats", "decoration",
    ),
    "pool table": Kind(
        ("pool table", "billiard table"), (2.0, 2.2), (1.1, 1.2), (0.8, 0.85),
        ("green", "blue", "red"), ("fabric",), "centre", "pool", "furniture",
    ),
    "treadmill": Kind(
        ("treadmill", "exercise machine"), (0.75, 0.8), (1.6, 1.7), (1.3, 1.35),
        ("black", "gray"), ("metal",), "wall", "treadmill", "fixture",
    ),
    "grill": Kind(
        ("grill", "barbecue"), (0.9, 1.0), (0.5, 0.55), (1.0, 1.1),
        ("black", "gray", "red"), ("metal",), "wall", "stove", "fixture",
    ),
    "deck chair": Kind(
        ("deck chair", "lounge chair"), (0.6, 0.65), (0.9, 1.0), (0.75, 0.8),
        ("white", "blue", "yellow", "red", "brown"), ("wood", "fabric"), "wall", "chair", "seat",
    ),
}  # fmt: skip
"""Every kind of thing, by the name used in files."""

SEEN_KINDS = (*SURFACES, *OUTDOORS, *KINDS)
"""Everything a view can show, in the order of the feature columns."""
