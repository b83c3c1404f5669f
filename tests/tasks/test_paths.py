"""Shortest paths in bulk and the path pool, against networkx."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch

from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.paths import PathRule, path_pool, shortest_paths
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


def as_networkx(world: World) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(world.viewpoints)))
    for here, (row, lengths) in enumerate(
        zip(world.neighbour.tolist(), world.neighbour_length.tolist(), strict=True)
    ):
        graph.add_edges_from(
            (here, there, {"metres": far}) for there, far in zip(row, lengths, strict=True) if there != NONE
        )
    return graph


def test_the_pool_is_what_networkx_finds(world: World) -> None:
    rule = PathRule(min_edges=2, max_edges=3, min_metres=4.5)
    expected = []
    graph = as_networkx(world)
    for source, paths in nx.all_pairs_dijkstra_path(graph, weight="metres"):
        for target, path in paths.items():
            metres = nx.path_weight(graph, path, "metres")
            if world.scans[world.scan_of[source]] != "yard" and 2 <= len(path) - 1 <= 3 and metres >= 4.5:
                expected.append((source, target))
    pool = path_pool(world, ["grid", "spiral"], rule)
    assert list(zip(pool.start.tolist(), pool.goal.tolist(), strict=True)) == sorted(expected)


def test_many_paths_at_once_equal_single_ones(world: World) -> None:
    pool = path_pool(world, world.scans, PathRule(min_edges=1, max_edges=9, min_metres=0.0))
    path, length = shortest_paths(world, pool.start, pool.goal)
    assert path.shape[1] == int(length.max())
    for row in range(0, len(pool), 7):
        walked = path[row].tolist()
        assert walked[: length[row]] == world.path(int(pool.start[row]), int(pool.goal[row]))
        assert set(walked[length[row] :]) <= {NONE}


def test_a_path_to_where_one_stands_is_one_viewpoint(world: World) -> None:
    path, length = shortest_paths(world, torch.tensor([3]), torch.tensor([3]))
    assert path.tolist() == [[3]]
    assert length.tolist() == [1]


def test_no_way_is_refused(world: World) -> None:
    here, alone = world.index_of("grid", "g00"), world.index_of("grid", "g-alone")
    with pytest.raises(UserError, match="no way leads from grid_g00 to grid_g-alone"):
        shortest_paths(world, torch.tensor([here, here]), torch.tensor([here, alone]))


def test_sampling_depends_on_the_generator_alone(world: World) -> None:
    pool = path_pool(world, ["grid"], PathRule(min_edges=1))
    draws = [pool.sample(40, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[2][0])
    members = set(zip(pool.start.tolist(), pool.goal.tolist(), strict=True))
    assert set(zip(draws[0][0].tolist(), draws[0][1].tolist(), strict=True)) <= members


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"min_edges": 0}, "expected 1 <= min_edges <= max_edges, got 0 and 6"),
        ({"max_edges": 3}, "expected 1 <= min_edges <= max_edges, got 4 and 3"),
        ({"min_metres": float("nan")}, "min_metres must be 0 or more, got nan"),
    ],
)
def test_impossible_rules_are_refused(rule: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PathRule(**rule)  # type: ignore[arg-type]


def test_pools_without_a_path_are_refused(world: World) -> None:
    with pytest.raises(UserError, match="unknown scan 'attic'; this world has 3 scans"):
        path_pool(world, ["grid", "attic"])
    with pytest.raises(UserError, match=r"no path of 4-6 edges and 999.0 m or more in these 1 scans"):
        path_pool(world, ["yard"], PathRule(min_metres=999.0))


@pytest.mark.real_data
def test_the_real_training_scans_give_the_known_number(real_data: Path) -> None:
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    train = load_split(folder, world, "r2r", "train")
    scans = {world.scans[scan] for scan in set(train.scan.tolist())}
    assert len(scans) == 61
    assert len(path_pool(world, scans)) == 178_300
