"""Action spaces over places: neighbours with a memory of where one was, and all seen places as one choice.

Shape letters: B episodes, M episodes that decide, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.actions import Decide, GlobalActions, Limit, MemoryActions, WalkOptions
from scenemem.agents.rollout import FINAL, DecisionRequest, EpisodeIndex
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import NONE, World


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

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        episodes = self.take_decision(active)
        if len(episodes):
            here = pose.viewpoint[episodes]
            request = self.candidates_or_stop(episodes, here, self._open_slots(episodes, here))
            action[episodes] = self.as_action(decide(request))
        self._came_from[active] = torch.stack([self._came_from[active, 1], pose.viewpoint[active]], dim=1)
        return action

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

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """As in one softmax over all ways; whoever stops may walk to where to end first."""
        action = super().choose(pose, active, decide)
        if self.final_backtrack:
            bound = self._target[active] == NONE
            stopping = active[bound & (action[active] == STOP)]
            if len(stopping):
                sent, places = self._final_places(EpisodeIndex.of(stopping))
                self._target[stopping] = decide(self._node_request(FINAL, sent, places))
                self._ending[sent.number] = True
        return action

    def _request(self, pose: Pose, episodes: EpisodeIndex) -> DecisionRequest:
        """One way to every place  ->  options (M, N * K + 1)"""
        request = super()._request(pose, episodes)
        memory, slots = self.memory, self.world.neighbour.shape[1]
        index = episodes.index
        node = memory.node[index].clamp_min(0)
        walk = memory.walk[index, memory.here[index]].unsqueeze(-1) + self.world.neighbour_length[node]
        ways = request.options[:, :-1] & (request.viewpoint[:, :-1] != pose.viewpoint[index].unsqueeze(1))
        cost = walk.flatten(1).masked_fill(~ways, torch.inf)  # (M, N * K)
        ways = ways & first_of_cheapest(request.viewpoint[:, :-1], cost)
        assert ways.shape[1] == memory.node.shape[1] * slots
        return DecisionRequest(
            request.type,
            request.episode,
            torch.cat([ways, request.options[:, -1:]], dim=1),
            request.viewpoint,
            episodes,
        )


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
