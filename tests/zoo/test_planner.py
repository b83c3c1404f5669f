"""The proxy planner: pooled as the sums say, blind to numbering and to padding."""

from __future__ import annotations

import torch

from scenemem.zoo.planner import Edges, GraphNet, ProxyChannel, ProxyPlanner, pooled_edges

WIDTH, NODES, EDGES = 6, 5, 9


def _graph(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Edges]:
    torch.manual_seed(seed)
    nodes = torch.randn(2, NODES, WIDTH)
    exists = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    source, target = torch.randint(0, 3, (2, 2, EDGES)).unbind(0)
    mask = torch.rand(2, EDGES) < 0.7
    return nodes, exists, Edges(source, target, mask, torch.randn(2, EDGES, WIDTH))


def test_edges_between_proxies_are_sums_over_the_edges_of_their_nodes() -> None:
    _, _, edges = _graph()
    share = torch.rand(2, 3, NODES)
    found = pooled_edges(share, edges).view(2, 3, 3, WIDTH)
    for row in range(2):
        for p in range(3):
            for q in range(3):
                expected = torch.zeros(WIDTH)
                for e in range(EDGES):
                    if edges.mask[row, e]:
                        u, v = edges.source[row, e], edges.target[row, e]
                        expected += share[row, p, u] * share[row, q, v] * edges.feature[row, e]
                torch.testing.assert_close(found[row, p, q], expected)


def test_messages_are_those_of_the_equations() -> None:
    nodes, exists, edges = _graph(1)
    net = GraphNet(WIDTH, steps=1)
    found = net(nodes, exists, edges)
    for row in range(2):
        count = int(exists[row].sum())
        whole = nodes[row, :count].mean(0)
        received, sent = torch.zeros(NODES, WIDTH), torch.zeros(NODES, WIDTH)
        for e in range(EDGES):
            if edges.mask[row, e]:
                ends = int(edges.source[row, e]), int(edges.target[row, e])
                for (u, v), layer in ((ends, net.edge[0]), (ends[::-1], net.edge[1])):
                    joined = torch.cat([nodes[row, u], nodes[row, v], whole])
                    message = torch.nn.functional.elu(net.message(joined)) + layer(edges.feature[row, e])
                    received[v] += message
                    sent[u] += message
        for v in range(count):
            change = net.node(torch.cat([received[v], sent[v], whole, nodes[row, v]]))
            torch.testing.assert_close(found[row, v], nodes[row, v] + change, rtol=1e-4, atol=1e-5)
        assert not found[row, count:].any(), "nothing reaches absent nodes"


def test_every_proxy_is_a_mean_of_nodes() -> None:
    nodes, exists, edges = _graph(4)
    channel = ProxyChannel(WIDTH, small=4, proxies=3, steps=2)
    share = channel.assignment(nodes, exists, edges)
    assert share.shape == (2, 3, NODES)
    torch.testing.assert_close(share.sum(dim=2), torch.ones(2, 3))
    assert bool((share > 0)[exists.unsqueeze(1).expand_as(share)].all())
    assert not share[1, :, 3:].any(), "absent nodes have no share"


def test_a_complete_graph_is_one_with_all_edges() -> None:
    torch.manual_seed(3)
    nodes, pairs = torch.randn(2, 3, WIDTH), torch.randn(2, 3, 3, WIDTH)
    everyone, number = torch.ones(2, 3, dtype=torch.bool), torch.arange(3)
    source, target = number.repeat_interleave(3).expand(2, -1), number.repeat(3).expand(2, -1)
    edges = Edges(source, target, torch.ones(2, 9, dtype=torch.bool), pairs.flatten(1, 2))
    net = GraphNet(WIDTH, steps=2)
    torch.testing.assert_close(net.complete(nodes, pairs), net(nodes, everyone, edges))


def test_numbers_of_nodes_and_edges_do_not_matter() -> None:
    nodes, exists, edges = _graph(2)
    planner = ProxyPlanner(WIDTH, channels=2, proxies=3, small=4, steps=2)
    order, shuffled = torch.randperm(NODES), torch.randperm(EDGES)
    number = order.argsort()
    moved = Edges(
        number[edges.source][:, shuffled],
        number[edges.target][:, shuffled],
        edges.mask[:, shuffled],
        edges.feature[:, shuffled],
    )
    found = planner(nodes[:, order], exists[:, order], moved)
    torch.testing.assert_close(found, planner(nodes, exists, edges)[:, order], rtol=1e-4, atol=1e-5)


def test_padding_does_not_matter() -> None:
    nodes, exists, edges = _graph(3)
    planner = ProxyPlanner(WIDTH, channels=2, proxies=3, small=4, steps=2)
    pad = torch.nn.functional.pad
    wider = Edges(
        pad(edges.source, (0, 2)),
        pad(edges.target, (0, 2)),
        pad(edges.mask, (0, 2)),
        pad(edges.feature, (0, 0, 0, 2), value=3.0),
    )
    found = planner(pad(nodes, (0, 0, 0, 3), value=7.0), pad(exists, (0, 3)), wider)
    torch.testing.assert_close(found[:, :NODES], planner(nodes, exists, edges), rtol=1e-4, atol=1e-5)
    assert not found[:, NODES:].any()
