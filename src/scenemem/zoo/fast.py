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
walks to the best candidate, where a short search ends where it stands. As published, a follower two hops off
its route follows its labels while it learns (``teacher_hops``), without the 50,000 steps on described paths.

Re-ranker (``fast-long-reranked``): the candidate to walk to has the largest w . x, x the six
``route_numbers``. It learns from pairs of places of one walk, one at the goal and one not, with a hinge. The
release has a small network on these six and the score of a speaker, learnt from finished searches.

``fast-over-basic`` searches with the basic agent, whose trained weights it can begin with (``--begin``).

Shape letters: R decision steps, N nodes, B episodes, T steps, M decisions, J = 6 numbers about a route.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.extend import (
    ACTION,
    AgentSpec,
    Basic,
    DataSizes,
    DecisionPoint,
    ModelConfig,
    Rollout,
    RolloutInputs,
    Stage,
)
from scenemem.zoo.recipes import SEARCH_WALK, published, shared
from scenemem.zoo.search import SearchConfig, SearchMixin
from scenemem.zoo.self_monitoring import SelfMonitoring, SelfMonitoringConfig

ROUTE_NUMBERS = 6
"""J: decisions, sum and mean of logits, sum and mean of log-probabilities, progress."""


@dataclass(frozen=True)
class FastConfig(SelfMonitoringConfig, SearchConfig):
    """Settings of FAST."""

    rerank: bool = False
    """a long search ends where a learned combination of scores is largest; False takes the sum of scores"""


class Fast(SearchMixin, SelfMonitoring):  # type: ignore[misc]  # scores more than actions
    """Self-Monitoring's follower, which searches when it is evaluated."""

    config: FastConfig
    raw = True

    def __init__(self, config: FastConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        if config.rerank:  # begins as the sum of logits
            self.rank = nn.Linear(ROUTE_NUMBERS, 1, bias=False)
            nn.init.zeros_(self.rank.weight)
            nn.init.ones_(self.rank.weight[:, 1])

    def route_numbers(self, point: DecisionPoint) -> Tensor:
        """What the re-ranker reads about every node as the end of its route  ->  (R, N, 6)"""
        logits = point.memory().column("scores")
        log_p = logits.log_softmax(dim=-1)
        of_logits, depth = self.routes(point, logits)
        of_log_p, _ = self.routes(point, log_p)
        progress = point.memory().column("progress").squeeze(-1)
        sums = of_logits + logits[..., -1], of_log_p + log_p[..., -1]
        return route_numbers(depth, sums[0], sums[1], progress).detach()

    def rank_ends(self, point: DecisionPoint, totals: Tensor) -> Tensor:
        """Candidates by the re-ranker, if there is one  ->  (R, N)"""
        if not self.config.rerank:
            return totals
        ranked: Tensor = self.rank(self.route_numbers(point)).squeeze(-1)
        return ranked

    def whole_walk_heads(self, rollout: Rollout, inputs: RolloutInputs) -> dict[str, Tensor]:
        """The rank of every place of a local walk, for the re-ranker to learn from."""
        if not self.config.rerank or ACTION not in rollout.decisions:
            return super().whole_walk_heads(rollout, inputs)
        logits = rollout.decisions[ACTION].logits.detach()
        numbers = walked_routes(rollout, logits, rollout.heads["progress"].detach())
        return {"rank": self.rank(numbers).squeeze(-1)}


def route_numbers(depth: Tensor, logits: Tensor, log_p: Tensor, progress: Tensor) -> Tensor:
    """What is known of routes that end somewhere; sums count the decision to stop.

    depth: hops  logits, log_p: sums  progress: of the monitor  (...) each  ->  (..., J)
    """
    count = depth + 1
    return torch.stack([depth, logits, logits / count, log_p, log_p / count, progress], dim=-1)


def walked_routes(rollout: Rollout, logits: Tensor, progress: Tensor) -> Tensor:
    """The numbers of every place of local walks, as if they had ended there; 0 where nothing was decided.

    logits: (M, K + 1) of all actions  progress: (B, T)  ->  (B, T, J)
    """
    table = rollout.decisions[ACTION]
    both = torch.stack([logits, logits.log_softmax(dim=-1)], dim=-1)  # (M, K + 1, 2)
    taken = both.gather(1, table.choice.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
    shape, at = (*rollout.alive.shape, 2), (table.episode, table.step)
    chosen, stop = (both.new_zeros(shape).index_put(at, values) for values in (taken, both[:, -1]))
    totals = chosen.cumsum(dim=1) - chosen + stop
    depth = torch.arange(shape[1], device=logits.device).to(logits).expand(shape[:2])
    return route_numbers(depth, totals[..., 0], totals[..., 1], progress)


@dataclass(frozen=True)
class FastBasicConfig(ModelConfig, SearchConfig):
    """Settings of the basic agent with a search."""


class FastBasic(SearchMixin, Basic):  # type: ignore[misc]  # scores more than actions
    """The basic agent, which searches when it is evaluated."""


AGENTS = {
    "fast": AgentSpec(Fast, FastConfig),
    "fast-basic": AgentSpec(FastBasic, FastBasicConfig),
}
_PROGRESS = {"progress_hops": 0.5}
_RANKED = {**_PROGRESS, "rank_pairs": 1.0}
ROWS = {
    "fast": shared("fast", FastConfig, _PROGRESS, search="short"),
    "fast-long": shared("fast", FastConfig, _PROGRESS, walk=SEARCH_WALK, search="long"),
    "fast-long-reranked": shared("fast", FastConfig, _RANKED, walk=SEARCH_WALK, search="long", rerank=True),
    "fast-over-basic": shared("fast-basic", FastBasicConfig, search="short"),
}
AS_PUBLISHED = {
    "fast": published(
        "fast",
        FastConfig(width=512, feature_dropout=0.0, co_grounded=True, action_width=1024, search="short"),
        (Stage("student", losses={"student_forcing": 0.5, "progress_hops": 0.5}),),
        walk=SEARCH_WALK,
        weight_decay=5e-4,
        iterations=20_000,
        max_decisions=10,
        max_steps=11,
        teacher_hops=2,
    ),
}
