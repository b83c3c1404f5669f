"""The Structured Scene Memory (section 3.1): what it holds, its ways, what is written at its nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import networkx as nx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from scenemem.models.navigator import State
from scenemem.ssm.graph import SceneMemory, WalkCost
from scenemem.ssm.reading import MessagePassing
from scenemem.world.graph import NONE, World
from tests.ssm.helpers import Moment, randn, remembered, visit_all

Walks = list[list[int]]

numbers_of_walks = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=4)
"""Walks of one batch may have different lengths."""
walk_costs = st.sampled_from(["metres", "hops"])
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def _named(world: World, scan: str, *names: str) -> list[int]:
    return [world.index_of(scan, name) for name in names]


def _remember(world: World, walks: Walks, walk_cost: WalkCost = "metres") -> SceneMemory:
    return visit_all(SceneMemory(world, len(walks), max(map(len, walks)), walk_cost=walk_cost), walks)


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
        assert bool((memory.node[episode, count:] == NONE).all())
        assert visited[int(memory.here[episode])] == walk[-1]
        for i, place in enumerate(visited):
            unvisited = [there >= 0 and there not in visited for there in world.neighbour[place].tolist()]
            assert memory.subnode[episode, i].tolist() == unvisited
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
    assert (memory.first.diagonal(dim1=1, dim2=2) == NONE).all()
    assert memory.towards(memory.here).tolist() == [walk[-1] for walk in walks], "the target is here"


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


def test_towards_leads_every_episode_back_to_its_target(world: World) -> None:
    walks = [
        _named(world, "grid", "g00", "g10", "g20", "g21", "g22", "g12"),
        _named(world, "spiral", "s0", "s1", "s2", "s3", "s4", "s5"),
    ]
    memory, target, both = _remember(world, walks), torch.tensor([0, 2]), torch.tensor([0, 1])
    ways = [list[int](), list[int]()]
    for _ in range(6):
        step = memory.towards(target)
        for way, place in zip(ways, step.tolist(), strict=True):
            way.append(place)
        memory.visit(step, both)
    for walk, way, node in zip(walks, ways, target.tolist(), strict=True):
        expected = nx.dijkstra_path(_known_graph(world, walk), walk[-1], walk[node], weight="metres")[1:]
        assert way == expected + [walk[node]] * (6 - len(expected)), "at the target it stays"
    assert memory.count.tolist() == [6, 6], "walking over known places adds nothing"


def test_episodes_do_not_influence_each_other(world: World) -> None:
    walks = _walks(world, [[3, 1, 0, 2], [15, 1, 1, 1], [8, 0, 1, 0]])
    together = _remember(world, walks)
    for episode, walk in enumerate(walks):
        alone = _remember(world, [walk])
        for name in ("node", "count", "here", "edge", "subnode", "walk", "first"):
            assert torch.equal(getattr(together, name)[episode], getattr(alone, name)[0]), name


def test_a_full_memory_says_so(world: World) -> None:
    memory = SceneMemory(world, 1, 1)
    episode = torch.tensor([0])
    memory.visit(torch.tensor(_named(world, "grid", "g00")), episode)
    assert float(memory.walk[0, 0, 0]) == 0.0
    with pytest.raises(IndexError):
        memory.visit(torch.tensor(_named(world, "grid", "g10")), episode)
    with pytest.raises(ValueError, match="capacity must be 1 or more, got 0"):
        SceneMemory(world, 1, 0)


# what agents write at their nodes


@pytest.mark.parametrize("learns", [True, False])
def test_columns_are_written_where_each_episode_stands(world: World, learns: bool) -> None:
    """Zeros elsewhere; the last visit counts, and the gradient reaches only what was written then."""
    walks = [_named(world, "grid", "g00", "g10", "g00"), _named(world, "spiral", "s0", "s1", "s2")]
    memory, both = SceneMemory(world, 2, 3), torch.tensor([0, 1])
    assert memory.columns == {}
    written = []
    for step in range(3):
        memory.visit(torch.tensor([walk[step] for walk in walks]), both)
        values = torch.tensor([[1.0 + step, 10.0], [5.0 + step, 20.0]], requires_grad=learns)
        written.append(values)
        with torch.set_grad_enabled(learns):
            memory.write("score", values, both)
    assert memory.columns["score"].tolist() == [
        [[3.0, 10.0], [2.0, 10.0], [0.0, 0.0]],
        [[5.0, 20.0], [6.0, 20.0], [7.0, 20.0]],
    ]
    assert memory.columns["score"].requires_grad == learns
    if learns:
        weights = torch.arange(1.0, 13.0).view(2, 3, 2)
        gradients = torch.autograd.grad((memory.columns["score"] * weights).sum(), written)
        first, second, third = (gradient.tolist() for gradient in gradients)
        assert first == [[0.0, 0.0], [7.0, 8.0]], "the first place of episode 0 was written anew"
        assert second == [[3.0, 4.0], [9.0, 10.0]]
        assert third == [[1.0, 2.0], [11.0, 12.0]]


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


@dataclass(frozen=True)
class _Parts(State):
    table: Tensor  # (B, 2, 3)
    age: Tensor  # (B,)


def test_states_of_any_form_are_remembered_where_they_were_made(world: World) -> None:
    walks = [_named(world, "grid", "g00", "g10", "g00"), _named(world, "spiral", "s0", "s1", "s0")]
    memory, both = SceneMemory(world, 2, 3), torch.tensor([0, 1])
    made = [_Parts(randn(2, 4), randn(2, 2, 3), randn(2)) for _ in range(2)]
    for step, state in enumerate(made):
        memory.visit(torch.tensor([walk[step] for walk in walks]), both)
        memory.remember_state(state, torch.tensor([step + 10, step + 20]), both)
    memory.visit(torch.tensor([walk[2] for walk in walks]), both)
    order = torch.tensor([1, 0])
    state, previous = memory.remembered_state(made[1], order)
    expected = made[0].select(order)
    assert type(state) is _Parts
    for name in ("hidden", "table", "age"):
        assert torch.equal(getattr(state, name), getattr(expected, name)), name
    assert previous.tolist() == [20, 10]
    assert previous.dtype == torch.long


# what a decision reads


def test_node_states_stand_memory_after_memory_each_with_its_place(moment: Moment) -> None:
    graph, states = moment.graph, moment.states
    found = zip(graph.row.tolist(), graph.node.tolist(), graph.place.tolist(), strict=True)
    assert list(found) == states
    assert graph.count.tolist() == [5, 3, 1]
    assert [graph.viewpoint[row, node] for row, node, _ in states] == [place for *_, place in states]
    assert int((graph.viewpoint == NONE).sum()) == 15 - len(states)
    assert graph.here.tolist() == [4, 1, 0]
    known = [_known_graph(moment.environment.world, walk) for walk in moment.walks]
    for row, node, place in states:
        metres = nx.dijkstra_path_length(known[row], moment.walks[row][-1], place, weight="metres")
        assert float(graph.walk[row, node]) == pytest.approx(metres, rel=1e-5)


def test_slots_of_nodes_are_what_the_world_and_the_store_say(moment: Moment) -> None:
    graph, world = moment.graph, moment.environment.world
    features, directions = graph.candidates(), graph.environment.directions[graph.place]
    for state, (row, _, place) in enumerate(moment.states):
        panorama = moment.environment.panorama(torch.tensor(place))
        for slot, there in enumerate(world.neighbour[place].tolist()):
            assert bool(graph.exists[state, slot]) == (there != NONE)
            assert bool(graph.visited[state, slot]) == (there in moment.walks[row])
            if there != NONE:
                assert torch.equal(features[state, slot], panorama[world.neighbour_view[place, slot]])
                heading, elevation = (
                    float(table[place, slot])
                    for table in (world.neighbour_heading, world.neighbour_elevation)
                )
                four = [math.cos(heading), math.sin(heading), math.cos(elevation), math.sin(elevation)]
                assert directions[state, slot].tolist() == pytest.approx(four)
    assert not directions[~graph.exists].any()


@pytest.mark.parametrize("revisits", [False, True])
def test_sub_nodes_are_open_or_every_way_with_revisits(moment: Moment, revisits: bool) -> None:
    graph = remembered(moment.environment, moment.walks, allow_revisits=revisits)
    expected = torch.zeros_like(graph.open)
    expected[graph.row, graph.node] = graph.exists if revisits else graph.exists & ~graph.visited
    assert torch.equal(graph.open, expected)


def test_columns_and_notes_are_those_of_the_episodes_that_decide(moment: Moment) -> None:
    slots = moment.environment.world.neighbour.shape[1]
    columns = torch.arange(3.0 * 7 * 2 * slots).view(3, 7, -1)  # of memories with room for more
    notes = {"mood": torch.tensor([[1.0], [2.0], [3.0]])}
    graph = replace(moment.graph, columns={"ways": columns}, notes=notes, episode=torch.tensor([2, 0, 1]))
    assert torch.equal(graph.column("ways"), columns[[2, 0, 1], :5])
    assert graph.note("mood").tolist() == [[3.0], [1.0], [2.0]]
    found = graph.ways("ways", torch.tensor([1, 0]), torch.tensor([2, 1]), torch.tensor([1, 0]))
    assert torch.equal(found, torch.stack([columns[0, 2, 2:4], columns[2, 1, :2]]))
    with pytest.raises(TypeError, match="there is no note 'hope'; this action space makes: mood"):
        graph.note("hope")


def test_padded_states_stand_at_their_memory_and_node_and_zeros_elsewhere(moment: Moment) -> None:
    states, graph = randn(len(moment.states), 3).requires_grad_(), moment.graph
    expected = torch.zeros(3, 5, 3, dtype=torch.float64)
    for state, (row, node, _) in zip(states, moment.states, strict=True):
        expected[row, node] = state.detach()
    padded, upstream = graph.padded(states), torch.randn_like(expected)
    assert torch.equal(padded, expected)
    (gradient,) = torch.autograd.grad(padded, states, upstream)
    assert torch.equal(gradient, upstream[graph.row, graph.node])


class _Messages(nn.Module):
    """Instead of a GRU: the states are the messages."""

    def forward(self, messages: Tensor, states: Tensor) -> Tensor:
        del states
        return messages


def test_the_sum_over_neighbours_is_a_product_with_the_edges(moment: Moment) -> None:
    """Its values and its gradient, in memories of different sizes; nothing where there is no neighbour."""
    graph, states = moment.graph, randn(len(moment.states), 4).requires_grad_()
    messages = MessagePassing(4, 1)
    messages.update = _Messages()  # type: ignore[assignment]
    total = messages(states, graph)
    for row, walk in enumerate(moment.walks):
        known = _known_graph(moment.environment.world, walk)
        adjacency = torch.from_numpy(nx.to_numpy_array(known, list(known), weight=None))
        torch.testing.assert_close(total[graph.row == row], adjacency @ states[graph.row == row])
    assert not total[-1].any()
    assert torch.autograd.gradcheck(lambda states: messages(states, graph), states)
