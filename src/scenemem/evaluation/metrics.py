"""The navigation metrics as pure functions over padded batches of walked and reference paths.

Shape letters: B episodes, T viewpoints of the longest walked path, L of the longest reference path. Padding
is -1. All results are float64: metres for lengths and errors, fractions for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.world.graph import NONE, World

_CHUNK_ENTRIES = 2_000_000  # distances held at once; 16 MB in float64


@dataclass(frozen=True, eq=False)
class Metrics:
    """One value per episode, (B,) float64 each."""

    tl: Tensor  # trajectory length, metres
    ne: Tensor  # navigation error: from the last viewpoint to the goal, metres
    sr: Tensor  # success: 1 when ne < 3 m
    osr: Tensor  # oracle success: 1 when any viewpoint was nearer than 3 m to the goal
    spl: Tensor  # success weighted by shortest distance / trajectory length (leaderboard)
    spl_ref: Tensor  # the same with the length of the reference path (HAMT, DUET)
    cls: Tensor  # coverage weighted by length score
    ndtw: Tensor  # normalised dynamic time warping
    sdtw: Tensor  # ndtw where successful, else 0

    def means(self) -> dict[str, float]:
        """The mean of every metric over the episodes."""
        return {name: float(values.mean()) for name, values in vars(self).items()}


def measure(world: World, walked: Tensor, reference: Tensor, *, collapse: bool = True) -> Metrics:
    """All metrics of a batch; the goal is the end of the reference path.

    With ``collapse``, repeated viewpoints (turns in place) are merged into one before nDTW and SDTW.

    walked: (B, T), reference: (B, L), both int64 and padded with -1, at least one viewpoint each
    """
    goal = last_viewpoint(reference)
    error = world.geodesic(last_viewpoint(walked), goal)
    success = (error < SUCCESS_METRES).double()
    length = path_length(world, walked)
    reference_length = path_length(world, reference)
    warping = ndtw(world, collapse_repeats(walked) if collapse else walked, reference)
    return Metrics(
        tl=length,
        ne=error,
        sr=success,
        osr=oracle_success(world, walked, goal),
        spl=length_weighted(success, world.geodesic(reference[:, 0], goal), length),
        spl_ref=length_weighted(success, reference_length, length),
        cls=coverage_length_score(world, walked, reference),
        ndtw=warping,
        sdtw=warping * success,
    )


def last_viewpoint(path: Tensor) -> Tensor:
    """path: (B, T)  ->  (B,)"""
    last = (path != NONE).sum(1) - 1
    return path.gather(1, last.unsqueeze(1)).squeeze(1)


def path_length(world: World, path: Tensor) -> Tensor:
    """Metres walked; an edge is its own shortest path, a jump costs the way around.  (B, T)  ->  (B,)"""
    here, there = path[:, :-1], path[:, 1:]
    steps = world.geodesic(here.clamp_min(0), there.clamp_min(0))
    return steps.masked_fill(there == NONE, 0.0).sum(1)


def oracle_success(world: World, walked: Tensor, goal: Tensor) -> Tensor:
    """Whether any viewpoint lies nearer than 3 m to the goal.  (B, T), (B,)  ->  (B,)"""
    distance = world.geodesic(walked.clamp_min(0), goal.unsqueeze(1))
    return ((distance < SUCCESS_METRES) & (walked != NONE)).any(1).double()


def length_weighted(success: Tensor, best: Tensor, length: Tensor) -> Tensor:
    """SPL = success * best / max(best, length).  (B,), (B,), (B,)  ->  (B,)"""
    return success * _share(best, torch.maximum(best, length))


def coverage_length_score(world: World, walked: Tensor, reference: Tensor) -> Tensor:
    """CLS = PC * E / (E + |E - TL|) with E = PC * length of the reference and PC, the coverage, the mean over
    reference viewpoints of exp(-distance to the nearest walked one / 3).  (B, T), (B, L)  ->  (B,)
    """
    on_reference = reference != NONE
    nearest = _in_chunks(lambda w, r: distances(world, w, r, pad=torch.inf).amin(1), walked, reference)
    near = torch.exp(-nearest / SUCCESS_METRES).masked_fill(~on_reference, 0.0)
    coverage = near.sum(1) / on_reference.sum(1)
    expected = coverage * path_length(world, reference)
    deviation = (expected - path_length(world, walked)).abs()
    return coverage * _share(expected, expected + deviation)


def ndtw(world: World, walked: Tensor, reference: Tensor) -> Tensor:
    """Normalised DTW: exp(-DTW(walked, reference) / (3 * reference viewpoints)).  (B, T), (B, L)  ->  (B,)"""
    costs = _in_chunks(lambda w, r: at_end(warping(world, w, r), r), walked, reference)
    cost = costs.gather(1, (walked != NONE).sum(1, keepdim=True) - 1).squeeze(1)
    return torch.exp(-cost / (SUCCESS_METRES * (reference != NONE).sum(1)))


def collapse_repeats(path: Tensor) -> Tensor:
    """Merge viewpoints that follow themselves.  (B, T)  ->  (B, T), padded with -1"""
    fresh = path != NONE
    fresh[:, 1:] &= path[:, 1:] != path[:, :-1]
    place = (fresh.cumsum(1) - 1).masked_fill(~fresh, path.shape[1])
    wide = torch.full((path.shape[0], path.shape[1] + 1), NONE, dtype=path.dtype, device=path.device)
    return wide.scatter(1, place, path)[:, :-1]


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """The fraction part / whole; 1 where nothing had to be walked and nothing was.  (B,), (B,)  ->  (B,)"""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), 1.0)


def warped(cost: Tensor, away: Tensor) -> Tensor:
    """One more place in dynamic time warping: the costs of the walk so far onto every beginning of a path.

    D[t, l] = d[t, l] + min(D[t, l-1], best[l]), best[l] = min(D[t-1, l], D[t-1, l-1]), which is
    S[l] + min_{k <= l} (best[k] - S[k-1]) with S the running sum of d[t]: no loop over the path.

    cost: (..., L) D[t-1]  away: (..., L) metres d[t]  ->  (..., L)
    """
    best = torch.minimum(cost, functional.pad(cost[..., :-1], (1, 0), value=torch.inf))
    running = away.cumsum(dim=-1)
    return running + (best - running + away).cummin(dim=-1).values


def warping(world: World, walked: Tensor, reference: Tensor) -> Tensor:
    """The costs of all beginnings of walks onto all beginnings of paths.  (B, T), (B, L)  ->  (B, T, L)"""
    first, *further = distances(world, walked, reference, pad=0.0).unbind(1)
    return torch.stack(list(accumulate(further, warped, initial=first.cumsum(dim=1))), dim=1)


def at_end(costs: Tensor, reference: Tensor) -> Tensor:
    """Costs of warping onto the whole path.  (B, T, L), (B, L)  ->  (B, T)"""
    last = (reference != NONE).sum(dim=1).view(-1, 1, 1) - 1
    return costs.gather(2, last.expand(-1, costs.shape[1], 1)).squeeze(2)


def distances(world: World, walked: Tensor, reference: Tensor, *, pad: float) -> Tensor:
    """(B, T), (B, L)  ->  metres between all pairs (B, T, L), ``pad`` where either is padding"""
    walked, reference = walked.unsqueeze(2), reference.unsqueeze(1)
    distance = world.geodesic(walked.clamp_min(0), reference.clamp_min(0))
    return distance.masked_fill((walked == NONE) | (reference == NONE), pad)


def _in_chunks(score: Callable[[Tensor, Tensor], Tensor], walked: Tensor, reference: Tensor) -> Tensor:
    """Apply ``score`` to some episodes at a time, to bound memory.  (B, T), (B, L)  ->  (B, ...)"""
    rows = max(1, _CHUNK_ENTRIES // (walked.shape[1] * reference.shape[1]))
    chunks = zip(torch.split(walked, rows), torch.split(reference, rows), strict=True)
    return torch.cat([score(*both) for both in chunks])
