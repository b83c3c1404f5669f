"""How much better one agent is than another on the same episodes, with an interval.

Both sources of chance are drawn again: the seeds of each agent, and the paths, because the instructions of
one path are not independent. What two agents find hard alike cancels out. Two or three seeds say little about
how much seeds differ, so such intervals are rough, and with one seed they know nothing about it.

Shape letters: n and m runs of the two agents, N episodes, P paths, R draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scenemem.evaluation.bootstrap import Clusters, Estimate, interval

DRAWS = 4000


def difference(ours: Tensor, theirs: Tensor, path: Tensor, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The mean of ``ours`` minus the mean of ``theirs``.

    Args:
        ours: (n, N) a metric of every run on every episode.
        theirs: (m, N) the same of the other agent.
        path: (N,) int64, which path each episode belongs to.
        draws: how many resamples R.
        seed: of the resampling.
    """
    clusters = Clusters(path, draws=draws, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    ours_again, theirs_again = (_drawn_mean(clusters.means(runs), generator) for runs in (ours, theirs))
    return interval(float(ours.double().mean() - theirs.double().mean()), ours_again - theirs_again)


def _drawn_mean(means: Tensor, generator: torch.Generator) -> Tensor:
    """Of as many runs as there are, each drawn by chance.  means: (R, n)  ->  (R,)"""
    runs = means.shape[1]
    drawn = torch.randint(runs, means.shape, generator=generator)
    centre = means.mean(dim=1)
    # few runs lie closer together than what they are drawn from; this makes their spread right on average
    return centre + (means.gather(1, drawn).mean(dim=1) - centre) * math.sqrt(runs / max(runs - 1, 1))
