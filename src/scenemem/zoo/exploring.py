"""Exploring before deciding: an action space that walks ahead, comes back, and only then moves.

At a place, its *base*, an episode first decides whether to explore (``GATE``). If so, it takes one of the
ways that it has not explored there (``EXPLORE``), walks on as far as it may until it chooses to come back,
and walks back to its base over known places. When the gate stays closed it takes a neighbour or stops
(``ACTION``), and where that leads is the next base. Everything is really walked, so trajectories hold every
metre, and coming back restores the state it had at its base.

Shape letters: B episodes, M some of them, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.agent import Decide, Limit, with_last
from scenemem.agents.rollout import DecisionRequest, DecisionType
from scenemem.ssm.deciding import MemoryActions
from scenemem.ssm.graph import WalkOptions
from scenemem.world.graph import NONE, STOP, Pose, World

GATE = DecisionType("gate", over_nodes=False, auxiliary=True, names=("explore", "go on"))
"""Whether to explore a way before deciding."""
EXPLORE = DecisionType("explore", over_nodes=False, auxiliary=True, names=("come back",))
"""Which way to explore, and how far: a neighbour of here, or back to where the exploration began."""

EXPLORED = "explored"
"""Note (B, K): the node where the exploration of each way of here ended; -1 where it was not explored."""


class ExploringActions(MemoryActions):
    """The neighbours of here, or stop, after explorations.

    Explorations of one base never enter the same place twice, so what is written at the place where one ended
    stays there until the episode moves on.

    Args:
        max_decisions: moves before an episode is cut off, explorations not counted; one number, or (B,).
        depth: hops an exploration may take beyond the neighbour it enters first.
        budget: places that all explorations of an episode may enter together.
    """

    def __init__(self, world: World, episodes: int, max_decisions: Limit, *, depth: int, budget: int) -> None:
        # every hop of an exploration may find a place, too
        limit = torch.as_tensor(max_decisions) + budget
        super().__init__(world, episodes, limit, WalkOptions(restore_state=True, allow_revisits=True))
        self.decisions_left -= budget
        self.further_requests = 3 * budget  # the gate that opens, every hop, and the way back
        self._depth = depth
        self._budget = torch.full((episodes,), budget, device=world.device)
        self._out = torch.zeros_like(self.target)  # (B,) hops of the exploration under way; 0 at the base
        self._base = torch.zeros_like(self.target)  # (B,) node
        self._way = torch.zeros_like(self.target)  # (B,) the slot of the base that is being explored
        self._end = torch.zeros_like(self.target)  # (B,) node where the exploration ended
        # (B, N) bool, nodes entered since the last move
        self._entered = torch.zeros_like(self.memory.node, dtype=torch.bool)
        slots = world.neighbour.shape[1]
        self.memory.notes[EXPLORED] = torch.full((episodes, slots), NONE, device=world.device)

    def settle(self, episodes: Tensor) -> None:
        """Back at its base an episode notes what was explored; one that has moved has a new base."""
        here, target = self.memory.here[episodes], self.target[episodes]
        explored = self.memory.notes[EXPLORED]
        moved = episodes[(target == NONE) & (self._out[episodes] == 0)]
        self._base[moved] = self.memory.here[moved]
        self._entered[moved] = False
        explored[moved] = NONE
        self._entered[episodes, here] |= target == NONE
        back = episodes[target == here]
        explored[back, self._way[back]] = self._end[back]
        self.target[back] = NONE
        self._out[back] = 0

    def may_decide(self, episodes: Tensor) -> Tensor:
        """Episodes that are not on their way back  ->  (M,) bool"""
        free = (self._out[episodes] > 0) | (self.decisions_left[episodes] > 0)
        return free & (self.target[episodes] == NONE)

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """At the base: explore, or move. Outside: explore on, or come back."""
        may_enter = self._may_enter(episodes, pose.viewpoint[episodes])
        explores = self._out[episodes] > 0
        explores |= self._opens_gate(episodes, may_enter.any(dim=1) & ~explores, pose, decide)
        action[episodes[explores]] = self._explore(episodes[explores], may_enter[explores], pose, decide)
        if len(moves := episodes[~explores]):
            self.decisions_left[moves] -= 1
            action = self.choose_neighbour(pose, action, moves, decide)
        return action

    def _may_enter(self, episodes: Tensor, here: Tensor) -> Tensor:
        """The neighbours of ``here`` (M,) that an exploration may enter  ->  (M, K) bool"""
        places, nodes = self.world.neighbour[here], self.memory.node[episodes]
        known = (places.unsqueeze(2) == nodes.unsqueeze(1)) & self._entered[episodes].unsqueeze(1)
        goes_on = (self._out[episodes] <= self._depth) & (self._budget[episodes] > 0)
        return self.world.neighbour_mask[here] & ~known.any(dim=2) & goes_on.unsqueeze(1)

    def _opens_gate(self, episodes: Tensor, can: Tensor, pose: Pose, decide: Decide) -> Tensor:
        """Which of the episodes explore, of those that ``can`` (M,)  ->  (M,) bool"""
        explores, deciding = torch.zeros_like(can), episodes[can]
        if len(deciding):
            here = pose.viewpoint[deciding].unsqueeze(1).repeat(1, len(GATE.names))
            options = torch.ones_like(here, dtype=torch.bool)
            explores[can] = decide(DecisionRequest(GATE, deciding, options, here)) == 0
        return explores

    def _explore(self, episodes: Tensor, may_enter: Tensor, pose: Pose, decide: Decide) -> Tensor:
        """Enter a neighbour, or turn back; episodes that can enter none do not decide.

        may_enter: (M, K) bool  ->  (M,) slot to hop to; STOP for those on their way back
        """
        choice = torch.full_like(episodes, may_enter.shape[1])
        outside, can = self._out[episodes] > 0, may_enter.any(dim=1)
        if len(deciding := episodes[can]):
            base = self.memory.node[deciding, self._base[deciding]]
            options = with_last(may_enter, outside)[can]
            places = with_last(self.world.neighbour[pose.viewpoint[deciding]], base)
            choice[can] = decide(DecisionRequest(EXPLORE, deciding, options, places))
        action = torch.where(choice == self.world.neighbour.shape[1], STOP, choice)
        self._way[episodes] = torch.where(outside, self._way[episodes], choice)
        back, enters = episodes[action == STOP], episodes[action != STOP]
        self.target[back] = self._base[back]
        self._end[back] = self.memory.here[back]
        self._out[enters] += 1
        self._budget[enters] -= 1
        return action
