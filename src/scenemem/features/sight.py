"""What lies in which of the 36 views: how centred and how near a thing is, seen from a viewpoint."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scenemem.world.geometry import HEADINGS, ROWS, STEP

FloatArray = npt.NDArray[np.float64]

FADING = 4.0  # metres after which a thing counts 1/e
_GRID = 4096.0  # steps per unit


def on_grid(values: FloatArray) -> FloatArray:
    """Round to multiples of 1/4096.

    Sums of products of such numbers are exact in float64, so neither the order of the sum nor the number of
    threads changes a feature: the same annotations give the same bytes on one machine and library version.
    The last bit of a sine, which may differ elsewhere, matters only on the edge between two multiples.
    """
    return np.round(values * _GRID) / _GRID


def _view_directions() -> FloatArray:
    heading = np.tile(np.arange(HEADINGS) * STEP, ROWS)
    elevation = np.repeat((np.arange(ROWS) - 1) * STEP, HEADINGS)
    return np.stack(
        [np.sin(heading) * np.cos(elevation), np.cos(heading) * np.cos(elevation), np.sin(elevation)], axis=1
    )


VIEW_DIRECTIONS = _view_directions()  # (36, 3) unit vectors


def centredness(offset: FloatArray) -> FloatArray:
    """How near the middle of each view a thing lies: the cosine of twice its angle to the view's axis.

    1 in the middle, 1/2 a whole view step away, 0 from 45 degrees on, about where the picture ends.

    offset: (..., 3) metres from the camera  ->  (..., 36) in [0, 1]
    """
    length = np.linalg.norm(offset, axis=-1, keepdims=True)
    direction = np.divide(offset, length, out=np.zeros_like(offset), where=length > 0)
    along = np.maximum(direction @ VIEW_DIRECTIONS.T, 0.0)
    return np.asarray(np.maximum(2.0 * along * along - 1.0, 0.0))


def aim(offset: FloatArray) -> FloatArray:
    """How well each view points at a thing: the square of its centredness, a quarter a view step away.

    offset: (..., 3) metres from the camera  ->  (..., 36) in [0, 1]
    """
    return np.asarray(centredness(offset) ** 2)


def nearness(offset: FloatArray) -> FloatArray:
    """exp(-distance / 4 m).

    offset: (..., 3) metres  ->  (...) in (0, 1]
    """
    return np.asarray(np.exp(-np.linalg.norm(offset, axis=-1) / FADING))
