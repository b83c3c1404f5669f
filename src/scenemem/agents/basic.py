"""The basic agent: the paper's baseline (E-Dropout); with one view a sequence-to-sequence agent."""

from __future__ import annotations

from torch import Tensor

from scenemem.agents.agent import Agent, DecisionPoint
from scenemem.agents.build import AgentModules, DataSizes, ModelConfig
from scenemem.models.navigator import CandidateScore


class Basic(Agent):
    """A recurrent navigator that scores the neighbours of where it stands (paper, Eq. 2)."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, modules: AgentModules | None = None) -> None:
        super().__init__(config, sizes, modules)
        self.scorer = CandidateScore(config.width, sizes.visual)

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        state, seen = point.state.hidden * point.mask("decision"), point.candidates()
        logits: Tensor = self.scorer(state, seen.visual, seen.orientation, point.feature_mask)
        return logits
