"""Additions to the paper's agent and its baseline: ours, and those of the authors' released code.

Each is a setting, off unless a preset switches it on. Shape letters: R decision steps, M decisions, N nodes,
K candidate slots, X observations, V and W widths of node states, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scenemem.agents.agent import ActionSpace, Basic, DecisionPoint, Limit, Observations
from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionRequest, DecisionType
from scenemem.errors import SettingError
from scenemem.models.navigator import dots
from scenemem.ssm.ablations import LocalMemoryActions
from scenemem.ssm.agent import SSM
from scenemem.ssm.deciding import FrontierActions, MemoryActions
from scenemem.ssm.graph import MemoryGraph, WalkOptions
from scenemem.ssm.reading import Grounded, SSMConfig
from scenemem.world.graph import ANGLE_WIDTH, NONE, Pose, World

REMEMBERED = "action_log_probabilities"
"""The node feature of agents with hints: how the candidates of a place scored when the agent was there."""


def check_exclusive(*, hop_prior: bool, final_backtrack: bool) -> None:
    """Refuse both ways to end a walk together."""
    if hop_prior and final_backtrack:
        raise SettingError(
            "hop_prior and final_backtrack exclude each other: the prior has its own place to end at; "
            "add `model.final_backtrack=False`"
        )


class HopPrior(MemoryActions):
    """The hop prior hidden in the authors' released code: it encodes that R2R paths have 4 to 6 edges.

    Stopping is possible only that many hops from the start, and an agent that never stopped is sent to its
    best-scored node in that ring. Hops are counted on the known graph.
    """

    NEAREST, FARTHEST = 4, 6

    def neighbours(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """Stopping is an option in the ring, and where there is no other way to go on."""
        request, here = super().neighbours(pose, episodes), self.memory.here[episodes].unsqueeze(1)
        in_ring = self.final_places(episodes).gather(1, here).squeeze(1)
        request.options[:, -1] = in_ring | ~request.options[:, :-1].any(dim=1)
        return request

    def final_places(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, the nodes of the ring, at the distance where R2R paths end"""
        hops = self.hops_from_start(episodes)
        return (hops >= self.NEAREST) & (hops <= self.FARTHEST)

    def hops_from_start(self, episodes: Tensor) -> Tensor:
        """Edges from the start to every node over the known graph, -1 elsewhere.  (M,)  ->  (M, N)"""
        edge = self.memory.edge[episodes].float()
        reached = torch.zeros_like(self.memory.node[episodes], dtype=torch.bool)
        reached[:, 0] = True
        hops = torch.where(reached, 0, NONE)
        for step in range(1, edge.shape[1]):
            fresh = (torch.bmm(reached.float().unsqueeze(1), edge).squeeze(1) > 0) & ~reached
            hops = torch.where(fresh, step, hops)
            reached = reached | fresh
        return hops


class HopPriorActions(HopPrior, FrontierActions):
    """The hop prior of the paper's agent: it also drops frontiers farther than 6 hops from the start."""

    final_type = FRONTIER  # the best node of the ring is a frontier like any other

    def frontiers(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, nodes with a sub-node that are near enough"""
        return super().frontiers(episodes) & (self.hops_from_start(episodes) <= self.FARTHEST)


class HopPriorLocalActions(HopPrior, LocalMemoryActions):
    """The hop prior of agents that only see the neighbours of here."""


@dataclass(frozen=True)
class SSMPlusConfig(SSMConfig):
    """Settings of the paper's agent with additions."""

    hints: bool = False
    """plain facts as further frontier inputs (here, distance, age, remembered scores)"""
    stay_score: bool = False
    """the frontier choice has a score for staying; part of hints"""
    stop_from_memory: bool = False
    """the stop score also has a term of the node state of here"""
    final_backtrack: bool = False
    """when the decision budget is used up, return to the place with the best stop score"""
    restore_state: bool = False
    """coming back to a place restores the state the agent had there; in the paper it goes on"""
    read_before_update: bool = False
    """read the memory with the state before the observation, as the released code does"""
    hop_prior: bool = False
    """the prior on R2R path lengths in the released code: stop only 4 to 6 hops from the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restore_state and self.read_before_update:
            raise SettingError(
                "restore_state and read_before_update exclude each other: a restored state has none before it"
            )
        if self.hints and self.stay_score:
            raise SettingError("hints hold a score for staying already; add `model.stay_score=False`")
        check_exclusive(hop_prior=self.hop_prior, final_backtrack=self.final_backtrack)

    def walk_options(self) -> WalkOptions:
        """How it walks over its memory."""
        ends = self.final_backtrack or self.hop_prior
        return replace(super().walk_options(), restore_state=self.restore_state, final_backtrack=ends)


class SSMPlus(SSM):
    """The paper's agent with additions; ``parts`` are reader, messages and updater as of ``SSM``."""

    config: SSMPlusConfig

    def __init__(self, config: SSMPlusConfig, sizes: DataSizes, **parts: Any) -> None:
        super().__init__(config, sizes, **parts)
        nodes = config.node_widths(sizes)
        self.hints = FrontierHints(config.width) if config.hints else None
        self.stay_score = StayScore(config.width) if config.stay_score else None
        self.stop_from_memory = StopFromMemory(config.width, *nodes) if config.stop_from_memory else None

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Frontiers, then sub-nodes; when learning, without a final choice but that of the hop prior."""
        options = self.config.walk_options()
        if self.config.hop_prior:
            return HopPriorActions(world, episodes, max_decisions, options)
        options = replace(options, final_backtrack=options.final_backtrack and not learning)
        return FrontierActions(world, episodes, max_decisions, options)

    def action_scores(self, observations: Observations) -> Tensor:
        """Eq. 14 at every observation, computed once for decisions and hints  ->  (X, K + 1)"""
        grounded = observations.cached(self.ground)
        return dots(*self.actions(grounded, observations.candidates, observations.feature_mask))

    def node_features(self, observations: Observations) -> dict[str, Tensor]:
        """With hints, how the candidates of every place scored is remembered there."""
        if self.hints is None:
            return {}
        logits = observations.cached(self.action_scores).detach()
        return {REMEMBERED: log_probabilities(logits, observations.candidates.mask)}

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Frontiers: (R, N), actions: (R, K + 1)"""
        grounded, hidden = point.per_observation(self.ground), point.state.hidden
        nodes, graph = self.read(point, grounded), point.memory()
        frontiers = dots(*self.frontier_score(grounded, nodes))
        actions = point.per_observation(self.action_scores)
        if self.hints is not None:
            frontiers = frontiers + self.hints(hidden, graph, graph.column(REMEMBERED))
        if self.stay_score is not None:
            frontiers = frontiers + self.stay_score(hidden, graph)
        if self.stop_from_memory is not None:
            more = self.stop_from_memory(grounded, nodes, graph.here)
            actions = torch.cat([actions[:, :-1], actions[:, -1:] + more.unsqueeze(1)], dim=1)
        return {FRONTIER: frontiers, ACTION: actions}

    def read(self, point: DecisionPoint, grounded: Grounded) -> tuple[Tensor, Tensor]:
        """As in the paper, or with the state before the observation."""
        if self.config.read_before_update:
            grounded = point.per_observation(self.ground_earlier)
        return super().read(point, grounded)

    def ground_earlier(self, observations: Observations) -> Grounded:
        """Of the states before every observation  ->  (X, H)"""
        before = replace(observations.state, hidden=observations.earlier)
        return self.ground(replace(observations, state=before))


class FrontierHints(nn.Module):
    """Facts about every node that the paper's frontier scores do not have: W_2 tanh(W_1 [facts, W_0 h]).

    The facts: is it here, how far to walk, how long ago found, the log-probability of its best open candidate
    when the agent was last there, and of stopping there.
    """

    WORST = -10.0
    """Floor for remembered log-probabilities."""

    def __init__(self, width: int, inner: int = 32) -> None:
        super().__init__()
        self.state = nn.Linear(width, inner)
        self.facts = nn.Linear(5, inner, bias=False)
        self.score = nn.Linear(inner, 1, bias=False)

    def forward(self, state: Tensor, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """state: (M, H)  remembered: (M, N, K + 1) log-probabilities of candidates and stop  ->  (M, N)"""
        inner = torch.tanh(self.state(state).unsqueeze(1) + self.facts(self.columns(graph, remembered)))
        score: Tensor = self.score(inner)
        return score.squeeze(-1)

    @classmethod
    def columns(cls, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """The facts, 0 where there is no node  ->  (M, N, 5)"""
        numbers = torch.arange(graph.walk.shape[1], device=graph.walk.device)
        facts = [
            (numbers == graph.here.unsqueeze(1)).to(remembered),
            graph.walk.to(remembered) / 10.0,
            (graph.count.unsqueeze(1) - 1 - numbers).to(remembered) / 10.0,
            remembered[..., :-1].masked_fill(~graph.open, cls.WORST).amax(dim=-1).clamp_min(cls.WORST),
            remembered[..., -1].clamp_min(cls.WORST),
        ]
        return torch.stack(facts, dim=-1).masked_fill((graph.viewpoint == NONE).unsqueeze(-1), 0.0)


class StayScore(nn.Module):
    """What staying is worth beyond what the node of here looks like: w . h + b.

    Eq. 13 scores frontiers by their content and cannot tell which one the agent stands at. Both begin at 0.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, state: Tensor, graph: MemoryGraph) -> Tensor:
        """What to add to the scores of the nodes.  state: (M, H)  ->  (M, N), 0 but at the node of here"""
        numbers = torch.arange(graph.walk.shape[1], device=state.device)
        here: Tensor = (numbers == graph.here.unsqueeze(1)) * self.score(state)
        return here


class StopFromMemory(nn.Module):
    """A stop score from the node state of here.

    f^_v . W_f h^p + r^_v . W_r h^a, the terms that Eqs. 10 and 11 have for the parent of a sub-node. Both W
    begin at 0.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        nn.init.zeros_(self.query_visual.weight)
        nn.init.zeros_(self.query_orientation.weight)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor], here: Tensor) -> Tensor:
        """grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  here: (M,) a node  ->  (M,)"""
        row = torch.arange(len(here), device=here.device)
        queries = self.query_visual(grounded.perception), self.query_orientation(grounded.action)
        fits = [(states[row, here] * query).sum(dim=-1) for states, query in zip(nodes, queries, strict=True)]
        return torch.stack(fits).sum(dim=0)


def log_probabilities(logits: Tensor, exists: Tensor) -> Tensor:
    """Over real neighbours and stop.  logits: (..., K + 1)  exists: (..., K)  ->  (..., K + 1)"""
    options = nn.functional.pad(exists, (0, 1), value=True)
    return logits.masked_fill(~options, -torch.inf).log_softmax(dim=-1).masked_fill(~options, -1e4)


@dataclass(frozen=True)
class EndingConfig(ModelConfig):
    """How the baseline may end a walk when it borrows that from the memory agents."""

    final_backtrack: bool = False
    """when the decision budget is used up, return to the place with the best stop score"""
    hop_prior: bool = False
    """the prior on R2R path lengths in the released code: stop only 4 to 6 hops from the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusive(hop_prior=self.hop_prior, final_backtrack=self.final_backtrack)


class BasicWithEnding(Basic):
    """The baseline with a memory of where it has been, which it needs only to end its walk."""

    config: EndingConfig

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """The neighbours of here, or stop."""
        space = HopPriorLocalActions if self.config.hop_prior else LocalMemoryActions
        goes_back = self.config.hop_prior or self.config.final_backtrack
        options = WalkOptions(final_backtrack=goes_back and not learning, allow_revisits=True)
        return space(world, episodes, max_decisions, options)
