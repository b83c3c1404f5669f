"""The explorer: only ever goes where it has not been, and scores places with a small network.

c_k = w . tanh(W_f f_k + W_r r_k + W_h h): a place is judged by how it looks (f), where it lies (r) and the
state (h) together, instead of by one product each.

Shape letters: M decisions, K neighbour slots, D visual columns, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig, States
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, Ask, MemorySpace, Rounds
from scenemem.models.attention import tiled
from scenemem.models.unrolling import Unrolling
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.geometry import ANGLE_WIDTH
from scenemem.world.graph import World


class UnvisitedSpace(MemorySpace):
    """The neighbours of here that have not been visited, or stop."""

    def _decide(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Every lane chooses a sub-node of where it stands, or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        asked = self._begin_round(lanes)
        if len(asked):
            unvisited = self.memory.subnode[asked, self.memory.here[asked]]
            question = self._neighbours_or_stop(asked, pose.viewpoint[asked], unvisited)
            action[asked] = self._as_action(ask(question))
        return action


class ExplorerNetwork(AgentNetwork):
    """A recurrent navigator that scores the unvisited neighbours of where it stands."""

    def __init__(self, config: NetworkConfig, words: int, padding: int, visual: int, rounds: int) -> None:
        super().__init__(config, words, padding, visual, rounds)
        self.look = nn.Linear(visual, config.width, bias=False)
        self.turn = nn.Linear(ANGLE_WIDTH, config.width, bias=False)
        self.think = nn.Linear(config.width, config.width)
        self.verdict = nn.Linear(config.width, 1)

    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """The unvisited neighbours of here, or stop."""
        del returns  # this agent never goes back
        return UnvisitedSpace(world, lanes, rounds)

    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Begin to act."""
        return ExplorerActing(self, sight, unrolling)

    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """->  action: (M, K + 1), of all decisions of all walks at once"""
        table = rollout.decisions["action"]
        where = (table.lane, table.tick)
        seen = sight.neighbours(rollout.viewpoint[where], rollout.view[where])
        state = states.seating.at(states.dropped(), *where)
        return {"action": self.score(state, *seen, states.noise.feature)}

    def score(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, D)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        places = self.look(visual * feature_mask) + self.turn(tiled(orientation))
        scores = self.verdict(torch.tanh(places + self.think(state).unsqueeze(1))).squeeze(-1)
        return nn.functional.pad(scores, (0, 1))


class ExplorerActing(Acting):
    """The explorer under way: scores the decisions of this tick, without gradients."""

    network: ExplorerNetwork

    @torch.no_grad()
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        del space  # what may be chosen is in the question already
        lanes = question.lanes
        state = self.hidden[lanes] * self.noise.deciding[lanes]
        seen = self.sight.neighbours(pose.viewpoint[lanes], pose.view[lanes])
        return self.network.score(state, *seen, self.noise.feature)
