from __future__ import annotations

import math
from pathlib import Path

import networkx as nx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenemem.ssm.graph import SceneMemory, WalkCost
from scenemem.world.build import load_world
from scenemem.world.graph import World, view_heading

Walks = list[list[int]]


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


def _walks(world: World, choices: list[list[int]]) -> Walks:
    """Walks over real edges: walk i starts at viewpoint choices[i][0], later numbers pick a neighbour."""
    walks = []
    linked = world.neighbour_mask.any(dim=1).nonzero().squeeze(1).tolist()
    for numbers in choices:
        walk = [linked[numbers[0] % len(linked)]]
        for number in numbers[1:]:
            options = world.neighbour[walk[-1]][world.neighbour_mask[walk[-1]]].tolist()
            walk.append(options[number % len(options)])
        walks.append(walk)
    return walks


def _remember(world: World, walks: Walks, walk_cost: WalkCost = "metres") -> SceneMemory:
    memory = SceneMemory(world, len(walks), max(map(len, walks)), walk_cost=walk_cost)
    for step in range(max(map(len, walks))):
        active = [episode for episode, walk in enumerate(walks) if step < len(walk)]
        memory.visit(torch.tensor([walks[episode][step] for episode in active]), torch.tensor(active))
    return memory


def _known_graph(world: World, walk: list[int]) -> nx.Graph:
    """Everything an episode may know: visited places, edges between them, and their lengths."""
    graph = nx.Graph()
    graph.add_nodes_from(walk)
    for here in set(walk):
        for slot in world.neighbour_mask[here].nonzero().squeeze(1).tolist():
            there = int(world.neighbour[here, slot])
            if there in graph:
                graph.add_edge(here, there, metres=float(world.neighbour_length[here, slot]), hops=1.0)
    return graph


numbers_of_walks = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=4)
"""Walks of one batch may have different lengths."""
walk_costs = st.sampled_from(["metres", "hops"])
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(choices=numbers_of_walks, walk_cost=walk_costs)
def test_a_memory_holds_exactly_what_was_seen(
    world: World, choices: list[list[int]], walk_cost: WalkCost
) -> None:
    walks = _walks(world, choices)
    memory = _remember(world, walks, walk_cost)
    for episode, walk in enumerate(walks):
        visited = list(dict.fromkeys(walk))
        count = int(memory.count[episode])
        assert memory.node[episode, :count].tolist() == visited, "nodes are numbered by first visit"
        assert memory.known[episode, :count].all()
        assert not memory.known[episode, count:].any()
        assert visited[int(memory.here[episode])] == walk[-1]
        for i, place in enumerate(visited):
            for slot in range(world.neighbour.shape[1]):
                neighbour = int(world.neighbour[place, slot])
                unvisited = neighbour >= 0 and neighbour not in visited
                assert bool(memory.subnode[episode, i, slot]) == unvisited
        assert not memory.subnode[episode, count:].any()
        assert torch.equal(memory.frontier[episode], memory.subnode[episode].any(-1))


@quick
@given(choices=numbers_of_walks, walk_cost=walk_costs)
def test_ways_are_the_shortest_over_the_known_graph(
    world: World, choices: list[list[int]], walk_cost: WalkCost
) -> None:
    walks = _walks(world, choices)
    memory = _remember(world, walks, walk_cost)
    for episode, walk in enumerate(walks):
        graph = _known_graph(world, walk)
        visited = memory.node[episode, : int(memory.count[episode])].tolist()
        edges = memory.edge[episode].nonzero().tolist()
        assert {frozenset((visited[i], visited[j])) for i, j in edges} == set(map(frozenset, graph.edges))
        assert torch.equal(memory.edge[episode], memory.edge[episode].t())
        lengths = dict(nx.all_pairs_dijkstra_path_length(graph, weight=walk_cost))
        for i, a in enumerate(visited):
            for j, b in enumerate(visited):
                expected = pytest.approx(lengths[a][b], rel=1e-5)
                assert float(memory.walk[episode, i, j]) == expected
                assert _followed(memory, graph, episode, i, j) == expected
        assert memory.walk[episode, len(visited) :].isinf().all()
        assert memory.walk[episode, :, len(visited) :].isinf().all()


def _followed(memory: SceneMemory, graph: nx.Graph, episode: int, i: int, j: int) -> float:
    """Length of the way one really walks by taking first steps only."""
    total = 0.0
    for _ in range(memory.node.shape[1] + 1):
        if i == j:
            return total
        step = int(memory.first[episode, i, j])
        edge = graph.edges[int(memory.node[episode, i]), int(memory.node[episode, step])]
        total += edge[memory.walk_cost]
        i = step
    return math.nan


@quick
@given(choices=numbers_of_walks)
def test_hops_from_the_start_are_counted_over_the_known_graph(world: World, choices: list[list[int]]) -> None:
    """Whatever the ways count; -1 where there is no node."""
    walks = _walks(world, choices)
    memory = _remember(world, walks)
    episodes = torch.arange(len(walks)).flip(0)
    hops = memory.hops_from_start(episodes)
    for row, episode in enumerate(episodes.tolist()):
        known = nx.single_source_shortest_path_length(_known_graph(world, walks[episode]), walks[episode][0])
        expected = [known[place] for place in dict.fromkeys(walks[episode])]
        assert hops[row].tolist() == expected + [-1] * (memory.node.shape[1] - len(expected))


def test_shortest_ways_count_metres_or_hops(world: World) -> None:
    walk = [world.index_of("spiral", f"s{number}") for number in (0, 1, 2, 3, 4)]
    metres, hops = _remember(world, [walk]), _remember(world, [walk], "hops")
    assert metres.walk_cost == "metres"
    assert float(hops.walk[0, 0, 4]) == 1.0
    assert float(hops.walk[0, 0, 2]) == 2.0
    slot = int((world.neighbour[walk[0]] == walk[4]).nonzero())
    assert float(metres.walk[0, 0, 4]) == pytest.approx(float(world.neighbour_length[walk[0], slot]))


def test_towards_leads_back_to_any_node(world: World) -> None:
    walk = [world.index_of("grid", name) for name in ("g00", "g10", "g20", "g21", "g22", "g12")]
    memory = _remember(world, [walk])
    target = episode = torch.tensor([0])
    passed = []
    while int(memory.here[0]) != 0:
        step = memory.towards(target, episode)
        passed.append(int(step[0]))
        memory.visit(step, episode)
    assert len(passed) == nx.shortest_path_length(_known_graph(world, walk), walk[-1], walk[0])
    assert int(memory.towards(target, episode)[0]) == walk[0], "who has arrived stays"
    assert int(memory.count[0]) == len(walk), "walking over known places adds nothing"


@quick
@given(choices=numbers_of_walks)
def test_who_stands_at_the_target_stays_there(world: World, choices: list[list[int]]) -> None:
    walks = _walks(world, choices)
    memory, episodes = _remember(world, walks), torch.arange(len(walks))
    assert memory.towards(memory.here, episodes).tolist() == [walk[-1] for walk in walks]
    assert (memory.first.diagonal(dim1=1, dim2=2) == -1).all()


def test_episodes_do_not_influence_each_other(world: World) -> None:
    walks = _walks(world, [[3, 1, 0, 2], [15, 1, 1, 1], [8, 0, 1, 0]])
    together = _remember(world, walks)
    for episode, walk in enumerate(walks):
        alone = _remember(world, [walk])
        for name in ("node", "count", "here", "edge", "subnode", "walk", "first"):
            assert torch.equal(getattr(together, name)[episode], getattr(alone, name)[0]), name


def test_columns_are_written_where_each_episode_stands(world: World) -> None:
    """Zeros elsewhere; the last visit counts."""
    walks = [
        [world.index_of("grid", name) for name in ("g00", "g10", "g00")],
        [world.index_of("spiral", name) for name in ("s0", "s1", "s2")],
    ]
    memory, both = SceneMemory(world, 2, 3), torch.tensor([0, 1])
    assert memory.columns == {}
    for step in range(3):
        memory.visit(torch.tensor([walk[step] for walk in walks]), both)
        memory.write("score", torch.tensor([[1.0 + step, 10.0], [5.0 + step, 20.0]]), both)
    assert memory.columns["score"].tolist() == [
        [[3.0, 10.0], [2.0, 10.0], [0.0, 0.0]],
        [[5.0, 20.0], [6.0, 20.0], [7.0, 20.0]],
    ]


def test_columns_are_written_for_some_episodes_and_under_several_names(world: World) -> None:
    memory = SceneMemory(world, 3, 2)
    memory.visit(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))
    memory.write("wide", torch.tensor([[2.0, 3.0], [4.0, 5.0]], dtype=torch.float64), torch.tensor([2, 0]))
    memory.write("count", torch.tensor([[7]]), torch.tensor([1]))
    assert set(memory.columns) == {"wide", "count"}
    assert memory.columns["wide"].dtype == torch.float64
    assert memory.columns["wide"][:, 0].tolist() == [[4.0, 5.0], [0.0, 0.0], [2.0, 3.0]]
    assert memory.columns["count"].tolist() == [[[0], [0]], [[7], [0]], [[0], [0]]]
    assert not memory.columns["wide"][:, 1].any()


def test_a_memory_of_one_node_works(world: World) -> None:
    start = world.index_of("spiral", "s0")
    memory = _remember(world, [[start]])
    described = memory.to_json(0)
    assert {entry["viewpoint"] for entry in described.pop("subnodes")} == {"s1", "s4"}
    assert described == {"here": 0, "nodes": ["s0"], "frontier": [True], "edges": []}
    assert float(memory.walk[0, 0, 0]) == 0.0


def test_an_episode_is_described_with_plain_values(world: World) -> None:
    """The second of a batch: nodes by name, every edge once, sub-nodes with their directions."""
    names = ["s0", "s1", "s2", "s1"]
    memory = _remember(
        world, [[world.index_of("grid", "g00")], [world.index_of("spiral", name) for name in names]]
    )
    described = memory.to_json(1)
    assert described["here"] == 1
    assert described["nodes"] == ["s0", "s1", "s2"]
    assert described["frontier"] == [True, False, True]
    assert described["edges"] == [[0, 1], [1, 2]]
    assert [(entry["node"], entry["viewpoint"]) for entry in described["subnodes"]] == [(0, "s4"), (2, "s3")]
    for entry in described["subnodes"]:
        where = world.index_of("spiral", described["nodes"][entry["node"]]), entry["slot"]
        assert world.viewpoints[int(world.neighbour[where])] == entry["viewpoint"]
        assert entry["heading"] == float(world.neighbour_heading[where])
        assert entry["view_heading"] == float(view_heading(world.neighbour_view[where]))
        assert entry["elevation"] == float(world.neighbour_elevation[where])


def test_a_full_memory_says_so(world: World) -> None:
    memory = SceneMemory(world, 1, 1)
    episode = torch.tensor([0])
    memory.visit(torch.tensor([world.index_of("grid", "g00")]), episode)
    with pytest.raises(ValueError, match="the memory is full: it was built for 1 places"):
        memory.visit(torch.tensor([world.index_of("grid", "g10")]), episode)
    with pytest.raises(ValueError, match="capacity must be 1 or more, got 0"):
        SceneMemory(world, 1, 0)
