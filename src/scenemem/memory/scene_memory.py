"""The Structured Scene Memory (paper, section 3.1): a graph of visited places per lane, as batched tensors.

Shape letters: B lanes, N places a lane can remember, K neighbour slots of the world.

A *node* is a visited place, a *sub-node* a neighbour of a node that can be seen and reached but has not been
visited, a *frontier* a node with at least one sub-node. Nodes are numbered in the order of their first visit.
Angles and features are not stored: they are looked up in the world's tables by viewpoint.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from scenemem.world.geometry import view_heading
from scenemem.world.graph import NONE, World

Weights = Literal["metres", "hops"]


class SceneMemory:
    """What a batch of agents knows about the places they have seen.

    Args:
        world: the tables of the world; a lane only ever uses the rows of places it has visited.
        lanes: number of lanes B.
        capacity: number of places N a lane can remember.
        weights: whether shortest paths count ``metres`` or ``hops``.
    """

    def __init__(self, world: World, lanes: int, capacity: int, *, weights: Weights = "metres") -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, got {capacity}; the start needs a place")
        device, slots = world.device, world.neighbour.shape[1]
        self.world = world
        self.weights = weights
        self.node = torch.full((lanes, capacity), NONE, device=device)  # (B, N) viewpoint, -1 where empty
        self.count = torch.zeros(lanes, dtype=torch.long, device=device)  # (B,) nodes so far
        self.here = torch.zeros(lanes, dtype=torch.long, device=device)  # (B,) node the lane stands at
        self.edge = torch.zeros(lanes, capacity, capacity, dtype=torch.bool, device=device)  # (B, N, N)
        self.subnode = torch.zeros(lanes, capacity, slots, dtype=torch.bool, device=device)  # (B, N, K)
        # shortest known way from node to node: its length, and the node to walk to first
        self.walk = torch.full((lanes, capacity, capacity), torch.inf, device=device)  # (B, N, N)
        self.first = torch.full((lanes, capacity, capacity), NONE, device=device)  # (B, N, N)

    @property
    def known(self) -> Tensor:
        """(B, N) bool, true at nodes that exist."""
        return self.node != NONE

    @property
    def frontier(self) -> Tensor:
        """(B, N) bool, true at nodes with a sub-node."""
        return self.subnode.any(dim=-1)

    def hops_from_start(self, lanes: Tensor) -> Tensor:
        """Edges between the start and every node of ``lanes``, over the known graph; -1 where no node is.

        lanes: (R,)  ->  (R, N)
        """
        edge = self.edge[lanes].float()
        reached = torch.zeros_like(self.known[lanes])
        reached[:, 0] = True
        hops = torch.where(reached, 0, NONE)
        for step in range(1, edge.shape[1]):
            fresh = (torch.bmm(reached.float().unsqueeze(1), edge).squeeze(1) > 0) & ~reached
            hops = torch.where(fresh, step, hops)
            reached = reached | fresh
        return hops

    def towards(self, target: Tensor, lanes: Tensor) -> Tensor:
        """The viewpoint to hop to next on the shortest known way to a node; here itself when there.

        target: (R,) nodes  lanes: (R,) lane numbers  ->  (R,) viewpoints
        """
        here = self.here[lanes]
        step = self.first[lanes, here, target]
        return self.node[lanes, torch.where(step == NONE, here, step)]

    def visit(self, viewpoint: Tensor, lanes: Tensor) -> None:
        """Lanes ``lanes`` now stand at ``viewpoint``; places not visited before become nodes.

        viewpoint: (R,) viewpoints  lanes: (R,) lane numbers, each at most once

        Raises:
            ValueError: a memory is full.
        """
        match = self.node[lanes] == viewpoint.unsqueeze(-1)
        visited = match.any(dim=-1)
        self.here[lanes] = torch.where(visited, match.int().argmax(dim=-1), self.count[lanes])
        fresh = ~visited
        if bool(fresh.any()):
            self._add(viewpoint[fresh], lanes[fresh])

    def _add(self, viewpoint: Tensor, lanes: Tensor) -> None:
        """Write new nodes: connect them, hide them as sub-nodes, and open their own sub-nodes."""
        spot = self.count[lanes]
        if int(spot.max()) >= self.node.shape[1]:
            raise ValueError(f"the memory is full: it was built for {self.node.shape[1]} places")
        self.node[lanes, spot] = viewpoint
        self.count[lanes] += 1
        nodes = self.node[lanes]  # (R, N)
        neighbour = self.world.neighbour[viewpoint]  # (R, K)
        link = (neighbour.unsqueeze(-1) == nodes.unsqueeze(1)) & (neighbour != NONE).unsqueeze(
            -1
        )  # (R, K, N)
        known_neighbour = link.any(dim=1)  # (R, N)
        self.edge[lanes, spot] = known_neighbour
        self.edge[lanes, :, spot] = known_neighbour

        seen_from = self.world.neighbour[nodes] == viewpoint[:, None, None]  # (R, N, K)
        self.subnode[lanes] = self.subnode[lanes] & ~seen_from
        self.subnode[lanes, spot] = (neighbour != NONE) & ~link.any(dim=2)
        self._extend_ways(lanes, spot, self._edge_lengths(viewpoint, link))

    def _edge_lengths(self, viewpoint: Tensor, link: Tensor) -> Tensor:
        """viewpoint: (R,)  link: (R, K, N)  ->  length of the edge to every node, inf where none (R, N)"""
        length = self.world.neighbour_length[viewpoint].to(self.walk.dtype)
        length = torch.ones_like(length) if self.weights == "hops" else length
        return torch.where(link, length.unsqueeze(-1), torch.inf).amin(dim=1)

    def _extend_ways(self, lanes: Tensor, spot: Tensor, length: Tensor) -> None:
        """Shortest ways after one more node: to it through its neighbours, and between others through it.

        lanes, spot: (R,)  length: (R, N) of the new node's edges
        """
        rows = torch.arange(len(lanes), device=lanes.device)
        walk, first = self.walk[lanes], self.first[lanes]  # (R, N, N)
        way, gate = (length.unsqueeze(-1) + walk).min(
            dim=1
        )  # (R, N): to every node, by which neighbour first
        way[rows, spot] = 0.0
        reached = way.isfinite() & (way > 0.0)
        walk[rows, spot] = way
        walk[rows, :, spot] = way
        first[rows, spot] = torch.where(reached, gate, NONE)
        # the way back leaves a node as the way to its gate does; the gate goes straight to the new node
        back = first.gather(2, gate.unsqueeze(-1)).squeeze(-1)
        is_gate = gate == torch.arange(gate.shape[1], device=gate.device)
        back = torch.where(is_gate, spot.unsqueeze(-1), back)
        first[rows, :, spot] = torch.where(reached, back, NONE)

        detour = way.unsqueeze(2) + way.unsqueeze(1)
        shorter = detour < walk
        first = torch.where(shorter, first[rows, :, spot].unsqueeze(-1), first)
        self.walk[lanes] = torch.minimum(walk, detour)
        self.first[lanes] = first

    def to_json(self, lane: int) -> dict[str, Any]:
        """One lane as plain values, for viewers: nodes, edges, sub-nodes with their directions."""
        count = int(self.count[lane])
        nodes = self.node[lane, :count].tolist()
        subnodes = [
            {
                "node": node,
                "slot": slot,
                "viewpoint": self.world.viewpoints[int(self.world.neighbour[nodes[node], slot])],
                "heading": float(self.world.neighbour_heading[nodes[node], slot]),
                "view_heading": float(view_heading(self.world.neighbour_view[nodes[node], slot])),
                "elevation": float(self.world.neighbour_elevation[nodes[node], slot]),
            }
            for node, slot in self.subnode[lane, :count].nonzero().tolist()
        ]
        return {
            "here": int(self.here[lane]),
            "nodes": [self.world.viewpoints[viewpoint] for viewpoint in nodes],
            "frontier": self.frontier[lane, :count].tolist(),
            "edges": [pair for pair in self.edge[lane].nonzero().tolist() if pair[0] < pair[1]],
            "subnodes": subnodes,
        }
