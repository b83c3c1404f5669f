"""A house as solid boxes - walls, floors, doors, stairs, furniture - and the rays cast into them.

Headings are clockwise from +y. A panorama samples the directions between 60 degrees below and above the
horizon; the ray of one heading is intersected with all footprints once, elevations come after.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenemem.houses.house import (
    CEILING,
    COLOURS,
    FOOT,
    KINDS,
    MATERIALS,
    SEEN_KINDS,
    SHAPES,
    STOREY,
    WALL,
    Box,
    Door,
    House,
    Part,
    Rect,
    RectSide,
    Room,
    Stairs,
    Thing,
    Window,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Span = tuple[float, float]  # two coordinates along one line, metres

AZIMUTHS = 120  # columns of a panorama: 3 degrees each, the first half a step right of north
ELEVATIONS = 40  # rows of a panorama: 3 degrees each, from 58.5 degrees down to 58.5 degrees up
HEADING = (np.arange(AZIMUTHS) + 0.5) * (2 * np.pi / AZIMUTHS)  # of every column, radians
ELEVATION = ((np.arange(ELEVATIONS) + 0.5) / ELEVATIONS - 0.5) * (
    2 * np.pi / 3
)  # of every row; none is level
NOTHING = -1  # box number of a ray that leaves the scene
FAR = 100.0  # depth of such a ray, metres

_NO_OBSTACLES = ("floor", "ceiling", "grass", "rug", "stairs")  # walked on, or far above one's head
_RAIL_BARS = ((0.12, 0.2), (0.5, 0.56), (0.9, 1.0))  # heights of the bars round a porch, metres
_FRAME = 0.07  # width of a door frame
_RISES = 6  # per flight of stairs
_BANISTER = 0.9
_PARALLEL = 1e-12  # keeps divisions finite where a ray runs along a wall
_BUNDLE = 1024  # rays that are followed together
_WALL_DEPTH = 0.2  # metres behind the first wall that blocks the view within which its own pieces lie


@dataclass(frozen=True)
class RenderScene:
    """B boxes and what each of them is."""

    low: FloatArray  # (B, 3) metres
    high: FloatArray  # (B, 3)
    kind: IntArray  # (B,) index into SEEN_KINDS
    colour: IntArray  # (B,) index into COLOURS
    material: IntArray  # (B,) index into MATERIALS
    landmark: IntArray  # (B,) index into House.landmarks(), -1 for the rest of the building
    storey: IntArray  # (B,)
    blocks_view: BoolArray  # (B,) whether nothing of the same storey can be seen behind it
    blocks_walking: BoolArray  # (B,)


class _Solid(NamedTuple):
    """One box of a scene."""

    box: Box
    kind: str  # one of SEEN_KINDS
    colour: str
    material: str
    storey: int
    landmark: int = -1  # index into House.landmarks()
    blocks_view: bool = False


def build_scene(house: House) -> RenderScene:
    """All boxes of a house."""
    solids: list[_Solid] = []
    for number, room in enumerate(house.rooms):
        solids += _railings(house, number) if room.kind == "porch" else _walls(house, number)
        solids += _floor_and_ceiling(house, number)
    for door in house.doors:
        solids += _door_parts(house, door)
    if house.stairs is not None:
        solids += _steps(house.stairs)
    for number, thing in enumerate(house.things):
        storey = house.rooms[thing.room].floor
        for part in SHAPES[KINDS[thing.kind].shape]:
            colour = part.paint or thing.colour
            solids.append(_Solid(part_box(thing, part), thing.kind, colour, thing.material, storey, number))
    solids.append(_Solid(Box(-60, -60, -0.4, 60, 60, -0.15), "grass", "green", "plant", 0))
    boxes, colours = np.array([solid.box for solid in solids]), list(COLOURS)
    return RenderScene(
        low=boxes[:, :3],
        high=boxes[:, 3:],
        kind=np.array([SEEN_KINDS.index(solid.kind) for solid in solids]),
        colour=np.array([colours.index(solid.colour) for solid in solids]),
        material=np.array([MATERIALS.index(solid.material) for solid in solids]),
        landmark=np.array([solid.landmark for solid in solids]),
        storey=np.array([solid.storey for solid in solids]),
        blocks_view=np.array([solid.blocks_view for solid in solids]),
        blocks_walking=np.array([solid.kind not in _NO_OBSTACLES for solid in solids]),
    )


def _walls(house: House, number: int) -> Iterator[_Solid]:
    """The walls of a room, seen from inside, and what fills their windows and front doors."""
    room = house.rooms[number]
    shut: tuple[Door | Window, ...] = (*house.windows, *house.front_doors())  # landmarks after the things
    panes = (window for window in house.windows if window.room == number)
    gaps: tuple[Door | Window, ...] = (*house.doors_of(number), *panes)
    for side in room.rect.sides:
        at = side.start
        here = [gap for gap in gaps if (gap.across, gap.line) == side[:2] and side.start < gap.at < side.stop]
        for gap in sorted(here, key=lambda gap: gap.ends):
            start, stop = gap.ends
            closed = gap in shut
            yield _wall(room, side, (at, start), (0.0, STOREY))
            yield _wall(room, side, (start, stop), (gap.height, STOREY), blocks_view=closed)
            if gap.bottom > 0:
                yield _wall(room, side, (start, stop), (0.0, gap.bottom), blocks_view=closed)
            if closed:
                yield _filling(house, side, gap, len(house.things) + shut.index(gap))
            at = stop
        yield _wall(room, side, (at, side.stop), (0.0, STOREY))


def _filling(house: House, side: RectSide, gap: Door | Window, landmark: int) -> _Solid:
    """What shuts a window or a front door."""
    thing = house.landmarks()[landmark]
    box = side.strip(*gap.ends, WALL).box(thing.box.z0, thing.box.z1)
    floor = house.rooms[thing.room].floor
    return _Solid(box, thing.kind, thing.colour, thing.material, floor, landmark, blocks_view=True)


def _wall(room: Room, side: RectSide, span: Span, heights: Span, *, blocks_view: bool = True) -> _Solid:
    base = room.floor * STOREY
    box = side.strip(*span, WALL).box(base + heights[0], base + heights[1])
    return _Solid(box, "wall", room.wall_colour, "plaster", room.floor, blocks_view=blocks_view)


def _railings(house: House, number: int) -> Iterator[_Solid]:
    """Bars round a porch, except where the house stands."""
    room = house.rooms[number]
    others = [other.rect for n, other in enumerate(house.rooms) if n != number and other.floor == room.floor]
    for side in room.rect.sides:
        edge = side.strip(side.start, side.stop, WALL)
        if not any(other.overlaps(edge.grown(0.01)) for other in others):
            for low, high in _RAIL_BARS:
                yield _Solid(edge.box(low, high), "railing", room.wall_colour, "wood", 0)


def _floor_and_ceiling(house: House, number: int) -> Iterator[_Solid]:
    """Left out where the stairs pass from one storey to the next, and above a porch."""
    room = house.rooms[number]
    base = room.floor * STOREY
    below, above = house.stairs.rooms if house.stairs else (-1, -1)
    if number != above:
        yield _Solid(room.rect.box(base - 0.12, base), "floor", room.ground_colour, room.ground, room.floor)
    if number != below and room.kind != "porch":
        box = room.rect.box(base + CEILING, base + CEILING + 0.15)
        yield _Solid(box, "ceiling", "white", "plaster", room.floor)


def _door_parts(house: House, door: Door) -> Iterator[_Solid]:
    """The frame of a door and, where it has one, its open leaf."""
    floor = house.rooms[door.rooms[0]].floor
    base, reach, half = floor * STOREY, WALL + 0.02, _FRAME / 2
    (start, stop), top = door.ends, door.height
    colour = "white" if door.style == "opening" else "brown"
    beams = (
        (start - half, start + half, 0.0, top),
        (stop - half, stop + half, 0.0, top),
        (start - half, stop + half, top - 0.02, top + _FRAME),
    )
    for a, b, z0, z1 in beams:
        beam = Rect.of_wall(door.across, door.line - reach, door.line + reach, a, b)
        yield _Solid(beam.box(base + z0, base + z1), "door frame", colour, "wood", floor)
    if door.leaf:
        yield _Solid(house.leaf_box(door), "door", door.colour, "wood", floor)


def _steps(stairs: Stairs) -> Iterator[_Solid]:
    """All boxes of the stairs; flights are solid down to the ground."""
    rise = STOREY / (2 * _RISES)
    outward = (-stairs.inward[0], -stairs.inward[1])
    up = (*treads(stairs.lower, stairs.inward), stairs.landing, *treads(stairs.upper, outward))
    for number, tread in enumerate(up, start=1):
        yield _Solid(tread.box(0.0, number * rise), "stairs", "brown", "wood", 0)
        if number > _RISES:
            yield _banister(tread, stairs, number * rise, storey=0)
    last = stairs.upper.beyond(outward, FOOT)
    yield _Solid(last.box(STOREY - 0.3, STOREY), "floor", "brown", "wood", 1)
    yield _banister(last, stairs, STOREY, storey=1)


def treads(flight: Rect, walked: tuple[int, int]) -> list[Rect]:
    """The treads of a flight in the order they are walked over."""
    first, last = flight.side(walked), flight.side((-walked[0], -walked[1]))
    edges = np.linspace(min(first.line, last.line), max(first.line, last.line), _RISES).tolist()
    spans = itertools.pairwise(edges)
    found = [Rect.of_wall(first.across, near, far, first.start, first.stop) for near, far in spans]
    return found if first.line < last.line else found[::-1]


def _banister(tread: Rect, stairs: Stairs, bottom: float, *, storey: int) -> _Solid:
    """A piece of the banister, on the edge of ``tread`` that faces the lower flight."""
    sideways = 1 if stairs.inward[0] else 0
    edges = tread.sides[2 * sideways :][:2]
    edge = min(edges, key=lambda edge: abs(edge.line - stairs.lower.centre[sideways]))
    rect = Rect.of_wall(edge.across, edge.line - 0.02, edge.line + 0.02, edge.start, edge.stop)
    return _Solid(rect.box(bottom, bottom + _BANISTER), "railing", "brown", "wood", storey)


def part_box(thing: Thing, part: Part) -> Box:
    """The box of a part in the house, turned the way the thing faces."""
    rect, (dx, dy) = thing.box.footprint, thing.facing
    right_x, right_y = dy, -dx  # to the right of someone looking the way the thing faces
    wide = abs(right_x) * rect.width + abs(right_y) * rect.depth
    deep = abs(dx) * rect.width + abs(dy) * rect.depth

    def corner(across: float, along: float) -> tuple[float, float]:
        a, b = (across - 0.5) * wide, (along - 0.5) * deep
        return rect.centre[0] + a * right_x + b * dx, rect.centre[1] + a * right_y + b * dy

    (xa, ya), (xb, yb) = corner(part.left, part.back), corner(part.right, part.front)
    z0, tall = thing.box.z0, thing.box.z1 - thing.box.z0
    footprint = Rect(min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb))
    return footprint.box(z0 + part.bottom * tall, z0 + part.top * tall)


class Panorama(NamedTuple):
    """What is seen around one point; rows look up, columns run clockwise."""

    box: IntArray  # (ELEVATIONS, AZIMUTHS) number of the box, -1 for the sky
    depth: FloatArray  # (ELEVATIONS, AZIMUTHS) metres along the ray


def cast_panorama(scene: RenderScene, eye: FloatArray, storeys: Sequence[int]) -> Panorama:
    """What is seen around ``eye`` (3,), a point from which only these storeys can be seen.

    A ray ends where a wall of each of these storeys has blocked the view.
    """
    step = np.stack([np.sin(HEADING), np.cos(HEADING)], axis=1)[:, None]
    near, far, _ = _slabs(scene.low[:, :2] - eye[:2], scene.high[:, :2] - eye[:2], step)  # (A, B)
    hit = (near <= far) & (far > 0)
    ends = [hit & scene.blocks_view & (scene.storey == number) for number in storeys]
    limit = np.max([np.where(end, near, np.inf).min(axis=1) for end in ends], axis=0) + _WALL_DEPTH
    box = _packed(hit & (near <= limit[:, None]))
    start = np.where(box == NOTHING, np.inf, np.take_along_axis(near, box.clip(0), axis=1)).clip(0)
    stop = np.take_along_axis(far, box.clip(0), axis=1)
    seen, distance = _first_hits(scene, eye, box, start, stop)
    missed = np.isinf(distance)
    depth = distance / np.cos(ELEVATION)[:, None]
    return Panorama(np.where(missed, NOTHING, seen), np.where(missed, FAR, depth))


def _slabs(low: FloatArray, high: FloatArray, step: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Where lines from the origin enter and leave boxes, in lengths of their step, and the axis entered by.

    Axes are taken one after the other: reductions over an axis of two or three numbers are slow.

    low, high: (..., D)  step: (..., D)  ->  (...) three times
    """
    step = np.where(np.abs(step) < _PARALLEL, _PARALLEL, step)
    enter, leave = np.array(-np.inf), np.array(np.inf)
    by = np.array(0)
    for axis in range(step.shape[-1]):
        one, two = low[..., axis] / step[..., axis], high[..., axis] / step[..., axis]
        first = np.minimum(one, two)
        by = np.where(first > enter, axis, by)
        enter, leave = np.maximum(enter, first), np.minimum(leave, np.maximum(one, two))
    return enter, leave, by


def _packed(chosen: BoolArray) -> IntArray:
    """The numbers of the chosen boxes of every row, padded with -1.  (A, B)  ->  (A, N)"""
    row, column = np.nonzero(chosen)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    packed = np.full((len(chosen), int(slot.max()) + 1), NOTHING, dtype=np.int64)
    packed[row, slot] = column
    return packed


def _first_hits(
    scene: RenderScene, eye: FloatArray, box: IntArray, start: FloatArray, stop: FloatArray
) -> tuple[IntArray, FloatArray]:
    """The first box every ray enters and the horizontal distance to it, inf where it enters none.

    box, start, stop: (A, N)  ->  (E, A) twice
    """
    slope = np.tan(ELEVATION)[:, None, None]
    bottom, top = (scene.low[:, 2] - eye[2])[box], (scene.high[:, 2] - eye[2])[box]
    half = ELEVATIONS // 2  # the rows below look down and enter boxes from above
    reach = np.maximum(np.concatenate([top / slope[:half], bottom / slope[half:]]), start)
    leave = np.minimum(np.concatenate([bottom / slope[:half], top / slope[half:]]), stop)
    reach[reach > leave] = np.inf  # never inside both the heights and the footprint
    first = reach.argmin(axis=2)
    column = np.arange(reach.shape[1])
    return box[column, first], np.take_along_axis(reach, first[..., None], axis=2)[..., 0]


def cast_rays(
    scene: RenderScene, eye: FloatArray, direction: FloatArray
) -> tuple[IntArray, FloatArray, IntArray]:
    """Follow rays in any directions; neighbouring rays should be neighbours in the array.

    eye: (3,)  direction: (R, 3) unit vectors  ->  box number (R,), -1 for the sky; metres to the hit (R,),
    inf for the sky; axis of the surface that was hit (R,)
    """
    split = np.split(direction, range(_BUNDLE, len(direction), _BUNDLE))
    bundles = [_cast_bundle(scene, eye, rays) for rays in split]
    box, distance, axis = (np.concatenate(parts) for parts in zip(*bundles, strict=True))
    return box, distance, axis


def _cast_bundle(
    scene: RenderScene, eye: FloatArray, rays: FloatArray
) -> tuple[IntArray, FloatArray, IntArray]:
    """The same for a few rays that point nearly the same way: only boxes inside their cone are tried."""
    near = np.flatnonzero(_in_cone(scene, eye, rays))
    start, stop, by = _slabs((scene.low[near] - eye)[:, None], (scene.high[near] - eye)[:, None], rays[None])
    start = np.where((start <= stop) & (start > 0), start, np.inf)  # (N, R)
    first = start.argmin(axis=0)
    ray = np.arange(len(rays))
    distance = start[first, ray]
    return np.where(np.isinf(distance), NOTHING, near[first]), distance, by[first, ray]


def _in_cone(scene: RenderScene, eye: FloatArray, rays: FloatArray) -> BoolArray:
    """Boxes whose bounding sphere touches the cone round a bundle of rays.  (R, 3)  ->  (B,)"""
    middle = rays.sum(axis=0)
    middle = middle / np.sqrt((middle**2).sum())
    opening = np.arccos((rays * middle).sum(axis=1).min().clip(-1, 1))
    centre = (scene.low + scene.high) / 2 - eye
    radius = np.sqrt(((scene.high - scene.low) ** 2).sum(axis=1)) / 2
    distance = np.sqrt((centre**2).sum(axis=1))
    aside = np.arccos(((centre * middle).sum(axis=1) / distance).clip(-1, 1))
    return np.asarray((distance <= radius) | (aside - np.arcsin((radius / distance).clip(0, 1)) <= opening))


def clear_lines(low: FloatArray, high: FloatArray, source: FloatArray, target: FloatArray) -> BoolArray:
    """Whether the straight lines between points touch none of the boxes.

    low, high: (B, D)  source, target: (P, D)  ->  (P,)
    """
    origin = source[:, None]
    enter, leave, _ = _slabs(low[None] - origin, high[None] - origin, (target - source)[:, None])
    touched = (enter <= leave) & (leave >= 0) & (enter <= 1)
    return np.asarray(~touched.any(axis=1))
