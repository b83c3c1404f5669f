"""The agent of the paper: decisions over a Structured Scene Memory, and the ablations that decide otherwise.

``SSM`` chooses a frontier, then one of its sub-nodes; ``GlobalSSM`` chooses among all sub-nodes at once;
``LocalSSM`` takes the second of the two steps only, where it stands. Shape letters: X observations, R
decision steps, N nodes, K candidate slots, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.actions import (
    ActionSpace,
    FrontierActions,
    GlobalActions,
    HopPriorActions,
    Limit,
    LocalMemoryActions,
    WalkOptions,
)
from scenemem.agents.agent import Agent, DecisionPoint, Explanation, Observations
from scenemem.agents.build import DataSizes, MakeUpdater, ModelConfig, Parts, lstm_parts, one_ending
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL, DecisionType
from scenemem.errors import SettingError
from scenemem.memory.scene_memory import WalkCost
from scenemem.models.language import FineGrainedGrounding, Grounded, SharedGrounding
from scenemem.models.reading import (
    ActionScore,
    CollectRead,
    Edges,
    FrontierHints,
    FrontierScore,
    GlobalScore,
    StayScore,
    StopFromMemory,
    Views,
    log_probabilities,
    with_stop,
)
from scenemem.world.graph import ANGLE_WIDTH, World

REMEMBERED = "action_log_probabilities"
"""The per-node column of agents with hints: how the candidates of a place scored when the agent was there."""


MOST_REASONING = 100
"""Steps of message passing; far more would never end, and settings may come from the file of a stranger."""


@dataclass(frozen=True)
class GroundedConfig(ModelConfig):
    """Settings of agents with grounded states."""

    grounding: bool = True
    """separate perception- and action-aware states; False queries everything with the state itself"""


@dataclass(frozen=True)
class LocalSSMConfig(GroundedConfig):
    """Settings of the ablation with local decisions."""

    allow_revisits: bool = False
    """visited neighbours stay options; without it they are those of the paper's second step"""


@dataclass(frozen=True)
class GlobalSSMConfig(GroundedConfig):
    """What agents that read a memory have in common; the ablations of table 3 each change one thing."""

    reasoning_steps: int = 3
    """S steps of message passing; 0 switches it off"""
    node_width: int | None = None
    """width of the visual node states; None keeps the width of the features, as in the paper"""
    orientation_width: int = ANGLE_WIDTH
    """width of the orientation node states: four numbers repeated, 128 in the paper"""
    edges: Edges = "visited"
    """edges that a node state reads (Eq. 8): those between visited places; all reads every way that leaves"""
    views: Views = "navigable"
    """views that a node state reads (Eq. 3): the navigable ones, only the unvisited of them, or all 36"""
    walk_cost: WalkCost = "metres"
    """what the shortest way over the memory counts"""
    stop_from_memory: bool = False
    """the option to stop is scored by what the memory says about the place as well; not in the paper"""
    final_backtrack: bool = False
    """who has used up its decisions goes back to where stopping seemed best, and stops; not in the paper"""
    read_before_update: bool = False
    """read the memory with the state before the observation, as the released code does"""
    restore_state: bool = False
    """coming back to a place restores the state the agent had there; not in the paper, where it goes on"""
    allow_revisits: bool = False
    """visited neighbours stay options, for paths that lead back; in the paper only unvisited ones are"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restore_state and self.read_before_update:
            raise SettingError(
                "restore_state and read_before_update exclude each other: a restored state has none before it"
            )
        if not 0 <= self.reasoning_steps <= MOST_REASONING:
            raise SettingError(
                f"reasoning_steps must be from 0, which switches it off, to {MOST_REASONING}, "
                f"got {self.reasoning_steps}"
            )
        if self.node_width is not None and self.node_width < 1:
            raise SettingError(
                f"node_width must be 1 or more, got {self.node_width}; leave it out for the feature width"
            )
        if self.orientation_width < 4 or self.orientation_width % 4:
            raise SettingError(
                f"orientation_width must be a multiple of 4, got {self.orientation_width}; "
                "four numbers are repeated"
            )


@dataclass(frozen=True)
class SSMConfig(GlobalSSMConfig):
    """Settings of the paper's agent, and of our additions to it."""

    hints: bool = False
    """plain facts as further frontier inputs (here, distance, age, remembered scores); not in the paper"""
    stay_score: bool = False
    """the frontier choice has a score for staying; part of hints, and not in the paper"""
    hop_prior: bool = False
    """the released code's knowledge of R2R path lengths: stop only 4 to 6 hops from the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hints and self.stay_score:
            raise SettingError("hints hold a score for staying already; add --model.no-stay-score")
        one_ending(hop_prior=self.hop_prior, final_backtrack=self.final_backtrack)


def _grounding(config: GroundedConfig) -> FineGrainedGrounding | SharedGrounding:
    return FineGrainedGrounding(config.width) if config.grounding else SharedGrounding()


def _reader(config: GlobalSSMConfig, sizes: DataSizes) -> CollectRead:
    return CollectRead(
        config.width,
        sizes.visual,
        config.node_width or sizes.visual,
        config.reasoning_steps,
        config.orientation_width,
        config.views,
        config.edges,
    )


def _stop_from_memory(config: GlobalSSMConfig, sizes: DataSizes) -> StopFromMemory | None:
    if not config.stop_from_memory:
        return None
    return StopFromMemory(config.width, config.node_width or sizes.visual, config.orientation_width)


def _walk_options(config: GlobalSSMConfig, *, learning: bool) -> WalkOptions:
    return WalkOptions(
        walk_cost=config.walk_cost,
        restore_state=config.restore_state,
        final_backtrack=config.final_backtrack and not learning,
        allow_revisits=config.allow_revisits,
    )


class GroundedAgent(Agent):
    """An agent with a perception-aware and an action-aware state (Eqs. 5 and 6)."""

    def __init__(
        self,
        config: GroundedConfig,
        sizes: DataSizes,
        parts: Parts,
        grounding: FineGrainedGrounding | SharedGrounding,
    ) -> None:
        super().__init__(config, sizes, parts)
        self.grounding = grounding

    def ground(self, observations: Observations) -> Grounded:
        """Of every observation  ->  (X, H)"""
        return self._grounded(observations.state.hidden, observations)

    def ground_earlier(self, observations: Observations) -> Grounded:
        """Of the states before every observation  ->  (X, H)"""
        return self._grounded(observations.earlier, observations)

    def _grounded(self, hidden: Tensor, observations: Observations) -> Grounded:
        grounded: Grounded = self.grounding(hidden * observations.decision_mask, observations.instructions)
        return grounded

    def word_attention(self, observations: Observations) -> dict[str, Tensor]:
        """Which words the two states and the recurrent navigator attend to  ->  name: (X, L)"""
        hidden = observations.state.hidden * observations.decision_mask
        words = self.grounding.word_attention(hidden, observations.instructions)
        return {**words, **observations.state.attention}


class LocalSSM(GroundedAgent):
    """The local ablation: no frontier is chosen, only one of the sub-nodes of here, or stop (Eq. 14).

    Eq. 14 has no term of the memory, so nothing is read; the memory only says where the agent has been.
    """

    config: LocalSSMConfig

    def __init__(
        self,
        config: LocalSSMConfig,
        sizes: DataSizes,
        parts: Parts,
        grounding: FineGrainedGrounding | SharedGrounding,
        actions: ActionScore,
    ) -> None:
        super().__init__(config, sizes, parts, grounding)
        self.actions = actions

    @classmethod
    def build(cls, config: LocalSSMConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> LocalSSM:
        """Fresh weights; ``updater`` makes another recurrent core."""
        parts = lstm_parts(config, sizes, updater)
        return cls(config, sizes, parts, _grounding(config), ActionScore(config.width, sizes.visual))

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """The neighbours of here, or stop."""
        del learning
        options = WalkOptions(allow_revisits=self.config.allow_revisits)
        return LocalMemoryActions(world, episodes, max_decisions, options)

    def action_logits(self, observations: Observations) -> Tensor:
        """(X, K + 1)"""
        logits: Tensor = self.actions(
            observations.cached(self.ground), observations.candidates, observations.feature_mask
        )
        return logits

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def explain(self, point: DecisionPoint) -> Explanation:
        """Words, and confidences by view and by direction."""
        observations = point.observations
        grounded = observations.cached(self.ground)
        mix = self.actions.mix(torch.cat([grounded.perception, grounded.action], dim=-1))
        confidence = self.actions.confidences(grounded, observations.candidates, observations.feature_mask)
        return Explanation(self.words_at(point), {ACTION: confidence[point.row]}, {ACTION: mix[point.row]})


class SSM(GroundedAgent):
    """The paper's agent: reads its memory, goes to a frontier, and takes one of its sub-nodes or stops."""

    config: SSMConfig

    def __init__(
        self,
        config: SSMConfig,
        sizes: DataSizes,
        parts: Parts,
        grounding: FineGrainedGrounding | SharedGrounding,
        actions: ActionScore,
        reader: CollectRead,
        frontier_score: FrontierScore,
        hints: FrontierHints | None,
        stay_score: StayScore | None,
        stop_from_memory: StopFromMemory | None,
    ) -> None:
        super().__init__(config, sizes, parts, grounding)
        self.actions = actions
        self.reader = reader
        self.frontier_score = frontier_score
        self.hints = hints
        self.stay_score = stay_score
        self.stop_from_memory = stop_from_memory

    @classmethod
    def build(cls, config: SSMConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> SSM:
        """Fresh weights; ``updater`` makes another recurrent core."""
        node_width = config.node_width or sizes.visual
        return cls(
            config,
            sizes,
            lstm_parts(config, sizes, updater),
            _grounding(config),
            ActionScore(config.width, sizes.visual),
            _reader(config, sizes),
            FrontierScore(config.width, node_width, config.orientation_width),
            FrontierHints(config.width) if config.hints else None,
            StayScore(config.width) if config.stay_score else None,
            _stop_from_memory(config, sizes),
        )

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Frontiers of the memory, then their sub-nodes."""
        space = HopPriorActions if self.config.hop_prior else FrontierActions
        return space(world, episodes, max_decisions, _walk_options(self.config, learning=learning))

    def columns(self, observations: Observations) -> dict[str, Tensor]:
        """With hints, how the candidates of every place scored is remembered there."""
        if self.hints is None:
            return {}
        logits = observations.cached(self.action_logits).detach()
        return {REMEMBERED: log_probabilities(logits, observations.candidates.mask)}

    def action_logits(self, observations: Observations) -> Tensor:
        """What the views of here say  ->  (X, K + 1)"""
        logits: Tensor = self.actions(
            observations.cached(self.ground), observations.candidates, observations.feature_mask
        )
        return logits

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Frontiers: (R, N), actions: (R, K + 1)"""
        nodes = self.read(point)
        graph, grounded = point.memory(), point.per_observation(self.ground)
        frontiers = self.frontier_score(grounded, nodes)
        if self.hints is not None:
            frontiers = frontiers + self.hints(point.state.hidden, graph, graph.column(REMEMBERED))
        if self.stay_score is not None:
            frontiers = frontiers + self.stay_score(point.state.hidden, graph)
        actions = point.per_observation(self.action_logits)
        if self.stop_from_memory is not None:
            actions = with_stop(actions, self.stop_from_memory(grounded, nodes, graph.here))
        return {FRONTIER: frontiers, ACTION: actions}

    def read(self, point: DecisionPoint) -> tuple[Tensor, Tensor]:
        """The states of all nodes (Eqs. 7 to 9)  ->  visual (R, N, V), orientation (R, N, W)"""
        ground = self.ground_earlier if self.config.read_before_update else self.ground
        nodes: tuple[Tensor, Tensor] = self.reader(
            point.per_observation(ground), point.heading, point.feature_mask, point.memory()
        )
        return nodes

    def explain(self, point: DecisionPoint) -> Explanation:
        """Words, and confidences by view and by direction, of frontiers and actions."""
        observations = point.observations
        grounded = point.per_observation(self.ground)
        together = torch.cat([grounded.perception, grounded.action], dim=-1)
        actions = self.actions.confidences(
            observations.cached(self.ground), observations.candidates, observations.feature_mask
        )[point.row]
        frontiers = self.frontier_score.confidences(grounded, self.read(point))
        return Explanation(
            self.words_at(point),
            {FRONTIER: frontiers, ACTION: actions},
            {FRONTIER: self.frontier_score.mix(together), ACTION: self.actions.mix(together)},
        )


class GlobalSSM(GroundedAgent):
    """The one-step ablation: all sub-nodes of the memory compete in a single decision (Eqs. 10, 11)."""

    config: GlobalSSMConfig

    def __init__(
        self,
        config: GlobalSSMConfig,
        sizes: DataSizes,
        parts: Parts,
        grounding: FineGrainedGrounding | SharedGrounding,
        reader: CollectRead,
        global_score: GlobalScore,
        stop_from_memory: StopFromMemory | None,
    ) -> None:
        super().__init__(config, sizes, parts, grounding)
        self.reader = reader
        self.global_score = global_score
        self.stop_from_memory = stop_from_memory

    @classmethod
    def build(
        cls, config: GlobalSSMConfig, sizes: DataSizes, updater: MakeUpdater | None = None
    ) -> GlobalSSM:
        """Fresh weights; ``updater`` makes another recurrent core."""
        return cls(
            config,
            sizes,
            lstm_parts(config, sizes, updater),
            _grounding(config),
            _reader(config, sizes),
            GlobalScore(
                config.width, sizes.visual, config.node_width or sizes.visual, config.orientation_width
            ),
            _stop_from_memory(config, sizes),
        )

    def logits(self, point: DecisionPoint) -> Tensor:
        """Of all candidates of all nodes, and of stopping  ->  (R, N * K + 1)"""
        graph, grounded = point.memory(), point.per_observation(self.ground)
        ground = self.ground_earlier if self.config.read_before_update else self.ground
        nodes = self.reader(point.per_observation(ground), point.heading, point.feature_mask, graph)
        logits: Tensor = self.global_score(grounded, nodes, point.heading, point.feature_mask, graph)
        if self.stop_from_memory is not None:
            logits = with_stop(logits, self.stop_from_memory(grounded, nodes, graph.here))
        return logits

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Any sub-node of the memory, or stop."""
        return GlobalActions(world, episodes, max_decisions, _walk_options(self.config, learning=learning))

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Global decisions: (R, N * K + 1)"""
        return {GLOBAL: self.logits(point)}
