"""Grounding and reading (paper, section 3.2): Eqs. 5 to 9.

Shape letters: X observations, R memories, N nodes of the largest, S node states (a node of one of the R
memories), K candidate slots, D visual columns, V and W widths of node states, H state width, L words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from scenemem.models.navigator import Instructions, fold_angles, recomputed, tiled
from scenemem.ssm.graph import MemoryGraph
from scenemem.world.graph import ANGLE_WIDTH, rotated

Edges = Literal["visited", "all"]
"""Which edges Eq. 8 reads: those between visited places, as in the paper, or all ways that leave a node"""

Views = Literal["navigable", "unvisited", "all"]
"""Which views Eq. 3 stores: of all K_v navigable viewpoints, of the unvisited ones only, or all 36"""


@dataclass(frozen=True)
class Grounded:
    """The two states that every read and every score queries with."""

    perception: Tensor  # (X, H) h^p, for things
    action: Tensor  # (X, H) h^a, for directions

    @property
    def both(self) -> Tensor:
        """(X, 2H) [h^p, h^a]"""
        return torch.cat([self.perception, self.action], dim=-1)


class TextualAttention(nn.Module):
    """One stream: a_l = softmax_l(x_l^T W_x h), x = sum_l a_l x_l (Eq. 5), h' = W_h [h, x] (Eq. 6)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)


class FineGrainedGrounding(nn.Module):
    """h^p and h^a from two separate attentions over the words (Eqs. 5 and 6)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.perception = TextualAttention(width)
        self.action = TextualAttention(width)

    def forward(self, state: Tensor, words: Instructions) -> Grounded:
        """state: (X, H)"""
        summaries, _ = words.attend(self._queries(state))  # (X, 2, H)
        streams = zip((self.perception, self.action), summaries.unbind(1), strict=True)
        return Grounded(*(stream.join(torch.cat([state, summary], dim=1)) for stream, summary in streams))

    def word_attention(self, state: Tensor, words: Instructions) -> dict[str, Tensor]:
        """The weights alpha^p and alpha^a, for viewers.  state: (X, H)  ->  name: (X, L)"""
        perception, action = words.attend(self._queries(state))[1].unbind(1)
        return {"perception": perception, "action": action}

    def _queries(self, state: Tensor) -> Tensor:
        """(X, 2, H)"""
        return torch.stack([self.perception.query(state), self.action.query(state)], dim=1)


class SharedGrounding(nn.Module):
    """The ablation without fine-grained grounding: the state itself queries everything."""

    def forward(self, state: Tensor, words: Instructions) -> Grounded:
        """state: (X, H)"""
        del words
        return Grounded(state, state)

    def word_attention(self, state: Tensor, words: Instructions) -> dict[str, Tensor]:
        """Nothing is attended to."""
        del state, words
        return {}


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
        """perception: (R, H)  feature_mask: (D,)  ->  (S, D), masked columns still hold something"""
        query = self.query(perception) * feature_mask
        if self.views == "all":
            return graph.attend(query)
        slots = graph.exists & ~graph.visited if self.views == "unvisited" else graph.exists
        return graph.attend_slots(query, graph.candidates(), slots)


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
        """action: (R, H)  heading: (R,)  ->  (S, 4), relative to the heading and not tiled"""
        query = rotated(fold_angles(self.query(action)), -heading)
        slots = graph.visited if self.edges == "visited" else graph.exists
        return rotated(graph.attend_slots(query, graph.directions, slots), heading[graph.row])


class MessagePassing(nn.Module):
    """m_v = sum_{u in N_v} s_u,  s_v <- GRU(m_v, s_v), repeated S times with the same weights (Eq. 9).

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

    def forward(self, states: Tensor, graph: MemoryGraph) -> Tensor:
        """(S, W)  ->  (S, W)"""
        if self.update is None:
            return states
        for _ in range(self.steps):
            states = self.update(graph.neighbour_sum(states), states)
        return states


_OF_GRUS = 16
"""About as many numbers per number of a state are kept for the gradient of three steps."""

MakeMessages = Callable[[int, int], nn.Module]
"""The width of node states and S  ->  a module that is called as ``MessagePassing`` is"""


class MemoryReader(nn.Module):
    """Eqs. 7 to 9 in their order: read all nodes, then let each learn from its neighbourhood.

    Args:
        width: H of the states that query.
        visual: columns D of the view features.
        node_width: width V of the visual node states; ``visual`` keeps the features as in the paper.
        steps: S of the message passing.
        orientation_width: width W of the orientation node states, a multiple of 4.
        views: which views of a node are read.
        edges: which edges of a node are read.
        messages: makes the message passing of each of the two kinds of node states.
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
        messages: MakeMessages = MessagePassing,
    ) -> None:
        super().__init__()
        self.orientation_width = orientation_width
        self.visual_read = VisualRead(width, visual, views)
        self.orientation_read = OrientationRead(width, edges)
        self.project = nn.Identity() if node_width == visual else nn.Linear(visual, node_width, bias=False)
        self.visual_messages = messages(node_width, steps)
        self.orientation_messages = messages(orientation_width, steps)

    def forward(
        self, grounded: Grounded, heading: Tensor, feature_mask: Tensor, graph: MemoryGraph
    ) -> tuple[Tensor, Tensor]:
        """Node states of every memory; 0 where there is no node.

        grounded: (R, H)  heading: (R,)  ->  visual (R, N, V), orientation (R, N, W)
        """
        looked_up = graph.exists.numel() * len(feature_mask)
        visual = recomputed(self.visual_read, grounded.perception, feature_mask, graph, numbers=looked_up)
        orientation = self.orientation_read(grounded.action, heading, graph)
        return (
            self._passed(self.visual_messages, self.project(visual * feature_mask), graph),
            self._passed(self.orientation_messages, tiled(orientation, self.orientation_width), graph),
        )

    def _passed(self, messages: nn.Module, states: Tensor, graph: MemoryGraph) -> Tensor:
        """The states after message passing, as a table.  (S, W)  ->  (R, N, W)"""
        return graph.padded(recomputed(messages, states, graph, numbers=_OF_GRUS * states.numel()))
