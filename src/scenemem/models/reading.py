"""Reading a scene memory (paper, Eqs. 7 to 9) and scoring what to do next (Eqs. 2, 10, 11, 13, 14).

Shape letters: B episodes, R memories (an episode at a decision step), T decision steps of the busiest
episode, P visited places of all episodes, N nodes of the largest memory, K candidate slots, D or V visual
columns, W orientation width, H state width, S node states (a node of one of the R memories), E pairs of
neighbouring node states, M decision steps, O options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from scenemem.features.store import CandidateFeatures, Places, stairs
from scenemem.models.attention import (
    attend_panoramas,
    dots,
    masked_softmax,
    score_panoramas,
)
from scenemem.models.language import Grounded, OneEach, Packing
from scenemem.models.recurrent import untiled
from scenemem.world.graph import ANGLE_WIDTH, rotated

_LARGE = 8_000_000
"""Numbers in the node states from which on message passing computes its gates again for the gradient.

They would be kept five times over in every iteration: gigabytes at the width of the paper. Smaller states are
quicker when kept.
"""


Edges = Literal["visited", "all"]
"""Which edges Eq. 8 reads: those between visited places, as in the paper, or all ways that leave a node"""

Views = Literal["navigable", "unvisited", "all"]
"""Which views Eq. 3 stores: of all K_v navigable viewpoints, of the unvisited ones only, or all 36"""


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
    # what the host knows, so that the device is not waited for
    known: NDArray[np.int64] | None = None  # (R,) ``count``
    edges: NDArray[np.bool_] | None = None  # (R, N, N) ``edge``
    note_lookup: Callable[[str], Tensor] | None = None  # computes ``note``; None where nothing is noted
    way_lookup: Callable[[str, Tensor, Tensor, Tensor], Tensor] | None = None  # computes ``ways``

    @cached_property
    def open(self) -> Tensor:
        """(R, N, K) bool, the ways that may be taken at every node: its sub-nodes, or all with revisits"""
        return self.open_lookup()

    def column(self, name: str) -> Tensor:
        """What the agent's ``columns`` wrote at each node on its last visit  ->  (R, N, W), 0 elsewhere"""
        return self.column_lookup(name)

    def ways(self, name: str, row: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        """Of a column that holds something of every candidate slot, that of some; many fewer than all.

        row, node, slot: (E,)  ->  (E, W), the column being (X, K * W)
        """
        if self.way_lookup is not None:
            return self.way_lookup(name, row, node, slot)
        slots = self.places.views.shape[1]
        column = self.column(name)
        return column.view(*column.shape[:2], slots, -1)[row, node, slot]

    def note(self, name: str) -> Tensor:
        """What the action space noted when the agent had arrived here  ->  (R, W)"""
        if self.note_lookup is None:
            raise TypeError(f"this agent asks for the note '{name}', but its action space makes none")
        return self.note_lookup(name)

    @cached_property
    def states(self) -> tuple[Tensor, Tensor]:
        """The node states there are: memory (S,) and node (S,)"""
        count = self.count.cpu().numpy() if self.known is None else self.known
        row, node = torch.from_numpy(np.stack(stairs(count))).to(self.count.device).unbind()
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
        return self.padded(self.attend_states(embedding(self.states[0], query)))

    def attend_states(self, query: Tensor) -> Tensor:
        """The same with a query of every node state.  query: (S, D)  ->  (S, D)"""
        # when every episode has one memory, a place has one state, and they stand in the same order
        place = None if isinstance(self.packing, OneEach) else self.place
        return attend_panoramas(query, place, self.places.lookup)

    @cached_property
    def visited(self) -> Tensor:
        """(P, T, K) bool, the candidate slots of every place that lead to a node of each memory"""
        count = self.packing.table(self.count.unsqueeze(1))[self.places.episode]  # (P, T, 1)
        leads_to = self.places.leads_to.unsqueeze(1)
        return (leads_to >= 0) & (leads_to < count)

    def attend_slots(self, query: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """Attention of every memory over some candidate slots of each of its nodes; 0 where there is none.

        query: (R, W)  values: (P, K, W)  slots: (P, T, K) bool, or (P, 1, K)  ->  (S, W)
        """
        steps, row = self.packing.steps, self.states[0]
        table = self.packing.table(query).flatten(1)  # (B, T * W)
        by_place = embedding(self.places.episode, table).view(len(values), steps, -1)  # (P, T, W)
        weights = masked_softmax(torch.bmm(by_place, values.transpose(1, 2)), slots)
        read = torch.bmm(weights, values).flatten(0, 1)
        return embedding(self.place * steps + self.packing.step[row], read)

    def slot_scores(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How every candidate slot of every node looks, and where it leads.

        visual: (R, D)  orientation: (R, 4), a query about absolute directions  ->  (R, N, K, 2)
        """
        row, node = self.states
        views = score_panoramas(embedding(row, visual), self.place, self.places.lookup)  # (S, 36)
        by_view = views.gather(1, self.places.views[self.place])
        by_direction = dots(self.places.directions[self.place], orientation[row])
        table = visual.new_zeros(*self.edge.shape[:2], self.places.views.shape[1], 2)
        return table.index_put((row, node), torch.stack([by_view, by_direction], dim=-1))

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours of every node state."""
        edges = self.edge.cpu().numpy() if self.edges is None else self.edges
        count = self.count.cpu().numpy() if self.known is None else self.known
        memory, _, other = edges.nonzero()
        many = edges[stairs(count)].sum(axis=1)
        state, first = (count.cumsum() - count)[memory] + other, many.cumsum() - many
        return Neighbours(*(torch.from_numpy(item).to(self.edge.device) for item in (state, first)))


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
    """f^_v = att^f({f_{v,k}}_k, h^p): softmax attention over the K_v navigable views of every node (Eq. 7).

    Args:
        width: H of the state that queries.
        visual: columns D of the view features.
        views: which views of a node are attended to.
    """

    def __init__(self, width: int, visual: int, views: Views = "navigable") -> None:
        super().__init__()
        self.query = nn.Linear(width, visual, bias=False)
        self.views = views

    def forward(self, perception: Tensor, feature_mask: Tensor, graph: MemoryGraph) -> Tensor:
        """Every node state reads its place; masked columns still hold something.

        perception: (R, H)  feature_mask: (D,)  ->  (S, D)
        """
        query = self.query(perception) * feature_mask
        if self.views == "all":
            return graph.attend_states(embedding(graph.states[0], query))
        slots = graph.places.exists.unsqueeze(1)
        if self.views == "unvisited":
            slots = slots & ~graph.visited
        return graph.attend_slots(query, graph.places.candidates(), slots)


class OrientationRead(nn.Module):
    """r^_v = att^r({r_{v,u}}_u, h^a): softmax attention over the outgoing edges of every node (Eq. 8).

    Edges lead to visited neighbours; a node without any, the first of a walk, reads 0. Angles are stored
    absolute and queried relative to the heading the agent has at reading time.

    Args:
        width: H of the state that queries.
        edges: which edges of a node are attended to.
    """

    def __init__(self, width: int, edges: Edges = "visited") -> None:
        super().__init__()
        self.query = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.edges = edges

    def forward(self, action: Tensor, heading: Tensor, graph: MemoryGraph) -> Tensor:
        """Every node state reads its edges; the result is relative to the heading, and not tiled.

        action: (R, H)  heading: (R,)  ->  (S, 4)
        """
        places = graph.places
        query = rotated(untiled(self.query(action)), -heading)
        slots = graph.visited if self.edges == "visited" else places.exists.unsqueeze(1)
        read = graph.attend_slots(query, places.directions, slots)
        return rotated(read, embedding(graph.states[0], heading.unsqueeze(1)).squeeze(1))


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
            updated = checkpoint(_gru, self.update, messages, states, use_reentrant=False)
        else:
            updated = _gru(self.update, messages, states)
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
        views: which views of a node are read.
        edges: which edges of a node are read.
    """

    def __init__(
        self,
        width: int,
        visual: int,
        node_width: int,
        steps: int,
        orientation_width: int = ANGLE_WIDTH,
        views: Views = "navigable",
        edges: Edges = "visited",
    ) -> None:
        super().__init__()
        self.visual_read = VisualRead(width, visual, views)
        self.orientation_read = OrientationRead(width, edges)
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


def _gru(cell: nn.GRUCell, messages: Tensor, states: Tensor) -> Tensor:
    """What ``cell`` itself computes, with two thirds of its operations.  (S, W), (S, W)  ->  (S, W)"""
    new = nn.functional.linear(messages, cell.weight_ih, cell.bias_ih)
    old = nn.functional.linear(states, cell.weight_hh, cell.bias_hh)
    return _gated(new, old, states)


def _folded_gru(cell: nn.GRUCell, messages: Tensor, states: Tensor) -> Tensor:
    """A GRU on tiled inputs and states, given untiled.  messages, states: (S, 4)  ->  (S, W)"""
    new = nn.functional.linear(messages, untiled(cell.weight_ih), cell.bias_ih)
    old = nn.functional.linear(states, untiled(cell.weight_hh), cell.bias_hh)
    return _gated(new, old, tiled(states, cell.hidden_size))


def _gated(new: Tensor, old: Tensor, states: Tensor) -> Tensor:
    """new, old: (S, 3W) what messages and states bring into reset, update, candidate  states: (S, W)"""
    sizes = [2 * states.shape[1], states.shape[1]]
    (new_gates, new_candidate), (old_gates, old_candidate) = (
        sums.split_with_sizes(sizes, dim=1) for sums in (new, old)
    )
    reset, update = torch.sigmoid(new_gates + old_gates).chunk(2, dim=1)
    candidate = torch.tanh(torch.addcmul(new_candidate, reset, old_candidate))
    return torch.lerp(candidate, states, update)


class FrontierScore(nn.Module):
    """Eq. 13 on nodes: [c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a].

    ``ActionScore`` has the same form with weights of its own.

    Args:
        width: H of the two states.
        visual: width V of the visual node states.
        orientation: width of the orientation node states.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> Tensor:
        """grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  ->  logits (M, N)"""
        weights = self.mix(torch.cat([grounded.perception, grounded.action], dim=-1))
        return dots(self.confidences(grounded, nodes), weights)

    def confidences(self, grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> Tensor:
        """The perception-aware and the action-aware confidence of every node  ->  (M, N, 2)"""
        by_view = dots(nodes[0], self.query_visual(grounded.perception))
        by_direction = dots(nodes[1], self.query_orientation(grounded.action))
        return torch.stack([by_view, by_direction], dim=-1)


class StopOption(nn.Module):
    """The learned features of the option to stop; they are never dropped."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How well stopping fits the queries.  visual: (M, V)  orientation: (M, 128)  ->  (M, 1, 2)"""
        return torch.stack([visual @ self.visual, orientation @ self.orientation], dim=-1).unsqueeze(1)


class StopFromMemory(nn.Module):
    """How well what the memory says about a place fits stopping there (an option; not in the paper).

    f^_v . W_f h^p + r^_v . W_r h^a, the terms that Eqs. 10 and 11 have for the parent of a sub-node. Both W
    begin at 0.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        nn.init.zeros_(self.query_visual.weight)
        nn.init.zeros_(self.query_orientation.weight)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor], here: Tensor) -> Tensor:
        """grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  here: (M,) a node  ->  (M,)"""
        row = torch.arange(len(here), device=here.device)
        queries = (self.query_visual(grounded.perception), self.query_orientation(grounded.action))
        fits = [(states[row, here] * query).sum(dim=-1) for states, query in zip(nodes, queries, strict=True)]
        return torch.stack(fits).sum(dim=0)


class ActionScore(nn.Module):
    """Eq. 14 on the neighbours of here and on stopping.

    Directions come as four numbers instead of 128; folding the query is exact (see ``untiled``).
    """

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.stop = StopOption(visual)
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(self, grounded: Grounded, seen: CandidateFeatures, feature_mask: Tensor) -> Tensor:
        """grounded: (M, H)  seen: M rows  feature_mask: (V,)  ->  logits (M, K + 1), stop last"""
        weights = self.mix(torch.cat([grounded.perception, grounded.action], dim=-1))
        return dots(self.confidences(grounded, seen, feature_mask), weights)

    def confidences(self, grounded: Grounded, seen: CandidateFeatures, feature_mask: Tensor) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, K + 1, 2)"""
        query_visual = self.query_visual(grounded.perception)
        query_orientation = self.query_orientation(grounded.action)
        by_view = dots(seen.visual, query_visual * feature_mask)
        by_direction = dots(seen.orientation, untiled(query_orientation))
        candidates = torch.stack([by_view, by_direction], dim=-1)
        return torch.cat([candidates, self.stop(query_visual, query_orientation)], dim=1)


class GlobalScore(nn.Module):
    """All sub-nodes of the memory at once (Eqs. 10, 11).

    q^f = [f_{v,k}, f^_v] . W_f h^p and q^r = [r_{v,k}, r^_v] . W_r h^a: how the sub-node itself looks, and
    what its parent node was read as. Both halves of each W are separate layers here.
    """

    def __init__(
        self, width: int, visual: int, node_width: int, orientation_width: int = ANGLE_WIDTH
    ) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.query_node_visual = nn.Linear(width, node_width, bias=False)
        self.query_node_orientation = nn.Linear(width, orientation_width, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)
        self.stop = StopOption(visual)

    def forward(
        self,
        grounded: Grounded,
        nodes: tuple[Tensor, Tensor],
        heading: Tensor,
        feature_mask: Tensor,
        graph: MemoryGraph,
    ) -> Tensor:
        """Logits of slot k of node n at n * K + k, stop last; of nodes not known yet they mean nothing.

        grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  heading: (M,)  ->  (M, N * K + 1)
        """
        perception, action = grounded.perception, grounded.action
        query_visual, query_orientation = self.query_visual(perception), self.query_orientation(action)
        of_node = torch.stack(
            [
                dots(nodes[0], self.query_node_visual(perception)),
                dots(nodes[1], self.query_node_orientation(action)),
            ],
            dim=-1,
        ).unsqueeze(2)  # (M, N, 1, 2)
        of_slot = graph.slot_scores(
            query_visual * feature_mask, rotated(untiled(query_orientation), -heading)
        )
        stop = self.stop(query_visual, query_orientation)
        confidence = torch.cat([(of_slot + of_node).flatten(1, 2), stop], dim=1)
        return dots(confidence, self.mix(torch.cat([perception, action], dim=-1)))


class CandidateScore(nn.Module):
    """p(o_k) = softmax_k(o_k^T W h) over the candidates of here (Eq. 2); the stop option is a zero row."""

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, V)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        by_view = dots(visual, self.query_visual(state) * feature_mask)
        by_direction = dots(orientation, untiled(self.query_orientation(state)))
        return nn.functional.pad(by_view + by_direction, (0, 1))


def with_stop(logits: Tensor, fits: Tensor) -> Tensor:
    """Scores with something added to the option to stop, the last one.  (M, O), (M,)  ->  (M, O)"""
    return torch.cat([logits[:, :-1], logits[:, -1:] + fits.unsqueeze(1)], dim=1)


def log_probabilities(logits: Tensor, exists: Tensor) -> Tensor:
    """Over real neighbours and stop.  logits: (..., K + 1)  exists: (..., K)  ->  (..., K + 1)"""
    options = nn.functional.pad(exists, (0, 1), value=True)
    return logits.masked_fill(~options, -torch.inf).log_softmax(dim=-1).masked_fill(~options, -1e4)


class StayScore(nn.Module):
    """What staying is worth beyond what the node of here looks like: w . h + b (an option; not in the paper).

    Eq. 13 scores frontiers by their content and cannot tell which one the agent stands at. Both begin at 0.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, state: Tensor, graph: MemoryGraph) -> Tensor:
        """What to add to the scores of the nodes.  state: (M, H)  ->  (M, N), 0 but at the node of here"""
        nodes = torch.arange(graph.walk.shape[1], device=state.device)
        here: Tensor = (nodes == graph.here.unsqueeze(1)) * self.score(state)
        return here


class FrontierHints(nn.Module):
    """Facts about every node that the paper's frontier scores do not have: W_2 tanh(W_1 [facts, W_0 h]).

    The facts: is it here, how far to walk, how long ago found, the log-probability of its best open candidate
    when the agent was last there, and of stopping there.
    """

    WORST = -10.0
    """Floor for remembered log-probabilities."""

    def __init__(self, width: int, inner: int = 32) -> None:
        super().__init__()
        self.state = nn.Linear(width, inner)
        self.facts = nn.Linear(5, inner, bias=False)
        self.score = nn.Linear(inner, 1, bias=False)

    def forward(self, state: Tensor, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """state: (M, H)  remembered: (M, N, K + 1) log-probabilities of candidates and stop  ->  (M, N)"""
        inner = torch.tanh(self.state(state).unsqueeze(1) + self.facts(self.columns(graph, remembered)))
        score: Tensor = self.score(inner)
        return score.squeeze(-1)

    @classmethod
    def columns(cls, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """The facts, 0 at nodes not known yet  ->  (M, N, 5)"""
        nodes = torch.arange(graph.walk.shape[1], device=graph.walk.device)
        known = nodes < graph.count.unsqueeze(1)
        facts = [
            (nodes == graph.here.unsqueeze(1)).to(graph.walk.dtype),
            graph.walk / 10.0,
            (graph.count.unsqueeze(1) - 1 - nodes).to(graph.walk.dtype) / 10.0,
            remembered[..., :-1].masked_fill(~graph.open, cls.WORST).amax(dim=-1).clamp_min(cls.WORST),
            remembered[..., -1].clamp_min(cls.WORST),
        ]
        return torch.stack(facts, dim=-1).masked_fill(~known.unsqueeze(-1), 0.0)


class Critic(nn.Module):
    """What an agent still expects to earn: V(h) = W_2 relu(W_1 h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state: (..., H)  ->  (...)"""
        value: Tensor = self.layers(state)
        return value.squeeze(-1)


def tiled(orientation: Tensor, width: int = ANGLE_WIDTH) -> Tensor:
    """orientation: (..., 4)  ->  (..., width)"""
    return orientation.repeat(*[1] * (orientation.dim() - 1), width // 4)
