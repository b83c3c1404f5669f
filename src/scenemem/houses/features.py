"""View features of the houses: shares, colours and depths of what each of the 36 views shows.

Everything is counted from the rays of a panorama. Nothing that cannot be seen takes part: no room names,
nothing behind walls.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from scenemem.formats.features import VIEWS, Column
from scenemem.houses.house import COLOURS, KINDS, MATERIALS, SEEN_KINDS
from scenemem.houses.scene import AZIMUTHS, ELEVATIONS, NOTHING, FloatArray, IntArray, Panorama, RenderScene

_GRID_X, _GRID_Y = 24, 18  # rays per view
_HALF_Y = np.tan(np.pi / 6)  # half the height of a view at distance 1: vertical field of view 60 degrees
_HALF_X = _HALF_Y * 4 / 3
_THIRDS = 3
_STRIPS = 6  # vertical strips of the depth profile
_FARTHEST = 12.0  # metres; depths are cut off here
_GROUPS = ("seat", "bed", "furniture", "fixture", "decoration", "wall", "floor", "door")
_SIDED = ("door frame", "door", "window", "stairs")
_SKY = SEEN_KINDS.index("sky")
_GROUP_OF: dict[str, str] = {name: kind.group for name, kind in KINDS.items()}
_GROUP_OF |= {"wall": "wall", "floor": "floor", "door": "door", "front door": "door"}
_GROUP = np.array([(*_GROUPS, "").index(_GROUP_OF.get(kind, "")) for kind in SEEN_KINDS])  # the last is none


def columns() -> tuple[Column, ...]:
    """What every column of the features is."""
    root = "square root of the share of the view"
    blocks = [(f"share of {kind}", f"{root} that shows {kind}") for kind in SEEN_KINDS]
    blocks += [(f"{kind} ahead", "the same within the middle third of the view") for kind in SEEN_KINDS]
    blocks += [
        (f"{colour} {group}", f"{root} that is {colour} and of the group {group}")
        for group in _GROUPS
        for colour in COLOURS
    ]
    blocks += [(f"made of {name}", f"{root} that is made of {name}") for name in MATERIALS]
    blocks += [
        (f"near {group}", f"1 / (1 + metres) to the nearest of the group {group} in view, 0 for none")
        for group in _GROUPS
    ]
    blocks += [
        (f"{kind} {side}", f"square root of the share of {kind} in the {side} third of the view")
        for kind in _SIDED
        for side in ("left", "right")
    ]
    depth = f"mean depth in vertical strip {{}} of {_STRIPS} from the left; 1 is 12 m or more"
    blocks += [(f"depth {strip}", depth.format(strip)) for strip in range(_STRIPS)]
    blocks += [("openness", "share of the view that is farther than 4 m")]
    return tuple(Column(name, start, start + 1, text) for start, (name, text) in enumerate(blocks))


WIDTH = len(columns())


def view_features(scene: RenderScene, panorama: Panorama) -> npt.NDArray[np.float16]:
    """The features of all views of one viewpoint.  ->  (36, WIDTH), see ``columns``"""
    rays = _view_rays()
    box = panorama.box.ravel()[rays]  # (36, R)
    depth = np.minimum(panorama.depth.ravel()[rays], _FARTHEST)
    sky = box == NOTHING
    kind = np.where(sky, _SKY, scene.kind[box])
    group = _GROUP[kind]
    third = np.tile(np.arange(_GRID_X) * _THIRDS // _GRID_X, _GRID_Y)  # (R,) of the view: left, middle, right
    by_third = _counts(kind * _THIRDS + third, len(SEEN_KINDS) * _THIRDS).reshape(VIEWS, -1, _THIRDS)
    colour = _counts(group * len(COLOURS) + scene.colour[box], (len(_GROUPS) + 1) * len(COLOURS))
    material = _counts(np.where(sky, len(MATERIALS), scene.material[box]), len(MATERIALS) + 1)
    sided = by_third[:, [SEEN_KINDS.index(name) for name in _SIDED]][:, :, [0, 2]]
    return np.concatenate(
        [
            np.sqrt(by_third.sum(axis=2)),
            np.sqrt(by_third[:, :, 1] * _THIRDS),
            np.sqrt(colour[:, : len(_GROUPS) * len(COLOURS)]),
            np.sqrt(material[:, : len(MATERIALS)]),
            _nearness(group, depth),
            np.sqrt(sided.reshape(VIEWS, -1) * _THIRDS),
            depth.reshape(VIEWS, _GRID_Y, _STRIPS, -1).mean(axis=(1, 3)) / _FARTHEST,
            (depth > 4.0).mean(axis=1, keepdims=True),
        ],
        axis=1,
    ).astype(np.float16)


def _counts(code: IntArray, size: int) -> FloatArray:
    """Share of every code in every view.  code: (36, R)  ->  (36, size)"""
    shifted = code + np.arange(VIEWS)[:, None] * size
    counts = np.bincount(shifted.ravel(), minlength=VIEWS * size).reshape(VIEWS, size)
    return np.asarray(counts / code.shape[1])


def _nearness(group: IntArray, depth: FloatArray) -> FloatArray:
    """group, depth: (36, R)  ->  (36, groups)"""
    nearest = [np.where(group == number, depth, np.inf).min(axis=1) for number in range(len(_GROUPS))]
    return np.asarray(1 / (1 + np.stack(nearest, axis=1)))


@cache
def _view_rays() -> IntArray:
    """The panorama direction nearest to every ray of every view.  ->  (36, R) into the flattened panorama"""
    across = ((np.arange(_GRID_X) + 0.5) / _GRID_X * 2 - 1) * _HALF_X
    down = ((np.arange(_GRID_Y) + 0.5) / _GRID_Y * 2 - 1) * _HALF_Y
    tilt = np.array([-1, 0, 1])[:, None, None] * np.pi / 6
    level = np.cos(tilt) + down[:, None] * np.sin(tilt)  # (3, Y, 1)
    up = np.sin(tilt) - down[:, None] * np.cos(tilt)
    aside = np.arctan2(np.broadcast_to(across, (3, _GRID_Y, _GRID_X)), level)
    slope = np.arctan2(up, np.hypot(across, level))
    row = np.floor((slope / (2 * np.pi / 3) + 0.5) * ELEVATIONS).astype(np.int64).clip(0, ELEVATIONS - 1)
    column = np.floor(aside / (2 * np.pi) * AZIMUTHS).astype(np.int64)
    turned = column[:, None] + (np.arange(12) * (AZIMUTHS // 12))[:, None, None]  # (3, 12, Y, X)
    return np.asarray((row[:, None] * AZIMUTHS + turned % AZIMUTHS).reshape(VIEWS, -1))
