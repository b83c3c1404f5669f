"""Tutorial agent: the explorer only goes where it has not been, and scores candidates with a small network.

c_k = w . tanh(W_f f_k + W_r r_k + W_h h): a candidate is judged by how it looks (f), where it lies (r) and
the state (h) together. Train it with:

    scenemem train examples/explorer.py:explorer --iterations 300

Shape letters: R decision steps, K candidate slots, D visual columns, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    PRESETS,
    ActionSpace,
    Agent,
    AgentSpec,
    DataSizes,
    Decide,
    DecisionPoint,
    LearningConfig,
    Limit,
    MemoryActions,
    ModelConfig,
    Pose,
    Preset,
    World,
)


class UnvisitedActions(MemoryActions):
    """The neighbours of here that have not been visited, or stop."""

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a sub-node of where it stands, or stops  ->  (B,) slot to hop to, or STOP"""
        self.decisions_left[episodes] -= 1
        return self.choose_neighbour(pose, action, episodes, decide)


class Explorer(Agent):
    """A recurrent navigator that scores the unvisited neighbours of where it stands."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        self.view = nn.Linear(sizes.visual, config.width, bias=False)
        self.direction = nn.Linear(4, config.width, bias=False)
        self.state = nn.Linear(config.width, config.width)
        self.score_candidate = nn.Linear(config.width, 1)

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """The unvisited neighbours of here, or stop."""
        del learning  # its walks end alike, learnt from or not
        return UnvisitedActions(world, episodes, max_decisions)

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1), stop last with a score of 0"""
        seen = point.candidates()
        state = self.state(point.state.hidden * point.mask("decision")).unsqueeze(1)
        candidates = self.view(seen.visual * point.feature_mask) + self.direction(seen.orientation)
        scores = self.score_candidate(torch.tanh(candidates + state)).squeeze(-1)  # (R, K)
        return nn.functional.pad(scores, (0, 1))


AGENTS.register("explorer", AgentSpec(Explorer, ModelConfig))
PRESETS.register(
    "explorer",
    Preset(
        agent="explorer",
        model=ModelConfig(width=256, dropout=0.3, feature_dropout=0.2),
        learning=LearningConfig(max_decisions=10, max_steps=16),
    ),
)
