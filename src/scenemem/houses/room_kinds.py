"""The kinds of rooms: what people call them, how wide they are, their surfaces and what stands in them."""

from __future__ import annotations

from typing import NamedTuple


class Furnishing(NamedTuple):
    """A kind of thing a room may hold."""

    kind: str  # a key of catalogue.KINDS
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
_LIVED_IN = ("white", "beige", "gray", "green", "blue", "yellow")
_WARM_FLOORS = (("wood", "brown"), ("wood", "beige"), ("carpet", "gray"), ("carpet", "beige"))
_WET_FLOORS = (("tile", "white"), ("tile", "gray"), ("tile", "blue"), ("tile", "black"))

ROOM_KINDS: dict[str, RoomKind] = {
    "hallway": RoomKind(
        ("hallway", "hall", "corridor", "passage"), (0, 0), ("white", "beige", "gray"),
        (("wood", "brown"), ("wood", "beige"), ("tile", "gray"), ("tile", "white")),
        (
            _F("clock", 0.3), _F("console table", 0.5), _F("bench", 0.35), _F("coat rack", 0.4),
            _F("plant", 0.5),
            _F("painting", 0.9, 3), _F("mirror", 0.4), _F("rug", 0.3),
        ),
    ),
    "living room": RoomKind(
        ("living room", "lounge", "sitting room"), (4.0, 6.0), _LIVED_IN, _WARM_FLOORS,
        (
            _F("fireplace", 0.45), _F("piano", 0.4), _F("sofa", 1.0, 2), _F("rug", 0.6),
            _F("coffee table", 0.9),
            _F("bookshelf", 0.5), _F("armchair", 0.7, 2), _F("television", 0.7), _F("plant", 0.6),
            _F("lamp", 0.6),
            _F("painting", 0.8, 2),
        ),
    ),
    "family room": RoomKind(
        ("family room", "game room", "den"), (4.0, 6.0), _LIVED_IN, _WARM_FLOORS,
        (
            _F("pool table", 0.6), _F("treadmill", 0.4), _F("sofa", 0.7), _F("television", 0.9),
            _F("bookshelf", 0.5),
            _F("armchair", 0.6), _F("rug", 0.4), _F("lamp", 0.5), _F("plant", 0.4), _F("painting", 0.6),
        ),
    ),
    "dining room": RoomKind(
        ("dining room", "dining area"), (3.0, 4.5), _LIVED_IN, _WARM_FLOORS,
        (
            _F("dining table", 1.0), _F("sideboard", 0.7), _F("plant", 0.5), _F("painting", 0.8, 2),
            _F("mirror", 0.3),
            _F("lamp", 0.3), _F("clock", 0.2),
        ),
    ),
    "kitchen": RoomKind(
        ("kitchen",), (3.0, 4.5), ("white", "beige", "yellow", "gray", "green"), _WET_FLOORS,
        (
            _F("refrigerator", 1.0), _F("stove", 1.0), _F("kitchen counter", 1.0, 3),
            _F("kitchen island", 0.55),
            _F("sink", 0.6), _F("plant", 0.25), _F("painting", 0.2),
        ),
    ),
    "bedroom": RoomKind(
        ("bedroom",), (3.0, 4.2), (*_LIVED_IN, "purple"), _WARM_FLOORS,
        (
            _F("bunk bed", 0.2), _F("bed", 1.0), _F("wardrobe", 0.6), _F("dresser", 0.6), _F("desk", 0.2),
            _F("armchair", 0.25), _F("rug", 0.35), _F("lamp", 0.3), _F("plant", 0.25), _F("painting", 0.7, 2),
            _F("mirror", 0.3), _F("television", 0.2),
        ),
    ),
    "bathroom": RoomKind(
        ("bathroom", "washroom", "restroom"), (2.0, 2.8), ("white", "blue", "green", "gray"), _WET_FLOORS,
        (
            _F("bathtub", 0.6), _F("shower", 0.55), _F("toilet", 1.0), _F("sink", 1.0), _F("mirror", 0.7),
            _F("towel rack", 0.8), _F("plant", 0.15),
        ),
    ),
    "office": RoomKind(
        ("office", "study", "home office"), (2.6, 3.4), _LIVED_IN, _WARM_FLOORS,
        (
            _F("desk", 1.0), _F("bookshelf", 0.8, 2), _F("filing cabinet", 0.6), _F("armchair", 0.3),
            _F("plant", 0.4),
            _F("lamp", 0.3), _F("painting", 0.5), _F("rug", 0.2),
        ),
    ),
    "laundry room": RoomKind(
        ("laundry room", "utility room"), (2.0, 2.5), ("white", "gray", "blue"), _WET_FLOORS,
        (
            _F("washing machine", 1.0, 2), _F("shelf", 0.7), _F("sink", 0.5), _F("laundry basket", 0.8, 2),
        ),
    ),
    "closet": RoomKind(
        ("closet", "walk-in closet"), (1.8, 2.2), ("white", "beige", "gray"), _WARM_FLOORS,
        (_F("clothes rack", 1.0, 2), _F("shelf", 0.8, 2), _F("mirror", 0.3)),
    ),
    "porch": RoomKind(
        ("porch", "patio", "deck"), (3.0, 5.0), ("white", "brown"), (("wood", "brown"), ("wood", "gray"),
        ("stone", "gray")),
        (_F("deck chair", 0.9, 2), _F("bench", 0.5), _F("grill", 0.5), _F("plant", 0.8, 2)),
    ),
    "stairs": RoomKind(("stairs", "staircase"), (2.4, 2.4), ("white", "beige", "gray"),
        (("wood", "brown"),), ()),
}  # fmt: skip
"""Every kind of room, by the name used in files."""
