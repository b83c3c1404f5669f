"""The Structured Scene Memory (paper, section 3.1): a graph of visited places per episode, as tensors.

A *node* is a visited place, a *sub-node* a neighbour of a node that can be seen and reached but has not been
visited, a *frontier* a node with at least one sub-node. Nodes are numbered in the order of their first visit.
Features and angles are not stored: they are looked up in the world's tables by viewpoint (Eqs. 3 and 4).

Shape letters: B episodes, M that have arrived, R memories that are decided with, N nodes, K candidate slots,
S node states (a node of one of the R memories), D visual columns, W any width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor

from scenemem.features.store import Environment
from scenemem.models.navigator import State, attend_panoramas, dots, masked_softmax
from scenemem.world.graph import NONE, World

WalkCost = Literal["metres", "hops"]
StateT = TypeVar("StateT", bound=State)


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


class SceneMemory:
    """The places that a batch of agents has seen.

    Args:
        world: the tables of the world; an episode only ever uses the rows of places it has visited.
        episodes: their number B.
        capacity: number of places N an episode can remember; one more is an ``IndexError``.
        walk_cost: whether shortest paths count ``metres`` or ``hops``.
        allow_revisits: ways to visited places stay open.
    """

    def __init__(
        self,
        world: World,
        episodes: int,
        capacity: int,
        *,
        walk_cost: WalkCost = "metres",
        allow_revisits: bool = False,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, got {capacity}; the start needs a place")
        device, slots = world.device, world.neighbour.shape[1]
        self.world = world
        self.walk_cost = walk_cost
        self.allow_revisits = allow_revisits
        self.node = torch.full((episodes, capacity), NONE, device=device)  # (B, N) viewpoint, -1 where empty
        self.count = torch.zeros(episodes, dtype=torch.long, device=device)  # (B,) nodes so far
        self.here = torch.zeros(episodes, dtype=torch.long, device=device)  # (B,) node the agent stands at
        self.edge = torch.zeros(episodes, capacity, capacity, dtype=torch.bool, device=device)  # (B, N, N)
        self.subnode = torch.zeros(episodes, capacity, slots, dtype=torch.bool, device=device)  # (B, N, K)
        # shortest known way from node to node: its length, and the node to walk to first
        self.walk = torch.full((episodes, capacity, capacity), torch.inf, device=device)  # (B, N, N)
        self.first = torch.full((episodes, capacity, capacity), NONE, device=device)  # (B, N, N)
        self.columns: dict[str, Tensor] = {}  # (B, N, W) what agents wrote at their nodes; 0 where nothing
        self.notes: dict[str, Tensor] = {}  # (B, W) numbers of the action space for agents, by name
        self._numbers = torch.arange(capacity, device=device)
        length = world.neighbour_length.to(self.walk.dtype)
        self._edge_length = length.masked_fill(length < torch.inf, 1.0) if walk_cost == "hops" else length

    @property
    def frontier(self) -> Tensor:
        """(B, N) bool, true at nodes with a sub-node."""
        return self.subnode.any(dim=-1)

    def open_ways(self, episodes: Tensor) -> Tensor:
        """The slots open at every node: its sub-nodes, or all with revisits  ->  (M, N, K) bool"""
        if not self.allow_revisits:
            return self.subnode[episodes]
        node = self.node[episodes]
        return self.world.neighbour_mask[node.clamp_min(0)] & (node != NONE).unsqueeze(-1)

    def visit(self, viewpoint: Tensor, episodes: Tensor) -> None:
        """The episodes now stand at ``viewpoint``; places not visited before become nodes.

        A new node is no sub-node any more, has edges to the nodes it is linked with, and its other neighbours
        are its sub-nodes. Writing a node again changes nothing, so all episodes are written alike.

        viewpoint: (M,) viewpoints  episodes: (M,), each at most once
        """
        visited, match = (self.node[episodes] == viewpoint.unsqueeze(1)).max(dim=1)
        spot = torch.where(visited, match, self.count[episodes])  # (M,) the node
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

    def recall(self, episodes: Tensor, counts: Tensor, environment: Environment) -> MemoryGraph:
        """The memories of some episodes as of now.  episodes: (R,)  counts: (R,) their nodes, on the host"""
        nodes = int(counts.max())
        row, node = (torch.arange(nodes) < counts.unsqueeze(1)).nonzero().to(episodes.device).unbind(1)
        here, viewpoint = self.here[episodes], self.node[episodes, :nodes]
        place, world = viewpoint[row, node], environment.world
        exists = world.neighbour_mask[place]
        leads_to = world.neighbour[place].unsqueeze(2) == viewpoint[row].unsqueeze(1)  # (S, K, N)
        return MemoryGraph(
            environment=environment,
            viewpoint=viewpoint,
            edge=self.edge[episodes, :nodes, :nodes],
            here=here,
            walk=self.walk[episodes, here, :nodes],
            open=self.open_ways(episodes)[:, :nodes],
            columns=dict(self.columns),  # parts that are recomputed read them again
            episode=episodes,
            notes={name: table.clone() for name, table in self.notes.items()},
            row=row,
            node=node,
            place=place,
            exists=exists,
            visited=leads_to.any(dim=2) & exists,
        )

    def remember_state(self, state: State, previous: Tensor, episodes: Tensor) -> None:
        """The states of some episodes, kept where they stand.  previous: (M,) where they came from"""
        for item in fields(state):
            values: Tensor = getattr(state, item.name)
            self.write(f"state {item.name}", values.unsqueeze(-1).flatten(1), episodes)
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
    place: Tensor  # (S,) its viewpoint
    exists: Tensor  # (S, K) bool, the candidate slots that hold a neighbour: the K_v navigable views
    visited: Tensor  # (S, K) bool, the candidate slots that lead to a visited place

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

    def candidates(self) -> Tensor:
        """(S, K, D) visual features f_{v,k} of the views along the candidate slots (Eq. 3), looked up anew"""
        views = self.environment.world.neighbour_view[self.place]
        return self.environment.store.gather_views(self.place.unsqueeze(1), views)

    def padded(self, states: Tensor) -> Tensor:
        """A table of all nodes, 0 where there is none.  (S, W)  ->  (R, N, W)"""
        table = states.new_zeros(*self.viewpoint.shape, states.shape[1])
        return table.index_put((self.row, self.node), states)

    def attend_slots(self, query: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """Attention of every memory over some candidate slots of each of its nodes; 0 where there is none.

        query: (R, W)  values: (S, K, W)  slots: (S, K) bool  ->  (S, W)
        """
        weights = masked_softmax(dots(values, query[self.row]), slots)
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1)

    def attend(self, query: Tensor) -> Tensor:
        """Attention of every memory over all 36 views of each of its nodes.  (R, D)  ->  (S, D)"""
        return attend_panoramas(query[self.row], self.place, self.environment)
