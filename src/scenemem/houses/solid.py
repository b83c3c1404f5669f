"""A box and what it is: the pieces a scene is put together from."""

from __future__ import annotations

from typing import NamedTuple

from scenemem.houses.records import Axis, Box


class Solid(NamedTuple):
    """One box of a scene."""

    box: Box
    kind: str  # one of catalogue.SEEN_KINDS
    colour: str
    material: str
    storey: int
    landmark: int = -1  # number of the landmark it belongs to
    shuts: bool = False  # whether nothing of the same storey can be seen behind it


def oriented(across: Axis, near: float, far: float, start: float, stop: float, z0: float, z1: float) -> Box:
    """A box given by its extent across a wall (``near``, ``far``) and along it (``start``, ``stop``)."""
    low, high = min(near, far), max(near, far)
    return Box(low, start, z0, high, stop, z1) if across == "x" else Box(start, low, z0, stop, high, z1)
