"""Casting rays into a scene of boxes: whole panoramas, free directions, and free lines of sight.

Headings are clockwise from +y. A panorama samples the directions between 60 degrees below and above the
horizon; the ray of one heading is intersected with all footprints once, elevations come after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenemem.houses.scene import BoolArray, FloatArray, IntArray, Scene

AZIMUTHS = 120  # columns of a panorama: 3 degrees each, the first half a step right of north
ELEVATIONS = 40  # rows of a panorama: 3 degrees each, from 58.5 degrees down to 58.5 degrees up
NOTHING = -1  # box number of a ray that leaves the scene
FAR = 100.0  # depth of such a ray, metres
_ALONGSIDE = 1e-12  # keeps divisions finite where a ray runs along a wall
_WALL_PACK = 0.2  # metres behind the first shut wall within which its own pieces lie


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


def cast_panorama(scene: Scene, eye: FloatArray, storey: int, *, in_the_open: bool) -> Panorama:
    """Look around.

    Args:
        scene: the boxes.
        eye: (3,) where the camera is.
        storey: the floor it belongs to.
        in_the_open: whether both storeys can be seen from here (on stairs, on a porch); elsewhere the first
            shut wall of the storey ends a ray.
    """
    near, far = _footprint_spans(scene, eye, azimuths())
    hit = (near <= far) & (far > 0)
    limit = _sight_limit(scene, near, hit, storey, in_the_open)
    box = _packed(hit & (near <= limit[:, None]))
    pad = box == NOTHING
    start = np.where(pad, np.inf, np.take_along_axis(near, box.clip(0), axis=1)).clip(0)
    stop = np.take_along_axis(far, box.clip(0), axis=1)
    reach = _enter_heights(scene, eye, box.clip(0), start, stop)
    first = reach.argmin(axis=2)
    distance = np.take_along_axis(reach, first[..., None], axis=2)[..., 0]
    seen = np.take_along_axis(np.broadcast_to(box, reach.shape), first[..., None], axis=2)[..., 0]
    missed = np.isinf(distance)
    depth = distance / np.cos(elevations())[:, None]
    return Panorama(np.where(missed, NOTHING, seen), np.where(missed, FAR, depth))


def _footprint_spans(scene: Scene, eye: FloatArray, heading: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Horizontal distances at which rays of a heading enter and leave footprints.  (A,)  ->  (A, B) twice"""
    step = np.stack([np.sin(heading), np.cos(heading)], axis=1)  # (A, 2)
    step = np.where(np.abs(step) < _ALONGSIDE, _ALONGSIDE, step)[:, None, :]
    one = (scene.low[None, :, :2] - eye[:2]) / step
    two = (scene.high[None, :, :2] - eye[:2]) / step
    return np.minimum(one, two).max(axis=2), np.maximum(one, two).min(axis=2)


def _sight_limit(
    scene: Scene, near: FloatArray, hit: BoolArray, storey: int, in_the_open: bool
) -> FloatArray:
    """How far a box may begin and still be seen, per heading.  (A, B)  ->  (A,)"""
    storeys = range(int(scene.storey.max()) + 1) if in_the_open else (storey,)
    limits = [
        np.where(hit & scene.shuts & (scene.storey == number), near, np.inf).min(axis=1) for number in storeys
    ]
    return np.asarray(np.max(limits, axis=0) + _WALL_PACK)


def _packed(wanted: BoolArray) -> IntArray:
    """The numbers of the wanted boxes of every row, padded with -1.  (A, B)  ->  (A, N)"""
    row, column = np.nonzero(wanted)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    packed = np.full((len(wanted), int(slot.max()) + 1), NOTHING, dtype=np.int64)
    packed[row, slot] = column
    return packed


def _enter_heights(
    scene: Scene, eye: FloatArray, box: IntArray, start: FloatArray, stop: FloatArray
) -> FloatArray:
    """Horizontal distance at which each ray enters each box, inf where it misses.

    box, start, stop: (A, N)  ->  (E, A, N)
    """
    slope = np.tan(elevations())[:, None, None]
    bottom, top = (scene.low[:, 2] - eye[2])[box], (scene.high[:, 2] - eye[2])[box]
    rising = slope > 0
    enter = np.maximum(np.where(rising, bottom, top) / slope, start)
    leave = np.minimum(np.where(rising, top, bottom) / slope, stop)
    return np.where(enter <= leave, enter, np.inf)


def cast_rays(scene: Scene, eye: FloatArray, direction: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """Follow rays in free directions.

    eye: (3,)  direction: (..., 3)  ->  box number (...), -1 for the sky; length of ``direction`` at the hit
    (...); axis of the surface that was hit (...)
    """
    step = np.where(np.abs(direction) < _ALONGSIDE, _ALONGSIDE, direction)
    nearest = np.full(step.shape[:-1], np.inf)
    box = np.full(step.shape[:-1], NOTHING, dtype=np.int64)
    axis = np.zeros(step.shape[:-1], dtype=np.int64)
    for number, (low, high) in enumerate(zip(scene.low - eye, scene.high - eye, strict=True)):
        one, two = low / step, high / step
        enter = np.minimum(one, two)
        start = enter.max(axis=-1)
        closer = (start <= np.maximum(one, two).min(axis=-1)) & (start > 0) & (start < nearest)
        nearest = np.where(closer, start, nearest)
        box = np.where(closer, number, box)
        axis = np.where(closer, enter.argmax(axis=-1), axis)
    return box, nearest, axis


def clear_lines(low: FloatArray, high: FloatArray, source: FloatArray, target: FloatArray) -> BoolArray:
    """Whether the straight lines between points touch none of the boxes.

    low, high: (B, D)  source, target: (P, D)  ->  (P,)
    """
    step = target - source
    step = np.where(np.abs(step) < _ALONGSIDE, _ALONGSIDE, step)[:, None]
    one, two = (low[None] - source[:, None]) / step, (high[None] - source[:, None]) / step
    enter, leave = np.minimum(one, two).max(axis=2), np.maximum(one, two).min(axis=2)
    touched: npt.NDArray[np.bool_] = (enter <= leave) & (leave >= 0) & (enter <= 1)
    return ~touched.any(axis=1)
