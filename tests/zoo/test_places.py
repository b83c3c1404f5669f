"""Seen places: merged by where ways lead, with the distances and positions that a plain search finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import pytest
import torch

from scenemem.features.store import Environment
from scenemem.ssm.graph import MemoryGraph
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, Simulator, World
from scenemem.zoo.places import PlaceActions, SeenPlaces, first_of_cheapest
from tests.zoo.helpers import places_of


@pytest.fixture(scope="module", params=[1, 2, 7])
def seen(
    request: pytest.FixtureRequest,
    random_environment: Callable[[World, int], Environment],
    world: World,
    episodes: EpisodeSet,
) -> SeenPlaces:
    some = episodes.select(range(0, len(episodes), 9))
    return SeenPlaces.of(_explored(random_environment(world, 2), some, request.param))


def _explored(environment: Environment, episodes: EpisodeSet, steps: int) -> MemoryGraph:
    """Memories of random walks."""
    world, everyone = environment.world, torch.arange(len(episodes))
    space = PlaceActions(world, len(episodes), 30)
    simulator, random = Simulator(world), torch.Generator().manual_seed(steps)
    pose = simulator.reset(episodes.start, episodes.heading)
    for step in range(steps):
        if step:
            chance = world.neighbour_mask[pose.viewpoint].float()
            pose = simulator.step(pose, torch.multinomial(chance, 1, generator=random).squeeze(1))
        pose, arrival = space.arrive(pose, everyone, torch.ones_like(everyone, dtype=torch.bool))
    return space.recall(arrival, environment)


def _known(seen: SeenPlaces, row: int) -> nx.Graph:
    """What an episode knows, as networkx has it."""
    graph, world = nx.Graph(), seen.world
    graph.add_nodes_from(nodes := places_of(seen.graph.viewpoint[row]))
    for place in nodes:
        for other in places_of(world.neighbour[place]):
            length = math.dist(world.position[place].tolist(), world.position[other].tolist())
            graph.add_edge(place, other, metres=length)
    return graph


def test_every_unvisited_place_is_there_once(seen: SeenPlaces) -> None:
    slots = seen.world.neighbour.shape[1]
    for row in range(len(seen.all)):
        known, nodes = _known(seen, row), set(seen.graph.viewpoint[row].tolist())
        assert places_of(seen.viewpoint[row]) == sorted(set(known) - nodes)
        for way, number in enumerate(seen.of_way[row].tolist()):
            node, slot = divmod(way, slots)
            if bool(seen.graph.open[row, node, slot]):
                leads_to = int(seen.world.neighbour[seen.graph.viewpoint[row, node], slot])
                assert int(seen.viewpoint[row, number]) == leads_to
            else:
                assert number == seen.viewpoint.shape[1]


def test_ways_to_a_place_are_averaged_or_the_largest_taken(seen: SeenPlaces) -> None:
    torch.manual_seed(0)
    ways = torch.randn(*seen.of_way.shape, 3)
    memory, node, slot = seen.open_ways
    own = ways[memory, node * seen.world.neighbour.shape[1] + slot]
    mean, largest = seen.mean(own), seen.maximum(own)
    back = seen.per_way(torch.randn(seen.viewpoint.shape))
    assert not back[seen.of_way == seen.viewpoint.shape[1]].any()
    for row in range(len(ways)):
        for number in range(len(places_of(seen.viewpoint[row]))):
            own = ways[row][seen.of_way[row] == number]
            torch.testing.assert_close(mean[row, number], own.mean(0))
            torch.testing.assert_close(largest[row, number], own.amax(0))


def test_distances_are_those_of_the_known_map(seen: SeenPlaces) -> None:
    for row in range(len(seen.all)):
        known = _known(seen, row)
        nodes = set(places_of(seen.graph.viewpoint[row]))
        for one, first in enumerate(seen.all[row].tolist()):
            for other, second in enumerate(seen.all[row].tolist()):
                if NONE in (first, second):
                    assert not seen.metres[row, one, other]
                    continue
                through = known.subgraph(nodes | {first, second})
                if first not in nodes and second not in nodes and through.has_edge(first, second):
                    through = nx.Graph(through)
                    through.remove_edge(first, second)  # an edge that was never seen
                expected = nx.dijkstra_path_length(through, first, second, weight="metres")
                assert float(seen.metres[row, one, other]) == pytest.approx(expected, abs=1e-3)
        here = int(seen.graph.viewpoint[row, seen.graph.here[row]])
        for number, place in enumerate(seen.all[row].tolist()):
            if place != NONE:
                through = known.subgraph(nodes | {place})
                assert int(seen.hops[row, number]) == nx.shortest_path_length(through, here, place)


def test_positions_turn_with_the_agent(seen: SeenPlaces) -> None:
    plain = seen.positions(torch.zeros(len(seen.all)))
    turned = seen.positions(torch.full((len(seen.all),), math.pi / 2))
    torch.testing.assert_close(turned[..., 1], plain[..., 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(turned[..., 2:], plain[..., 2:])
    assert not plain[seen.all == NONE].any()


def test_of_equal_places_the_cheapest_is_kept() -> None:
    place = torch.tensor([[5, 3, 5, 3, 8, 5], [1, 1, 1, 1, 1, 1]])
    inf = torch.inf
    cost = torch.tensor([[2.0, 1.0, 1.5, 1.0, inf, inf], [inf, inf, 4.0, 3.0, 3.0, inf]])
    kept = first_of_cheapest(place, cost)
    assert kept.nonzero().tolist() == [[0, 1], [0, 2], [1, 3]]


def test_where_everything_was_visited_no_place_is_left(seen: SeenPlaces) -> None:
    graph = replace(seen.graph, open=torch.zeros_like(seen.graph.open))
    closed, ways = SeenPlaces.of(graph), torch.randn(0, 3)
    rows, nodes = graph.viewpoint.shape
    assert closed.viewpoint.shape == (rows, 0)
    assert closed.mean(ways).shape == closed.maximum(ways).shape == (rows, 0, 3)
    assert closed.per_way(torch.zeros(rows, 0)).shape == closed.of_way.shape
    assert closed.positions(torch.zeros(rows)).shape == (rows, nodes, 7)


@pytest.mark.parametrize("revisits", [False, True])
def test_ways_lead_to_nodes_and_to_places_that_can_be_chosen(revisits: bool, seen: SeenPlaces) -> None:
    """With revisits a way to a visited place leads to its node and to the place that can be chosen, too."""
    world, graph = seen.world, seen.graph
    if revisits:
        ways = world.neighbour_mask[graph.viewpoint.clamp_min(0)] & (graph.viewpoint != NONE).unsqueeze(-1)
        graph = replace(graph, open=ways)
        seen = SeenPlaces.of(graph)
    links = seen.links()
    for row, everything in enumerate(seen.all.tolist()):
        columns = (links.node, links.slot, links.place, links.mask)
        drawn = [
            (node, slot, place)
            for node, slot, place, there in zip(*(column[row].tolist() for column in columns), strict=True)
            if there
        ]
        nodes = graph.viewpoint[row].tolist()
        expected = []
        for node, here in enumerate(nodes):
            for slot, other in enumerate(world.neighbour[here].tolist() if here != NONE else []):
                if other == NONE:
                    continue
                if other in nodes:
                    expected.append((node, slot, nodes.index(other)))
                if revisits or other not in nodes:
                    expected.append((node, slot, everything.index(other, len(nodes))))
        assert drawn == expected, "in the order of nodes and slots"
