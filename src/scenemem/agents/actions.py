"""Action spaces: what an agent may choose at a step, and the walk that gets it there.

Every space works on episodes, one hop per episode and step: one that walks does not hold up one that decides.
Shape letters: B episodes, M episodes that decide, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION, FINAL, FRONTIER, GLOBAL, DecisionRequest, DecisionType
from scenemem.memory.scene_memory import SceneMemory, WalkCost
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import NONE, World

Decide = Callable[[DecisionRequest], Tensor]
"""Answers a request with the chosen option of every episode: (M,)."""

Limit = int | Tensor
"""How often episodes may decide: one number, or (B,)."""


class ActionSpace(ABC):
    """What can be chosen, and how a choice becomes hops.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: an episode that has decided this often is cut off where it stands; one number, or (B,).
    """

    memory: SceneMemory | None = None
    restores = False  # whether agents that come back to a place have the state again that they had there
    allow_revisits = True  # whether agents may hop to places where they have been before

    def __init__(self, world: World, episodes: int, max_decisions: Limit) -> None:
        self.world = world
        self.now = -1  # the step
        # (B,) the step whose observation made the current state
        self.state_step = torch.zeros(episodes, dtype=torch.long, device=world.device)
        # (M,) episodes that may be asked for a decision at this step
        self.deciding = torch.arange(episodes, device=world.device)
        self._decisions_left = torch.as_tensor(max_decisions, device=world.device).repeat(episodes)[:episodes]

    def arrive(self, pose: Pose, active: Tensor) -> Pose:
        """The episodes ``active`` (M,) have arrived where ``pose`` says  ->  where they look from now on"""
        self.now += 1
        self.state_step[active] = self.now
        return pose

    @abstractmethod
    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Let the episodes decide what they have to decide  ->  (B,) slot to hop to, or STOP"""

    def take_decision(self, episodes: Tensor) -> Tensor:
        """Those that still may decide; a decision is taken from them.  (M,)  ->  (<= M,)"""
        episodes = episodes[self._decisions_left[episodes] > 0]
        self._decisions_left[episodes] -= 1
        return episodes

    def candidates_or_stop(
        self, episodes: Tensor, here: Tensor, open_slots: Tensor, may_stop: Tensor | None = None
    ) -> DecisionRequest:
        """Options: the open candidate slots (M, K), then stop, unless ``may_stop`` (M,) forbids it."""
        stop = open_slots.new_ones(len(episodes)) if may_stop is None else may_stop
        options = _with_last(open_slots, stop)
        return DecisionRequest(ACTION, episodes, options, _with_last(self.world.neighbour[here], here))

    def as_action(self, choice: Tensor) -> Tensor:
        """An answer to ``candidates_or_stop`` as a slot or STOP."""
        return torch.where(choice == self.world.neighbour.shape[1], STOP, choice)


class LocalActions(ActionSpace):
    """The neighbours of here, or stop."""

    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        episodes = self.deciding = self.take_decision(active)
        if len(episodes):
            here = pose.viewpoint[episodes]
            request = self.candidates_or_stop(episodes, here, self.open_slots(episodes, here))
            action[episodes] = self.as_action(decide(request))
        return action

    def open_slots(self, episodes: Tensor, here: Tensor) -> Tensor:
        """The candidate slots that may be taken at ``here`` (M,)  ->  (M, K) bool"""
        del episodes
        return self.world.neighbour_mask[here]


@dataclass(frozen=True)
class WalkOptions:
    """How agents walk over their memory."""

    walk_cost: WalkCost = "metres"
    """what the shortest way over the memory counts"""
    restore_state: bool = False
    """an agent that jumps back to a place looks the way it looked there, and has the state it had there"""
    final_backtrack: bool = False
    """an agent that has used up its decisions is asked for the visited place to end at, and walks there"""
    allow_revisits: bool = False
    """visited neighbours can be chosen like unvisited ones; who hops to one observes it anew"""


class MemoryActions(ActionSpace):
    """A space with a memory: choices may lie far away and are walked to over known edges.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: an episode that has decided this often is cut off where it stands; one number, or (B,).
        options: how agents walk over their memory.
    """

    memory: SceneMemory

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, options: WalkOptions | None = None
    ) -> None:
        super().__init__(world, episodes, max_decisions)
        options = options or WalkOptions()
        most = int(self._decisions_left.max()) if episodes else 0
        self.memory = SceneMemory(world, episodes, capacity=most + 1, walk_cost=options.walk_cost)
        self.restores = options.restore_state
        self.allow_revisits = options.allow_revisits
        self.final_backtrack = options.final_backtrack
        self._observed = torch.full_like(self.memory.node, NONE)  # (B, N) step of the last observation there
        self._view = torch.zeros_like(self.memory.node)  # (B, N) view faced then
        self._target = torch.full((episodes,), NONE, device=world.device)  # (B,) node to walk to; -1 for none
        # (B,) on the way to the final place
        self._ending = torch.zeros(episodes, dtype=torch.bool, device=world.device)

    def arrive(self, pose: Pose, active: Tensor) -> Pose:
        """Add the place to the memory, or restore what it was like there."""
        pose = super().arrive(pose, active)
        self.memory.visit(pose.viewpoint[active], active)
        if not self.restores:
            return pose
        node = self.memory.here[active]
        new = self._observed[active, node] == NONE
        if self.allow_revisits:
            new |= self._target[active] == NONE  # hopped here, and is not on the way back
        self._observed[active[new], node[new]] = self.now
        self._view[active[new], node[new]] = pose.view[active[new]]
        self.state_step[active] = self._observed[active, node]
        return replace(pose, view=pose.view.index_copy(0, active, self._view[active, node]))

    def open_ways(self, episodes: Tensor) -> Tensor:
        """The slots open at every node: its sub-nodes, or all with revisits  ->  (M, N, K) bool"""
        if not self.allow_revisits:
            return self.memory.subnode[episodes]
        node = self.memory.node[episodes]
        return self.world.neighbour_mask[node.clamp_min(0)] & (node != NONE).unsqueeze(-1)

    def _deciding(self, active: Tensor) -> Tensor:
        """Those that are nowhere bound, or have got where they wanted to go"""
        target = self._target[active]
        unbound = (target == NONE) & (self._decisions_left[active] > 0)
        return active[(unbound | (target == self.memory.here[active])) & ~self._ending[active]]

    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes decide as long as they may; then they go to the place to end at, and stop."""
        self.deciding = self._deciding(active)
        self._send_to_the_end(active, decide)
        action = self.choose(pose, active[~self._ending[active]], decide)
        self._at_target(active[self._ending[active]])  # who has got there stops
        return self._walk_on(action, pose, active)

    @abstractmethod
    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Let episodes that are nowhere bound or have got there decide  ->  (B,) slot to hop to, or STOP"""

    def _send_to_the_end(self, active: Tensor, decide: Decide) -> None:
        """Exhausted episodes choose where to end, if there is a choice; others are cut off as they are."""
        exhausted = active[
            (self._decisions_left[active] == 0) & (self._target[active] == NONE) & ~self._ending[active]
        ]
        if not len(exhausted):
            return
        options = self._final_places(exhausted)
        possible = options.any(dim=1)
        if bool(possible.any()):
            sent = exhausted[possible]
            self._target[sent] = decide(self._node_request(self._final_type, sent, options[possible]))
            self._ending[sent] = True

    _final_type = FINAL

    def _final_places(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, where exhausted episodes may end"""
        known = self.memory.node[episodes] != NONE
        return known if self.final_backtrack else torch.zeros_like(known)

    def _may_stop(self, episodes: Tensor, open_slots: Tensor) -> Tensor:
        """(M,) bool, always; open_slots: (M, K)"""
        del episodes
        return open_slots.new_ones(len(open_slots))

    def _node_request(self, kind: DecisionType, episodes: Tensor, options: Tensor) -> DecisionRequest:
        """Which of these nodes (M, N) to go to."""
        return DecisionRequest(kind, episodes, options, self.memory.node[episodes])

    def _at_target(self, episodes: Tensor) -> Tensor:
        """Those that stand where they wanted to go; they are nowhere bound any more.  (M,)  ->  (<= M,)"""
        arrived = episodes[self._target[episodes] == self.memory.here[episodes]]
        self._target[arrived] = NONE
        return arrived

    def _walk_on(self, action: Tensor, pose: Pose, active: Tensor) -> Tensor:
        """``action`` with the next hop of every episode that is bound somewhere."""
        walking = active[self._target[active] != NONE]
        step = self.memory.towards(self._target[walking], walking)
        action[walking] = self.world.slot_of(pose.viewpoint[walking], step)
        return action


class FrontierActions(MemoryActions):
    """The paper's two steps (section 3.3): a frontier of the memory, then one of its sub-nodes, or stop.

    The current node can always be chosen as the frontier, so that stopping is always possible.
    """

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose a frontier; those at their frontier a sub-node or stop."""
        unbound = self.take_decision(active[self._target[active] == NONE])
        self._target[unbound] = self._chosen_frontiers(unbound, decide)
        action = torch.full_like(pose.viewpoint, STOP)
        arrived = self._at_target(active)
        if len(arrived):
            rows = torch.arange(len(arrived), device=arrived.device)
            open_slots = self.open_ways(arrived)[rows, self.memory.here[arrived]]
            request = self.candidates_or_stop(
                arrived, pose.viewpoint[arrived], open_slots, self._may_stop(arrived, open_slots)
            )
            action[arrived] = self.as_action(decide(request))
        return action

    def _chosen_frontiers(self, episodes: Tensor, decide: Decide) -> Tensor:
        """(M,) nodes; episodes that can only stay are not asked"""
        chosen = self.memory.here[episodes]
        options = self._frontiers(episodes).scatter(1, chosen.unsqueeze(1), True)
        several = options.sum(dim=1) > 1
        if bool(several.any()):
            chosen[several] = decide(self._node_request(FRONTIER, episodes[several], options[several]))
        return chosen

    def _frontiers(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, nodes with a sub-node"""
        return self.memory.subnode[episodes].any(dim=-1)


class HopPrior(MemoryActions):
    """The hop prior hidden in the authors' released code: an option, off by default, reported on its own row.

    It encodes that R2R paths have 4 to 6 edges: stopping is possible only that many hops from the start, and
    an agent that never stopped is sent to its best-scored node in that ring. Hops are counted on the known
    graph.
    """

    NEAREST, FARTHEST = 4, 6

    def _may_stop(self, episodes: Tensor, open_slots: Tensor) -> Tensor:
        """(M,) bool, in the ring, or who can go nowhere else.  open_slots: (M, K)"""
        here = self.memory.here[episodes].unsqueeze(1)
        in_ring = self._ring(episodes).gather(1, here).squeeze(1)
        return in_ring | ~open_slots.any(dim=1)

    def _ring(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, nodes at the distance where R2R paths end"""
        hops = self.memory.hops_from_start(episodes)
        return (hops >= self.NEAREST) & (hops <= self.FARTHEST)


class HopPriorActions(HopPrior, FrontierActions):
    """The hop prior of the paper's agent: it also drops frontiers farther than 6 hops from the start."""

    _final_type = FRONTIER  # the best node of the ring is a frontier like any other

    def _deciding(self, active: Tensor) -> Tensor:
        """Also those that have used up their decisions: they are asked for a last frontier."""
        exhausted = (
            (self._decisions_left[active] == 0) & (self._target[active] == NONE) & ~self._ending[active]
        )
        return torch.cat([super()._deciding(active), active[exhausted]]).sort().values

    def _final_places(self, episodes: Tensor) -> Tensor:
        return self._ring(episodes)

    def _frontiers(self, episodes: Tensor) -> Tensor:
        return super()._frontiers(episodes) & (self.memory.hops_from_start(episodes) <= self.FARTHEST)


class LocalMemoryActions(MemoryActions):
    """The neighbours of here, visited or not, or stop; the memory serves reading, and going back at the end.

    Its options must allow revisits.
    """

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Every episode that still may decide chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        episodes = self.take_decision(active)
        if len(episodes):
            here = pose.viewpoint[episodes]
            open_slots = self.world.neighbour_mask[here]
            may_stop = self._may_stop(episodes, open_slots)
            action[episodes] = self.as_action(
                decide(self.candidates_or_stop(episodes, here, open_slots, may_stop))
            )
        return action


class HopPriorLocalActions(HopPrior, LocalMemoryActions):
    """The hop prior for agents that only see the neighbours of here."""

    def _final_places(self, episodes: Tensor) -> Tensor:
        return super()._final_places(episodes) & self._ring(episodes)


class GlobalActions(MemoryActions):
    """The one-step ablation: any sub-node of the memory, or stop; then walk there."""

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, options: WalkOptions | None = None
    ) -> None:
        super().__init__(world, episodes, max_decisions, options)
        self._then = torch.full((episodes,), STOP, device=world.device)  # the slot to take at the target

    def _deciding(self, active: Tensor) -> Tensor:
        """Those that are nowhere bound"""
        return active[(self._target[active] == NONE) & (self._decisions_left[active] > 0)]

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose; those at their node hop on; the others walk."""
        unbound = self.take_decision(active[self._target[active] == NONE])
        if len(unbound):
            choice = decide(self._request(pose, unbound))
            slots = self.world.neighbour.shape[1]
            stops = choice == self.memory.node.shape[1] * slots
            self._target[unbound] = torch.where(stops, self.memory.here[unbound], choice // slots)
            self._then[unbound] = torch.where(stops, STOP, choice % slots)
        action = torch.full_like(pose.viewpoint, STOP)
        arrived = self._at_target(active)
        action[arrived] = self._then[arrived]
        return action

    def _request(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """Options: slot k of node n is option n * K + k; the last one stops."""
        ways = self.open_ways(episodes).flatten(1)
        options = _with_last(ways, ways.new_ones(len(episodes)))
        viewpoints = self.world.neighbour[self.memory.node[episodes]].flatten(1)
        return DecisionRequest(GLOBAL, episodes, options, _with_last(viewpoints, pose.viewpoint[episodes]))


def _with_last(columns: Tensor, last: Tensor) -> Tensor:
    """columns: (M, O)  last: (M,)  ->  (M, O + 1)"""
    return torch.cat([columns, last.unsqueeze(1)], dim=1)
