"""Routes: shortest paths as in R2R, checked against networkx."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from scenemem.houses.routes import sample_routes
from scenemem.houses.scene import Scene
from scenemem.houses.surroundings import Surroundings
from scenemem.houses.viewpoints import Layout

Surveyed = tuple[Layout, Scene, Surroundings]


def graph_of(layout: Layout) -> nx.Graph:
    graph = nx.Graph()
    for a, b in zip(*np.nonzero(layout.linked), strict=True):
        graph.add_edge(int(a), int(b), metres=math.dist(layout.position[a], layout.position[b]))
    return graph


def test_routes_are_shortest_paths_of_the_right_size(
    surveyed: list[Surveyed], rng: np.random.Generator
) -> None:
    for layout, _, _ in surveyed:
        graph = graph_of(layout)
        routes = sample_routes(layout, 80, rng)
        assert len(routes) == 80
        assert len({(route.stands[0], route.stands[-1]) for route in routes}) == 80
        for route in routes:
            assert 4 <= len(route.stands) - 1 <= 6
            assert route.distance >= 5.0
            assert nx.path_weight(graph, route.stands, "metres") == pytest.approx(route.distance)
            shortest = nx.shortest_path_length(graph, route.stands[0], route.stands[-1], "metres")
            assert route.distance == pytest.approx(shortest)
            assert 0 <= route.heading <= 2 * math.pi
            rooms = [layout.house.stands[place].room for place in (route.stands[0], route.stands[-1])]
            assert rooms[0] != rooms[1]


def test_most_goals_are_out_of_sight(surveyed: list[Surveyed], rng: np.random.Generator) -> None:
    for layout, _, _ in surveyed:
        routes = sample_routes(layout, 80, rng)
        assert np.mean([layout.visible[route.stands[0], route.stands[-1]] for route in routes]) < 0.2


def test_asking_for_more_routes_than_there_are_gives_all(two_floors: Surveyed) -> None:
    layout, _, _ = two_floors
    routes = sample_routes(layout, 10**6, np.random.default_rng(0))
    assert 300 < len(routes) < len(layout.position) ** 2
    again = sample_routes(layout, 10**6, np.random.default_rng(0))
    assert routes == again
