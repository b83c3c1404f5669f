"""Action spaces: what an agent may choose each round, and the walk that gets it there.

Every space works on lanes, one hop per lane and tick: a lane that walks does not hold up one that decides.
Shape letters: B lanes, M lanes asked, N remembered places, K neighbour slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from scenemem.agents.rollout import Kind, Question
from scenemem.memory.scene_memory import SceneMemory, Weights
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import NONE, World

Ask = Callable[[Question], Tensor]
"""Answers a question with the chosen option of every lane asked: (M,)."""


Rounds = int | Tensor
"""How often lanes may decide: one number, or (B,)."""


class ActionSpace(ABC):
    """What can be chosen, and how a choice becomes hops.

    Args:
        world: the world to walk in.
        lanes: number of lanes B.
        rounds: a lane that has decided this often is cut off where it stands; one number, or (B,).
    """

    memory: SceneMemory | None = None
    recalls = False  # whether lanes have the state again that they had at a place when they come back to it
    revisits = True  # whether lanes may hop to places where they have been before

    def __init__(self, world: World, lanes: int, rounds: Rounds) -> None:
        self.world = world
        self.now = -1  # the tick
        self.seen = torch.zeros(lanes, dtype=torch.long, device=world.device)  # tick that made the states
        self._rounds_left = torch.as_tensor(rounds, device=world.device).repeat(lanes)[:lanes]

    def arrive(self, pose: Pose, lanes: Tensor) -> Pose:
        """Lanes ``lanes`` (M,) have just arrived where ``pose`` says  ->  where they look from now on"""
        self.now += 1
        self.seen[lanes] = self.now
        return pose

    def newcomers(self, lanes: Tensor) -> Tensor:
        """Those of ``lanes`` (M,) that see something new"""
        return lanes[self.seen[lanes] == self.now] if self.recalls else lanes

    @abstractmethod
    def tick(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Let ``lanes`` decide what they have to decide  ->  (B,) slot to hop to, or STOP"""

    def _begin_round(self, lanes: Tensor) -> Tensor:
        """The lanes that still have a round left; it is taken from them  ->  (<= M,)"""
        lanes = lanes[self._rounds_left[lanes] > 0]
        self._rounds_left[lanes] -= 1
        return lanes

    def _neighbours_or_stop(
        self, lanes: Tensor, here: Tensor, open_slots: Tensor, may_stop: Tensor | None = None
    ) -> Question:
        """Options: the open neighbour slots (M, K), then stop, unless ``may_stop`` (M,) forbids it."""
        options = _with_last(open_slots, open_slots.new_ones(len(lanes)) if may_stop is None else may_stop)
        return Question("action", lanes, options, _with_last(self.world.neighbour[here], here))

    def _as_action(self, choice: Tensor) -> Tensor:
        """An answer to ``_neighbours_or_stop`` as a slot or STOP."""
        return torch.where(choice == self.world.neighbour.shape[1], STOP, choice)


class LocalSpace(ActionSpace):
    """The neighbours of here, or stop."""

    def tick(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Every lane chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        asked = self._begin_round(lanes)
        if len(asked):
            here = pose.viewpoint[asked]
            question = self._neighbours_or_stop(asked, here, self.world.neighbour_mask[here])
            action[asked] = self._as_action(ask(question))
        return action


class MemorySpace(ActionSpace):
    """A space with a memory: choices may lie far away and are walked to over known edges.

    Args:
        world: the world to walk in.
        lanes: number of lanes B.
        rounds: a lane that has decided this often is cut off where it stands; one number, or (B,).
        weights: what the shortest way over the memory counts.
        recalls: a lane that jumps back to a place looks the way it looked there, and takes up the state it
            had; it learns nothing new on the way.
        goes_back: a lane that has used up its rounds is not cut off: it is asked for the visited place to end
            at, and walks there.
        revisits: visited neighbours can be chosen like unvisited ones; who hops to one sees it anew.
    """

    memory: SceneMemory

    def __init__(
        self,
        world: World,
        lanes: int,
        rounds: Rounds,
        weights: Weights = "metres",
        *,
        recalls: bool = False,
        goes_back: bool = False,
        revisits: bool = False,
    ) -> None:
        super().__init__(world, lanes, rounds)
        most = int(self._rounds_left.max()) if lanes else 0
        self.memory = SceneMemory(world, lanes, capacity=most + 1, weights=weights)
        self.recalls = recalls
        self.goes_back = goes_back
        self.revisits = revisits
        self._saw = torch.full_like(self.memory.node, NONE)  # (B, N) tick at which the place was seen last
        self._view = torch.zeros_like(self.memory.node)  # (B, N) view faced then
        self._target = torch.full((lanes,), NONE, device=world.device)  # node a lane walks to; -1 for none
        # (B,) on the way to the last place
        self._ending = torch.zeros(lanes, dtype=torch.bool, device=world.device)

    def arrive(self, pose: Pose, lanes: Tensor) -> Pose:
        """Remember the place, or recall it."""
        pose = super().arrive(pose, lanes)
        self.memory.visit(pose.viewpoint[lanes], lanes)
        if not self.recalls:
            return pose
        node = self.memory.here[lanes]
        new = self._saw[lanes, node] == NONE
        if self.revisits:
            new |= self._target[lanes] == NONE  # hopped here, and is not on the way back
        self._saw[lanes[new], node[new]] = self.now
        self._view[lanes[new], node[new]] = pose.view[lanes[new]]
        self.seen[lanes] = self._saw[lanes, node]
        return replace(pose, view=pose.view.index_copy(0, lanes, self._view[lanes, node]))

    def ways(self, lanes: Tensor) -> Tensor:
        """The neighbour slots that may be taken at every node: its sub-nodes, or all  ->  (M, N, K) bool"""
        if not self.revisits:
            return self.memory.subnode[lanes]
        node = self.memory.node[lanes]
        return self.world.neighbour_mask[node.clamp_min(0)] & (node != NONE).unsqueeze(-1)

    def _ways_from_here(self, lanes: Tensor) -> Tensor:
        """(M, K) bool"""
        rows = torch.arange(len(lanes), device=lanes.device)
        return self.ways(lanes)[rows, self.memory.here[lanes]]

    def tick(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Lanes decide as long as they have rounds; then they go to the place to end at, and stop."""
        self._send_to_the_end(lanes, ask)
        action = self._decide(pose, lanes[~self._ending[lanes]], ask)
        self._at_target(lanes[self._ending[lanes]])  # who has got there stops
        return self._walk_on(action, pose, lanes)

    @abstractmethod
    def _decide(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Let lanes that have nowhere to go or have got there decide  ->  (B,) slot to hop to, or STOP"""

    def _send_to_the_end(self, lanes: Tensor, ask: Ask) -> None:
        """Lanes without rounds choose where to end, if there is a choice; others are cut off as they are."""
        tired = lanes[(self._rounds_left[lanes] == 0) & (self._target[lanes] == NONE) & ~self._ending[lanes]]
        if not len(tired):
            return
        options = self._last_places(tired)
        possible = options.any(dim=1)
        if bool(possible.any()):
            sent = tired[possible]
            self._target[sent] = ask(self._last_question(sent, options[possible]))
            self._ending[sent] = True

    def _last_places(self, lanes: Tensor) -> Tensor:
        """(M, N) bool, where lanes without rounds may end"""
        known = self.memory.node[lanes] != NONE
        return known if self.goes_back else torch.zeros_like(known)

    def _last_question(self, lanes: Tensor, options: Tensor) -> Question:
        return self._which_node("last", lanes, options)

    def _which_node(self, kind: Kind, lanes: Tensor, options: Tensor) -> Question:
        """Which of these nodes (M, N) to go to."""
        walk = self.memory.walk[lanes, self.memory.here[lanes]]
        return Question(kind, lanes, options, self.memory.node[lanes], walk)

    def _at_target(self, lanes: Tensor) -> Tensor:
        """The lanes that stand where they wanted to go; they are nowhere bound any more  ->  (<= M,)"""
        arrived = lanes[self._target[lanes] == self.memory.here[lanes]]
        self._target[arrived] = NONE
        return arrived

    def _walk_on(self, action: Tensor, pose: Pose, lanes: Tensor) -> Tensor:
        """``action`` with the next hop of every lane that is bound somewhere."""
        walking = lanes[self._target[lanes] != NONE]
        step = self.memory.towards(self._target[walking], walking)
        action[walking] = self.world.slot_of(pose.viewpoint[walking], step)
        return action


class FrontierSpace(MemorySpace):
    """The paper's two steps (section 3.3): a frontier of the memory, then one of its sub-nodes, or stop.

    The current node can always be chosen as the frontier, so that stopping is always possible.
    """

    def _decide(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Lanes that are nowhere bound choose a frontier; lanes at their frontier a sub-node or stop."""
        asked = self._begin_round(lanes[self._target[lanes] == NONE])
        self._target[asked] = self._chosen_frontiers(asked, ask)
        action = torch.full_like(pose.viewpoint, STOP)
        arrived = self._at_target(lanes)
        if len(arrived):
            open_slots = self._ways_from_here(arrived)
            question = self._neighbours_or_stop(
                arrived, pose.viewpoint[arrived], open_slots, self._may_stop(arrived, open_slots)
            )
            action[arrived] = self._as_action(ask(question))
        return action

    def _chosen_frontiers(self, lanes: Tensor, ask: Ask) -> Tensor:
        """(M,) nodes; lanes that can only stay are not asked"""
        chosen = self.memory.here[lanes]
        options = self._frontiers(lanes).scatter(1, chosen.unsqueeze(1), True)
        several = options.sum(dim=1) > 1
        if bool(several.any()):
            chosen[several] = ask(self._which_node("frontier", lanes[several], options[several]))
        return chosen

    def _frontiers(self, lanes: Tensor) -> Tensor:
        """(M, N) bool, nodes with a sub-node"""
        return self.memory.frontier[lanes]

    def _may_stop(self, lanes: Tensor, open_slots: Tensor) -> Tensor:
        """(M,) bool, always; open_slots: (M, K)"""
        del lanes
        return open_slots.new_ones(len(open_slots))


class AnywhereSpace(MemorySpace):
    """The one-step ablation: any sub-node on the map, or stop; then walk there."""

    def __init__(
        self, world: World, lanes: int, rounds: Rounds, weights: Weights = "metres", **habits: bool
    ) -> None:
        super().__init__(world, lanes, rounds, weights, **habits)
        self._then = torch.full((lanes,), STOP, device=world.device)  # the slot to take at the target

    def _decide(self, pose: Pose, lanes: Tensor, ask: Ask) -> Tensor:
        """Lanes that are nowhere bound choose; lanes at their node hop on; the others walk."""
        asked = self._begin_round(lanes[self._target[lanes] == NONE])
        if len(asked):
            choice = ask(self._question(pose, asked))
            slots = self.world.neighbour.shape[1]
            stops = choice == self.memory.node.shape[1] * slots
            self._target[asked] = torch.where(stops, self.memory.here[asked], choice // slots)
            self._then[asked] = torch.where(stops, STOP, choice % slots)
        action = torch.full_like(pose.viewpoint, STOP)
        arrived = self._at_target(lanes)
        action[arrived] = self._then[arrived]
        return action

    def _question(self, pose: Pose, lanes: Tensor) -> Question:
        """Options: slot k of node n is option n * K + k; the last one stops."""
        ways = self.ways(lanes).flatten(1)
        options = _with_last(ways, ways.new_ones(len(lanes)))
        places = self.world.neighbour[self.memory.node[lanes]].flatten(1)
        return Question("anywhere", lanes, options, _with_last(places, pose.viewpoint[lanes]))


def with_memory(space: ActionSpace) -> MemorySpace:
    """A space that must have a memory."""
    if not isinstance(space, MemorySpace):
        raise TypeError(f"{type(space).__name__} has no memory, but this is decided over one")
    return space


def _with_last(columns: Tensor, last: Tensor) -> Tensor:
    """columns: (M, O)  last: (M,)  ->  (M, O + 1)"""
    return torch.cat([columns, last.unsqueeze(1)], dim=1)
