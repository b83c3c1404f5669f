"""The collect-read controller (paper, Eqs. 7 to 9): read every node, then pass messages between nodes.

Shape letters: B lanes, R moments of all lanes, T moments of the busiest lane, P places of all lanes,
K neighbour slots, D visual columns, N nodes of the largest memory, S node states (a node at a moment),
E pairs of neighbouring node states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scenemem.models.attention import masked_softmax, rotated, rows_of, tiled, untiled
from scenemem.models.grounding import Grounded
from scenemem.models.place_attention import Look, attend_to_places
from scenemem.models.seating import Seating
from scenemem.world.geometry import ANGLE_WIDTH

_LARGE = 8_000_000
"""Numbers in the node states from which on a round computes its gates again for the gradient.

They would be kept five times over in every round: gigabytes at the width of the paper. Smaller states are
quicker when kept.
"""


@dataclass(frozen=True)
class Places:
    """The places a batch of lanes remembers, lane by lane, as the network sees them."""

    lane: Tensor  # (P,) who remembers the place
    first: Tensor  # (B,) number of each lane's first place; a lane's node n is place first + n
    look: Look  # places  ->  visual features of all their views
    directions: Tensor  # (P, K, 4) absolute orientation features of the outgoing edges
    exists: Tensor  # (P, K) bool, which slots are edges
    views: Tensor  # (P, K) the view of the panorama that looks along each edge


@dataclass(frozen=True)
class Graphs:
    """The memories at R moments: which lane, the how many-th moment of it, and what it knew then."""

    seating: Seating  # the lane and the number of each of the R moments
    edge: Tensor  # (R, N, N) bool, edges between known nodes
    count: Tensor  # (R,) known nodes

    def states(self) -> tuple[Tensor, Tensor]:
        """The node states there are: row (S,) and node (S,)"""
        nodes = torch.arange(self.edge.shape[1], device=self.count.device)
        row, node = (nodes < self.count.unsqueeze(1)).nonzero().unbind(1)
        return row, node

    def neighbours(self) -> Neighbours:
        """Who hears whom among the node states there are."""
        nodes = torch.arange(self.edge.shape[1], device=self.count.device)
        known = nodes < self.count.unsqueeze(1)  # (R, N)
        number = known.flatten().cumsum(0).view_as(known) - 1  # of every state
        heard = self.edge & known.unsqueeze(2) & known.unsqueeze(1)
        row, _, other = heard.nonzero().unbind(1)
        many = heard.sum(dim=2)[known]
        return Neighbours(number[row, other], many.cumsum(0) - many)


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of every node state, state after state. Edges have no direction."""

    state: Tensor  # (E,) the neighbour
    first: Tensor  # (S,) where each state's neighbours begin

    def sum(self, states: Tensor) -> Tensor:
        """Over each state's neighbours.  (S, W)  ->  (S, W)"""
        total: Tensor = _NeighbourSum.apply(states, self)  # type: ignore[no-untyped-call]
        return total


class _NeighbourSum(torch.autograd.Function):
    """A product with a symmetric matrix of zeros and ones, which is never written down."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        return nn.functional.embedding_bag(neighbours.state, states, neighbours.first, mode="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        state, first = ctx.neighbours.state, ctx.neighbours.first
        return nn.functional.embedding_bag(state, gradients[0].contiguous(), first, mode="sum"), None


class VisualRead(nn.Module):
    """f^_v = att^f({f_{v,k}}_k, h^p): softmax attention over the views of every node (Eq. 7)."""

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, visual, bias=False)

    def forward(
        self, perception: Tensor, feature_mask: Tensor, look: Look, row: Tensor, place: Tensor
    ) -> Tensor:
        """Every node state reads its place; masked columns still hold something.

        perception: (R, H)  feature_mask: (D,)  row, place: (S,) who reads what  ->  (S, D)
        """
        asked = rows_of(self.query(perception) * feature_mask, row)
        return attend_to_places(asked, place, look)


class OrientationRead(nn.Module):
    """r^_v = att^r({r_{v,u}}_u, h^a): softmax attention over the outgoing edges of every node (Eq. 8).

    Edges lead to visited neighbours and to sub-nodes; both are neighbour slots. Angles are stored absolute
    and asked for relative to the heading the agent has at reading time.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, action: Tensor, places: Places, heading: Tensor, seating: Seating) -> Tensor:
        """Every place at every moment of its lane; absolute and not tiled.

        action: (R, H)  heading: (R,)  ->  (P, T, 4)
        """
        asked = _asked(rotated(untiled(self.query(action)), -heading), places, seating)
        scores = torch.bmm(asked, places.directions.transpose(1, 2))  # (P, T, K)
        weights = masked_softmax(scores, places.exists.unsqueeze(1))
        return torch.bmm(weights, places.directions)


class MessagePassing(nn.Module):
    """m_v = sum_{u in N_v} s_u,  s_v <- GRU(m_v, s_v), repeated S times with the same weights (Eq. 9).

    Only node states that exist go through it.

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

    def forward(self, states: Tensor, neighbours: Neighbours) -> Tensor:
        """One state per existing node.  states: (S, W)  ->  (S, W)"""
        for _ in range(self.rounds):
            states = self._updated(neighbours.sum(states), states)
        return states

    def _updated(self, messages: Tensor, states: Tensor) -> Tensor:
        if self.update is None:
            return states
        updated: Tensor
        if states.requires_grad and states.numel() > _LARGE:
            updated = checkpoint(self.update, messages, states, use_reentrant=False)
        else:
            updated = self.update(messages, states)
        return updated


class OrientationMessages(MessagePassing):
    """Message passing whose first states are orientation features: four numbers, repeated to ``width``.

    The first round works on the four numbers, with the GRU's columns summed: the same result for a fraction
    of its arithmetic.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__(width, rounds)
        self.width = width

    def forward(self, states: Tensor, neighbours: Neighbours) -> Tensor:
        """states: (S, 4)  ->  (S, W)"""
        if self.update is None:
            return tiled(states, self.width)
        later = _folded_gru(self.update, neighbours.sum(states), states)
        for _ in range(self.rounds - 1):
            later = self._updated(neighbours.sum(later), later)
        return later


class CollectRead(nn.Module):
    """Eqs. 7 to 9 in their order: read all nodes, then let each learn from its neighbourhood.

    Args:
        width: H of the states that ask.
        visual: columns D of the view features.
        stream: width V of the visual node states; ``visual`` keeps the features as they are, as in the paper.
        rounds: S of the message passing.
        orientation: width of the orientation node states, a multiple of 4.
    """

    def __init__(
        self, width: int, visual: int, stream: int, rounds: int, orientation: int = ANGLE_WIDTH
    ) -> None:
        super().__init__()
        self.visual_read = VisualRead(width, visual)
        self.orientation_read = OrientationRead(width)
        self.narrow = nn.Identity() if stream == visual else nn.Linear(visual, stream, bias=False)
        self.visual_messages = MessagePassing(stream, rounds)
        self.orientation_messages = OrientationMessages(orientation, rounds)

    def forward(
        self, grounded: Grounded, places: Places, heading: Tensor, feature_mask: Tensor, graphs: Graphs
    ) -> tuple[Tensor, Tensor]:
        """Node states for every memory in ``graphs``; 0 at nodes that are not known yet.

        grounded: (R, H)  heading: (R,)  ->  visual (R, N, V), orientation (R, N, W)
        """
        seating = graphs.seating
        row, node = graphs.states()
        place = places.first[seating.lane[row]] + node
        seen = self.visual_read(grounded.perception, feature_mask, places.look, row, place)  # (S, D)
        visual = self.narrow(seen * feature_mask)
        felt = self.orientation_read(grounded.action, places, heading, seating)  # (P, T, 4)
        orientation = rotated(
            rows_of(felt.flatten(0, 1), place * seating.ticks + seating.tick[row]), heading[row]
        )
        neighbours = graphs.neighbours()
        return (
            _padded(self.visual_messages(visual, neighbours), graphs.edge, row, node),
            _padded(self.orientation_messages(orientation, neighbours), graphs.edge, row, node),
        )


def _asked(rows: Tensor, places: Places, seating: Seating) -> Tensor:
    """What each place is asked at every moment of its lane.  rows: (R, W)  ->  (P, T, W)"""
    table = seating.table(rows)
    return rows_of(table.flatten(1), places.lane).view(-1, *table.shape[1:])


def _padded(states: Tensor, edge: Tensor, row: Tensor, node: Tensor) -> Tensor:
    """A table of all nodes.  states: (S, W)  edge: (R, N, N)  row, node: (S,)  ->  (R, N, W)"""
    rows, nodes = edge.shape[:2]
    table = states.new_zeros(rows * nodes, states.shape[1])
    return table.index_copy(0, row * nodes + node, states).view(rows, nodes, -1)


def _folded_gru(cell: nn.GRUCell, messages: Tensor, states: Tensor) -> Tensor:
    """A GRU on tiled inputs and states, given untiled.  messages, states: (S, 4)  ->  (S, W)"""
    new = nn.functional.linear(messages, untiled(cell.weight_ih), cell.bias_ih)
    old = nn.functional.linear(states, untiled(cell.weight_hh), cell.bias_hh)
    (reset, update, candidate), (old_reset, old_update, memory) = new.chunk(3, dim=1), old.chunk(3, dim=1)
    candidate = torch.tanh(candidate + torch.sigmoid(reset + old_reset) * memory)
    return torch.lerp(candidate, tiled(states, cell.hidden_size), torch.sigmoid(update + old_update))
