from __future__ import annotations

import math
from pathlib import Path

import networkx as nx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenemem.memory.scene_memory import SceneMemory, Weights
from scenemem.world.build import load_world
from scenemem.world.graph import World

Walks = list[list[int]]


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


def _walks(world: World, choices: list[list[int]]) -> Walks:
    """Walks over real edges: lane i starts at viewpoint choices[i][0], later numbers pick a neighbour."""
    walks = []
    linked = world.neighbour_mask.any(dim=1).nonzero().squeeze(1).tolist()
    for numbers in choices:
        walk = [linked[numbers[0] % len(linked)]]
        for number in numbers[1:]:
            options = world.neighbour[walk[-1]][world.neighbour_mask[walk[-1]]].tolist()
            walk.append(options[number % len(options)])
        walks.append(walk)
    return walks


def _remember(world: World, walks: Walks, weights: Weights = "metres") -> SceneMemory:
    memory = SceneMemory(world, len(walks), max(map(len, walks)), weights=weights)
    for step in range(max(map(len, walks))):
        lanes = [lane for lane, walk in enumerate(walks) if step < len(walk)]
        memory.visit(torch.tensor([walks[lane][step] for lane in lanes]), torch.tensor(lanes))
    return memory


def _known_graph(world: World, walk: list[int]) -> nx.Graph:
    """Everything a lane may know: visited places, edges between them, and their lengths."""
    graph = nx.Graph()
    graph.add_nodes_from(walk)
    for here in set(walk):
        for slot in world.neighbour_mask[here].nonzero().squeeze(1).tolist():
            there = int(world.neighbour[here, slot])
            if there in graph:
                graph.add_edge(here, there, metres=float(world.neighbour_length[here, slot]), hops=1.0)
    return graph


walks_of_lanes = st.integers(1, 9).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 50), min_size=length, max_size=length), min_size=1, max_size=4
    )
)
quick = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(choices=walks_of_lanes, weights=st.sampled_from(["metres", "hops"]))
def test_a_memory_holds_exactly_what_was_seen(
    world: World, choices: list[list[int]], weights: Weights
) -> None:
    walks = _walks(world, choices)
    memory = _remember(world, walks, weights)
    for lane, walk in enumerate(walks):
        visited = list(dict.fromkeys(walk))
        count = int(memory.count[lane])
        assert memory.node[lane, :count].tolist() == visited, "nodes are numbered by first visit"
        assert not memory.known[lane, count:].any()
        assert visited[int(memory.here[lane])] == walk[-1]
        for i, place in enumerate(visited):
            for slot in range(world.neighbour.shape[1]):
                neighbour = int(world.neighbour[place, slot])
                unvisited = neighbour >= 0 and neighbour not in visited
                assert bool(memory.subnode[lane, i, slot]) == unvisited
        assert torch.equal(memory.frontier[lane], memory.subnode[lane].any(-1))


@quick
@given(choices=walks_of_lanes, weights=st.sampled_from(["metres", "hops"]))
def test_ways_are_the_shortest_over_the_known_graph(
    world: World, choices: list[list[int]], weights: Weights
) -> None:
    walks = _walks(world, choices)
    memory = _remember(world, walks, weights)
    for lane, walk in enumerate(walks):
        graph = _known_graph(world, walk)
        visited = memory.node[lane, : int(memory.count[lane])].tolist()
        assert {frozenset((visited[i], visited[j])) for i, j in memory.edge[lane].nonzero().tolist()} == {
            frozenset(edge) for edge in graph.edges
        }
        lengths = dict(nx.all_pairs_dijkstra_path_length(graph, weight=weights))
        for i, a in enumerate(visited):
            for j, b in enumerate(visited):
                assert float(memory.walk[lane, i, j]) == pytest.approx(lengths[a][b], rel=1e-5)
                assert _followed(memory, graph, lane, i, j, weights) == pytest.approx(lengths[a][b], rel=1e-5)


def _followed(memory: SceneMemory, graph: nx.Graph, lane: int, i: int, j: int, weights: str) -> float:
    """Length of the way one really walks by taking first steps only."""
    total = 0.0
    for _ in range(memory.node.shape[1] + 1):
        if i == j:
            return total
        step = int(memory.first[lane, i, j])
        total += graph.edges[int(memory.node[lane, i]), int(memory.node[lane, step])][weights]
        i = step
    return math.nan


def test_towards_leads_back_to_any_node(world: World) -> None:
    walk = [world.index_of("grid", name) for name in ("g00", "g10", "g20", "g21", "g22", "g12")]
    memory = _remember(world, [walk])
    target = lane = torch.tensor([0])
    passed = []
    while int(memory.here[0]) != 0:
        step = memory.towards(target, lane)
        passed.append(int(step[0]))
        memory.visit(step, lane)
    assert len(passed) == nx.shortest_path_length(_known_graph(world, walk), walk[-1], walk[0])
    assert int(memory.towards(target, lane)[0]) == walk[0], "whoever has arrived stays"
    assert int(memory.count[0]) == len(walk), "walking over known places adds nothing"


def test_lanes_do_not_influence_each_other(world: World) -> None:
    walks = _walks(world, [[3, 1, 0, 2], [15, 1, 1, 1], [8, 0, 1, 0]])
    together = _remember(world, walks)
    for lane, walk in enumerate(walks):
        alone = _remember(world, [walk])
        for name in ("node", "edge", "subnode", "walk", "first"):
            assert torch.equal(getattr(together, name)[lane], getattr(alone, name)[0]), name


def test_a_memory_of_one_node_works(world: World) -> None:
    start = world.index_of("spiral", "s0")
    memory = _remember(world, [[start]])
    assert memory.to_json(0) == {
        "here": 0,
        "nodes": ["s0"],
        "frontier": [True],
        "edges": [],
        "subnodes": memory.to_json(0)["subnodes"],
    }
    assert {entry["viewpoint"] for entry in memory.to_json(0)["subnodes"]} == {"s1", "s4"}
    assert float(memory.walk[0, 0, 0]) == 0.0


def test_a_full_memory_says_so(world: World) -> None:
    memory = SceneMemory(world, 1, 1)
    lane = torch.tensor([0])
    memory.visit(torch.tensor([world.index_of("grid", "g00")]), lane)
    with pytest.raises(ValueError, match="the memory is full: it was built for 1 places"):
        memory.visit(torch.tensor([world.index_of("grid", "g10")]), lane)
    with pytest.raises(ValueError, match="capacity must be 1 or more, got 0"):
        SceneMemory(world, 1, 0)
