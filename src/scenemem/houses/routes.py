"""Routes sampled as in R2R: shortest paths of 4 to 6 edges and at least 5 metres, with a random start heading."""

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
    """Up to ``count`` different routes between different rooms; goals out of sight of the start are preferred."""
    world = build_world([scan_of(layout)])
    every = torch.arange(len(layout.position))
    step = world.next_viewpoint(every[:, None], every[None]).numpy()
    distance = world.geodesic(every[:, None], every[None]).numpy()
    start, goal = np.nonzero(_eligible(layout, step) & (distance >= _SHORTEST))
    weight = np.where(layout.visible[start, goal], _IN_SIGHT, 1.0)
    order = np.argsort(-(rng.random(len(start)) ** (1 / weight)), kind="stable")[:count]
    headings = rng.uniform(0, 2 * math.pi, size=len(order))
    return [
        Route(_walk(step, int(start[pair]), int(goal[pair])), round(float(heading), 3), float(distance[start[pair], goal[pair]]))
        for pair, heading in zip(order, headings, strict=True)
    ]


def _eligible(layout: Layout, step: IntArray) -> BoolArray:
    """Pairs in different rooms whose shortest path has the right number of edges.  step: (V, V)  ->  (V, V)"""
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
