"""The collect-read controller (paper, Eqs. 7 to 9): read every node, then pass messages between nodes.

Shape letters: B lanes, T times, N nodes, K neighbour slots, D visual columns, P node states (a node of a lane
at a time; only the ones that exist).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import masked_softmax, rotated, tiled, untiled
from scenemem.models.grounding import Grounded
from scenemem.world.geometry import ANGLE_WIDTH


class VisualRead(nn.Module):
    """f^_v = att^f({f_{v,k}}_k, h^p): softmax attention over the views of every node (Eq. 7)."""

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, visual, bias=False)

    def forward(self, perception: Tensor, panoramas: Tensor, feature_mask: Tensor) -> Tensor:
        """perception: (B, T, H)  panoramas: (B, N, 36, D)  feature_mask: (D,)  ->  (B, T, N, D)

        All times ask one node at once, which turns many matrix-vector products into one matrix product.
        """
        lanes, nodes, views, columns = panoramas.shape
        wanted = self.query(perception) * feature_mask
        scores = torch.bmm(panoramas.flatten(1, 2), wanted.transpose(1, 2))  # (B, N * 36, T)
        weights = scores.view(lanes, nodes, views, -1).softmax(dim=2)  # (B, N, 36, T)
        weights = weights.permute(0, 1, 3, 2).flatten(0, 1)  # (B * N, T, 36)
        read = torch.bmm(weights, panoramas.flatten(0, 1)).view(lanes, nodes, -1, columns)
        return read.transpose(1, 2) * feature_mask


class OrientationRead(nn.Module):
    """r^_v = att^r({r_{v,u}}_u, h^a): softmax attention over the outgoing edges of every node (Eq. 8).

    Edges lead to visited neighbours and to sub-nodes; both are neighbour slots. Angles are stored absolute
    and re-based to the heading the agent has at reading time.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, action: Tensor, edges: Tensor, mask: Tensor, heading: Tensor) -> Tensor:
        """Every node, at every time, as seen with the heading of that time.

        action: (B, T, H)  edges: (B, N, K, 4) absolute  mask: (B, N, K)  heading: (B, T)  ->  (B, T, N, 128)
        """
        lanes, nodes, slots, _ = edges.shape
        wanted = rotated(untiled(self.query(action)), -heading)  # (B, T, 4)
        scores = torch.bmm(wanted, edges.flatten(1, 2).transpose(1, 2))  # (B, T, N * K)
        weights = masked_softmax(scores.view(lanes, -1, nodes, slots), mask.unsqueeze(1))
        read = torch.einsum("btnk,bnkc->btnc", weights, edges)
        return tiled(rotated(read, heading.unsqueeze(-1)))


class MessagePassing(nn.Module):
    """m_v = sum_{u in N_v} s_u,  s_v <- GRU(m_v, s_v), repeated S times with the same weights (Eq. 9).

    Only node states that exist go through the GRU; the sum runs over padded neighbourhoods, which is cheap.

    Args:
        width: of a node state.
        rounds: S; 0 switches message passing off.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        if rounds < 0:
            raise ValueError(f"rounds must be 0 or more, got {rounds}; use 0 to switch message passing off")
        self.rounds = rounds
        self.update = nn.GRUCell(width, width) if rounds else None

    def forward(self, states: Tensor, edge: Tensor, rows: Tensor, nodes: Tensor) -> Tensor:
        """One state per existing node.

        states: (P, W)  edge: (R, N, N) bool, one graph per row  rows, nodes: (P,) where each state belongs
        ->  (P, W)
        """
        if self.update is None:
            return states
        links = edge.to(states.dtype)
        for _ in range(self.rounds):
            messages = torch.bmm(links, _padded(states, edge, rows, nodes))[rows, nodes]
            states = self.update(messages, states)
        return states


@dataclass(frozen=True)
class Places:
    """The places a batch of lanes remembers, as the network sees them."""

    panoramas: Tensor  # (B, N, 36, D) visual features of all views
    directions: Tensor  # (B, N, K, 4) absolute orientation features of the outgoing edges
    exists: Tensor  # (B, N, K) bool, which slots are edges
    views: Tensor  # (B, N, K) the view of the panorama that looks along each edge


@dataclass(frozen=True)
class Graphs:
    """The memories at R moments: which lane, when, and what it knew then."""

    lane: Tensor  # (R,)
    tick: Tensor  # (R,)
    edge: Tensor  # (R, N, N) bool, edges between known nodes
    count: Tensor  # (R,) known nodes


class CollectRead(nn.Module):
    """Eqs. 7 to 9 in their order: read all nodes, then let each learn from its neighbourhood.

    Args:
        width: H of the states that ask.
        visual: columns D of the view features.
        stream: width V of the visual node states; ``visual`` keeps the features as they are, as in the paper.
        rounds: S of the message passing.
    """

    def __init__(self, width: int, visual: int, stream: int, rounds: int) -> None:
        super().__init__()
        self.visual_read = VisualRead(width, visual)
        self.orientation_read = OrientationRead(width)
        self.narrow = nn.Identity() if stream == visual else nn.Linear(visual, stream, bias=False)
        self.visual_messages = MessagePassing(stream, rounds)
        self.orientation_messages = MessagePassing(ANGLE_WIDTH, rounds)

    def forward(
        self, grounded: Grounded, places: Places, heading: Tensor, feature_mask: Tensor, graphs: Graphs
    ) -> tuple[Tensor, Tensor]:
        """Node states for every memory in ``graphs``; 0 at nodes that are not known yet.

        grounded: (B, T, H)  heading: (B, T)  ->  visual (R, N, V), orientation (R, N, 128)
        """
        seen = self.visual_read(grounded.perception, places.panoramas, feature_mask)
        felt = self.orientation_read(grounded.action, places.directions, places.exists, heading)
        nodes = torch.arange(graphs.edge.shape[1], device=heading.device)
        row, node = (nodes < graphs.count.unsqueeze(1)).nonzero().unbind(1)
        where = (graphs.lane[row], graphs.tick[row], node)
        visual = self.visual_messages(self.narrow(seen[where]), graphs.edge, row, node)
        orientation = self.orientation_messages(felt[where], graphs.edge, row, node)
        return _padded(visual, graphs.edge, row, node), _padded(orientation, graphs.edge, row, node)


def _padded(states: Tensor, edge: Tensor, row: Tensor, node: Tensor) -> Tensor:
    """states: (P, W)  ->  (R, N, W)"""
    return states.new_zeros(*edge.shape[:2], states.shape[-1]).index_put((row, node), states)
