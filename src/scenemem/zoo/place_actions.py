"""Action spaces over places: neighbours with a memory of where one was, and all seen places as one choice.

Shape letters: B episodes, M episodes that decide, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from scenemem.agents.agent import Decide, Limit
from scenemem.agents.rollout import DecisionRequest
from scenemem.ssm.ablations import GlobalActions
from scenemem.ssm.agent import MemoryActions
from scenemem.ssm.graph import WalkOptions
from scenemem.world.graph import NONE, STOP, Pose, World


class RememberingActions(MemoryActions):
    """The neighbours of here, or stop, with a memory of all places visited; these may be chosen again.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: an episode that has decided this often is cut off where it stands; one number, or (B,).
        block: who has just stepped from A to B and back to A may not step to B again at once.
    """

    def __init__(self, world: World, episodes: int, max_decisions: Limit, *, block: bool = False) -> None:
        super().__init__(world, episodes, max_decisions, WalkOptions(allow_revisits=True))
        self._block = block
        # (B, 2) the last two places, the newest last
        self._came_from = torch.full((episodes, 2), NONE, device=world.device)

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        self.decisions_left[episodes] -= 1
        here = pose.viewpoint[episodes]
        request = self.candidates_or_stop(episodes, here, self._open_slots(episodes, here))
        self._came_from[episodes] = torch.stack([self._came_from[episodes, 1], here], dim=1)
        return action.index_copy(0, episodes, self.as_action(decide(request)))

    def _open_slots(self, episodes: Tensor, here: Tensor) -> Tensor:
        """here: (M,)  ->  (M, K) bool"""
        slots = self.world.neighbour_mask[here]
        if not self._block:
            return slots
        before, last = self._came_from[episodes].unbind(1)
        back = ((before == here) & (last != NONE)).unsqueeze(1)
        return slots & ~(back & (self.world.neighbour[here] == last.unsqueeze(1)))


class PlaceActions(GlobalActions):
    """All seen, unvisited places of the memory, each once, or stop.

    A place that several nodes see is reached from the one with the shortest way. With ``final_backtrack``
    every end, also a deliberate stop, leads to the visited place where stopping was likeliest. With
    ``allow_revisits`` visited places are options, too, but for the one where the agent stands.
    """

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """As in one softmax over all ways; with ``final_backtrack`` a stop first leads to where to end."""
        action = super().choose(pose, action, episodes, decide)
        if self.final_backtrack:
            stopping = (self.target[episodes] == self.memory.here[episodes]) & (self._then[episodes] == STOP)
            self.target[episodes[stopping]] = NONE
            self.end_at(episodes[stopping], decide)
        return action

    def request(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """One way to every place  ->  options (R, N * K + 1)"""
        request, memory = super().request(pose, episodes), self.memory
        node = memory.node[episodes].clamp_min(0)
        walk = memory.walk[episodes, memory.here[episodes]].unsqueeze(-1) + self.world.neighbour_length[node]
        ways = request.options[:, :-1] & (request.viewpoint[:, :-1] != pose.viewpoint[episodes].unsqueeze(1))
        cost = walk.flatten(1).masked_fill(~ways, torch.inf)  # (R, N * K)
        ways = ways & first_of_cheapest(request.viewpoint[:, :-1], cost)
        return replace(request, options=torch.cat([ways, request.options[:, -1:]], dim=1))


def first_of_cheapest(place: Tensor, cost: Tensor) -> Tensor:
    """Which option is the cheapest of those that lead to the same place, the first of equals.

    place: (M, O)  cost: (M, O), inf where there is no option  ->  (M, O) bool
    """
    order = cost.argsort(dim=1, stable=True)
    # after sorting by cost and then, stably, by place, the first of every place is its cheapest
    by_place = place.gather(1, order).argsort(dim=1, stable=True)
    row = order.gather(1, by_place)
    sorted_place = place.gather(1, row)
    first = torch.ones_like(sorted_place, dtype=torch.bool)
    first[:, 1:] = sorted_place[:, 1:] != sorted_place[:, :-1]
    return torch.zeros_like(first).scatter(1, row, first) & cost.isfinite()
