"""The Structured Scene Memory (paper, section 3.1): a graph of visited places per episode, as tensors.

A *node* is a visited place, a *sub-node* a neighbour of a node that can be seen and reached but has not been
visited, a *frontier* a node with at least one sub-node. Nodes are numbered in the order of their first visit.
Features and angles are not stored: they are looked up in the world's tables by viewpoint (Eqs. 3 and 4).

Shape letters: B episodes, R of them that decide, M that have arrived, N nodes, K candidate slots, S node
states (a node of one of the R memories), D visual columns, W any width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, Arrival, Decide, Limit
from scenemem.agents.rollout import FINAL, DecisionRequest, DecisionType
from scenemem.features.store import Environment
from scenemem.models.navigator import State, attend_panoramas, dots, masked_softmax
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import NONE, World

WalkCost = Literal["metres", "hops"]
StateT = TypeVar("StateT", bound=State)


class SceneMemory:
    """The places that a batch of agents has seen.

    Args:
        world: the tables of the world; an episode only ever uses the rows of places it has visited.
        episodes: their number B.
        capacity: number of places N an episode can remember.
        walk_cost: whether shortest paths count ``metres`` or ``hops``.
        check: refuse a place too many; costs a look at the device per visit.
    """

    def __init__(
        self,
        world: World,
        episodes: int,
        capacity: int,
        *,
        walk_cost: WalkCost = "metres",
        check: bool = True,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, got {capacity}; the start needs a place")
        device, slots = world.device, world.neighbour.shape[1]
        self.world = world
        self.walk_cost = walk_cost
        self.check = check
        self.node = torch.full((episodes, capacity), NONE, device=device)  # (B, N) viewpoint, -1 where empty
        self.count = torch.zeros(episodes, dtype=torch.long, device=device)  # (B,) nodes so far
        self.here = torch.zeros(episodes, dtype=torch.long, device=device)  # (B,) node the agent stands at
        self.edge = torch.zeros(episodes, capacity, capacity, dtype=torch.bool, device=device)  # (B, N, N)
        self.subnode = torch.zeros(episodes, capacity, slots, dtype=torch.bool, device=device)  # (B, N, K)
        # shortest known way from node to node: its length, and the node to walk to first
        self.walk = torch.full((episodes, capacity, capacity), torch.inf, device=device)  # (B, N, N)
        self.first = torch.full((episodes, capacity, capacity), NONE, device=device)  # (B, N, N)
        self.columns: dict[str, Tensor] = {}  # (B, N, W) what agents wrote at their nodes; 0 where nothing
        self._numbers = torch.arange(capacity, device=device)
        length = world.neighbour_length.to(self.walk.dtype)
        self._edge_length = length.masked_fill(length < torch.inf, 1.0) if walk_cost == "hops" else length

    @property
    def known(self) -> Tensor:
        """(B, N) bool, true at nodes that exist."""
        return self.node != NONE

    @property
    def frontier(self) -> Tensor:
        """(B, N) bool, true at nodes with a sub-node."""
        return self.subnode.any(dim=-1)

    def visit(self, viewpoint: Tensor, episodes: Tensor) -> None:
        """The episodes now stand at ``viewpoint``; places not visited before become nodes.

        A new node is no sub-node any more, has edges to the nodes it is linked with, and its other neighbours
        are its sub-nodes. Writing a node again changes nothing, so all episodes are written alike.

        viewpoint: (M,) viewpoints  episodes: (M,), each at most once

        Raises:
            ValueError: with ``check``, a memory is full.
        """
        visited, match = (self.node[episodes] == viewpoint.unsqueeze(1)).max(dim=1)
        spot = torch.where(visited, match, self.count[episodes])  # (M,) the node
        if self.check and int(spot.max()) >= self.node.shape[1]:
            raise ValueError(f"the memory is full: it was built for {self.node.shape[1]} places")
        self.here[episodes] = spot
        self.count[episodes] = torch.maximum(self.count[episodes], spot + 1)
        self.node[episodes, spot] = viewpoint
        node = self.node[episodes]  # (M, N)
        length = self._edge_length[viewpoint]  # (M, K), inf where there is no edge
        link = self.world.neighbour[viewpoint].unsqueeze(2) == node.unsqueeze(1)  # (M, K, N)
        to_node = torch.where(link, length.unsqueeze(2), torch.inf).amin(dim=1)  # (M, N)
        self.edge[episodes, spot] = to_node < torch.inf
        self.edge[episodes, :, spot] = to_node < torch.inf
        elsewhere = self.world.neighbour[node] != viewpoint[:, None, None]  # (M, N, K)
        self.subnode[episodes] = self.subnode[episodes] & elsewhere
        self.subnode[episodes, spot] = (length < torch.inf) & ~link.any(dim=2)
        self._extend_ways(episodes, spot, to_node.masked_fill(visited.unsqueeze(1), torch.inf))

    def _extend_ways(self, episodes: Tensor, spot: Tensor, length: Tensor) -> None:
        """Shortest ways after one more node: to it through its neighbours, and between others through it.

        episodes, spot: (M,)  length: (M, N) of the new node's edges; inf everywhere where there is none
        """
        walk, first = self.walk[episodes], self.first[episodes]  # (M, N, N)
        new = self._numbers == spot.unsqueeze(1)  # (M, N)
        # (M, N): from the new node to every node, and by which neighbour first
        way, gate = (length.unsqueeze(2) + walk).min(dim=1)
        # the way back leaves a node as the way to its gate does; the gate goes straight to the new node
        back = first.gather(2, gate.unsqueeze(2)).squeeze(2)
        back = torch.where(gate == self._numbers, spot.unsqueeze(1), back)
        way = way.masked_fill(new, 0.0)
        detour = way.unsqueeze(2) + way.unsqueeze(1)  # over the new node; from it and to it are ways as well
        leave = torch.where(new.unsqueeze(2), gate.masked_fill(new, NONE).unsqueeze(1), back.unsqueeze(2))
        self.first[episodes] = torch.where(detour < walk, leave, first)
        self.walk[episodes] = torch.minimum(walk, detour)

    def towards(self, target: Tensor) -> Tensor:
        """The viewpoint to hop to next on the shortest known way to a node; here itself when there.

        target: (B,) nodes  ->  (B,) viewpoints
        """
        row = torch.arange(len(target), device=target.device)
        step = self.first[row, self.here, target]
        return self.node[row, torch.where(step == NONE, self.here, step)]

    def write(self, name: str, values: Tensor, episodes: Tensor) -> None:
        """Write a column at the node each episode stands at; its gradient is kept.

        values: (M, W)  episodes: (M,)
        """
        table = self.columns.get(name)
        if table is None:
            table = values.new_zeros(*self.node.shape, values.shape[1])
        place = (episodes, self.here[episodes])
        # in place, a table could not be differentiated
        self.columns[name] = (table.index_put if torch.is_grad_enabled() else table.index_put_)(place, values)

    def remember_state(self, state: State, previous: Tensor, episodes: Tensor) -> None:
        """The states of some episodes, kept where they stand.  previous: (M,) where they came from"""
        for item in fields(state):
            values: Tensor = getattr(state, item.name)
            self.write(
                f"state {item.name}", values.flatten(1) if values.dim() > 1 else values[:, None], episodes
            )
        self.write("state previous", previous.unsqueeze(1), episodes)

    def remembered_state(self, like: StateT, episodes: Tensor) -> tuple[StateT, Tensor]:
        """The states that episodes (R,) had where they stand now, in the form of ``like``; and previous."""
        here = self.here[episodes]
        columns = (
            self.columns[f"state {item.name}"][episodes, here].view(-1, *getattr(like, item.name).shape[1:])
            for item in fields(like)
        )
        return type(like)(*columns), self.columns["state previous"][episodes, here].squeeze(1)


@dataclass(frozen=True, eq=False)
class MemoryGraph:
    """What R memories hold when their agents decide; tables have the nodes of the largest.

    Node states stand one after the other, memory by memory (S rows): nothing is computed for padding.
    """

    environment: Environment
    viewpoint: Tensor  # (R, N) of every node, -1 where there is none
    edge: Tensor  # (R, N, N) bool, edges between visited places
    here: Tensor  # (R,) the node the agent stands at
    walk: Tensor  # (R, N) length of the known way to every node, metres or hops; inf where there is none
    open: Tensor  # (R, N, K) bool, the ways that may be taken: the sub-nodes, or all with revisits
    columns: dict[str, Tensor]  # (B, N', W) what agents wrote at their nodes
    episode: Tensor  # (R,) rows of the columns
    notes: dict[str, Tensor]  # (B, W) what the action space noted
    row: Tensor  # (S,) the memory of every node state
    node: Tensor  # (S,) its node

    @cached_property
    def count(self) -> Tensor:
        """(R,) nodes"""
        return (self.viewpoint != NONE).sum(dim=1)

    def column(self, name: str) -> Tensor:
        """What the agent's ``node_features`` wrote at each node on its last visit  ->  (R, N, W)"""
        return self.columns[name][self.episode, : self.viewpoint.shape[1]]

    def ways(self, name: str, row: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        """Of a column (X, K * W) that holds something of every candidate slot, that of some of them.

        row, node, slot: (E,)  ->  (E, W)
        """
        column = self.column(name)
        return column.view(*column.shape[:2], self.open.shape[2], -1)[row, node, slot]

    def note(self, name: str) -> Tensor:
        """What the action space noted when the agent had arrived here  ->  (R, W)"""
        if name not in self.notes:
            made = ", ".join(self.notes) or "none"
            raise TypeError(f"there is no note '{name}'; this action space makes: {made}")
        return self.notes[name][self.episode]

    @cached_property
    def place(self) -> Tensor:
        """(S,) the viewpoint of every node state"""
        return self.viewpoint[self.row, self.node]

    @cached_property
    def exists(self) -> Tensor:
        """(S, K) bool, the candidate slots that are edges of the world: the K_v navigable viewpoints"""
        return self.environment.world.neighbour_mask[self.place]

    @cached_property
    def visited(self) -> Tensor:
        """(S, K) bool, the candidate slots that lead to a visited place"""
        leads_to = self.environment.world.neighbour[self.place].unsqueeze(2)
        return (leads_to == self.viewpoint[self.row].unsqueeze(1)).any(dim=2) & self.exists

    @cached_property
    def directions(self) -> Tensor:
        """(S, K, 4) absolute orientation features r_{v,u} of the candidate slots (Eq. 4)"""
        return self.environment.directions[self.place]

    def candidates(self) -> Tensor:
        """(S, K, D) visual features f_{v,k} of the views along the candidate slots (Eq. 3), looked up anew"""
        views = self.environment.world.neighbour_view[self.place]
        return self.environment.store.gather_views(self.place.unsqueeze(1), views)

    def padded(self, states: Tensor) -> Tensor:
        """A table of all nodes, 0 where there is none.  (S, W)  ->  (R, N, W)"""
        table = states.new_zeros(*self.viewpoint.shape, states.shape[1])
        return table.index_put((self.row, self.node), states)

    def neighbour_sum(self, states: Tensor) -> Tensor:
        """The sum over each node's neighbours; 0 where there is none.  (S, W)  ->  (S, W)"""
        summed = torch.bmm(self.edge.to(states), self.padded(states))
        return summed[self.row, self.node]

    def attend_slots(self, query: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """Attention of every memory over some candidate slots of each of its nodes; 0 where there is none.

        query: (R, W)  values: (S, K, W)  slots: (S, K) bool  ->  (S, W)
        """
        weights = masked_softmax(dots(values, query[self.row]), slots)
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1)

    def attend(self, query: Tensor) -> Tensor:
        """Attention of every memory over all 36 views of each of its nodes.  (R, D)  ->  (S, D)"""
        return attend_panoramas(query[self.row], self.place, self.environment)


@dataclass(frozen=True)
class WalkOptions:
    """How agents walk over their memory."""

    walk_cost: WalkCost = "metres"
    """what the shortest way over the memory counts"""
    restore_state: bool = False
    """an agent that jumps back to a place looks the way it looked there, and has the state it had there"""
    final_backtrack: bool = False
    """when the decision budget is used up, choose the visited place to end at and walk there"""
    allow_revisits: bool = False
    """visited neighbours can be chosen like unvisited ones; a hop to one observes it anew"""


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
        # every decision finds one place at most
        capacity = 1 + int(self.decisions_left.max()) if episodes else 1
        self.memory = SceneMemory(world, episodes, capacity, walk_cost=options.walk_cost, check=False)
        self.restores = options.restore_state
        self.allow_revisits = options.allow_revisits
        self.final_backtrack = options.final_backtrack
        self.notes: dict[str, Tensor] = {}  # (B, W) numbers for agents that decide over a memory, by name
        self.target = torch.full((episodes,), NONE, device=world.device)  # (B,) node to walk to; -1 for none
        self.ending = torch.zeros(
            episodes, dtype=torch.bool, device=world.device
        )  # on the way to a final place
        self._seen = torch.zeros_like(self.memory.node, dtype=torch.bool)  # (B, N) observed there
        self._view = torch.zeros_like(self.memory.node)  # (B, N) view faced then
        # (B, N) log-probability of stopping there; the lowest where nothing was decided
        self._stop_scores = torch.full_like(self.memory.walk[:, 0], torch.finfo(torch.float32).min)

    def arrive(self, pose: Pose, episodes: Tensor, goes_on: Tensor) -> tuple[Pose, Arrival]:
        """Add the places to the memory, or turn to what was seen there."""
        memory = self.memory
        memory.visit(pose.viewpoint[episodes], episodes)
        here = memory.here[episodes]
        new = torch.ones_like(here, dtype=torch.bool)
        if self.restores:
            new = ~self._seen[episodes, here]
            if self.allow_revisits:
                new |= self.target[episodes] == NONE  # hopped here, and is not on the way back
            view = torch.where(new, pose.view[episodes], self._view[episodes, here])
            self._seen[episodes, here] = True
            self._view[episodes, here] = view
            pose = Pose(pose.viewpoint, pose.view.index_copy(0, episodes, view), pose.done)
        self.settle(episodes)
        facts = torch.stack([new.long(), self.may_decide(episodes).long(), memory.count[episodes]]).cpu()
        may, returned = (facts[1] > 0) & goes_on, (facts[0] == 0).nonzero().squeeze(1)
        deciding = may.nonzero().squeeze(1).to(here.device)
        back = returned.to(here.device) if len(returned) else None
        return pose, Arrival(episodes, deciding, facts[2, may], back)

    def settle(self, episodes: Tensor) -> None:
        """A hook for spaces that keep account of where episodes (M,) have just arrived."""

    def may_decide(self, episodes: Tensor) -> Tensor:
        """Episodes that are nowhere bound and have decisions left, or have got where they were bound.

        episodes: (M,)  ->  (M,) bool
        """
        target = self.target[episodes]
        free = (target == NONE) & ((self.decisions_left[episodes] > 0) | self.final_backtrack)
        return (free | (target == self.memory.here[episodes])) & ~self.ending[episodes]

    def recall(self, arrival: Arrival, environment: Environment) -> MemoryGraph:
        """The memories of the episodes that decide."""
        assert arrival.nodes is not None  # made by arrive
        memory, episodes, device = self.memory, arrival.episodes[arrival.deciding], self.world.device
        nodes = int(arrival.nodes.max())
        row, node = (torch.arange(nodes) < arrival.nodes.unsqueeze(1)).nonzero().to(device).unbind(1)
        here = memory.here[episodes]
        return MemoryGraph(
            environment=environment,
            viewpoint=memory.node[episodes, :nodes],
            edge=memory.edge[episodes, :nodes, :nodes],
            here=here,
            walk=memory.walk[episodes, here, :nodes],
            open=self.open_ways(episodes)[:, :nodes],
            columns=dict(memory.columns),  # as of now: parts that are recomputed read them again
            episode=episodes,
            notes={name: table.clone() for name, table in self.notes.items()},
            row=row,
            node=node,
        )

    def open_ways(self, episodes: Tensor) -> Tensor:
        """The slots open at every node: its sub-nodes, or all with revisits  ->  (M, N, K) bool"""
        if not self.allow_revisits:
            return self.memory.subnode[episodes]
        node = self.memory.node[episodes]
        return self.world.neighbour_mask[node.clamp_min(0)] & (node != NONE).unsqueeze(-1)

    def open_here(self, episodes: Tensor) -> Tensor:
        """The slots open where episodes (M,) stand  ->  (M, K) bool"""
        here = self.memory.here[episodes]
        if not self.allow_revisits:
            return self.memory.subnode[episodes, here]
        return self.world.neighbour_mask[self.memory.node[episodes, here]]

    def may_stop(self, episodes: Tensor, open_slots: Tensor) -> Tensor | None:
        """(M,) bool; None for always.  open_slots: (M, K)"""
        del episodes, open_slots
        return None

    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Episodes decide as long as they may; then they go to the place to end at, and stop."""
        episodes = self._send_to_the_end(episodes, decide)
        action = torch.full_like(pose.viewpoint, STOP)
        if len(episodes):
            action = self.choose(pose, action, episodes, decide)
        return self.walk_on(pose, action)

    @abstractmethod
    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Let episodes (R,) decide  ->  ``action`` (B,) with their slots to hop to; others have a target"""

    def walk_on(self, pose: Pose, action: Tensor) -> Tensor:
        """``action`` with the next hop of episodes that are bound somewhere; at a final place they stop."""
        bound = (self.target != NONE) & (self.target != self.memory.here)
        hop = self.world.slot_of(pose.viewpoint, self.memory.towards(self.target.clamp_min(0)))
        return torch.where(bound, hop, action)

    def choose_neighbour(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """One of the open neighbours of here, or stop (Eq. 14)  ->  ``action`` with the answers"""
        open_slots = self.open_here(episodes)
        may_stop = self.may_stop(episodes, open_slots)
        request = self.candidates_or_stop(episodes, pose.viewpoint[episodes], open_slots, may_stop)
        return action.index_copy(0, episodes, self.as_action(decide(request)))

    def node_request(self, kind: DecisionType, episodes: Tensor, options: Tensor) -> DecisionRequest:
        """Which of these nodes (R, N) to go to."""
        return DecisionRequest(kind, episodes, options, self.memory.node[episodes])

    final_type = FINAL

    def final_places(self, episodes: Tensor) -> Tensor:
        """The nodes at which exhausted episodes may end  ->  (R, N) bool"""
        return self.memory.node[episodes] != NONE

    def _send_to_the_end(self, episodes: Tensor, decide: Decide) -> Tensor:
        """Exhausted episodes choose where to end; without a choice they are cut off  ->  the rest"""
        if not self.final_backtrack:
            return episodes
        exhausted = (self.decisions_left[episodes] == 0) & (self.target[episodes] == NONE)
        self.end_at(episodes[exhausted], decide)
        return episodes[~exhausted]

    def end_at(self, episodes: Tensor, decide: Decide) -> None:
        """Let episodes choose the place where they end."""
        options = self.final_places(episodes)
        sent = episodes[options.any(dim=1)]
        if len(sent):
            request = self.node_request(self.final_type, sent, options[options.any(dim=1)])
            if not self.final_type.learned:  # a walk ends where stopping was likeliest
                request = replace(request, scores=self._stop_scores[sent])
            self.target[sent] = decide(request)
            self.ending[sent] = True

    def answered(self, request: DecisionRequest, logits: Tensor) -> None:
        """Note how likely stopping was where the episodes stand.  logits: (M, O)"""
        if self.final_backtrack and not request.type.over_nodes:
            likely = logits.log_softmax(dim=-1)[:, -1].to(self._stop_scores)
            self._stop_scores[request.episode, self.memory.here[request.episode]] = likely
