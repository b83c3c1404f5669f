"""Reading a scene memory (paper, Eqs. 7 to 9): read every node, then pass messages between nodes.

Shape letters: B episodes, R memories (an episode at a decision step), T decision steps of the busiest
episode, P visited places of all episodes, N nodes of the largest memory, K candidate slots, D visual columns,
S node states (a node of one of the R memories), E pairs of neighbouring node states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scenemem.models.attention import (
    PanoramaLookup,
    attend_panoramas,
    dots,
    masked_softmax,
    rotated,
    rows_of,
    score_panoramas,
    tiled,
    untiled,
)
from scenemem.models.grounding import Grounded
from scenemem.models.packing import Packing
from scenemem.world.geometry import ANGLE_WIDTH

_LARGE = 8_000_000
"""Numbers in the node states from which on message passing computes its gates again for the gradient.

They would be kept five times over in every iteration: gigabytes at the width of the paper. Smaller states are
quicker when kept.
"""


@dataclass(frozen=True, eq=False)
class Places:
    """The places a batch of episodes has visited, episode by episode, as a network sees them."""

    episode: Tensor  # (P,) who visited the place
    first: Tensor  # (B,) number of each episode's first place; its node n is place first + n
    lookup: PanoramaLookup  # places  ->  visual features of all their views
    directions: Tensor  # (P, K, 4) absolute orientation features of the outgoing edges
    exists: Tensor  # (P, K) bool, which slots are edges
    views: Tensor  # (P, K) the view of the panorama that looks along each edge


@dataclass(frozen=True, eq=False)
class MemoryGraph:
    """What R memories hold, each at a decision step; nodes are numbered by their first visit."""

    places: Places
    packing: Packing  # the episode of each of the R memories, and its number among that episode's
    viewpoint: Tensor  # (R, N) of every node, -1 where there is none
    edge: Tensor  # (R, N, N) bool, edges between known nodes
    count: Tensor  # (R,) known nodes
    here: Tensor  # (R,) the node the agent stands at
    walk: Tensor  # (R, N) metres to walk to every node; inf where there is none
    open_lookup: Callable[[], Tensor]  # computes ``open``
    column_lookup: Callable[[str], Tensor]  # computes ``column``

    @cached_property
    def open(self) -> Tensor:
        """(R, N, K) bool, the ways that may be taken at every node: its sub-nodes, or all with revisits"""
        return self.open_lookup()

    def column(self, name: str) -> Tensor:
        """What the agent's ``columns`` wrote at each node on its last visit  ->  (R, N, W), 0 elsewhere"""
        return self.column_lookup(name)

    @cached_property
    def states(self) -> tuple[Tensor, Tensor]:
        """The node states there are: memory (S,) and node (S,)"""
        nodes = torch.arange(self.edge.shape[1], device=self.count.device)
        row, node = (nodes < self.count.unsqueeze(1)).nonzero().unbind(1)
        return row, node

    @cached_property
    def place(self) -> Tensor:
        """(S,) the place of every node state"""
        row, node = self.states
        return self.places.first[self.packing.episode[row]] + node

    def padded(self, states: Tensor) -> Tensor:
        """A table of all nodes, 0 where there is none.  states: (S, W)  ->  (R, N, W)"""
        (rows, nodes), (row, node) = self.edge.shape[:2], self.states
        table = states.new_zeros(rows * nodes, states.shape[1])
        return table.index_copy(0, row * nodes + node, states).view(rows, nodes, -1)

    def attend(self, query: Tensor) -> Tensor:
        """Attention of every memory over the views of each of its nodes.  query: (R, D)  ->  (R, N, D)"""
        return self.padded(attend_panoramas(rows_of(query, self.states[0]), self.place, self.places.lookup))

    def slot_scores(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How every candidate slot of every node looks, and where it leads.

        visual: (R, D)  orientation: (R, 4), a query about absolute directions  ->  (R, N, K, 2)
        """
        row, node = self.states
        views = score_panoramas(rows_of(visual, row), self.place, self.places.lookup)  # (S, 36)
        by_view = views.gather(1, self.places.views[self.place])
        by_direction = dots(self.places.directions[self.place], orientation[row])
        table = visual.new_zeros(*self.edge.shape[:2], self.places.views.shape[1], 2)
        return table.index_put((row, node), torch.stack([by_view, by_direction], dim=-1))

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours of every node state."""
        nodes = torch.arange(self.edge.shape[1], device=self.count.device)
        known = nodes < self.count.unsqueeze(1)  # (R, N)
        number = known.flatten().cumsum(0).view_as(known) - 1  # of every state
        row, _, other = self.edge.nonzero().unbind(1)
        many = self.edge.sum(dim=2)[known]
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

    def forward(self, perception: Tensor, feature_mask: Tensor, graph: MemoryGraph) -> Tensor:
        """Every node state reads its place; masked columns still hold something.

        perception: (R, H)  feature_mask: (D,)  ->  (S, D)
        """
        query = rows_of(self.query(perception) * feature_mask, graph.states[0])
        return attend_panoramas(query, graph.place, graph.places.lookup)


class OrientationRead(nn.Module):
    """r^_v = att^r({r_{v,u}}_u, h^a): softmax attention over the outgoing edges of every node (Eq. 8).

    Edges lead to visited neighbours and to sub-nodes; both are candidate slots. Angles are stored absolute
    and queried relative to the heading the agent has at reading time.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, action: Tensor, heading: Tensor, graph: MemoryGraph) -> Tensor:
        """Every node state reads its edges; the result is relative to the heading, and not tiled.

        action: (R, H)  heading: (R,)  ->  (S, 4)
        """
        places, packing = graph.places, graph.packing
        query = packing.table(rotated(untiled(self.query(action)), -heading))  # (B, T, 4)
        by_place = rows_of(query.flatten(1), places.episode).view(-1, *query.shape[1:])  # (P, T, 4)
        scores = torch.bmm(by_place, places.directions.transpose(1, 2))  # (P, T, K)
        weights = masked_softmax(scores, places.exists.unsqueeze(1))
        read = torch.bmm(weights, places.directions).flatten(0, 1)
        row = graph.states[0]
        return rotated(rows_of(read, graph.place * packing.steps + packing.step[row]), heading[row])


class MessagePassing(nn.Module):
    """m_v = sum_{u in N_v} s_u,  s_v <- GRU(m_v, s_v), repeated S times with the same weights (Eq. 9).

    Only node states that exist go through it.

    Args:
        width: of a node state.
        steps: S; 0 switches message passing off.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"steps must be 0 or more, got {steps}; use 0 to switch message passing off")
        self.steps = steps
        self.update = nn.GRUCell(width, width) if steps else None

    def forward(self, states: Tensor, neighbours: Neighbours) -> Tensor:
        """One state per existing node.  states: (S, W)  ->  (S, W)"""
        for _ in range(self.steps):
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

    The first step works on the four numbers, with the GRU's columns summed: the same result for a fraction
    of its arithmetic.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__(width, steps)
        self.width = width

    def forward(self, states: Tensor, neighbours: Neighbours) -> Tensor:
        """states: (S, 4)  ->  (S, W)"""
        if self.update is None:
            return tiled(states, self.width)
        later = _folded_gru(self.update, neighbours.sum(states), states)
        for _ in range(self.steps - 1):
            later = self._updated(neighbours.sum(later), later)
        return later


class CollectRead(nn.Module):
    """Eqs. 7 to 9 in their order: read all nodes, then let each learn from its neighbourhood.

    Args:
        width: H of the states that query.
        visual: columns D of the view features.
        node_width: width V of the visual node states; ``visual`` keeps the features as in the paper.
        steps: S of the message passing.
        orientation_width: width of the orientation node states, a multiple of 4.
    """

    def __init__(
        self, width: int, visual: int, node_width: int, steps: int, orientation_width: int = ANGLE_WIDTH
    ) -> None:
        super().__init__()
        self.visual_read = VisualRead(width, visual)
        self.orientation_read = OrientationRead(width)
        self.project = nn.Identity() if node_width == visual else nn.Linear(visual, node_width, bias=False)
        self.visual_messages = MessagePassing(node_width, steps)
        self.orientation_messages = OrientationMessages(orientation_width, steps)

    def forward(
        self, grounded: Grounded, heading: Tensor, feature_mask: Tensor, graph: MemoryGraph
    ) -> tuple[Tensor, Tensor]:
        """Node states of every memory; 0 at nodes that are not known yet.

        grounded: (R, H)  heading: (R,)  ->  visual (R, N, V), orientation (R, N, W)
        """
        visual = self.project(self.visual_read(grounded.perception, feature_mask, graph) * feature_mask)
        orientation = self.orientation_read(grounded.action, heading, graph)
        return (
            graph.padded(self.visual_messages(visual, graph.neighbours)),
            graph.padded(self.orientation_messages(orientation, graph.neighbours)),
        )


def _folded_gru(cell: nn.GRUCell, messages: Tensor, states: Tensor) -> Tensor:
    """A GRU on tiled inputs and states, given untiled.  messages, states: (S, 4)  ->  (S, W)"""
    new = nn.functional.linear(messages, untiled(cell.weight_ih), cell.bias_ih)
    old = nn.functional.linear(states, untiled(cell.weight_hh), cell.bias_hh)
    (reset, update, candidate), (old_reset, old_update, memory) = new.chunk(3, dim=1), old.chunk(3, dim=1)
    candidate = torch.tanh(candidate + torch.sigmoid(reset + old_reset) * memory)
    return torch.lerp(candidate, tiled(states, cell.hidden_size), torch.sigmoid(update + old_update))
