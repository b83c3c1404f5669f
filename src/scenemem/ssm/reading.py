"""Reading the memory (paper, section 3.2): grounding, two reads per node, message passing (Eqs. 5 to 9).

Shape letters: X observations, R memories that are decided with, N nodes, K candidate slots, S node states, D
visual columns, V and W widths of node states, H state width, L words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.errors import SettingError
from scenemem.models.navigator import Instructions, fold_angles, recomputed, tiled
from scenemem.ssm.graph import MemoryGraph, WalkCost, WalkOptions
from scenemem.world.graph import ANGLE_WIDTH, rotated

Edges = Literal["visited", "all"]
"""Which edges Eq. 8 reads: those between visited places, as in the paper, or all ways that leave a node"""

Views = Literal["navigable", "unvisited", "all"]
"""Which views Eq. 3 stores: of all K_v navigable viewpoints, of the unvisited ones only, or all 36"""

MOST_REASONING = 100
"""Steps of message passing; far more would never end, and settings may come from an untrusted file."""


@dataclass(frozen=True)
class GroundedConfig(ModelConfig):
    """Settings of agents with grounded states."""

    grounding: bool = True
    """separate perception- and action-aware states; False queries everything with the state itself"""
    allow_revisits: bool = False
    """visited neighbours stay options, for paths that lead back; in the paper only unvisited ones are"""

    def walk_options(self) -> WalkOptions:
        """How it walks over its memory."""
        return WalkOptions(allow_revisits=self.allow_revisits)


@dataclass(frozen=True)
class SSMConfig(GroundedConfig):
    """Settings of the paper's agent; its ablations each change one of them."""

    reasoning_steps: int = 3
    """S steps of message passing; 0 switches it off"""
    node_width: int | None = None
    """width of the visual node states; None keeps the width of the features, as in the paper"""
    orientation_width: int = ANGLE_WIDTH
    """width of the orientation node states: four numbers repeated, 128 in the paper"""
    edges: Edges = "visited"
    """edges that a node state reads (Eq. 8): those between visited places; all reads every way that leaves"""
    views: Views = "navigable"
    """views that a node state reads (Eq. 3): the navigable ones, only the unvisited of them, or all 36"""
    walk_cost: WalkCost = "metres"
    """what the shortest way over the memory counts"""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, width, angles = self.reasoning_steps, self.node_width, self.orientation_width
        if not 0 <= steps <= MOST_REASONING:
            limits = f"from 0, which switches it off, to {MOST_REASONING}"
            raise SettingError(f"reasoning_steps must be {limits}, got {steps}")
        if width is not None and width < 1:
            raise SettingError(
                f"node_width must be 1 or more, got {width}; leave it out for the feature width"
            )
        if angles < 4 or angles % 4:
            need = f"a multiple of 4, got {angles}; four numbers are repeated"
            raise SettingError(f"orientation_width must be {need}")

    def node_widths(self, sizes: DataSizes) -> tuple[int, int]:
        """Of the visual and of the orientation node states."""
        return self.node_width or sizes.visual, self.orientation_width

    def walk_options(self) -> WalkOptions:
        """How it walks over its memory."""
        return WalkOptions(self.walk_cost, allow_revisits=self.allow_revisits)


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
        queries = torch.stack([self.perception.query(state), self.action.query(state)], dim=1)
        summaries, _ = words.attend(queries)  # (X, 2, H)
        streams = zip((self.perception, self.action), summaries.unbind(1), strict=True)
        return Grounded(*(stream.join(torch.cat([state, summary], dim=1)) for stream, summary in streams))

    def word_attention(self, state: Tensor, words: Instructions) -> dict[str, Tensor]:
        """The weights alpha^p and alpha^a, for viewers.  state: (X, H)  ->  name: (X, L)"""
        streams = {"perception": self.perception, "action": self.action}
        return {name: words.attend(stream.query(state))[1] for name, stream in streams.items()}


class VisualRead(nn.Module):
    """f^_v = att^f({f_{v,k}}_k, h^p): attention over the K_v navigable views of every node (Eq. 7)."""

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
    """

    def __init__(self, width: int, edges: Edges = "visited") -> None:
        super().__init__()
        self.query = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.edges = edges

    def forward(self, action: Tensor, heading: Tensor, graph: MemoryGraph) -> Tensor:
        """action: (R, H)  heading: (R,)  ->  (S, 4), relative to the heading and not tiled"""
        query = rotated(fold_angles(self.query(action)), -heading)
        slots = graph.visited if self.edges == "visited" else graph.exists
        directions = graph.environment.directions[graph.place]  # (S, K, 4), absolute r_{v,u} (Eq. 4)
        return rotated(graph.attend_slots(query, directions, slots), heading[graph.row])


class MessagePassing(nn.Module):
    """m_v = sum_{u in N_v} s_u,  s_v <- GRU(m_v, s_v), repeated S times with the same weights (Eq. 9)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.update = nn.GRUCell(width, width) if steps else None

    def forward(self, states: Tensor, graph: MemoryGraph) -> Tensor:
        """(S, W)  ->  (S, W)"""
        if self.update is None:
            return states
        edge = graph.edge.to(states)
        for _ in range(self.steps):
            messages = torch.bmm(edge, graph.padded(states))[graph.row, graph.node]
            states = self.update(messages, states)
        return states


_OF_GRUS = 16
"""About as many numbers per number of a state are kept for the gradient of three steps."""

MakeMessages = Callable[[int, int], nn.Module]
"""The width of node states and S  ->  a module that is called as ``MessagePassing`` is"""


class MemoryReader(nn.Module):
    """Eqs. 7 to 9 in their order: read all nodes, then let each learn from its neighbourhood."""

    def __init__(self, config: SSMConfig, sizes: DataSizes, messages: MakeMessages = MessagePassing) -> None:
        super().__init__()
        width, self.orientation_width = config.node_widths(sizes)
        self.visual_read = VisualRead(config.width, sizes.visual, config.views)
        self.orientation_read = OrientationRead(config.width, config.edges)
        keeps = width == sizes.visual
        self.project = nn.Identity() if keeps else nn.Linear(sizes.visual, width, bias=False)
        self.visual_messages = messages(width, config.reasoning_steps)
        self.orientation_messages = messages(self.orientation_width, config.reasoning_steps)

    def forward(
        self, grounded: Grounded, heading: Tensor, feature_mask: Tensor, graph: MemoryGraph
    ) -> tuple[Tensor, Tensor]:
        """Node states of every memory; 0 where there is no node.

        grounded: (R, H)  heading: (R,)  ->  visual (R, N, V), orientation (R, N, W)
        """
        looked_up = graph.exists.numel() * len(feature_mask)
        visual = recomputed(self.visual_read, grounded.perception, feature_mask, graph, numbers=looked_up)
        orientation = self.orientation_read(grounded.action, heading, graph)
        kinds = (
            (self.visual_messages, self.project(visual * feature_mask)),
            (self.orientation_messages, tiled(orientation, self.orientation_width)),
        )
        visual, orientation = (
            graph.padded(recomputed(messages, states, graph, numbers=_OF_GRUS * states.numel()))
            for messages, states in kinds
        )
        return visual, orientation
