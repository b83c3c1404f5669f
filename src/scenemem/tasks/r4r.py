"""R4R from R2R: two paths of a scan are joined when one ends within three metres of the other's start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.errors import DataError
from scenemem.formats.episodes import Episode, write_episodes
from scenemem.tasks.episode_set import bind_paths
from scenemem.tasks.paths import shortest_paths
from scenemem.world.graph import World

JOIN_METRES = 3.0  # largest distance between the end of the first path and the start of the second

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Counts:
    """What was written."""

    paths: int
    instructions: int


def write_r4r(
    world: World,
    episodes: Sequence[Episode],
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Counts:
    """Join the R2R episodes of a split and write the R4R file, path by path.

    Of the results only one joined path and the ways between the paths of one scan are in memory at a time.

    Args:
        world: its distances decide which paths are joined; the published counts need panorama centres.
        episodes: of an R2R split, with reference paths.
        source: the file the episodes came from, named in errors.
        target: the file to write.
        progress: called with (scans done, scans in all).

    Raises:
        DataError: the episodes do not fit the world or have no reference paths.
    """
    instructions = 0

    def counted() -> Iterator[Episode]:
        nonlocal instructions
        for joined in join_paths(world, episodes, source, progress=progress):
            instructions += len(joined.instructions)
            yield joined

    paths = write_episodes(target, counted())
    return Counts(paths, instructions)


def join_paths(
    world: World,
    episodes: Sequence[Episode],
    source: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Iterator[Episode]:
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


@dataclass(frozen=True)
class _Way:
    viewpoints: tuple[str, ...]
    metres: float


def _joined(path_id: int, first: Episode, second: Episode, bridge: _Way, direct: _Way) -> Episode:
    """One R4R episode; as in the public files its length is made of the lengths R2R states."""
    texts = tuple(a + b for a in first.instructions for b in second.instructions)
    return Episode(
        scan=first.scan,
        path_id=path_id,
        path=(*first.path[:-1], *bridge.viewpoints, *second.path[1:]),
        heading=first.heading,
        instructions=texts,
        instruction_ids=tuple(f"{path_id}_{number}" for number in range(len(texts))),
        distance=None
        if first.distance is None or second.distance is None
        else first.distance + bridge.metres + second.distance,
        first_path_id=first.path_id,
        second_path_id=second.path_id,
        shortest_path=direct.viewpoints,
        shortest_path_distance=direct.metres,
    )


def _named_paths(world: World, start: Tensor, goal: Tensor) -> list[_Way]:
    """start, goal: (B,)  ->  B shortest paths with viewpoint ids"""
    path, length = shortest_paths(world, start, goal)
    metres = world.geodesic(start, goal)
    return [
        _Way(tuple(world.viewpoints[viewpoint] for viewpoint in row[:count]), far)
        for row, count, far in zip(path.tolist(), length.tolist(), metres.tolist(), strict=True)
    ]
