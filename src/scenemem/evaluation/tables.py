"""Mean and standard deviation of every metric over the runs of a group."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
