"""Viewpoints and routes: a connected graph one can really walk, and shortest paths on it as in R2R."""

from __future__ import annotations

import math
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from scenemem.formats.connectivity import read_scan, write_scan
from scenemem.houses.house import EYE, STOREY
from scenemem.houses.viewpoints import sample_routes, scan_of
from tests.houses.conftest import Surveyed


def test_linked_viewpoints_see_each_other_and_are_a_step_apart(surveyed: list[Surveyed]) -> None:
    for layout, scene, _ in surveyed:
        assert 30 <= len(layout.position) <= 70
        assert (layout.linked == layout.linked.T).all()
        assert (layout.visible == layout.visible.T).all()
        assert not layout.linked.diagonal().any()
        assert nx.is_connected(nx.from_numpy_array(layout.linked))
        one, two = np.nonzero(np.triu(layout.linked))
        lengths = np.linalg.norm(layout.position[one] - layout.position[two], axis=1)
        assert lengths.min() > 0.5
        assert lengths.max() < 4.0
        assert 1.4 < lengths.mean() < 2.6
        share = np.linspace(0, 1, 60)[:, None, None]  # nothing stands in the way at eye height
        points = layout.position[one] * (1 - share) + layout.position[two] * share  # (60, E, 3)
        inside = (points[:, :, None] > scene.low).all(axis=3) & (points[:, :, None] < scene.high).all(axis=3)
        assert not inside.any()
        assert layout.visible[one, two].all()


def test_stands_are_on_free_floor_and_doorways_lead_into_both_rooms(surveyed: list[Surveyed]) -> None:
    for layout, scene, _ in surveyed:
        house = layout.house
        for stand in house.stands:
            room = house.rooms[stand.room]
            assert room.rect.grown(1e-6).holds(stand.x, stand.y)
            if stand.stairs != "landing":
                assert stand.z == room.floor * STOREY + EYE
            body = np.array([stand.x, stand.y, stand.z - 0.5])
            assert not ((scene.low < body) & (body < scene.high)).all(axis=1).any()
        doors = [number for number, door in enumerate(house.doors) if door.style != "front door"]
        stands = {stand.door: number for number, stand in enumerate(house.stands) if stand.door >= 0}
        assert sorted(stands) == doors
        assert all(layout.linked[number].sum() >= 2 for number in stands.values())


def test_stairs_are_a_chain_and_the_scan_is_a_valid_connectivity_file(
    two_floors: Surveyed, tmp_path: Path
) -> None:
    layout, _, _ = two_floors
    chain = {stand.stairs: number for number, stand in enumerate(layout.house.stands) if stand.stairs}
    bottom, landing, top = (chain[part] for part in ("bottom", "landing", "top"))
    assert layout.position[[bottom, landing, top], 2].tolist() == [1.5, 3.0, 4.5]
    assert np.flatnonzero(layout.linked[landing]).tolist() == sorted((bottom, top))
    scan = scan_of(layout)
    assert read_scan(write_scan(tmp_path, scan)) == scan
    assert len({viewpoint.image_id for viewpoint in scan.viewpoints}) == len(scan.viewpoints)
    assert all(re.fullmatch("[0-9a-f]{32}", viewpoint.image_id) for viewpoint in scan.viewpoints)
    assert [list(viewpoint.position) for viewpoint in scan.viewpoints] == layout.position.tolist()


def test_routes_are_shortest_paths_of_the_right_size_to_goals_mostly_out_of_sight(
    surveyed: list[Surveyed],
) -> None:
    rng = np.random.default_rng(7)
    for layout, _, _ in surveyed:
        graph = nx.Graph()
        for a, b in zip(*np.nonzero(layout.linked), strict=True):
            graph.add_edge(int(a), int(b), metres=math.dist(layout.position[a], layout.position[b]))
        routes = sample_routes(layout, 80, rng)
        ends = [(route.stands[0], route.stands[-1]) for route in routes]
        assert len(set(ends)) == len(routes) == 80
        assert np.mean([layout.visible[pair] for pair in ends]) < 0.2
        for route, (start, goal) in zip(routes, ends, strict=True):
            assert 4 <= len(route.stands) - 1 <= 6
            assert route.distance >= 5.0
            assert nx.path_weight(graph, route.stands, "metres") == pytest.approx(route.distance)
            shortest = nx.shortest_path_length(graph, start, goal, "metres")
            assert route.distance == pytest.approx(shortest)
            assert 0 <= route.heading <= 2 * math.pi
            assert layout.house.stands[start].room != layout.house.stands[goal].room
    layout, _, _ = surveyed[0]
    routes, again = (sample_routes(layout, 10**6, np.random.default_rng(0)) for _ in range(2))
    assert 300 < len(routes) < len(layout.position) ** 2, "all there are"
    assert routes == again
