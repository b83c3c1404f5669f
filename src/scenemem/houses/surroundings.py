"""What can be seen from every viewpoint of a house, and the geometry of speaking about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scenemem.houses.landmarks import landmarks
from scenemem.houses.raycast import NOTHING, Panorama
from scenemem.houses.records import STOREY, House, Rect, Stand, Thing
from scenemem.houses.scene import FloatArray, IntArray, Scene

_LEAST_RAYS = 8  # a landmark counts as seen when at least this many of the 4800 panorama rays meet it


@dataclass(frozen=True)
class Surroundings:
    """A house with its landmarks and who sees them; V viewpoints, M landmarks."""

    house: House
    landmarks: tuple[Thing, ...]  # M
    position: FloatArray  # (V, 3)
    rays: IntArray  # (V, M) panorama rays that meet the landmark

    def sees(self, stand: int, landmark: int) -> bool:
        """Whether a landmark is plainly visible from a viewpoint."""
        return bool(self.rays[stand, landmark] >= _LEAST_RAYS)

    def seen(self, stand: int) -> list[int]:
        """The landmarks plainly visible from a viewpoint, the largest first."""
        return self._seen[stand]

    @cached_property
    def _seen(self) -> list[list[int]]:
        order = np.argsort(-self.rays, axis=1, kind="stable")
        counts = (self.rays >= _LEAST_RAYS).sum(axis=1)
        return [row[:count].tolist() for row, count in zip(order, counts, strict=True)]

    def heading(self, source: int, target: int) -> float:
        """Of the way from one viewpoint to another, radians clockwise from +y."""
        east, north, _ = self.position[target] - self.position[source]
        return math.atan2(east, north)

    def bearing(self, stand: int, landmark: int) -> float:
        """Heading of the middle of a landmark from a viewpoint."""
        x, y = self.landmarks[landmark].box.footprint.centre
        return math.atan2(x - self.position[stand, 0], y - self.position[stand, 1])

    def gap(self, stand: int, landmark: int) -> float:
        """Metres between a viewpoint and the nearest edge of a landmark, on the floor."""
        x, y, _ = self.position[stand]
        return gap_to(self.landmarks[landmark].box.footprint, float(x), float(y))


def gather(house: House, scene: Scene, position: FloatArray, panoramas: list[Panorama]) -> Surroundings:
    """Count what the panoramas of all viewpoints show."""
    named = landmarks(house)
    rows = []
    for panorama in panoramas:
        met = np.where(panorama.box == NOTHING, -1, scene.landmark[panorama.box]).ravel() + 1
        rows.append(np.bincount(met, minlength=len(named) + 1)[1:])
    return Surroundings(house, named, position, np.stack(rows))


def gap_to(rect: Rect, x: float, y: float) -> float:
    """Metres between a point and a rectangle, 0 inside it."""
    return math.hypot(max(rect.x0 - x, x - rect.x1, 0.0), max(rect.y0 - y, y - rect.y1, 0.0))


def turn_between(before: float, after: float) -> float:
    """Signed turn from one heading to another, radians in [-pi, pi), positive to the right."""
    return (after - before + math.pi) % (2 * math.pi) - math.pi


def room_at(house: House, x: float, y: float, z: float) -> int:
    """The room that holds a point (z of a camera); -1 outside."""
    storey = 0 if z < STOREY else 1
    fits = [n for n, room in enumerate(house.rooms) if room.floor == storey and room.rect.holds(x, y)]
    return fits[0] if fits else -1


def in_the_open(house: House, stand: Stand) -> bool:
    """Whether more than its own storey can be seen from a viewpoint."""
    rooms = house.doors[stand.door].rooms if stand.door >= 0 else (stand.room,)
    return any(house.rooms[room].kind in ("stairs", "porch") for room in rooms)
