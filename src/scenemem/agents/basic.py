"""The basic agent (the paper's baseline, E-Dropout's navigator) and the plainer sequence-to-sequence agent.

p(o_k) = softmax_k(o_k^T W h~) over the neighbours of here (paper, Eq. 2); the stop option is a zero row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, LocalSpace
from scenemem.models.attention import untiled
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.simulator.panorama import Stance
from scenemem.world.geometry import ANGLE_WIDTH
from scenemem.world.graph import World


class BasicNetwork(AgentNetwork):
    """A recurrent navigator that scores the neighbours of where it stands."""

    def __init__(self, config: NetworkConfig, words: int, padding: int, visual: int, rounds: int) -> None:
        super().__init__(config, words, padding, visual, rounds)
        self.ask_visual = nn.Linear(config.width, visual, bias=False)
        self.ask_orientation = nn.Linear(config.width, ANGLE_WIDTH, bias=False)

    def space(self, world: World, lanes: int, rounds: int) -> ActionSpace:
        """The neighbours of here, or stop."""
        return LocalSpace(world, lanes, rounds)

    def acting(self, sight: Sight, instructions: Instructions, noise: Noise) -> Acting:
        """Begin to act."""
        return _BasicActing(self, sight, instructions, noise)

    def decision_logits(
        self, rollout: Rollout, hidden: Tensor, sight: Sight, instructions: Instructions, noise: Noise
    ) -> dict[Kind, Tensor]:
        """hidden: (B, T, H)  ->  action: (M, K + 1)"""
        del instructions
        table = rollout.decisions["action"]
        where = (table.lane, table.tick)
        state = hidden[where] * noise.deciding[table.lane]
        seen = sight.neighbours(rollout.viewpoint[where], rollout.view[where])
        return {"action": self.score(state, *seen, noise.feature)}

    def score(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, D)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        by_sight = torch.bmm(visual, (self.ask_visual(state) * feature_mask).unsqueeze(-1))
        by_direction = torch.bmm(orientation, untiled(self.ask_orientation(state)).unsqueeze(-1))
        return nn.functional.pad((by_sight + by_direction).squeeze(-1), (0, 1))


class _BasicActing(Acting):
    network: BasicNetwork

    @torch.no_grad()
    def logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        del space
        lanes = question.lanes
        state = self.hidden[lanes] * self.noise.deciding[lanes]
        seen = self.sight.neighbours(stance.viewpoint[lanes], stance.view[lanes])
        return self.network.score(state, *seen, self.noise.feature)
