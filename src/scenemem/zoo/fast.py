"""Tactical Rewind, FAST (Ke 2019): a follower wrapped in a search with two queues.

The frontier holds every way that was seen and not taken, with the sum of the follower's logits along the
route that found it; the candidates are the places where the route could end. One step pops the best way,
walks there over known places, restores the state the follower had there, and decides on.

short   the follower's own best neighbour always comes first, so the agent goes on greedily and pops an older
way
        only when it would come back to a place; it ends where its best option is to stop (the tabled system)
long    best-first until the decisions are used up, then a walk to the candidate with the largest sum

The follower is Self-Monitoring with progress in hops, target 1 - hops left / hops of the route. As published
it reads raw candidates and actions instead of embedded ones. Read in the released code. Differences: a place
is entered once, the release only forbids places of the same route; it walks over walked edges, here over all
edges between visited places; its re-ranker of candidates, and the label's action two hops off the route while
training, are not built. Every step of the search is walked and counted.

``Searching`` is a mixin for any local agent: ``fast-over-basic`` searches with the basic agent, whose trained
weights it can begin with (``--begin``).

Shape letters: X observations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scenemem.extend import (
    AGENTS,
    LOSSES,
    PROGRESS_HOPS,
    AgentSpec,
    Basic,
    DataSizes,
    ModelConfig,
    SearchConfig,
    Searching,
    Stage,
    WalkConfig,
    lstm_parts,
)
from scenemem.zoo.recipes import published, shared
from scenemem.zoo.self_monitoring import SelfMonitoring, SelfMonitoringConfig, co_grounded_parts


@dataclass(frozen=True)
class FastConfig(SelfMonitoringConfig, SearchConfig):
    """Settings of FAST."""


class Fast(Searching, SelfMonitoring):  # type: ignore[misc]  # scores more than actions
    """Self-Monitoring's follower, which searches when it is evaluated."""

    config: FastConfig

    @classmethod
    def make(cls, config: FastConfig, sizes: DataSizes) -> Fast:
        """Fresh weights."""
        if config.co_grounded:
            return cls(config, sizes, co_grounded_parts(config, sizes, raw=True))
        return cls(config, sizes, lstm_parts(config, sizes))


@dataclass(frozen=True)
class FastBasicConfig(ModelConfig, SearchConfig):
    """Settings of the basic agent with a search."""


class FastBasic(Searching, Basic):  # type: ignore[misc]  # scores more than actions
    """The basic agent, which searches when it is evaluated."""


SPEC = AgentSpec(Fast.make, FastConfig)
BASIC_SPEC = AgentSpec(FastBasic.build, FastBasicConfig)
FAR = WalkConfig(max_decisions=40, max_steps=600)
"""A search walks back and forth."""
_SHORT = shared("fast", FastConfig, {"progress_hops": 0.5}, search="short")
ROWS = {
    "fast": _SHORT,
    "fast-long": replace(_SHORT, model=replace(_SHORT.model, search="long"), walk=FAR),
    "fast-over-basic": shared("fast-basic", FastBasicConfig, search="short"),
    "fast-as-published": published(
        "fast",
        FastConfig(width=512, feature_dropout=0.0, co_grounded=True, action_width=1024, search="short"),
        (Stage("student", losses={"student_forcing": 0.5, "progress_hops": 0.5}),),
        walk=replace(FAR, max_decisions=20),
        weight_decay=5e-4,
        iterations=20_000,
        max_decisions=10,
        max_steps=11,
    ),
}


def register() -> None:
    """Its agents, its loss."""
    AGENTS.register("fast", SPEC)
    AGENTS.register("fast-basic", BASIC_SPEC)
    LOSSES.register("progress_hops", PROGRESS_HOPS)
