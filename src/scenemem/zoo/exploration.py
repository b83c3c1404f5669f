"""Learning to explore: what is right, what is earned and when to be unsure, for walks that explore first.

Shape letters: B episodes, T steps, M decisions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import DecisionRequest, Decisions, Rollout
from scenemem.agents.walker import LabelRule
from scenemem.learning.objectives import ClosestToGoal, Loss, LossContext, distance_reward
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.exploring import EXPLORE, GATE

COST = 0.1
"""Of one exploration, in units of the reward for a step."""


class ExplorerLabels(ClosestToGoal):
    """Moves towards the goal, and explorations towards it, too; nothing is known about the gate.

    An exploration enters the neighbour with the shortest way to the goal, and comes back from the goal.
    """

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option; -1 for gates"""
        if request.type == GATE:
            return torch.full_like(request.episode, NONE)
        if request.type != EXPLORE:
            return super().__call__(request, space, distance)
        memory = space.memory
        assert memory is not None  # explorations have one
        here = memory.node[request.episode, memory.here[request.episode]]
        cost = distance[:, 1:-1] + self._world.neighbour_length[here]
        cost = cost.masked_fill(~request.options[:, :-1], torch.inf)
        comes_back = (distance[:, 0] == 0.0) & request.options[:, -1]
        return torch.where(comes_back, request.stop, cost.argmin(dim=1))


def towards_goal(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The shortest way to the goal, also for explorations."""
    del space
    return ExplorerLabels(world, episodes.goal)


def exploration_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """Moves earn what they earn without explorations; opening the gate costs ``COST``  ->  (M,)

    What an exploration was good for is what the moves after it earn.
    """
    (kind,) = (kind for kind, found in rollout.decisions.items() if found is table)
    if not kind.auxiliary:
        return distance_reward(table, rollout, context)
    opened = (table.choice == 0) & (kind == GATE)
    return torch.where(opened, -COST, 0.0)


def gate_imitation(rollout: Rollout, context: LossContext) -> Tensor:
    """Explore where the navigator is unsure: cross-entropy of the gate, averaged over episodes.

    The agent's head ``unsure`` (B, T) is 1 where it is, 0 elsewhere.
    """
    del context
    if GATE not in rollout.decisions:
        return rollout.heads["unsure"].sum() * 0.0
    table = rollout.decisions[GATE]
    label = 1 - rollout.heads["unsure"][table.episode, table.step].long()
    wrong = torch.nn.functional.cross_entropy(rollout.decisions[GATE].logits, label, reduction="sum")
    return wrong / len(rollout.alive)


GATE_IMITATION = Loss(gate_imitation, walks="student")
