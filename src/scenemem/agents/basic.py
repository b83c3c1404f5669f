"""The basic agent: the paper's baseline (E-Dropout); with one view a sequence-to-sequence agent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Self

from scenemem.agents.actions import (
    ActionSpace,
    HopPriorLocalActions,
    Limit,
    LocalMemoryActions,
    WalkOptions,
)
from scenemem.agents.agent import Agent, DecisionPoint
from scenemem.agents.build import DataSizes, MakeUpdater, ModelConfig, Parts, lstm_parts, one_ending
from scenemem.models.reading import CandidateScore
from scenemem.world.graph import World


class Basic(Agent):
    """A recurrent navigator that scores the neighbours of where it stands (paper, Eq. 2)."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, parts: Parts, scorer: CandidateScore) -> None:
        super().__init__(config, sizes, parts)
        self.scorer = scorer

    @classmethod
    def build(cls, config: ModelConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> Self:
        """Fresh weights; ``updater`` makes another recurrent core."""
        parts = lstm_parts(config, sizes, updater)
        return cls(config, sizes, parts, CandidateScore(config.width, sizes.visual))

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        state, seen = point.state.hidden * point.mask("decision"), point.candidates()
        logits: Tensor = self.scorer(state, seen.visual, seen.orientation, point.feature_mask)
        return logits


@dataclass(frozen=True)
class EndingConfig(ModelConfig):
    """How the baseline may end a walk when it borrows that from the memory agents."""

    final_backtrack: bool = False
    """who has used up its decisions goes back to where stopping seemed best, and stops; not in the paper"""
    hop_prior: bool = False
    """the released code's knowledge of R2R path lengths: stop only 4 to 6 hops from the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_ending(hop_prior=self.hop_prior, final_backtrack=self.final_backtrack)


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
