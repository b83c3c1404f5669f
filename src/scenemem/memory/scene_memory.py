"""The Structured Scene Memory (paper, section 3.1): a graph of visited places per episode, as tensors.

Shape letters: B episodes, R some of them, N places an episode can remember, K candidate slots of the world.

A *node* is a visited place, a *sub-node* a neighbour of a node that can be seen and reached but has not been
visited, a *frontier* a node with at least one sub-node. Nodes are numbered in the order of their first visit.
Angles and features are not stored: they are looked up in the world's tables by viewpoint. Agents may write
named columns at the node they stand at, and read them at every node later.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from scenemem.world.graph import NONE, World, view_heading

WalkCost = Literal["metres", "hops"]


class SceneMemory:
    """What a batch of agents knows about the places they have seen.

    Args:
        world: the tables of the world; an episode only ever uses the rows of places it has visited.
        episodes: their number B.
        capacity: number of places N an episode can remember.
        walk_cost: whether shortest paths count ``metres`` or ``hops``.
        check: refuse a place too many; costs a look at the device per visit, so who cannot visit more turns
            it off.
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
        self._nodes = torch.arange(capacity, device=device)
        length = world.neighbour_length.to(self.walk.dtype)
        self._edge_length = length.masked_fill(length < torch.inf, 1.0) if walk_cost == "hops" else length
        self.columns: dict[str, Tensor] = {}  # (B, N, W) what agents wrote at their nodes; 0 where nothing

    @property
    def known(self) -> Tensor:
        """(B, N) bool, true at nodes that exist."""
        return self.node != NONE

    @property
    def frontier(self) -> Tensor:
        """(B, N) bool, true at nodes with a sub-node."""
        return self.subnode.any(dim=-1)

    def hops_from_start(self, episodes: Tensor) -> Tensor:
        """Edges between the start and every node of ``episodes``, over the known graph; -1 where no node is.

        episodes: (R,)  ->  (R, N)
        """
        edge = self.edge[episodes].float()
        reached = torch.zeros_like(self.known[episodes])
        reached[:, 0] = True
        hops = torch.where(reached, 0, NONE)
        for step in range(1, edge.shape[1]):
            fresh = (torch.bmm(reached.float().unsqueeze(1), edge).squeeze(1) > 0) & ~reached
            hops = torch.where(fresh, step, hops)
            reached = reached | fresh
        return hops

    def towards(self, target: Tensor, episodes: Tensor) -> Tensor:
        """The viewpoint to hop to next on the shortest known way to a node; here itself when there.

        target: (R,) nodes  episodes: (R,)  ->  (R,) viewpoints
        """
        here = self.here[episodes]
        step = self.first[episodes, here, target]
        return self.node[episodes, torch.where(step == NONE, here, step)]

    def visit(self, viewpoint: Tensor, episodes: Tensor) -> None:
        """The episodes now stand at ``viewpoint``; places not visited before become nodes.

        Writing a node again changes nothing, so all episodes are written, wherever they stand: searching for
        those at new places would make the host wait. Only the ways are told who has a new node.

        viewpoint: (R,) viewpoints  episodes: (R,), each at most once

        Raises:
            ValueError: with ``check``, a memory is full.
        """
        visited, match = (self.node[episodes] == viewpoint.unsqueeze(1)).max(dim=1)
        spot = torch.where(visited, match, self.count[episodes])  # (R,) the node
        if self.check and int(spot.max()) >= self.node.shape[1]:
            raise ValueError(f"the memory is full: it was built for {self.node.shape[1]} places")
        self.here[episodes] = spot
        self.count[episodes] = torch.maximum(self.count[episodes], spot + 1)
        self.node[episodes, spot] = viewpoint
        node = self.node[episodes]  # (R, N)
        length = self._edge_length[viewpoint]  # (R, K), inf where there is no edge
        link = self.world.neighbour[viewpoint].unsqueeze(2) == node.unsqueeze(1)  # (R, K, N)
        to_node = torch.where(link, length.unsqueeze(2), torch.inf).amin(dim=1)  # (R, N)
        known_neighbour = to_node < torch.inf
        self.edge[episodes, spot] = known_neighbour
        self.edge[episodes, :, spot] = known_neighbour

        elsewhere = self.world.neighbour[node] != viewpoint[:, None, None]  # (R, N, K)
        self.subnode[episodes] = self.subnode[episodes] & elsewhere
        self.subnode[episodes, spot] = (length < torch.inf) & ~link.any(dim=2)
        self._extend_ways(episodes, spot, to_node.masked_fill(visited.unsqueeze(1), torch.inf))

    def write(self, name: str, values: Tensor, episodes: Tensor) -> None:
        """Write a column at the node each episode stands at.  values: (R, W)  episodes: (R,)"""
        if name not in self.columns:
            self.columns[name] = values.new_zeros(*self.node.shape, values.shape[1])
        self.columns[name][episodes, self.here[episodes]] = values

    def _extend_ways(self, episodes: Tensor, spot: Tensor, length: Tensor) -> None:
        """Shortest ways after one more node: to it through its neighbours, and between others through it.

        episodes, spot: (R,)  length: (R, N) of the new node's edges; inf everywhere where there is none
        """
        walk, first = self.walk[episodes], self.first[episodes]  # (R, N, N)
        new = self._nodes == spot.unsqueeze(1)  # (R, N)
        # (R, N): from the new node to every node, and by which neighbour first
        way, gate = (length.unsqueeze(2) + walk).min(dim=1)
        # the way back leaves a node as the way to its gate does; the gate goes straight to the new node
        back = first.gather(2, gate.unsqueeze(2)).squeeze(2)
        back = torch.where(gate == self._nodes, spot.unsqueeze(1), back)
        way = way.masked_fill(new, 0.0)
        detour = way.unsqueeze(2) + way.unsqueeze(1)  # over the new node; from it and to it are ways as well
        leave = torch.where(new.unsqueeze(2), gate.masked_fill(new, NONE).unsqueeze(1), back.unsqueeze(2))
        self.first[episodes] = torch.where(detour < walk, leave, first)
        self.walk[episodes] = torch.minimum(walk, detour)

    def to_json(self, episode: int) -> dict[str, Any]:
        """One episode as plain values, for viewers: nodes, edges, sub-nodes with their directions."""
        count = int(self.count[episode])
        nodes = self.node[episode, :count].tolist()
        subnodes = [
            {
                "node": node,
                "slot": slot,
                "viewpoint": self.world.viewpoints[int(self.world.neighbour[nodes[node], slot])],
                "heading": float(self.world.neighbour_heading[nodes[node], slot]),
                "view_heading": float(view_heading(self.world.neighbour_view[nodes[node], slot])),
                "elevation": float(self.world.neighbour_elevation[nodes[node], slot]),
            }
            for node, slot in self.subnode[episode, :count].nonzero().tolist()
        ]
        return {
            "here": int(self.here[episode]),
            "nodes": [self.world.viewpoints[viewpoint] for viewpoint in nodes],
            "frontier": self.frontier[episode, :count].tolist(),
            "edges": [pair for pair in self.edge[episode].nonzero().tolist() if pair[0] < pair[1]],
            "subnodes": subnodes,
        }
