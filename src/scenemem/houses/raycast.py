"""Casting rays into a scene of boxes: whole panoramas, any directions, and free lines of sight.

Headings are clockwise from +y. A panorama samples the directions between 60 degrees below and above the
horizon; the ray of one heading is intersected with all footprints once, elevations come after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scenemem.houses.scene import BoolArray, FloatArray, IntArray, Scene

AZIMUTHS = 120  # columns of a panorama: 3 degrees each, the first half a step right of north
ELEVATIONS = 40  # rows of a panorama: 3 degrees each, from 58.5 degrees down to 58.5 degrees up
NOTHING = -1  # box number of a ray that leaves the scene
FAR = 100.0  # depth of such a ray, metres
_PARALLEL = 1e-12  # keeps divisions finite where a ray runs along a wall
_BUNDLE = 1024  # rays that are followed together
_WALL_DEPTH = 0.2  # metres behind the first wall that blocks the view within which its own pieces lie


class Panorama(NamedTuple):
    """What is seen around one point; rows look up, columns run clockwise."""

    box: IntArray  # (ELEVATIONS, AZIMUTHS) number of the box, -1 for the sky
    depth: FloatArray  # (ELEVATIONS, AZIMUTHS) metres along the ray


def azimuths() -> FloatArray:
    """Heading of every panorama column, radians."""
    return np.asarray((np.arange(AZIMUTHS) + 0.5) * (2 * np.pi / AZIMUTHS))


def elevations() -> FloatArray:
    """Elevation of every panorama row, radians; none is exactly level."""
    return np.asarray(((np.arange(ELEVATIONS) + 0.5) / ELEVATIONS - 0.5) * (2 * np.pi / 3))


def cast_panorama(scene: Scene, eye: FloatArray, storey: int, *, both_storeys: bool) -> Panorama:
    """What is seen around ``eye`` (3,), a point that belongs to a storey.

    A ray ends at the first wall of the storey that blocks the view; not so where both storeys can be seen (on
    stairs, on a porch).
    """
    near, far = _footprint_spans(scene, eye, azimuths())
    hit = (near <= far) & (far > 0)
    limit = _sight_limit(scene, near, hit, storey, both_storeys)
    box = _packed(hit & (near <= limit[:, None]))
    start = np.where(box == NOTHING, np.inf, np.take_along_axis(near, box.clip(0), axis=1)).clip(0)
    stop = np.take_along_axis(far, box.clip(0), axis=1)
    seen, distance = _first_hits(scene, eye, box, start, stop)
    missed = np.isinf(distance)
    depth = distance / np.cos(elevations())[:, None]
    return Panorama(np.where(missed, NOTHING, seen), np.where(missed, FAR, depth))


def _footprint_spans(scene: Scene, eye: FloatArray, heading: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Horizontal distances at which rays of a heading enter and leave footprints.  (A,)  ->  (A, B) twice"""
    step = np.stack([np.sin(heading), np.cos(heading)], axis=1)[:, None]
    enter, leave, _ = _slabs(scene.low[:, :2] - eye[:2], scene.high[:, :2] - eye[:2], step)
    return enter, leave


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


def _sight_limit(
    scene: Scene, near: FloatArray, hit: BoolArray, storey: int, both_storeys: bool
) -> FloatArray:
    """How far a box may begin and still be seen, per heading.  (A, B)  ->  (A,)"""
    storeys = range(int(scene.storey.max()) + 1) if both_storeys else (storey,)
    limits = [
        np.where(hit & scene.blocks_view & (scene.storey == number), near, np.inf).min(axis=1)
        for number in storeys
    ]
    return np.asarray(np.max(limits, axis=0) + _WALL_DEPTH)


def _packed(chosen: BoolArray) -> IntArray:
    """The numbers of the chosen boxes of every row, padded with -1.  (A, B)  ->  (A, N)"""
    row, column = np.nonzero(chosen)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    packed = np.full((len(chosen), int(slot.max()) + 1), NOTHING, dtype=np.int64)
    packed[row, slot] = column
    return packed


def _first_hits(
    scene: Scene, eye: FloatArray, box: IntArray, start: FloatArray, stop: FloatArray
) -> tuple[IntArray, FloatArray]:
    """The first box every ray enters and the horizontal distance to it, inf where it enters none.

    box, start, stop: (A, N)  ->  (E, A) twice
    """
    slope = np.tan(elevations())[:, None, None]
    bottom, top = (scene.low[:, 2] - eye[2])[box], (scene.high[:, 2] - eye[2])[box]
    half = ELEVATIONS // 2  # the rows below look down and enter boxes from above
    reach = np.concatenate(
        [
            _reach(top / slope[:half], bottom / slope[:half], start, stop),
            _reach(bottom / slope[half:], top / slope[half:], start, stop),
        ]
    )
    first = reach.argmin(axis=2)
    column = np.arange(reach.shape[1])
    return box[column, first], np.take_along_axis(reach, first[..., None], axis=2)[..., 0]


def _reach(enter: FloatArray, leave: FloatArray, start: FloatArray, stop: FloatArray) -> FloatArray:
    """Where rays are inside both the heights and the footprint of a box first, inf where never."""
    np.maximum(enter, start, out=enter)
    np.minimum(leave, stop, out=leave)
    enter[enter > leave] = np.inf
    return enter


def cast_rays(scene: Scene, eye: FloatArray, direction: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """Follow rays in any directions; neighbouring rays should be neighbours in the array.

    eye: (3,)  direction: (R, 3) unit vectors  ->  box number (R,), -1 for the sky; metres to the hit (R,),
    inf for the sky; axis of the surface that was hit (R,)
    """
    split = np.split(direction, range(_BUNDLE, len(direction), _BUNDLE))
    bundles = [_cast_bundle(scene, eye, rays) for rays in split]
    box, distance, axis = (np.concatenate(parts) for parts in zip(*bundles, strict=True))
    return box, distance, axis


def _cast_bundle(scene: Scene, eye: FloatArray, rays: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """The same for a few rays that point nearly the same way: only boxes inside their cone are tried."""
    near = np.flatnonzero(_in_cone(scene, eye, rays))
    start, stop, by = _slabs((scene.low[near] - eye)[:, None], (scene.high[near] - eye)[:, None], rays[None])
    start = np.where((start <= stop) & (start > 0), start, np.inf)  # (N, R)
    first = start.argmin(axis=0)
    ray = np.arange(len(rays))
    distance = start[first, ray]
    return np.where(np.isinf(distance), NOTHING, near[first]), distance, by[first, ray]


def _in_cone(scene: Scene, eye: FloatArray, rays: FloatArray) -> BoolArray:
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
