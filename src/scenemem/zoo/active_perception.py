"""Active Perception (Wang 2020): a gate decides whether to explore, an explorer walks ahead and reports back.

Before every move the navigator, which is basic's, may look behind its candidates:

    whether   p(explore) = sigmoid(MLP [LeakyReLU(w e_t), h_t]),  e_t the entropy of the navigator's decision
    where     the explorer takes a way k that it has not explored here, by its own softmax_k(u_k . W h_t)
    what      it walks on until it chooses to come back; its last state h' is added to how the way looks,
              f_k <- f_k + MLP h',  and the navigator decides again

until the gate closes or everything is explored; then the navigator moves. Explorer and gate learn with A2C,
where an exploration costs .1 and is worth what the moves after it earn; the explorer also imitates the
shortest way, and the gate learns to open where the entropy is above a threshold.

Read in both released versions, not in the paper. Both evaluate without the gate, by thresholds of the entropy
per step (.42 to .68), and the later one never uses the rewards. Differences: one threshold for all steps; the
explorer has the navigator's core and a scorer that begins as the navigator's; explorations of one place do
not enter a place twice, and a budget bounds their places in a walk; rewards are those of the moves instead of
the change of the navigator's best option, discounted by every decision of an exploration; the gate learns
from how sure the navigator is before it explores. The published row begins afresh with one learning rate, the
release with a trained navigator that hardly changes.

Every metre is walked and counted; the release counts ``first_visits``, for a second column.

Shape letters: X observations, R decision steps, K candidate slots, D visual columns, H state width, E
explored ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.exploring import EXPLORE, EXPLORED, GATE, ExploringActions
from scenemem.zoo.panoramic import navigator_words, with_stop_option
from scenemem.zoo.recipes import SystemConfig, published, shared

T = TypeVar("T")


@dataclass(frozen=True)
class ActiveConfig(SystemConfig):
    """Settings of Active Perception."""

    depth: int = 4
    """hops an exploration may take beyond the first"""
    budget: int = 60
    """places that all explorations of a walk may enter together; the release has no bound"""
    threshold: float = 0.5
    """entropy of the navigator's decision above which exploring is right; .42 to .68 in the release"""
    may_be_0: ClassVar[tuple[str, ...]] = ("depth", "budget")


@dataclass(frozen=True)
class Views:
    """Scores of the navigator and the explorer for every observation, before anything is explored."""

    query: Tensor  # (X, D) of the navigator about how candidates look
    logits: Tensor  # (X, K + 1) of the navigator
    explore: Tensor  # (X, K + 1) of the explorer; the last one comes back
    options: Tensor  # (X, K + 1) bool


class ActivePerception(ext.Basic):
    """The basic agent with an explorer and a gate."""

    config: ActiveConfig

    def __init__(self, config: ActiveConfig, sizes: ext.DataSizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        self.explorer = ext.CandidateScore(width, sizes.visual)
        self.explorer.load_state_dict(self.scorer.state_dict())
        self.entropy_weight = nn.Linear(1, 1, bias=False)
        self.gate = nn.Sequential(nn.Linear(1 + width, width), nn.LeakyReLU(), nn.Linear(width, 1))
        self.report = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, sizes.visual))

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """The neighbours of here, or stop, after explorations."""
        del learning
        return ExploringActions(
            world, episodes, max_decisions, depth=self.config.depth, budget=self.config.budget
        )

    def views(self, observations: ext.Observations) -> Views:
        """Both scores of every candidate."""
        state, seen = observations.state.hidden * observations.decision_mask, observations.candidates
        looks = state, seen.visual, seen.orientation, observations.feature_mask
        return Views(
            self.scorer.query_visual(state) * observations.feature_mask,
            self.scorer(*looks),
            self.explorer(*looks),
            with_stop_option(seen.mask),
        )

    def node_features(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The state is what an exploration that ends here reports  ->  (X, H)"""
        return {"state": observations.state.hidden}

    def navigator(self, point: ext.DecisionPoint) -> Tensor:
        """The navigator's logits with what was found behind its candidates  ->  (R, K + 1)"""
        graph, views = point.memory(), point.per_observation(self.views)
        explored = graph.note(EXPLORED)  # (R, K) node
        row, slot = (explored != ext.NONE).nonzero().unbind(1)
        found = graph.column("state")[row, explored[row, slot]]  # (E, H)
        added = (self.report(found) * views.query[row]).sum(dim=-1)
        return views.logits.index_put((row, slot), added, accumulate=True)

    def gate_logit(self, point: ext.DecisionPoint, navigator: Tensor) -> Tensor:
        """Whether to explore.  navigator: (R, K + 1)  ->  (R, 1)"""
        options = point.per_observation(self.views).options
        unsure = entropy(navigator.detach(), options).unsqueeze(-1)
        felt = nn.functional.leaky_relu(self.entropy_weight(unsure))
        state = point.state.hidden * point.mask("decision")
        logit: Tensor = self.gate(torch.cat([felt, state], dim=-1))
        return logit

    def score(self, point: ext.DecisionPoint) -> dict[ext.DecisionType, Tensor]:  # type: ignore[override]
        """Actions and explorations: (R, K + 1) each; the gate: (R, 2), open and closed"""
        navigator = self.navigator(point)
        gate = nn.functional.pad(self.gate_logit(point, navigator), (0, 1))
        return {ext.ACTION: navigator, GATE: gate, EXPLORE: point.per_observation(self.views).explore}

    def heads(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The critic's value, and 1 where the navigator is unsure by itself: (X,) each"""
        views = observations.cached(self.views)
        unsure = entropy(views.logits.detach(), views.options) > self.config.threshold
        return {**super().heads(observations), "unsure": unsure.float()}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words, the entropy of the decision, and the chance to explore."""
        navigator = self.navigator(point)
        numbers = {
            "entropy": entropy(navigator, point.per_observation(self.views).options),
            "explores": torch.sigmoid(self.gate_logit(point, navigator)).squeeze(-1),
            "explored ways": (point.memory().note(EXPLORED) != ext.NONE).sum(dim=1).float(),
        }
        return ext.Explanation(navigator_words(self, point), numbers=numbers)


def entropy(logits: Tensor, options: Tensor) -> Tensor:
    """Of the softmax over options.  (R, O), (R, O) bool  ->  (R,)"""
    log_p = logits.masked_fill(~options, -torch.inf).log_softmax(dim=-1)
    return -(log_p.exp() * log_p.masked_fill(~options, 0.0)).sum(dim=-1)


def first_visits(walk: Sequence[T]) -> list[T]:
    """What the release counts of a walk: first visits only, up to that of the final place."""
    visited = list(dict.fromkeys(walk))
    return visited[: visited.index(walk[-1]) + 1]


AGENTS = {"active-perception": ext.AgentSpec(ActivePerception, ActiveConfig)}
_SHARED = shared("active-perception", ActiveConfig, {"gate": 0.1}, depth=1, budget=12)
_EARNS = ext.RewardConfig(rule="exploration")
ROWS = {
    "active-perception": replace(
        _SHARED,
        walk=ext.WalkConfig(max_steps=80),
        learning=replace(_SHARED.learning, labels="exploration", max_steps=32, reward=_EARNS),
    ),
}
AS_PUBLISHED = published(
    "active-perception",
    ActiveConfig(),
    {"teacher_forcing": 0.2, "student_forcing": 0.1, "a2c": 1.0, "gate": 1.0},
    decisions=15,
    steps=200,
    iterations=80_000,
    labels="exploration",
    reward=replace(_EARNS, success=3.0, failure=-3.0),
)
AS_RELEASED = dict.fromkeys(ROWS, first_visits)
