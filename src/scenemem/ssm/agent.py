"""The paper's agent: grounds the words, reads its memory, goes to a frontier, takes a sub-node or stops.

Shape letters: X observations, R decision steps, N nodes, K candidate slots, V and W widths of node states, H
state width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from scenemem.agents.agent import ActionSpace, Agent, DecisionPoint, Explanation, Limit, Observations
from scenemem.agents.build import DataSizes, MakeUpdater, lstm_modules
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionType
from scenemem.models.navigator import dots
from scenemem.ssm.deciding import ActionScore, FrontierActions, FrontierScore, MemoryActions
from scenemem.ssm.reading import (
    FineGrainedGrounding,
    Grounded,
    GroundedConfig,
    MakeMessages,
    MemoryReader,
    MessagePassing,
    SSMConfig,
)
from scenemem.world.graph import World

MakeReader = Callable[[SSMConfig, DataSizes, MakeMessages], nn.Module]
"""Settings, sizes and message passing  ->  a module that is called as ``MemoryReader`` is"""


class GroundedAgent(Agent):
    """An agent with a perception-aware and an action-aware state (Eqs. 5 and 6)."""

    config: GroundedConfig
    space: type[MemoryActions]
    """what it may choose"""

    def __init__(self, config: GroundedConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> None:
        super().__init__(config, sizes, lstm_modules(config, sizes, updater))
        self.grounding = FineGrainedGrounding(config.width) if config.grounding else None

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """A fresh ``space``."""
        del learning
        return self.space(world, episodes, max_decisions, self.config.walk_options())

    def ground(self, observations: Observations) -> Grounded:
        """Of every observation  ->  (X, H)"""
        hidden = observations.state.hidden * observations.masks.rows["decision"]
        if self.grounding is None:  # the ablation: the state itself queries everything
            return Grounded(hidden, hidden)
        grounded: Grounded = self.grounding(hidden, observations.instructions)
        return grounded

    def word_attention(self, observations: Observations) -> dict[str, Tensor]:
        """Which words the two states and the recurrent navigator attend to  ->  name: (X, L)"""
        if self.grounding is None:
            return observations.state.attention
        hidden = observations.state.hidden * observations.masks.rows["decision"]
        words = self.grounding.word_attention(hidden, observations.instructions)
        return {**words, **observations.state.attention}


class SSM(GroundedAgent):
    """The agent of the paper.

    Args:
        reader: makes another reader of the memory (Eqs. 7 to 9).
        messages: makes another message passing (Eq. 9).
        updater: makes another recurrent core (Eq. 1).
    """

    config: SSMConfig
    space = FrontierActions

    def __init__(
        self,
        config: SSMConfig,
        sizes: DataSizes,
        *,
        reader: MakeReader = MemoryReader,
        messages: MakeMessages = MessagePassing,
        updater: MakeUpdater | None = None,
    ) -> None:
        super().__init__(config, sizes, updater)
        self.actions = ActionScore(config.width, sizes.visual)
        self.reader = reader(config, sizes, messages)
        self.frontier_score = FrontierScore(config.width, *config.node_widths(sizes))

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Frontiers: (R, N), actions: (R, K + 1)"""
        seen, mask = point.candidates(), point.feature_mask
        grounded = point.per_observation(self.ground)
        frontiers = dots(*self.frontier_score(grounded, self.read(point, grounded)))
        return {FRONTIER: frontiers, ACTION: dots(*self.actions(grounded, seen, mask))}

    def read(self, point: DecisionPoint, grounded: Grounded) -> tuple[Tensor, Tensor]:
        """The states of all nodes (Eqs. 7 to 9)  ->  visual (R, N, V), orientation (R, N, W)"""
        mask, graph = point.feature_mask, point.memory()
        nodes: tuple[Tensor, Tensor] = self.reader(grounded, point.heading, mask, graph)
        return nodes

    def explain(self, point: DecisionPoint) -> Explanation:
        """Words, and confidences by view and by direction, of frontiers and actions."""
        grounded = point.per_observation(self.ground)
        nodes, weights = self.frontier_score(grounded, self.read(point, grounded))
        options, mix = self.actions(grounded, point.candidates(), point.feature_mask)
        return Explanation(
            self.words_at(point), {FRONTIER: nodes, ACTION: options}, {FRONTIER: weights, ACTION: mix}
        )
