"""Action spaces: what an agent may choose at a step, and the walk that gets it there.

Every space works on episodes, one hop per episode and step: one that walks does not hold up one that decides.
Shape letters: B episodes, M episodes that decide, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scenemem.agents.rollout import (
    ACTION,
    FINAL,
    FRONTIER,
    GLOBAL,
    DecisionRequest,
    DecisionType,
    EpisodeIndex,
    to_device,
)
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
    further_requests = 0  # to an episode, beyond two for every decision it may take

    def __init__(self, world: World, episodes: int, max_decisions: Limit) -> None:
        self.world = world
        self.now = -1  # the step
        # (B,) the step whose observation made the current state
        self.state_step = torch.zeros(episodes, dtype=torch.long, device=world.device)
        self.notes: dict[str, Tensor] = {}  # (B, W) numbers for agents that decide over a memory, by name
        everyone = EpisodeIndex.of(torch.arange(episodes, device=world.device))
        self.active = everyone  # episodes that have just arrived somewhere
        self.renewed = everyone  # those of them whose observation makes a new state; others restore one
        self.decides = everyone  # episodes that may be asked for a decision at this step
        limit = torch.as_tensor(max_decisions).repeat(episodes)[:episodes]
        self._decisions_left: NDArray[np.int64] = limit.cpu().numpy().copy()

    @property
    def deciding(self) -> Tensor:
        """(M,) episodes that may be asked for a decision at this step"""
        return self.decides.index

    @deciding.setter
    def deciding(self, episodes: Tensor) -> None:
        self.decides = self._listed(episodes)

    def arrive(self, pose: Pose, active: Tensor) -> Pose:
        """The episodes ``active`` (M,) have arrived where ``pose`` says  ->  where they look from now on"""
        self.now += 1
        self.state_step.index_fill_(0, active, self.now)
        self.active = self.renewed = self._listed(active)
        return pose

    def _listed(self, episodes: Tensor) -> EpisodeIndex:
        """Episodes (M,) as a list; those that have just arrived are known to the host already."""
        return self.active if episodes is self.active.index else EpisodeIndex.of(episodes)

    @abstractmethod
    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Let the episodes decide what they have to decide  ->  (B,) slot to hop to, or STOP"""

    def take_decision(self, episodes: Tensor) -> Tensor:
        """Those that still may decide; a decision is taken from them.  (M,)  ->  (<= M,)"""
        return self._take_decision(self._listed(episodes)).index

    def _take_decision(self, episodes: EpisodeIndex) -> EpisodeIndex:
        taking = episodes.where(self._decisions_left[episodes.number] > 0)
        self._decisions_left[taking.number] -= 1
        return taking

    def candidates_or_stop(
        self,
        episodes: Tensor | EpisodeIndex,
        here: Tensor,
        open_slots: Tensor,
        may_stop: Tensor | None = None,
    ) -> DecisionRequest:
        """Options: the open candidate slots (M, K), then stop, unless ``may_stop`` (M,) forbids it."""
        listed = episodes if isinstance(episodes, EpisodeIndex) else self._listed(episodes)
        stop = open_slots.new_ones(len(listed)) if may_stop is None else may_stop
        viewpoint = _with_last(self.world.neighbour[here], here)
        return DecisionRequest(ACTION, listed.index, _with_last(open_slots, stop), viewpoint, listed)

    def as_action(self, choice: Tensor) -> Tensor:
        """An answer to ``candidates_or_stop`` as a slot or STOP."""
        return torch.where(choice == self.world.neighbour.shape[1], STOP, choice)


class LocalActions(ActionSpace):
    """The neighbours of here, or stop."""

    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        self.decides = self._take_decision(self._listed(active))
        if episodes := self.decides:
            here = pose.viewpoint[episodes.index]
            request = self.candidates_or_stop(episodes, here, self.open_slots(episodes.index, here))
            action[episodes.index] = self.as_action(decide(request))
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


@dataclass(frozen=True, eq=False)
class Turn:
    """What the host knows about the M episodes that stand somewhere at a step; learnt in one look."""

    episodes: EpisodeIndex
    bound: NDArray[np.bool_]  # (M,) on the way to a node, or just there
    there: NDArray[np.bool_]  # (M,) stand at the node they were bound for
    several: NDArray[np.bool_]  # (M,) can go on from more than one node
    frontiers: Tensor  # (M, N) bool, the nodes they can go on from

    def where(self, chosen: NDArray[np.bool_]) -> Turn:
        """Of those that are ``chosen`` (M,) only."""
        if chosen.all():
            return self
        rows = to_device(np.flatnonzero(chosen), self.frontiers.device)
        return Turn(
            self.episodes.where(chosen),
            self.bound[chosen],
            self.there[chosen],
            self.several[chosen],
            self.frontiers[rows],
        )


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
        most = int(self._decisions_left.max(initial=0))
        # every decision finds one place at most
        self.memory = SceneMemory(
            world, episodes, capacity=most + 1, walk_cost=options.walk_cost, check=False
        )
        self.restores = options.restore_state
        self.allow_revisits = options.allow_revisits
        self.final_backtrack = options.final_backtrack
        self._observed = torch.full_like(self.memory.node, NONE)  # (B, N) step of the last observation there
        self._view = torch.zeros_like(self.memory.node)  # (B, N) view faced then
        self._target = torch.full((episodes,), NONE, device=world.device)  # (B,) node to walk to; -1 for none
        self._ending = np.zeros(episodes, dtype=np.bool_)  # on the way to the final place
        # what the host knows of the memories: their nodes (B,) and edges (B, N, N)
        self.nodes_known = np.zeros(episodes, dtype=np.int64)
        self.edges_known = np.zeros(self.memory.edge.shape, dtype=np.bool_)
        self._turn: Turn | None = None

    def arrive(self, pose: Pose, active: Tensor) -> Pose:
        """Add the place to the memory, or restore what it was like there."""
        pose = super().arrive(pose, active)
        self.memory.visit(pose.viewpoint[active], active)
        here = self.memory.here[active]
        if not self.restores:
            self._turn = self._look(self.active, here, torch.ones_like(here, dtype=torch.bool))
            return pose
        observed = self._observed[active, here]
        new = observed == NONE
        if self.allow_revisits:
            new |= self._target[active] == NONE  # hopped here, and is not on the way back
        observed = observed.masked_fill(new, self.now)
        view = torch.where(new, pose.view[active], self._view[active, here])
        self._observed[active, here] = observed
        self._view[active, here] = view
        self.state_step.index_copy_(0, active, observed)
        self._turn = self._look(self.active, here, new)
        return replace(pose, view=pose.view.index_copy(0, active, view))

    def _look(self, episodes: EpisodeIndex, here: Tensor, new: Tensor) -> Turn:
        """The one time at a step that the host waits for what episodes (M,) have found.  here, new: (M,)"""
        active = episodes.index
        target, count = self._target[active], self.memory.count[active]
        frontiers = self._frontiers(active).scatter(1, here.unsqueeze(1), True)
        facts = [here, count, new, target != NONE, target == here, frontiers.sum(dim=1) > 1]
        told = torch.cat([torch.stack(facts, dim=1), self.memory.edge[active, here]], dim=1).cpu().numpy()
        node, self.nodes_known[episodes.number] = told[:, 0], told[:, 1]
        is_new, bound, there, several = told[:, 2:6].T > 0
        self.edges_known[episodes.number, node] = told[:, 6:]
        self.edges_known[episodes.number, :, node] = told[:, 6:]
        self.renewed = episodes.where(is_new)
        return Turn(episodes, bound, there, several, frontiers)

    def _turn_of(self, active: Tensor) -> Turn:
        """What is known about ``active`` (M,), all or some of those that have arrived."""
        turn = self._turn
        if turn is None:
            raise ValueError("episodes were asked to step before they had arrived anywhere")
        if active is not turn.episodes.index:
            self._turn = turn = turn.where(np.isin(turn.episodes.number, active.cpu().numpy()))
        return turn

    def open_ways(self, episodes: Tensor) -> Tensor:
        """The slots open at every node: its sub-nodes, or all with revisits  ->  (M, N, K) bool"""
        if not self.allow_revisits:
            return self.memory.subnode[episodes]
        node = self.memory.node[episodes]
        return self.world.neighbour_mask[node.clamp_min(0)] & (node != NONE).unsqueeze(-1)

    def _open_here(self, episodes: Tensor, viewpoint: Tensor) -> Tensor:
        """The slots open where episodes (M,) stand, at ``viewpoint`` (M,)  ->  (M, K) bool"""
        if self.allow_revisits:
            return self.world.neighbour_mask[viewpoint]
        return self.memory.subnode[episodes, self.memory.here[episodes]]

    def _frontiers(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, nodes with a sub-node"""
        return self.memory.subnode[episodes].any(dim=-1)

    def _may_decide(self, turn: Turn) -> NDArray[np.bool_]:
        """Those that are nowhere bound, or have got where they wanted to go  ->  (M,)"""
        number = turn.episodes.number
        unbound = ~turn.bound & (self._decisions_left[number] > 0)
        return (unbound | turn.there) & ~self._ending[number]

    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes decide as long as they may; then they go to the place to end at, and stop."""
        turn = self._turn_of(active)
        self.decides = turn.episodes.where(self._may_decide(turn))
        self._send_to_the_end(turn, decide)
        ending = self._ending[turn.episodes.number]
        self._turn = turn.where(~ending)
        action = self.choose(pose, self._turn.episodes.index, decide)
        if ending.any():  # who has got there stops
            last = turn.episodes.where(ending).index
            target = self._target[last]
            self._target[last] = target.masked_fill(target == self.memory.here[last], NONE)
        return self._walk_on(action, pose, active)

    @abstractmethod
    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Let episodes that are nowhere bound or have got there decide  ->  (B,) slot to hop to, or STOP"""

    def _exhausted(self, turn: Turn) -> NDArray[np.bool_]:
        """Those that have used up their decisions and are nowhere bound  ->  (M,)"""
        number = turn.episodes.number
        exhausted: NDArray[np.bool_] = self._decisions_left[number] == 0
        return exhausted & ~turn.bound & ~self._ending[number]

    def _send_to_the_end(self, turn: Turn, decide: Decide) -> None:
        """Exhausted episodes choose where to end, if there is a choice; others are cut off as they are."""
        exhausted = self._exhausted(turn)
        if not exhausted.any():
            return
        sent, options = self._final_places(turn.episodes.where(exhausted))
        if len(sent):
            self._target[sent.index] = decide(self._node_request(self._final_type, sent, options))
            self._ending[sent.number] = True

    _final_type = FINAL

    def _final_places(self, episodes: EpisodeIndex) -> tuple[EpisodeIndex, Tensor]:
        """The exhausted episodes that may choose where to end, and the nodes (R, N) bool they choose from"""
        if not self.final_backtrack:
            episodes = episodes.where(np.zeros(len(episodes), dtype=np.bool_))
        return episodes, self.memory.node[episodes.index] != NONE

    def _may_stop(self, episodes: Tensor, open_slots: Tensor) -> Tensor | None:
        """(M,) bool; None for always.  open_slots: (M, K)"""
        del episodes, open_slots
        return None

    def _node_request(self, kind: DecisionType, episodes: EpisodeIndex, options: Tensor) -> DecisionRequest:
        """Which of these nodes (M, N) to go to."""
        node = self.memory.node[episodes.index]
        return DecisionRequest(kind, episodes.index, options, node, episodes)

    def _at_target(self, episodes: EpisodeIndex, there: NDArray[np.bool_]) -> EpisodeIndex:
        """Those that are ``there`` (M,), where they wanted to go; they are nowhere bound any more."""
        arrived = episodes.where(there)
        self._target.index_fill_(0, arrived.index, NONE)
        return arrived

    def _walk_on(self, action: Tensor, pose: Pose, active: Tensor) -> Tensor:
        """``action`` with the next hop of every episode that is bound somewhere."""
        target = self._target[active]
        step = self.memory.towards(target.clamp_min(0), active)
        hop = self.world.slot_of(pose.viewpoint[active], step)
        action[active] = torch.where(target == NONE, action[active], hop)
        return action


class FrontierActions(MemoryActions):
    """The paper's two steps (section 3.3): a frontier of the memory, then one of its sub-nodes, or stop.

    The current node can always be chosen as the frontier, so that stopping is always possible.
    """

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose a frontier; those at their frontier a sub-node or stop."""
        turn = self._turn_of(active)
        there = self._choose_frontiers(turn, decide)
        action = torch.full_like(pose.viewpoint, STOP)
        if arrived := self._at_target(turn.episodes, there):
            here = pose.viewpoint[arrived.index]
            open_slots = self._open_here(arrived.index, here)
            may_stop = self._may_stop(arrived.index, open_slots)
            action[arrived.index] = self.as_action(
                decide(self.candidates_or_stop(arrived, here, open_slots, may_stop))
            )
        return action

    def _choose_frontiers(self, turn: Turn, decide: Decide) -> NDArray[np.bool_]:
        """Episodes that can only stay are not asked  ->  (M,) who stands at its frontier"""
        number = turn.episodes.number
        unbound = ~turn.bound & (self._decisions_left[number] > 0)
        self._decisions_left[number[unbound]] -= 1
        asked = unbound & turn.several
        if not asked.any():
            return turn.there | unbound
        several = turn.episodes.where(asked)
        rows = turn.episodes.rows_of(several)
        options = turn.frontiers if rows is None else turn.frontiers[rows]
        choice = decide(self._node_request(FRONTIER, several, options))
        self._target.index_copy_(0, several.index, choice)
        there = turn.there | unbound
        there[asked] = (choice == self.memory.here[several.index]).cpu().numpy()
        return there


class HopPrior(MemoryActions):
    """The hop prior hidden in the authors' released code: an option, off by default, reported on its own row.

    It encodes that R2R paths have 4 to 6 edges: stopping is possible only that many hops from the start, and
    an agent that never stopped is sent to its best-scored node in that ring. Hops are counted on the known
    graph.
    """

    NEAREST, FARTHEST = 4, 6

    def _may_stop(self, episodes: Tensor, open_slots: Tensor) -> Tensor | None:
        """(M,) bool, in the ring, or who can go nowhere else.  open_slots: (M, K)"""
        here = self.memory.here[episodes].unsqueeze(1)
        in_ring = self._ring(episodes).gather(1, here).squeeze(1)
        return in_ring | ~open_slots.any(dim=1)

    def _ring(self, episodes: Tensor) -> Tensor:
        """(M, N) bool, nodes at the distance where R2R paths end"""
        hops = self.memory.hops_from_start(episodes)
        return (hops >= self.NEAREST) & (hops <= self.FARTHEST)

    def _ring_to_end_in(self, episodes: EpisodeIndex) -> tuple[EpisodeIndex, Tensor]:
        """Those of ``episodes`` that know a node of the ring, and the nodes (R, N) bool of it"""
        ring = self._ring(episodes.index)
        sent = episodes.where(ring.any(dim=1).cpu().numpy())
        rows = episodes.rows_of(sent)
        return sent, ring if rows is None else ring[rows]


class HopPriorActions(HopPrior, FrontierActions):
    """The hop prior of the paper's agent: it also drops frontiers farther than 6 hops from the start."""

    _final_type = FRONTIER  # the best node of the ring is a frontier like any other

    def _may_decide(self, turn: Turn) -> NDArray[np.bool_]:
        """Also those that have used up their decisions: they are asked for a last frontier."""
        return super()._may_decide(turn) | self._exhausted(turn)

    def _final_places(self, episodes: EpisodeIndex) -> tuple[EpisodeIndex, Tensor]:
        return self._ring_to_end_in(episodes)

    def _frontiers(self, episodes: Tensor) -> Tensor:
        return super()._frontiers(episodes) & (self.memory.hops_from_start(episodes) <= self.FARTHEST)


class LocalMemoryActions(MemoryActions):
    """The neighbours of here, or stop; the memory says which of them are visited, and where walks may end."""

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Every episode that still may decide chooses a neighbour or stops."""
        action = torch.full_like(pose.viewpoint, STOP)
        if episodes := self._take_decision(self._turn_of(active).episodes):
            here = pose.viewpoint[episodes.index]
            open_slots = self._open_here(episodes.index, here)
            may_stop = self._may_stop(episodes.index, open_slots)
            action[episodes.index] = self.as_action(
                decide(self.candidates_or_stop(episodes, here, open_slots, may_stop))
            )
        return action


class HopPriorLocalActions(HopPrior, LocalMemoryActions):
    """The hop prior for agents that only see the neighbours of here."""

    def _final_places(self, episodes: EpisodeIndex) -> tuple[EpisodeIndex, Tensor]:
        return self._ring_to_end_in(episodes) if self.final_backtrack else super()._final_places(episodes)


class GlobalActions(MemoryActions):
    """The one-step ablation: any sub-node of the memory, or stop; then walk there."""

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, options: WalkOptions | None = None
    ) -> None:
        super().__init__(world, episodes, max_decisions, options)
        self._then = torch.full((episodes,), STOP, device=world.device)  # the slot to take at the target

    def _may_decide(self, turn: Turn) -> NDArray[np.bool_]:
        """Those that are nowhere bound"""
        return ~turn.bound & (self._decisions_left[turn.episodes.number] > 0)

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose; those at their node hop on; the others walk."""
        turn = self._turn_of(active)
        if unbound := self._take_decision(turn.episodes.where(~turn.bound)):
            choice = decide(self._request(pose, unbound))
            slots = self.world.neighbour.shape[1]
            stops = choice == self.memory.node.shape[1] * slots
            self._target[unbound.index] = torch.where(stops, self.memory.here[unbound.index], choice // slots)
            self._then[unbound.index] = torch.where(stops, STOP, choice % slots)
        target = self._target[active]
        arrived = target == self.memory.here[active]
        self._target[active] = target.masked_fill(arrived, NONE)
        action = torch.full_like(pose.viewpoint, STOP)
        action[active] = torch.where(arrived, self._then[active], STOP)
        return action

    def _request(self, pose: Pose, episodes: EpisodeIndex) -> DecisionRequest:
        """Options: slot k of node n is option n * K + k; the last one stops."""
        ways = self.open_ways(episodes.index).flatten(1)
        options = _with_last(ways, ways.new_ones(len(episodes)))
        viewpoints = self.world.neighbour[self.memory.node[episodes.index]].flatten(1)
        here = pose.viewpoint[episodes.index]
        return DecisionRequest(GLOBAL, episodes.index, options, _with_last(viewpoints, here), episodes)


def _with_last(columns: Tensor, last: Tensor) -> Tensor:
    """columns: (M, O)  last: (M,)  ->  (M, O + 1)"""
    return torch.cat([columns, last.unsqueeze(1)], dim=1)
