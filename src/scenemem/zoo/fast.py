"""Tactical Rewind, FAST (Ke 2019): a follower wrapped in a search with two queues.

The frontier holds every way that was seen and not taken, with the sum of the follower's logits along the
route that found it; the candidates are the places where the route could end. One step pops the best way,
walks there over known places, restores the state the follower had there, and decides on.

short   the follower's own best neighbour always comes first, so the agent goes on greedily, pops an older way
        only when it would come back to a place; it ends where its best option is to stop (the tabled system)
long    best-first until the decisions are used up, then a walk to the candidate with the largest sum

The follower is Self-Monitoring with progress in hops, target 1 - hops left / hops of the route. As published
it reads raw candidates and actions instead of embedded ones. Read in the released code. Differences: a place
is entered once, the release only forbids places of the same route; it walks over walked edges, here over all
edges between visited places; its rewind may also pop the stop of an earlier place, and after 40 steps it
walks to the best candidate, where a short search ends where it stands; the re-ranker, a network on scores of
routes and of a speaker, is not built. As published, a follower two hops off its route follows its labels
while it learns (``teacher_hops``), without the 50,000 steps on described paths.

``fast-over-basic`` searches with the basic agent, whose trained weights it can begin with (``--begin``).
"""

from __future__ import annotations

from dataclasses import dataclass

import scenemem.extend as ext
from scenemem.zoo.recipes import SEARCH_WALK, published, shared
from scenemem.zoo.search import SearchConfig, SearchMixin
from scenemem.zoo.self_monitoring import SelfMonitoring, SelfMonitoringConfig


@dataclass(frozen=True)
class FastConfig(SelfMonitoringConfig, SearchConfig):
    """Settings of FAST."""


class Fast(SearchMixin, SelfMonitoring):  # type: ignore[misc]  # scores more than actions
    """Self-Monitoring's follower, which searches when it is evaluated."""

    config: FastConfig
    raw = True


@dataclass(frozen=True)
class FastBasicConfig(ext.ModelConfig, SearchConfig):
    """Settings of the basic agent with a search."""


class FastBasic(SearchMixin, ext.Basic):  # type: ignore[misc]  # scores more than actions
    """The basic agent, which searches when it is evaluated."""


AGENTS = {
    "fast": ext.AgentSpec(Fast, FastConfig),
    "fast-basic": ext.AgentSpec(FastBasic, FastBasicConfig),
}
_PROGRESS = {"progress_hops": 0.5}
ROWS = {
    "fast": shared("fast", FastConfig, _PROGRESS, search="short"),
    "fast-long": shared("fast", FastConfig, _PROGRESS, walk=SEARCH_WALK, search="long"),
    "fast-over-basic": shared("fast-basic", FastBasicConfig, search="short"),
}
AS_PUBLISHED = published(
    "fast",
    FastConfig(width=512, feature_dropout=0.0, co_grounded=True, action_width=1024, search="short"),
    {"student_forcing": 0.5, "progress_hops": 0.5},
    walk=SEARCH_WALK,
    weight_decay=5e-4,
    iterations=20_000,
    teacher_hops=2,
)
