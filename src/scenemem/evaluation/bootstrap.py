"""Statistics over runs: means and deviations, and bootstrap intervals that resample whole clusters.

Shape letters: N rows (episodes), P clusters (paths), R draws, n and m runs of two agents.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 4000


@dataclass(frozen=True)
class Spread:
    """One metric over the runs of a group."""

    mean: float
    sd: float | None  # sample standard deviation; None with a single run
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.sd is None else f"{self.mean:.3f} ± {self.sd:.3f}"


def spreads(runs: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, Spread]]:
    """Gather runs of the same group; groups keep the order in which they first come.

    runs: (group, metrics of one run)
    """
    groups: dict[str, list[Mapping[str, float]]] = {}
    for group, metrics in runs:
        groups.setdefault(group, []).append(metrics)
    return {
        group: {name: _spread([metrics[name] for metrics in members]) for name in members[0]}
        for group, members in groups.items()
    }


def _spread(values: Sequence[float]) -> Spread:
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def signed(self) -> str:
        """As a difference is written."""
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def interval(value: float, resampled: Tensor) -> Estimate:
    """The middle 95 % of what came out of the resamples.  resampled: (R,)"""
    low, high = resampled.double().nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(value, low, high)


class Clusters:
    """Rows that belong together are drawn together, because they are not independent.

    cluster: (N,) int64, which cluster each row belongs to, 0 or more
    """

    def __init__(self, cluster: Tensor, *, draws: int, seed: int) -> None:
        exists = torch.bincount(cluster.cpu()) > 0
        self.count = int(exists.sum())
        self._place = (exists.cumsum(0) - 1)[cluster.cpu()]  # (N,) clusters numbered without gaps
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(self.count, (draws, self.count), generator=generator)
        times = torch.zeros(draws, self.count, dtype=torch.float64)
        self._times = times.scatter_add_(1, drawn, torch.ones_like(times))  # (R, P) how often each was drawn

    def ratio(self, numerator: Tensor, denominator: Tensor) -> Estimate:
        """Sum of ``numerator`` / sum of ``denominator`` over all rows.  (N,), (N,)"""
        above, below = self._summed(numerator), self._summed(denominator)
        resampled = (self._times @ above) / (self._times @ below)
        return interval(float(above.sum() / below.sum()), resampled)

    def means(self, values: Tensor) -> Tensor:
        """The mean over the rows of every resample, of several columns at once.  (n, N)  ->  (R, n)"""
        rows = self._times @ self._summed(torch.ones(values.shape[1]))  # (R,)
        return (self._times @ self._summed(values.t())) / rows.unsqueeze(1)

    def _summed(self, values: Tensor) -> Tensor:
        """(N, ...)  ->  (P, ...)"""
        sums = torch.zeros(self.count, *values.shape[1:], dtype=torch.float64)
        return sums.index_add_(0, self._place, values.cpu().double())


def difference(ours: Tensor, theirs: Tensor, path: Tensor, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """How much better one agent is than another on the same episodes: the mean of ``ours`` minus ``theirs``.

    Both sources of chance are drawn again: the seeds of each agent, and the paths, because the instructions
    of one path are not independent. What two agents find hard alike cancels out. Two or three seeds show
    little about how much seeds differ, so such intervals are rough; one seed shows nothing of it.

    ours: (n, N) a metric of every run on every episode  theirs: (m, N)  path: (N,) int64 of every episode
    """
    clusters = Clusters(path, draws=draws, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    ours_again, theirs_again = (_drawn_mean(clusters.means(runs), generator) for runs in (ours, theirs))
    return interval(float(ours.double().mean() - theirs.double().mean()), ours_again - theirs_again)


def connected(parts: Sequence[Sequence[Hashable]]) -> list[int]:
    """Number rows so that rows which share a part, directly or over other rows, have the same number.

    R4R joins two R2R paths, and every R2R path stands in many joined ones: these are not independent.
    """
    parent = list(range(len(parts)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first: dict[Hashable, int] = {}
    for row, own in enumerate(parts):
        for part in own:
            parent[root(row)] = root(first.setdefault(part, row))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(row), len(numbers)) for row in range(len(parts))]


def _drawn_mean(means: Tensor, generator: torch.Generator) -> Tensor:
    """Of as many runs as there are, each drawn by chance.  means: (R, n)  ->  (R,)"""
    runs = means.shape[1]
    drawn = torch.randint(runs, means.shape, generator=generator)
    centre = means.mean(dim=1)
    # few runs lie closer together than what they are drawn from; this makes their spread right on average
    return centre + (means.gather(1, drawn).mean(dim=1) - centre) * math.sqrt(runs / max(runs - 1, 1))
