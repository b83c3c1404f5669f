"""Bootstrap intervals of means and of ratios of sums, resampling whole clusters.

Shape letters: N rows, P clusters, R draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def interval(value: float, resampled: Tensor) -> Estimate:
    """The middle 95 % of what came out of the resamples.  resampled: (R,)"""
    low, high = resampled.double().nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(value, low, high)


class Clusters:
    """Rows that belong together are drawn together, because they are not independent.

    Args:
        cluster: (N,) int64, which cluster each row belongs to, 0 or more.
        draws: how many resamples R.
        seed: of the resampling.
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
