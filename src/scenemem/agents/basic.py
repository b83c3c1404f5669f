"""The basic agent (the paper's baseline, E-Dropout's navigator) and the plainer sequence-to-sequence agent.

p(o_k) = softmax_k(o_k^T W h~) over the neighbours of here (paper, Eq. 2); the stop option is a zero row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig, States
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, LocalSpace, Rounds
from scenemem.models.attention import dots, rows_of, untiled
from scenemem.models.unrolling import Unrolling
from scenemem.simulator.panorama import Pose
from scenemem.world.geometry import ANGLE_WIDTH
from scenemem.world.graph import World


class BasicNetwork(AgentNetwork):
    """A recurrent navigator that scores the neighbours of where it stands."""

    def __init__(self, config: NetworkConfig, words: int, padding: int, visual: int, rounds: int) -> None:
        super().__init__(config, words, padding, visual, rounds)
        self.ask_visual = nn.Linear(config.width, visual, bias=False)
        self.ask_orientation = nn.Linear(config.width, ANGLE_WIDTH, bias=False)

    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """The neighbours of here, or stop."""
        del returns
        return LocalSpace(world, lanes, rounds)

    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Begin to act."""
        return _BasicActing(self, sight, unrolling)

    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """->  action: (M, K + 1)"""
        table = rollout.decisions["action"]
        where = (table.lane, table.tick)
        seen = sight.neighbours(rollout.viewpoint[where], rollout.view[where])
        state = rows_of(states.dropped(), states.rows_at(rollout)[where])
        return {"action": self.score(state, *seen, states.noise.feature)}

    def score(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, D)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        by_sight = dots(visual, self.ask_visual(state) * feature_mask)
        by_direction = dots(orientation, untiled(self.ask_orientation(state)))
        return nn.functional.pad(by_sight + by_direction, (0, 1))


class _BasicActing(Acting):
    network: BasicNetwork

    @torch.no_grad()
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        del space
        lanes = question.lanes
        state = self.hidden[lanes] * self.noise.deciding[lanes]
        seen = self.sight.neighbours(pose.viewpoint[lanes], pose.view[lanes])
        return self.network.score(state, *seen, self.noise.feature)
