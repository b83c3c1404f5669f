"""The Structured Scene Memory (paper, section 3.1) and how it is read (section 3.2, Eqs. 5 to 9).

A *node* is a visited place, a *sub-node* a neighbour of a node that can be seen and reached but has not been
visited, a *frontier* a node with at least one sub-node. Nodes are numbered in the order of their first visit.
Features and angles are not stored: they are looked up in the world's tables by viewpoint (Eqs. 3 and 4).

Shape letters: B episodes, M that have arrived, X observations, R memories that are decided with, N nodes, K
candidate slots, S node states (a node of one of the R memories), D visual columns, V and W widths of node
states, H state width, L words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.errors import SettingError
from scenemem.features.store import Environment
from scenemem.models.navigator import (
    Instructions,
    State,
    attend_panoramas,
    dots,
    fold_angles,
    masked_softmax,
    recomputed,
    tiled,
)
from scenemem.world.graph import ANGLE_WIDTH, NONE, World, rotated

WalkCost = Literal["metres", "hops"]
StateT = TypeVar("StateT", bound=State)

Edges = Literal["visited", "all"]
"""Which edges Eq. 8 reads: those between visited places, as in the paper, or all ways that leave a node"""

Views = Literal["navigable", "unvisited", "all"]
"""Which views Eq. 3 stores: of all K_v navigable viewpoints, of the unvisited ones only, or all 36"""

MOST_REASONING = 100
"""Steps of message passing; far more would never end, and settings may come from an untrusted file."""


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


class SceneMemory:
    """The places that a batch of agents has seen.

    Args:
        world: the tables of the world; an episode only ever uses the rows of places it has visited.
        episodes: their number B.
        capacity: number of places N an episode can remember.
        walk_cost: whether shortest paths count ``metres`` or ``hops``.
        allow_revisits: ways to visited places stay open.
        check: refuse a place too many; costs a look at the device per visit.
    """

    def __init__(
        self,
        world: World,
        episodes: int,
        capacity: int,
        *,
        walk_cost: WalkCost = "metres",
        allow_revisits: bool = False,
        check: bool = True,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, got {capacity}; the start needs a place")
        device, slots = world.device, world.neighbour.shape[1]
        self.world = world
        self.walk_cost = walk_cost
        self.allow_revisits = allow_revisits
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
    def exists(self) -> Tensor:
        """(S, K) bool, the candidate slots that are edges of the world: the K_v navigable viewpoints"""
        return self.environment.world.neighbour_mask[self.place]

    @cached_property
    def visited(self) -> Tensor:
        """(S, K) bool, the candidate slots that lead to a visited place"""
        leads_to = self.environment.world.neighbour[self.place].unsqueeze(2)
        return (leads_to == self.viewpoint[self.row].unsqueeze(1)).any(dim=2) & self.exists

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
