"""The paper's agent: grounds the words, reads its memory, goes to a frontier, takes a sub-node or stops.

Shape letters: X observations, R decision steps, N nodes, K candidate slots, H state width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from scenemem.agents.actions import ActionSpace, Limit
from scenemem.agents.agent import Agent, DecisionPoint, Explanation, Observations
from scenemem.agents.build import DataSizes, MakeUpdater, ModelConfig, lstm_modules
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionType
from scenemem.errors import SettingError
from scenemem.ssm.deciding import ActionScore, FrontierActions, FrontierScore
from scenemem.ssm.graph import WalkCost, WalkOptions
from scenemem.ssm.reading import (
    Edges,
    FineGrainedGrounding,
    Grounded,
    MakeMessages,
    MemoryReader,
    MessagePassing,
    SharedGrounding,
    Views,
)
from scenemem.world.graph import ANGLE_WIDTH, World

MOST_REASONING = 100
"""Steps of message passing; far more would never end, and settings may come from an untrusted file."""


@dataclass(frozen=True)
class GroundedConfig(ModelConfig):
    """Settings of agents with grounded states."""

    grounding: bool = True
    """separate perception- and action-aware states; False queries everything with the state itself"""
    allow_revisits: bool = False
    """visited neighbours stay options, for paths that lead back; in the paper only unvisited ones are"""


@dataclass(frozen=True)
class SSMConfig(GroundedConfig):
    """Settings of the paper's agent; its ablations each change one of them."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def node_widths(self, sizes: DataSizes) -> tuple[int, int]:
        """Of the visual and of the orientation node states."""
        return self.node_width or sizes.visual, self.orientation_width

    def walk_options(self) -> WalkOptions:
        """How it walks over its memory."""
        return WalkOptions(walk_cost=self.walk_cost, allow_revisits=self.allow_revisits)


MakeReader = Callable[[SSMConfig, DataSizes, MakeMessages], nn.Module]
"""Settings, sizes and message passing  ->  a module that is called as ``MemoryReader`` is"""


def collect_and_read(config: SSMConfig, sizes: DataSizes, messages: MakeMessages) -> MemoryReader:
    """The paper's reader (Eqs. 7 to 9)."""
    node_width, orientation_width = config.node_widths(sizes)
    return MemoryReader(
        config.width,
        sizes.visual,
        node_width,
        config.reasoning_steps,
        orientation_width,
        config.views,
        config.edges,
        messages,
    )


class GroundedAgent(Agent):
    """An agent with a perception-aware and an action-aware state (Eqs. 5 and 6).

    Args:
        config: its settings.
        sizes: what the data decides.
        updater: makes another recurrent core.
    """

    config: GroundedConfig

    def __init__(self, config: GroundedConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> None:
        super().__init__(config, sizes, lstm_modules(config, sizes, updater))
        self.grounding = FineGrainedGrounding(config.width) if config.grounding else SharedGrounding()

    def ground(self, observations: Observations) -> Grounded:
        """Of every observation  ->  (X, H)"""
        return self.grounded(observations.state.hidden, observations)

    def grounded(self, hidden: Tensor, observations: Observations) -> Grounded:
        """Of some states of the observed episodes.  hidden: (X, H)  ->  (X, H)"""
        grounded: Grounded = self.grounding(hidden * observations.decision_mask, observations.instructions)
        return grounded

    def word_attention(self, observations: Observations) -> dict[str, Tensor]:
        """Which words the two states and the recurrent navigator attend to  ->  name: (X, L)"""
        hidden = observations.state.hidden * observations.decision_mask
        words = self.grounding.word_attention(hidden, observations.instructions)
        return {**words, **observations.state.attention}


class SSM(GroundedAgent):
    """The agent of the paper.

    Args:
        config: its settings.
        sizes: what the data decides.
        reader: makes another reader of the memory (Eqs. 7 to 9).
        messages: makes another message passing (Eq. 9).
        updater: makes another recurrent core (Eq. 1).
    """

    config: SSMConfig

    def __init__(
        self,
        config: SSMConfig,
        sizes: DataSizes,
        *,
        reader: MakeReader = collect_and_read,
        messages: MakeMessages = MessagePassing,
        updater: MakeUpdater | None = None,
    ) -> None:
        super().__init__(config, sizes, updater)
        self.actions = ActionScore(config.width, sizes.visual)
        self.reader = reader(config, sizes, messages)
        self.frontier_score = FrontierScore(config.width, *config.node_widths(sizes))

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Frontiers of the memory, then their sub-nodes."""
        del learning
        return FrontierActions(world, episodes, max_decisions, self.config.walk_options())

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Frontiers: (R, N), actions: (R, K + 1)"""
        frontiers = self.frontier_score(point.per_observation(self.ground), self.read(point))
        return {FRONTIER: frontiers, ACTION: self.action_logits(point)}

    def read(self, point: DecisionPoint) -> tuple[Tensor, Tensor]:
        """The states of all nodes (Eqs. 7 to 9)  ->  visual (R, N, V), orientation (R, N, W)"""
        nodes: tuple[Tensor, Tensor] = self.reader(
            point.per_observation(self.ground), point.heading, point.feature_mask, point.memory()
        )
        return nodes

    def action_logits(self, point: DecisionPoint) -> Tensor:
        """Of the neighbours of here, and stop (Eq. 14)  ->  (R, K + 1)"""
        logits: Tensor = self.actions(
            point.per_observation(self.ground), point.candidates(), point.feature_mask
        )
        return logits

    def explain(self, point: DecisionPoint) -> Explanation:
        """Words, and confidences by view and by direction, of frontiers and actions."""
        grounded = point.per_observation(self.ground)
        return Explanation(
            self.words_at(point),
            {
                FRONTIER: self.frontier_score.confidences(grounded, self.read(point)),
                ACTION: self.actions.confidences(grounded, point.candidates(), point.feature_mask),
            },
            {FRONTIER: self.frontier_score.mix(grounded.both), ACTION: self.actions.mix(grounded.both)},
        )
