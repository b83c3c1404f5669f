"""How each kind of thing is built from boxes, so that people recognise it in the pictures.

A part is given as fractions of the thing's own box: across its front from left to right, from its back to its
front, from bottom to top. ``paint`` is None for the thing's own colour, else a colour name.
"""

from __future__ import annotations

from typing import NamedTuple

from scenemem.houses.records import Box, Thing


class Part(NamedTuple):
    """One box of a shape, in fractions of the thing's own box."""

    left: float
    right: float
    back: float
    front: float
    bottom: float
    top: float
    paint: str | None = None


def _legs(top: float, size: float = 0.07, paint: str | None = None) -> tuple[Part, ...]:
    ends = ((0.0, size), (1 - size, 1.0))
    return tuple(Part(*across, *along, 0, top, paint) for across in ends for along in ends)


SHAPES: dict[str, tuple[Part, ...]] = {
    "block": (Part(0, 1, 0, 1, 0, 1),),
    "sofa": (
        Part(0.1, 0.9, 0.2, 1, 0.08, 0.5),
        Part(0, 1, 0, 0.28, 0.08, 1),
        Part(0, 0.11, 0.2, 1, 0.08, 0.72),
        Part(0.89, 1, 0.2, 1, 0.08, 0.72),
    ),
    "table": (Part(0, 1, 0, 1, 0.9, 1), *_legs(0.9)),
    "shelves": (
        Part(0, 1, 0, 0.1, 0, 1),
        Part(0, 0.05, 0, 1, 0, 1),
        Part(0.95, 1, 0, 1, 0, 1),
        *(Part(0, 1, 0, 1, level, level + 0.03) for level in (0.0, 0.24, 0.48, 0.72, 0.97)),
        Part(0.06, 0.62, 0.1, 0.8, 0.27, 0.43, "red"),
        Part(0.3, 0.94, 0.1, 0.8, 0.51, 0.66, "blue"),
        Part(0.06, 0.7, 0.1, 0.8, 0.75, 0.9, "green"),
        Part(0.1, 0.94, 0.1, 0.8, 0.03, 0.18, "yellow"),
    ),
    "open shelves": (
        *_legs(1.0),
        *(Part(0, 1, 0, 1, level, level + 0.03) for level in (0.08, 0.38, 0.68, 0.97)),
        Part(0.1, 0.45, 0.15, 0.85, 0.11, 0.3, "beige"),
        Part(0.5, 0.9, 0.15, 0.85, 0.41, 0.58, "gray"),
        Part(0.12, 0.5, 0.15, 0.85, 0.71, 0.85, "brown"),
    ),
    "fireplace": (
        Part(0, 0.22, 0, 0.9, 0, 0.9),
        Part(0.78, 1, 0, 0.9, 0, 0.9),
        Part(0.22, 0.78, 0, 0.9, 0.65, 0.9),
        Part(0, 1, 0, 1, 0.9, 1),
        Part(0.22, 0.78, 0, 0.3, 0, 0.65, "black"),
        Part(0.3, 0.7, 0.3, 0.7, 0, 0.18, "brown"),
    ),
    "piano": (
        Part(0, 1, 0, 0.55, 0, 1),
        Part(0, 1, 0.5, 1, 0.5, 0.58),
        Part(0.04, 0.96, 0.58, 0.98, 0.58, 0.61, "white"),
        Part(0, 0.07, 0.5, 1, 0, 0.58),
        Part(0.93, 1, 0.5, 1, 0, 0.58),
    ),
    "plant": (
        Part(0.25, 0.75, 0.25, 0.75, 0, 0.28, "brown"),
        Part(0.44, 0.56, 0.44, 0.56, 0.28, 0.5, "brown"),
        Part(0, 1, 0.15, 0.85, 0.42, 0.78),
        Part(0.15, 0.85, 0, 1, 0.55, 1),
    ),
    "lamp": (
        Part(0.2, 0.8, 0.2, 0.8, 0, 0.03, "black"),
        Part(0.45, 0.55, 0.45, 0.55, 0, 0.8, "black"),
        Part(0, 1, 0, 1, 0.78, 1),
    ),
    "picture": (Part(0, 1, 0, 0.8, 0, 1, "brown"), Part(0.07, 0.93, 0.5, 1.05, 0.07, 0.93)),
    "clock": (
        Part(0, 1, 0, 1, 0, 0.12),
        Part(0.1, 0.9, 0, 0.9, 0.1, 0.7),
        Part(0, 1, 0, 1, 0.7, 1),
        Part(0.2, 0.8, 0.95, 1.03, 0.75, 0.95, "white"),
    ),
    "chair": (Part(0, 1, 0, 1, 0.46, 0.52), Part(0, 1, 0, 0.12, 0.5, 1), *_legs(0.46, 0.12)),
    "drawers": (
        Part(0, 1, 0, 0.94, 0, 1),
        Part(0.05, 0.95, 0.94, 1, 0.68, 0.94),
        Part(0.05, 0.95, 0.94, 1, 0.37, 0.63),
        Part(0.05, 0.95, 0.94, 1, 0.06, 0.32),
    ),
    "counter": (Part(0, 1, 0, 0.94, 0, 0.95), Part(0, 1, 0, 1, 0.95, 1, "gray")),
    "stove": (
        Part(0, 1, 0, 0.96, 0, 0.97),
        Part(0.1, 0.9, 0.96, 1, 0.2, 0.65, "black"),
        Part(0.03, 0.97, 0.03, 0.97, 0.97, 1, "black"),
    ),
    "fridge": (
        Part(0, 1, 0, 0.94, 0, 1),
        Part(0, 1, 0.94, 1, 0.4, 1),
        Part(0, 1, 0.94, 1, 0, 0.37),
        Part(0.88, 0.93, 1, 1.06, 0.45, 0.75, "gray"),
    ),
    "bed": (
        Part(0, 1, 0, 0.04, 0, 1, "brown"),
        Part(0, 1, 0, 1, 0.1, 0.3, "brown"),
        Part(0, 1, 0.3, 1, 0.28, 0.56),
        Part(0, 1, 0.04, 0.32, 0.28, 0.53, "white"),
        Part(0.08, 0.45, 0.06, 0.26, 0.53, 0.64, "white"),
        Part(0.55, 0.92, 0.06, 0.26, 0.53, 0.64, "white"),
    ),
    "bunk": (
        *_legs(1.0, 0.06, "brown"),
        Part(0, 1, 0, 1, 0.15, 0.28),
        Part(0, 1, 0, 1, 0.68, 0.8),
        Part(0, 1, 0.97, 1, 0.8, 0.95, "brown"),
    ),
    "wardrobe": (
        Part(0, 1, 0, 0.94, 0, 1),
        Part(0.01, 0.49, 0.94, 1, 0.04, 0.97),
        Part(0.51, 0.99, 0.94, 1, 0.04, 0.97),
    ),
    "toilet": (
        Part(0, 1, 0, 0.3, 0.45, 1),
        Part(0.25, 0.75, 0.1, 0.8, 0, 0.4),
        Part(0.05, 0.95, 0.3, 1, 0.4, 0.52),
    ),
    "tub": (
        Part(0, 1, 0, 1, 0, 0.4),
        Part(0, 0.06, 0, 1, 0.4, 1),
        Part(0.94, 1, 0, 1, 0.4, 1),
        Part(0, 1, 0, 0.1, 0.4, 1),
        Part(0, 1, 0.9, 1, 0.4, 1),
    ),
    "shower": (
        Part(0, 1, 0, 1, 0, 0.05, "white"),
        Part(0, 1, 0.96, 1, 0.05, 1),
        Part(0.96, 1, 0, 0.96, 0.05, 1),
        Part(0.45, 0.55, 0, 0.3, 0.92, 0.96, "gray"),
    ),
    "sink": (
        Part(0.03, 0.97, 0, 0.92, 0, 0.85),
        Part(0, 1, 0, 1, 0.85, 1, "white"),
        Part(0.46, 0.54, 0.05, 0.4, 1, 1.18, "gray"),
    ),
    "desk": (
        Part(0, 1, 0, 1, 0.94, 1),
        Part(0, 0.3, 0, 0.95, 0, 0.94),
        Part(0.95, 1, 0, 1, 0, 0.94),
        Part(0.35, 0.75, 0.1, 0.18, 1.05, 1.5, "black"),
        Part(0.5, 0.6, 0.1, 0.2, 1, 1.1, "black"),
    ),
    "swivel": (
        Part(0, 1, 0, 1, 0.42, 0.52),
        Part(0.05, 0.95, 0, 0.15, 0.55, 1),
        Part(0.44, 0.56, 0.44, 0.56, 0.06, 0.42, "gray"),
        Part(0.1, 0.9, 0.42, 0.58, 0, 0.07, "gray"),
        Part(0.42, 0.58, 0.1, 0.9, 0, 0.07, "gray"),
    ),
    "washer": (Part(0, 1, 0, 0.96, 0, 1), Part(0.2, 0.8, 0.96, 1.02, 0.2, 0.72, "black")),
    "clothes": (
        Part(0.02, 0.06, 0.4, 0.6, 0, 1, "gray"),
        Part(0.94, 0.98, 0.4, 0.6, 0, 1, "gray"),
        Part(0.02, 0.98, 0.45, 0.55, 0.96, 1, "gray"),
        Part(0.1, 0.3, 0, 1, 0.3, 0.94),
        Part(0.34, 0.5, 0.05, 0.95, 0.4, 0.94, "white"),
        Part(0.54, 0.72, 0, 1, 0.28, 0.94),
        Part(0.76, 0.9, 0.05, 0.95, 0.36, 0.94, "black"),
    ),
    "coats": (
        Part(0.44, 0.56, 0.44, 0.56, 0, 1),
        Part(0.15, 0.85, 0.15, 0.85, 0, 0.03),
        Part(0.05, 0.95, 0.46, 0.54, 0.9, 0.95),
        Part(0.05, 0.4, 0.3, 0.7, 0.45, 0.9, "gray"),
    ),
    "pool": (
        Part(0.03, 0.97, 0.05, 0.95, 0.75, 0.92),
        *_legs(0.75, 0.1, "brown"),
        Part(0, 1, 0, 0.06, 0.7, 1, "brown"),
        Part(0, 1, 0.94, 1, 0.7, 1, "brown"),
        Part(0, 0.04, 0, 1, 0.7, 1, "brown"),
        Part(0.96, 1, 0, 1, 0.7, 1, "brown"),
    ),
    "treadmill": (
        Part(0, 1, 0.05, 1, 0.06, 0.16),
        Part(0, 0.08, 0.05, 0.15, 0.1, 0.9, "gray"),
        Part(0.92, 1, 0.05, 0.15, 0.1, 0.9, "gray"),
        Part(0, 1, 0, 0.2, 0.85, 1),
    ),
}
"""Boxes of every shape named in the catalogue."""


def placed(thing: Thing, part: Part) -> Box:
    """The box of a part in the house, turned the way the thing faces."""
    box, (dx, dy) = thing.box, thing.facing
    z0, tall = box.z0, box.z1 - box.z0
    corners = [_spot(box, dx, dy, across, along) for across, along in zip(part[:2], part[2:4], strict=True)]
    (xa, ya), (xb, yb) = corners
    return Box(
        min(xa, xb), min(ya, yb), z0 + part.bottom * tall, max(xa, xb), max(ya, yb), z0 + part.top * tall
    )


def _spot(box: Box, dx: int, dy: int, across: float, along: float) -> tuple[float, float]:
    """A point of the footprint; ``across`` runs to the right of someone looking the way the thing faces."""
    middle_x, middle_y = box.footprint.centre
    right_x, right_y = dy, -dx
    wide = abs(right_x) * box.footprint.width + abs(right_y) * box.footprint.depth
    deep = abs(dx) * box.footprint.width + abs(dy) * box.footprint.depth
    a, b = (across - 0.5) * wide, (along - 0.5) * deep
    return middle_x + a * right_x + b * dx, middle_y + a * right_y + b * dy
