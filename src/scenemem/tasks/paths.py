"""Shortest paths in bulk, and the pool of paths that back-translation may describe."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.errors import SettingError, UserError
from scenemem.world.graph import NONE, World


@dataclass(frozen=True)
class PathRule:
    """Which viewpoint pairs make a path worth describing; the defaults are how R2R chose its paths."""

    min_edges: int = 4
    # of the shortest (metric) path
    max_edges: int = 6
    # of the shortest (metric) path
    min_metres: float = 5.0
    # length of the shortest path

    def __post_init__(self) -> None:
        if not 1 <= self.min_edges <= self.max_edges:
            raise SettingError(
                f"expected 1 <= min_edges <= max_edges, got {self.min_edges} and {self.max_edges}"
            )
        if not self.min_metres >= 0:
            raise SettingError(f"min_metres must be 0 or more, got {self.min_metres}")


@dataclass(frozen=True, eq=False)
class PathPool:
    """Ordered viewpoint pairs (P of them), each standing for the shortest path between the two."""

    start: Tensor  # (P,) int64, viewpoint
    goal: Tensor  # (P,) int64, viewpoint

    def __len__(self) -> int:
        return len(self.start)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``count`` pairs, drawn with replacement  ->  start (count,), goal (count,)"""
        rows = torch.randint(len(self), (count,), generator=generator, device=generator.device)
        rows = rows.to(self.start.device)
        return self.start[rows], self.goal[rows]


def path_pool(world: World, scans: Collection[str], rule: PathRule | None = None) -> PathPool:
    """All ordered pairs within ``scans`` that obey ``rule``, sorted by start, then goal.

    Raises:
        UserError: the world has no such scan, or no pair obeys the rule.
    """
    rule = rule or PathRule()
    start, goal = _pairs(world, scans)
    metres = world.geodesic(start, goal)
    keep = metres.isfinite() & (metres >= rule.min_metres)
    start, goal = start[keep], goal[keep]
    edges = _edges_up_to(world, start, goal, rule.max_edges + 1)
    keep = (edges >= rule.min_edges) & (edges <= rule.max_edges)
    if not keep.any():
        raise UserError(
            f"no path of {rule.min_edges}-{rule.max_edges} edges and {rule.min_metres} m or more in these "
            f"{len(scans)} scans; give more scans or a wider rule"
        )
    return PathPool(start[keep], goal[keep])


def shortest_paths(world: World, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """The viewpoints of many shortest paths at once, both ends included.

    start, goal: (B,) int64  ->  path (B, L) int64 padded with -1, viewpoints per path (B,) int64

    Raises:
        UserError: there is no way between a pair.
    """
    lost = ~world.geodesic(start, goal).isfinite()
    if lost.any():
        row = lost.nonzero()[0, 0]
        raise UserError(f"no way leads from {world.name(int(start[row]))} to {world.name(int(goal[row]))}")
    columns, here = [start], start
    while bool((here != goal).any()):
        arrived = here == goal
        here = world.next_viewpoint(here, goal)
        columns.append(here.masked_fill(arrived, NONE))
    path = torch.stack(columns, dim=1)
    return path, (path != NONE).sum(1)


def _pairs(world: World, scans: Collection[str]) -> tuple[Tensor, Tensor]:
    """All ordered pairs of viewpoints that share one of the scans  ->  (P,), (P,)"""
    unknown = sorted(set(scans) - set(world.scans))
    if unknown:
        raise UserError(f"unknown scan '{unknown[0]}'; this world has {len(world.scans)} scans")
    wanted = torch.tensor([name in set(scans) for name in world.scans], device=world.device)
    viewpoint = wanted[world.scan_of].nonzero().squeeze(1)
    size = torch.bincount(world.scan_of, minlength=len(world.scans))[world.scan_of]
    first_of_scan = torch.arange(len(size), device=world.device) - world.local
    start = viewpoint.repeat_interleave(size[viewpoint])
    row_begin = (size[viewpoint].cumsum(0) - size[viewpoint]).repeat_interleave(size[viewpoint])
    within = torch.arange(len(start), device=world.device) - row_begin
    return start, first_of_scan[start] + within


def _edges_up_to(world: World, start: Tensor, goal: Tensor, most: int) -> Tensor:
    """Edges of the shortest path, counted no further than ``most``.  (P,), (P,)  ->  (P,)"""
    edges, here = torch.zeros_like(start), start
    for _ in range(most):
        edges += here != goal
        here = world.next_viewpoint(here, goal)
    return edges
