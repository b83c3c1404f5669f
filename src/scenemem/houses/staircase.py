"""Stairs as boxes: two flights, the landing between them, the top step and the banister."""

from __future__ import annotations

import itertools

import numpy as np

from scenemem.houses.records import STOREY, Box, Rect, Stairs
from scenemem.houses.solid import Solid

FOOT = 0.35  # metres of level floor between the hallway and the first or last step
RISES = 6  # per flight
_BANISTER = 0.9


def steps(stairs: Stairs) -> list[Solid]:
    """All boxes of the stairs; flights are solid down to the ground."""
    rise = STOREY / (2 * RISES)
    solids = [_step(stairs.landing, RISES * rise)]
    solids += [
        _step(tread, number * rise)
        for number, tread in enumerate(treads(stairs.lower, stairs.inward), start=1)
    ]
    outward = (-stairs.inward[0], -stairs.inward[1])
    for number, tread in enumerate(treads(stairs.upper, outward), start=1):
        top = (RISES + number) * rise
        solids += [_step(tread, top), _rail(tread, stairs, top, storey=0)]
    last = _last_step(stairs.upper, outward)
    floor = Box(last.x0, last.y0, STOREY - 0.3, last.x1, last.y1, STOREY)
    return [*solids, Solid(floor, "floor", "brown", "wood", 1), _rail(last, stairs, STOREY, storey=1)]


def treads(flight: Rect, walked: tuple[int, int]) -> list[Rect]:
    """The treads of a flight in the order they are walked over."""
    low, high = (flight.x0, flight.x1) if walked[0] else (flight.y0, flight.y1)
    edges = [float(edge) for edge in np.linspace(low, high, RISES)]
    spans = list(itertools.pairwise(edges))
    if sum(walked) < 0:
        spans.reverse()
    if walked[0]:
        return [flight._replace(x0=a, x1=b) for a, b in spans]
    return [flight._replace(y0=a, y1=b) for a, b in spans]


def _step(tread: Rect, top: float) -> Solid:
    return Solid(Box(tread.x0, tread.y0, 0.0, tread.x1, tread.y1, top), "stairs", "brown", "wood", 0)


def _last_step(flight: Rect, walked: tuple[int, int]) -> Rect:
    """The strip of upper floor where the second flight ends."""
    dx, dy = walked
    if dx:
        return (
            flight._replace(x0=flight.x1, x1=flight.x1 + FOOT)
            if dx > 0
            else flight._replace(x0=flight.x0 - FOOT, x1=flight.x0)
        )
    return (
        flight._replace(y0=flight.y1, y1=flight.y1 + FOOT)
        if dy > 0
        else flight._replace(y0=flight.y0 - FOOT, y1=flight.y0)
    )


def _rail(tread: Rect, stairs: Stairs, bottom: float, *, storey: int) -> Solid:
    """A piece of the banister, on the edge of ``tread`` that faces the lower flight."""
    half, lower = 0.02, stairs.lower
    if stairs.inward[0]:
        edge = tread.y1 if tread.y1 <= lower.y0 else tread.y0
        rect = tread._replace(y0=edge - half, y1=edge + half)
    else:
        edge = tread.x1 if tread.x1 <= lower.x0 else tread.x0
        rect = tread._replace(x0=edge - half, x1=edge + half)
    box = Box(rect.x0, rect.y0, bottom, rect.x1, rect.y1, bottom + _BANISTER)
    return Solid(box, "railing", "brown", "wood", storey)
