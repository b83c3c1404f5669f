"""EGP (Deng 2020): a graph of all seen places evolves with the walk; a planner on proxies scores every place.

Visited places are the largest of their embedded actions g(u), unvisited ones the largest of the actions that
lead there, from whichever place; stop is g(0) beside the current place:

    visited: v = W [g, is the start, h_t (here, else 0), instruction],   others: v = W' g,   e = W'' g(u)

The planner (``ProxyPlanner``) pools the graph into a few proxies, passes messages there and adds what it
finds to the nodes, in three channels. One softmax over all places that can be chosen and stop decides:

    score_j = v_j . (W [x^, h_t] + b)

The agent walks to the chosen place over visited ones; every observation on the way updates its state. Read in
the authors' later release. Differences: the release offers every way that was not taken, also to visited
places (``revisits``: every place but the current one), the shared row unvisited places only; it offers stop
at every visited place, here it means the current one; the flag stands once instead of 32 times; its messages
are layers of two, and its graph net begins with 0 and sums where ours begins with the mean of the nodes and
averages. As published the label is the place with the largest index on the reference path
(``reference_index``), on R4R the one after which nDTW is best (``best_ndtw``), and an episode two hops off
the route follows its labels while it learns (``teacher_hops``).

Shape letters: X observations, R decision steps, K candidate slots, N nodes, U unvisited places, P = N + U, O
= N * K ways, A width of an embedded action, H state width, W planner width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import one_way_parts
from scenemem.zoo.panoramic import (
    ActionEmbedding,
    CoGroundedState,
    CoGroundedUpdater,
    EmbedsActions,
    with_stop_option,
)
from scenemem.zoo.places import PlaceActions, SeenPlaces
from scenemem.zoo.recipes import SystemConfig, published, shared


@dataclass(frozen=True)
class EGPConfig(SystemConfig):
    """Settings of EGP."""

    co_grounded: bool = False
    """the published recurrent core, which reads candidates and the action taken; False has the common one"""
    action_width: int = 128
    """width A of an embedded action"""
    map_width: int = 64
    """width W of the planner"""
    proxies: int = 6
    """nodes of the proxy graph"""
    channels: int = 3
    """ways in which the graph is pooled"""
    steps: int = 3
    """message steps"""
    revisits: bool = False
    """also offer places where one was, as the release does; R4R's paths pass places twice"""


class EGP(EmbedsActions):
    """Scores all unvisited places it has seen, and stopping, after planning on their graph."""

    config: EGPConfig

    def __init__(self, config: EGPConfig, sizes: ext.DataSizes) -> None:
        width, action, parts = config.width, config.action_width, None
        if config.co_grounded:
            core = CoGroundedUpdater(sizes.visual, width, action, raw=True, norm=False)
            parts = one_way_parts(config, sizes, core)
        super().__init__(config, sizes, parts)
        if not config.co_grounded:
            self.embed = ActionEmbedding(sizes.visual + ext.ANGLE_WIDTH, action, norm=False)
            self.word_query = nn.Linear(width, width, bias=False)
        self.enter = nn.Linear(action + 1 + 2 * width, config.map_width)
        self.enter_option = nn.Linear(action, config.map_width)
        self.edge = nn.Linear(action, config.map_width)
        self.planner = ProxyPlanner(
            config.map_width, channels=config.channels, proxies=config.proxies, steps=config.steps
        )
        self.query = nn.Linear(2 * width, config.map_width)

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """Every place one may go to once, or stop."""
        del learning
        return PlaceActions(
            world, episodes, max_decisions, ext.WalkOptions(allow_revisits=self.config.revisits)
        )

    def text(self, observations: ext.Observations) -> tuple[Tensor, Tensor]:
        """x^ (X, H), and the weights of the words (X, L)"""
        if isinstance(observations.state, CoGroundedState):
            return observations.state.text, observations.state.word_attention
        hidden = observations.state.hidden * observations.decision_mask
        return observations.instructions.attend(self.word_query(hidden))

    def node_features(self, observations: ext.Observations) -> dict[str, Tensor]:
        """A place is the largest of its embedded actions, its ways are these actions."""
        embedded = observations.cached(self.embedded)
        options = with_stop_option(observations.candidates.mask).unsqueeze(-1)
        place = embedded.masked_fill(~options, -torch.inf).amax(dim=1)
        return {"place": place, "ways": embedded[:, :-1].flatten(1)}

    def score(self, point: ext.DecisionPoint) -> dict[ext.DecisionType, Tensor]:
        """Global decisions: (R, O + 1)"""
        observations, graph = point.observations, point.memory()
        seen = SeenPlaces.of(graph)
        stop = observations.cached(self.embedded)[point.row, -1]
        unvisited = seen.pooled(graph.ways("ways", *seen.open_ways), "amax")
        options = self.enter_option(torch.cat([unvisited, stop.unsqueeze(1)], dim=1))
        exists = nn.functional.pad(seen.all >= 0, (0, 1), value=True)
        hidden = point.state.hidden * point.mask("decision")
        nodes = torch.cat([self._visited(point, hidden, graph.column("place")), options], dim=1)
        planned = self.planner(nodes, exists, self._edges(seen, stop))
        text = observations.cached(self.text)[0][point.row]
        scores = ext.dots(planned, self.query(torch.cat([text, hidden], dim=-1)))
        of_unvisited = scores[:, graph.viewpoint.shape[1] : -1]
        return {ext.GLOBAL: torch.cat([seen.per_way(of_unvisited), scores[:, -1:]], dim=1)}

    def _visited(self, point: ext.DecisionPoint, hidden: Tensor, places: Tensor) -> Tensor:
        """The visited nodes: W [g, flag, the state at the current one, the instruction]  ->  (R, N, W)"""
        graph, number = point.memory(), torch.arange(places.shape[1], device=places.device)
        start = (number == 0).to(places).view(1, -1, 1).expand(len(places), -1, 1)
        state = (number == graph.here.unsqueeze(1)).unsqueeze(-1) * hidden.unsqueeze(1)
        words = point.observations.instructions.hidden[point.row].unsqueeze(1).expand_as(state)
        entered: Tensor = self.enter(torch.cat([places, start, state, words], dim=-1))
        return entered

    def _edges(self, seen: SeenPlaces, stop: Tensor) -> Edges:
        """The ways of all nodes to places they lead to, and one from here to stop."""
        graph, links = seen.graph, seen.links()
        node, there = links.node, links.mask  # (R, E)
        row = there.nonzero().unbind(1)[0]
        known = self.edge(graph.ways("ways", row, node[there], links.slot[there]))
        feature = known.new_zeros(*there.shape, known.shape[1]).masked_scatter(there.unsqueeze(2), known)
        last = torch.full_like(graph.here, seen.all.shape[1])
        return Edges(
            torch.cat([node, graph.here.unsqueeze(1)], dim=1),
            torch.cat([links.place, last.unsqueeze(1)], dim=1),
            nn.functional.pad(there, (0, 1), value=True),
            torch.cat([feature, self.edge(stop).unsqueeze(1)], dim=1),
        )

    def word_attention(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The words the decision reads  ->  name: (X, L)"""
        weights = observations.cached(self.text)[1]
        return {"perception": weights, "action": weights}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words, and how many places the graph holds."""
        seen = SeenPlaces.of(point.memory())
        return ext.Explanation(self.words_at(point), numbers={"places": (seen.all >= 0).sum(dim=1).float()})


# The planner: graph networks on a small proxy graph, into which a graph of places is pooled. Shape letters: R
# graphs, V nodes, E edges, P proxies, W width.


@dataclass(frozen=True)
class Edges:
    """Directed edges of R graphs."""

    source: Tensor  # (R, E) node
    target: Tensor  # (R, E) node
    mask: Tensor  # (R, E) bool, true at edges
    feature: Tensor  # (R, E, W)


class GraphNet(nn.Module):
    """Messages along edges and against them, S times with the same weights.

    m_{u->v} = ELU(W [n_u, n_v, g]) + W_type e_{uv}
    n_v <- n_v + W [sum in, sum out, g, n_v],   g <- ReLU(W [mean n, g])

    A layer on [n_u, n_v, g] is the sum of a layer on each, so nodes are multiplied once instead of edges;
    the terms of the edges are the same in every step and summed once.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.message = nn.Linear(3 * width, width)
        self.edge = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.node = nn.Linear(4 * width, width)
        self.whole = nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """nodes: (R, V, W)  exists: (R, V) bool  ->  (R, V, W), 0 where there is no node"""
        row, edge = edges.mask.nonzero().unbind(1)  # padding is left out
        source, target = (row * nodes.shape[1] + ends[row, edge] for ends in (edges.source, edges.target))
        # a message along every edge, then one against every edge
        begins, ends = torch.cat([source, target]), torch.cat([target, source])
        typed = torch.cat([layer(edges.feature[row, edge]) for layer in self.edge])

        def summed(messages: Tensor, number: Tensor) -> Tensor:
            return torch.zeros_like(nodes).flatten(0, 1).index_add(0, number, messages).view_as(nodes)

        typed_in, typed_out = summed(typed, ends), summed(typed, begins)
        width, kept = nodes.shape[2], exists.unsqueeze(-1)
        count = kept.sum(dim=1).clamp_min(1)
        whole = (nodes * kept).sum(dim=1) / count
        of_ends, of_whole = self.message.weight.split_with_sizes([2 * width, width], dim=1)
        of_ends = torch.cat(of_ends.chunk(2, dim=1))  # (2W, W)
        for _ in range(self.steps):
            sends, receives = (nodes @ of_ends.t()).chunk(2, dim=-1)
            receives = receives + nn.functional.linear(whole, of_whole, self.message.bias).unsqueeze(1)
            pairs = sends.flatten(0, 1).index_select(0, begins)
            message = nn.functional.elu(pairs + receives.flatten(0, 1).index_select(0, ends))
            received, sent = summed(message, ends) + typed_in, summed(message, begins) + typed_out
            joined = torch.cat([received, sent, whole.unsqueeze(1).expand_as(nodes), nodes], dim=-1)
            nodes = (nodes + self.node(joined)) * kept
            whole = torch.relu(self.whole(torch.cat([nodes.sum(dim=1) / count, whole], dim=-1)))
        return nodes


class ProxyChannel(nn.Module):
    """Pools a graph into proxies, plans there, and hands the plan to the nodes: W A^T plan(A v, A e A^T).

    Every proxy is a weighted mean of nodes, so that its numbers do not grow with the graph.
    """

    def __init__(self, width: int, proxies: int, steps: int, *, small: int = 32) -> None:
        super().__init__()
        self.enter_node = nn.Linear(width, small)
        self.enter_edge = nn.Linear(width, small)
        self.assigning = GraphNet(small, steps)  # which share a node has in a proxy
        self.assign = nn.Linear(small, proxies, bias=False)  # one number for all nodes changes nothing
        self.planning = GraphNet(width, steps)
        self.out = nn.Linear(width, width)

    def assignment(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """What share every node has in every proxy; 0 where there is no node  ->  (R, P, V)"""
        inner = Edges(edges.source, edges.target, edges.mask, self.enter_edge(edges.feature))
        found = self.assigning(self.enter_node(nodes) * exists.unsqueeze(-1), exists, inner)
        score: Tensor = self.assign(found).transpose(1, 2).masked_fill(~exists.unsqueeze(1), -torch.inf)
        return score.softmax(dim=-1)

    def forward(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """What the plan adds to the nodes  ->  (R, V, W)"""
        share = self.assignment(nodes, exists, edges)
        proxies = torch.bmm(share, nodes)
        everyone = torch.ones_like(proxies[..., 0], dtype=torch.bool)
        planned = self.planning(proxies, everyone, pooled_edges(share, edges))
        found: Tensor = self.out(torch.bmm(share.transpose(1, 2), planned))
        return found * exists.unsqueeze(-1)


class ProxyPlanner(nn.Module):
    """v + the sum of all channels."""

    def __init__(self, width: int, *, channels: int = 3, proxies: int = 6, steps: int = 3) -> None:
        super().__init__()
        self.channels = nn.ModuleList(ProxyChannel(width, proxies, steps) for _ in range(channels))

    def forward(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """nodes: (R, V, W)  exists: (R, V) bool  ->  (R, V, W)"""
        nodes = nodes * exists.unsqueeze(-1)
        return nodes + torch.stack([channel(nodes, exists, edges) for channel in self.channels]).sum(dim=0)


def pooled_edges(share: Tensor, edges: Edges) -> Edges:
    """A e A^T: an edge from every proxy to every proxy.  share: (R, P, V)"""
    rows, proxies = share.shape[:2]
    index = edges.source.unsqueeze(1).expand(-1, proxies, -1)
    source = share.gather(2, index) * edges.mask.unsqueeze(1)  # (R, P, E)
    target = share.gather(2, edges.target.unsqueeze(1).expand(-1, proxies, -1))
    weight = (source.unsqueeze(2) * target.unsqueeze(1)).flatten(1, 2)  # (R, P * P, E)
    number = torch.arange(proxies, device=share.device)
    pairs = number.repeat_interleave(proxies).expand(rows, -1), number.repeat(proxies).expand(rows, -1)
    return Edges(*pairs, torch.ones_like(pairs[0], dtype=torch.bool), torch.bmm(weight, edges.feature))


AGENTS = {"egp": ext.AgentSpec(EGP, EGPConfig)}
ROWS = {
    "egp": shared("egp", EGPConfig),
    "egp-revisits": shared("egp", EGPConfig, revisits=True),
}
AS_PUBLISHED = published(
    "egp",
    EGPConfig(
        width=512, feature_dropout=0.0, co_grounded=True, action_width=1024, map_width=256, revisits=True
    ),
    {"student_forcing": 1.0},
    steps=40,
    iterations=60_000,
    batch=28,
    labels="reference_index",
    teacher_hops=2,
)
R4R_LABELS = {"egp": "best_ndtw", "egp-revisits": "best_ndtw"}
