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
