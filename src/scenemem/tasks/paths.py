"""Paths in bulk: shortest paths, the pool of paths that back-translation may describe, R4R from R2R."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.errors import DataError, SettingError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.episodes import EpisodeRecord, write_episodes
from scenemem.tasks.episode_set import bind_paths
from scenemem.world.build import Progress
from scenemem.world.graph import NONE, World, scan_mask

_Way = tuple[tuple[str, ...], float]  # viewpoints, metres

JOIN_METRES = 3.0
"""R4R joins two paths of a scan when one ends no further than this from the start of the other."""


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
            seen = f"{self.min_edges} and {self.max_edges}"
            raise SettingError(f"expected 1 <= min_edges <= max_edges, got {seen}")
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
    """All ordered pairs within ``scans`` that obey ``rule``, sorted by start, then goal."""
    rule = rule or PathRule()
    start, goal = _pairs(world, scans)
    metres = world.geodesic(start, goal)
    keep = metres.isfinite() & (metres >= rule.min_metres)
    start, goal = start[keep], goal[keep]
    edges = _edges_up_to(world, start, goal, rule.max_edges + 1)
    keep = (edges >= rule.min_edges) & (edges <= rule.max_edges)
    if not keep.any():
        asked = f"{rule.min_edges}-{rule.max_edges} edges and {rule.min_metres} m or more"
        raise UserError(f"no path of {asked} in these {len(scans)} scans; give more scans or a wider rule")
    return PathPool(start[keep], goal[keep])


def shortest_paths(world: World, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """The viewpoints of many shortest paths at once, both ends included.

    start, goal: (B,) int64  ->  path (B, L) int64 padded with -1, viewpoints per path (B,) int64
    """
    lost = ~world.geodesic(start, goal).isfinite()
    if lost.any():
        row = lost.nonzero()[0, 0]
        raise UserError(f"no way leads from {world.names[start[row]]} to {world.names[goal[row]]}")
    columns, here = [start], start
    while bool((here != goal).any()):
        arrived = here == goal
        here = world.next_viewpoint(here, goal)
        columns.append(here.masked_fill(arrived, NONE))
    path = torch.stack(columns, dim=1)
    return path, (path != NONE).sum(1)


@dataclass(frozen=True)
class R4RCounts:
    """What an R4R file holds."""

    paths: int
    instructions: int


def write_r4r(
    world: World,
    episodes: Sequence[EpisodeRecord],
    source: StrPath,
    target: StrPath,
    *,
    progress: Progress | None = None,
) -> R4RCounts:
    """Join the R2R episodes of a split and write the R4R file, path by path.

    Of the results only one joined path and the ways between the paths of one scan are in memory at a time.

    The distances of ``world`` decide which paths are joined; the published counts need panorama centres.
    ``source`` is the file the episodes came from; ``progress`` is called with (scans done, scans in all).
    """
    counts: list[int] = []

    def counted() -> Iterator[EpisodeRecord]:
        for joined in join_paths(world, episodes, source, progress=progress):
            counts.append(len(joined.instructions))
            yield joined

    write_episodes(target, counted())
    return R4RCounts(len(counts), sum(counts))


def join_paths(
    world: World, episodes: Sequence[EpisodeRecord], source: StrPath, *, progress: Progress | None = None
) -> Iterator[EpisodeRecord]:
    """The R4R episodes of a split: scan by scan in order of first appearance, pairs in file order.

    A path may be joined with itself. Arguments and errors as ``write_r4r``.
    """
    path, length = bind_paths(world, episodes, source)
    if not bool((length > 1).all()):
        raise DataError(source, "holds paths without a goal (a test split?); R4R is built from whole paths")
    start = path[:, 0]
    goal = path.gather(1, (length - 1).unsqueeze(1)).squeeze(1)
    scans = list(dict.fromkeys(episode.scan for episode in episodes))
    count = 0
    for done, scan in enumerate(scans, start=1):
        rows = [row for row, episode in enumerate(episodes) if episode.scan == scan]
        members = torch.tensor(rows, device=world.device)
        gap = world.geodesic(goal[members].unsqueeze(1), start[members])
        first, second = (members[side] for side in (gap <= JOIN_METRES).nonzero().unbind(1))
        bridges = _named_paths(world, goal[first], start[second])
        direct = _named_paths(world, start[first], goal[second])
        for pair, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            yield _joined(count, episodes[a], episodes[b], bridges[pair], direct[pair])
            count += 1
        if progress is not None:
            progress(done, len(scans))


def _joined(
    path_id: int, first: EpisodeRecord, second: EpisodeRecord, bridge: _Way, direct: _Way
) -> EpisodeRecord:
    """One R4R episode; as in the public files its length is made of the lengths R2R states."""
    texts = tuple(a + b for a in first.instructions for b in second.instructions)
    (bridged, between), (shortest, metres) = bridge, direct
    distance = None
    if first.distance is not None and second.distance is not None:
        distance = first.distance + between + second.distance
    return EpisodeRecord(
        scan=first.scan,
        path_id=path_id,
        path=(*first.path[:-1], *bridged, *second.path[1:]),
        heading=first.heading,
        instructions=texts,
        instruction_ids=tuple(f"{path_id}_{number}" for number in range(len(texts))),
        distance=distance,
        first_path_id=first.path_id,
        second_path_id=second.path_id,
        shortest_path=shortest,
        shortest_path_distance=metres,
    )


def _named_paths(world: World, start: Tensor, goal: Tensor) -> list[_Way]:
    """start, goal: (B,)  ->  B shortest paths with viewpoint ids"""
    path, length = shortest_paths(world, start, goal)
    metres = world.geodesic(start, goal)
    return [
        (tuple(world.viewpoints[viewpoint] for viewpoint in row[:count]), far)
        for row, count, far in zip(path.tolist(), length.tolist(), metres.tolist(), strict=True)
    ]


def _pairs(world: World, scans: Collection[str]) -> tuple[Tensor, Tensor]:
    """All ordered pairs of viewpoints that share one of the scans  ->  (P,), (P,)"""
    chosen = scan_mask(world.scans, scans).nonzero().squeeze(1).tolist()
    groups = [(world.scan_of == scan).nonzero().squeeze(1) for scan in chosen]
    start, goal = torch.cat([torch.cartesian_prod(group, group) for group in groups]).unbind(1)
    return start, goal


def _edges_up_to(world: World, start: Tensor, goal: Tensor, most: int) -> Tensor:
    """Edges of the shortest path, counted no further than ``most``.  (P,), (P,)  ->  (P,)"""
    edges, here = torch.zeros_like(start), start
    for _ in range(most):
        edges += here != goal
        here = world.next_viewpoint(here, goal)
    return edges
