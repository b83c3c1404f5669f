"""The planner of EGP: graph networks on a small proxy graph, into which a graph of places is pooled.

Shape letters: R graphs, V nodes, E edges, P proxies, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Edges:
    """Directed edges of R graphs."""

    source: Tensor  # (R, E) node
    target: Tensor  # (R, E) node
    mask: Tensor  # (R, E) bool, true at edges
    feature: Tensor  # (R, E, W)


class GraphNet(nn.Module):
    """Messages along edges and against them, S times with the same weights.

    m_{u->v} = ELU(W [n_u, n_v, g]) + W_type e_{uv},   n_v <- W [sum in, sum out, g, n_v],   g <- W [mean n,
    g]

    A layer on [n_u, n_v, g] is the sum of a layer on each, so nodes are multiplied once instead of edges.

    Args:
        width: W of nodes, edges and the global state.
        steps: S.
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
        kept = exists.unsqueeze(-1)
        many = kept.sum(dim=1).clamp_min(1)
        whole = (nodes * kept).sum(dim=1) / many
        # a message along every edge, then one against every edge
        source = torch.cat([edges.source, edges.target], dim=1)
        target = torch.cat([edges.target, edges.source], dim=1)
        mask = torch.cat([edges.mask, edges.mask], dim=1).unsqueeze(-1)
        typed = torch.cat([layer(edges.feature) for layer in self.edge], dim=1) * mask
        source, target = _flat(source, nodes), _flat(target, nodes)
        of_ends, of_whole = self.message.weight.split([2 * nodes.shape[2], nodes.shape[2]], dim=1)
        both = torch.cat(of_ends.chunk(2, dim=1))  # (2W, W)
        for _ in range(self.steps):
            sends, receives = (nodes.flatten(0, 1) @ both.t()).chunk(2, dim=-1)
            everywhere = nn.functional.linear(whole, of_whole, self.message.bias).unsqueeze(1)
            ends = sends.index_select(0, source) + receives.index_select(0, target)
            message = nn.functional.elu(ends.view_as(typed) + everywhere) * mask + typed
            received, sent = _summed(message, target, nodes), _summed(message, source, nodes)
            context = whole.unsqueeze(1).expand_as(nodes)
            nodes = torch.relu(self.node(torch.cat([received, sent, context, nodes], dim=-1))) * kept
            whole = torch.relu(self.whole(torch.cat([nodes.sum(dim=1) / many, whole], dim=-1)))
        return nodes


class ProxyChannel(nn.Module):
    """Pools a graph into proxies, plans there, and tells the nodes: W A^T plan(A v, A e A^T).

    Args:
        width: W of nodes and edges.
        small: width of the graph net that assigns nodes to proxies.
        proxies: P.
        steps: message steps of both graph nets.
    """

    def __init__(self, width: int, small: int, proxies: int, steps: int) -> None:
        super().__init__()
        self.proxies = proxies
        self.enter_node = nn.Linear(width, small)
        self.enter_edge = nn.Linear(width, small)
        self.assigning = GraphNet(small, steps)
        self.assign = nn.Linear(small, proxies)
        self.planning = GraphNet(width, steps)
        self.out = nn.Linear(width, width)

    def assignment(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """How much of every node goes to every proxy; 0 where there is no node  ->  (R, P, V)"""
        inner = Edges(edges.source, edges.target, edges.mask, self.enter_edge(edges.feature))
        found = self.assigning(self.enter_node(nodes) * exists.unsqueeze(-1), exists, inner)
        share: Tensor = self.assign(found).softmax(dim=-1) * exists.unsqueeze(-1)
        return share.transpose(1, 2)

    def forward(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """What the plan adds to the nodes  ->  (R, V, W)"""
        share = self.assignment(nodes, exists, edges)
        proxies = torch.bmm(share, nodes)
        pairs = pooled_edges(share, edges)
        number = torch.arange(self.proxies, device=nodes.device)
        rows, everyone = len(nodes), torch.ones_like(proxies[..., 0], dtype=torch.bool)
        between = Edges(
            number.repeat_interleave(self.proxies).expand(rows, -1),
            number.repeat(self.proxies).expand(rows, -1),
            torch.ones_like(pairs[..., 0], dtype=torch.bool),
            pairs,
        )
        planned = self.planning(proxies, everyone, between)
        said: Tensor = self.out(torch.bmm(share.transpose(1, 2), planned))
        return said * exists.unsqueeze(-1)


class ProxyPlanner(nn.Module):
    """v + the sum of all channels.

    Args:
        width: W of nodes and edges.
        channels: how many ways to pool.
        proxies: P of every channel.
        small: width of the graph nets that assign.
        steps: message steps of every graph net.
    """

    def __init__(
        self, width: int, *, channels: int = 3, proxies: int = 6, small: int = 32, steps: int = 3
    ) -> None:
        super().__init__()
        self.channels = nn.ModuleList(ProxyChannel(width, small, proxies, steps) for _ in range(channels))

    def forward(self, nodes: Tensor, exists: Tensor, edges: Edges) -> Tensor:
        """nodes: (R, V, W)  exists: (R, V) bool  ->  (R, V, W)"""
        nodes = nodes * exists.unsqueeze(-1)
        return nodes + torch.stack([channel(nodes, exists, edges) for channel in self.channels]).sum(dim=0)


def pooled_edges(share: Tensor, edges: Edges) -> Tensor:
    """A e A^T: what lies between every two proxies.  share: (R, P, V)  ->  (R, P * P, W)"""
    proxies = share.shape[1]
    index = edges.source.unsqueeze(1).expand(-1, proxies, -1)
    source = share.gather(2, index) * edges.mask.unsqueeze(1)  # (R, P, E)
    target = share.gather(2, edges.target.unsqueeze(1).expand(-1, proxies, -1))
    weight = (source.unsqueeze(2) * target.unsqueeze(1)).flatten(1, 2)  # (R, P * P, E)
    return torch.bmm(weight, edges.feature)


def _summed(messages: Tensor, number: Tensor, nodes: Tensor) -> Tensor:
    """Messages added up at nodes.  (R, E, W), (R * E,)  ->  (R, V, W)"""
    empty = torch.zeros_like(nodes).flatten(0, 1)
    return empty.index_add(0, number, messages.flatten(0, 1)).view_as(nodes)


def _flat(number: Tensor, nodes: Tensor) -> Tensor:
    """Rows of the flattened table; copying whole rows is many times as fast.  (R, E)  ->  (R * E,)"""
    first = torch.arange(len(nodes), device=nodes.device) * nodes.shape[1]
    return (first.unsqueeze(1) + number).flatten()
