"""The Structured Scene Memory (section 3.1): what it holds, its ways, what is written at its nodes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import networkx as nx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from scenemem.agents.build import ModelConfig
from scenemem.errors import SettingError
from scenemem.models.navigator import State
from scenemem.ssm.graph import SceneMemory, WalkCost, WalkOptions
from scenemem.ssm.reading import GroundedConfig, SSMConfig
from scenemem.world.graph import NONE, World
from tests.agents.helpers import known_graph
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
    assert torch.equal(memory.frontier, memory.subnode.any(dim=-1))
    assert torch.equal(memory.open_ways(torch.arange(len(walks))), memory.subnode), "no revisits by default"


@quick
@given(choices=numbers_of_walks, walk_cost=walk_costs)
def test_ways_are_the_shortest_over_the_known_graph(
    world: World, choices: list[list[int]], walk_cost: WalkCost
) -> None:
    walks = _walks(world, choices)
    memory = _remember(world, walks, walk_cost)
    for episode, walk in enumerate(walks):
        graph = known_graph(world, walk)
        visited = memory.node[episode, : int(memory.count[episode])].tolist()
        unknown = memory.node.shape[1] - len(visited)
        edges = torch.from_numpy(nx.to_numpy_array(graph, visited, weight=None)).bool()
        assert torch.equal(memory.edge[episode], pad(edges, (0, unknown, 0, unknown)))
        lengths = dict(nx.all_pairs_dijkstra_path_length(graph, weight=walk_cost))  # a hop counts 1
        expected = torch.tensor([[lengths[a][b] for b in visited] for a in visited])
        known = pad(expected.to(memory.walk), (0, unknown, 0, unknown), value=torch.inf)
        torch.testing.assert_close(memory.walk[episode], known)
        for i, a in enumerate(visited):
            for j, b in enumerate(visited):
                step = int(memory.first[episode, i, j])
                assert (step == NONE) == (i == j)
                if i != j:
                    hop = graph.edges[a, visited[step]].get(walk_cost, 1.0)
                    assert hop + lengths[visited[step]][b] == pytest.approx(lengths[a][b], rel=1e-5)
        assert (memory.first[episode, len(visited) :] == NONE).all()
        assert (memory.first[episode, :, len(visited) :] == NONE).all()


def test_towards_leads_every_episode_back_to_its_target(world: World) -> None:
    """At the target it stays; walking over known places adds nothing."""
    walks = [
        _named(world, "grid", "g00", "g10", "g20", "g21", "g22", "g12"),
        _named(world, "spiral", "s0", "s1", "s2", "s3", "s4", "s5"),
    ]
    memory, target, both = _remember(world, walks), torch.tensor([0, 2]), torch.tensor([0, 1])
    expected = [
        nx.dijkstra_path(known_graph(world, walk), walk[-1], walk[node], weight="metres")[1:]
        for walk, node in zip(walks, target.tolist(), strict=True)
    ]
    for step in range(6):
        memory.visit(memory.towards(target), both)
        there = [way[min(step, len(way) - 1)] for way in expected]
        assert memory.node[both, memory.here].tolist() == there
    assert memory.count.tolist() == [6, 6]


def test_episodes_do_not_influence_each_other(world: World) -> None:
    walks = _walks(world, [[3, 1, 0, 2], [15, 1, 1, 1], [8, 0, 1, 0]])
    together = _remember(world, walks)
    for episode, walk in enumerate(walks):
        alone = _remember(world, [walk])
        for name in ("node", "count", "here", "edge", "subnode", "walk", "first"):
            assert torch.equal(getattr(together, name)[episode], getattr(alone, name)[0]), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reasoning_steps": -1}, "reasoning_steps must be from 0.* to 100, got -1"),
        ({"reasoning_steps": 101}, "reasoning_steps must be from 0.* to 100, got 101"),
        ({"node_width": 0}, "node_width must be 1 or more, got 0; leave it out for the feature"),
        ({"orientation_width": 6}, "orientation_width must be a multiple of 4, got 6"),
        ({"orientation_width": 0}, "orientation_width must be a multiple of 4, got 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        SSMConfig(**settings)  # type: ignore[arg-type]


def test_settings_are_the_papers_unless_told(world: World) -> None:
    SSMConfig(reasoning_steps=0, node_width=1, orientation_width=4)
    SSMConfig(reasoning_steps=100)
    own = {item.name for item in fields(SSMConfig)} - {item.name for item in fields(ModelConfig)}
    assert {name: getattr(SSMConfig(), name) for name in own} == {
        "grounding": True,
        "allow_revisits": False,
        "reasoning_steps": 3,
        "node_width": None,
        "orientation_width": 128,
        "edges": "visited",
        "views": "navigable",
        "walk_cost": "metres",
    }
    plain = WalkOptions("metres", restore_state=False, final_backtrack=False, allow_revisits=False)
    assert WalkOptions() == GroundedConfig().walk_options() == SSMConfig().walk_options() == plain
    told = SSMConfig(walk_cost="hops", allow_revisits=True).walk_options()
    assert told == replace(plain, walk_cost="hops", allow_revisits=True)
    assert GroundedConfig(allow_revisits=True).walk_options() == replace(plain, allow_revisits=True)
    assert SceneMemory(world, 1, 1).walk_cost == "metres"


def test_a_full_memory_refuses_another_place(world: World) -> None:
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
    memory.write("count", torch.tensor([[7]]), torch.tensor([1]))
    assert memory.columns["count"].tolist() == [[[0], [0], [0]], [[0], [0], [7]]], "of one episode"
    if learns:
        weights = torch.arange(1.0, 13.0).view(2, 3, 2)
        gradients = torch.autograd.grad((memory.columns["score"] * weights).sum(), written)
        first, second, third = (gradient.tolist() for gradient in gradients)
        assert first == [[0.0, 0.0], [7.0, 8.0]], "the first place of episode 0 was written anew"
        assert second == [[3.0, 4.0], [9.0, 10.0]]
        assert third == [[1.0, 2.0], [11.0, 12.0]]


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
    known = [known_graph(moment.environment.world, walk) for walk in moment.walks]
    for row, node, place in states:
        metres = nx.dijkstra_path_length(known[row], moment.walks[row][-1], place, weight="metres")
        assert float(graph.walk[row, node]) == pytest.approx(metres, rel=1e-5)


@pytest.mark.parametrize("revisits", [False, True])
def test_slots_of_nodes_are_sub_nodes_or_lead_to_visited_places(moment: Moment, revisits: bool) -> None:
    """Only the first are open, or every way with revisits."""
    graph = remembered(moment.environment, moment.walks, allow_revisits=revisits)
    expected = torch.zeros_like(graph.open)
    for state, (row, node, place) in enumerate(moment.states):
        ways = moment.environment.world.neighbour[place].tolist()
        exists, visited = [there != NONE for there in ways], [there in moment.walks[row] for there in ways]
        assert (graph.exists[state].tolist(), graph.visited[state].tolist()) == (exists, visited)
        expected[row, node] = graph.exists[state] if revisits else graph.exists[state] & ~graph.visited[state]
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
