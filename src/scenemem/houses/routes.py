"""Routes sampled as in R2R: shortest paths of 4 to 6 edges and at least 5 metres, any start heading."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from scenemem.houses.scene import BoolArray, IntArray
from scenemem.houses.viewpoints import Layout, scan_of
from scenemem.world.build import build_world

_FEWEST, _MOST = 4, 6  # edges
_SHORTEST = 5.0  # metres
_IN_SIGHT = 0.25  # how much rarer routes are whose goal can be seen from the start


class Route(NamedTuple):
    """A way through a house."""

    stands: tuple[int, ...]  # start first
    heading: float  # at the start, radians, clockwise from +y
    distance: float  # metres along the way


def sample_routes(layout: Layout, count: int, rng: np.random.Generator) -> list[Route]:
    """Up to ``count`` routes, all different and between different rooms, most goals out of sight."""
    world = build_world([scan_of(layout)])
    every = torch.arange(len(layout.position))
    step = world.next_viewpoint(every[:, None], every[None]).numpy()
    distance = world.geodesic(every[:, None], every[None]).numpy()
    start, goal = np.nonzero(_eligible(layout, step) & (distance >= _SHORTEST))
    weight = np.where(layout.visible[start, goal], _IN_SIGHT, 1.0)
    order = np.argsort(-(rng.random(len(start)) ** (1 / weight)), kind="stable")[:count]
    headings = rng.uniform(0, 2 * math.pi, size=len(order)).round(3)
    return [
        Route(_walk(step, a, b), heading, float(distance[a, b]))
        for a, b, heading in zip(start[order].tolist(), goal[order].tolist(), headings.tolist(), strict=True)
    ]


def _eligible(layout: Layout, step: IntArray) -> BoolArray:
    """Pairs in different rooms the right number of edges apart.  step: (V, V)  ->  (V, V)"""
    count = len(step)
    goal = np.broadcast_to(np.arange(count), (count, count))
    at = goal.T
    edges = np.zeros((count, count), dtype=np.int64)
    for _ in range(_MOST + 1):
        edges += at != goal
        at = step[at, goal]
    room = np.array([stand.room for stand in layout.house.stands])
    return np.asarray((edges >= _FEWEST) & (edges <= _MOST) & (room[:, None] != room[None]))


def _walk(step: IntArray, start: int, goal: int) -> tuple[int, ...]:
    walked = [start]
    while walked[-1] != goal:
        walked.append(int(step[walked[-1], goal]))
    return tuple(walked)
