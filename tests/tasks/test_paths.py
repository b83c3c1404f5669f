"""Shortest paths in bulk and the path pool, against networkx; R4R: joined paths and the published counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.formats.connectivity import Scan
from scenemem.formats.episodes import EpisodeRecord, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.paths import PathRule, R4RCounts, join_paths, path_pool, shortest_paths, write_r4r
from scenemem.world.build import Positions, build_world, load_world
from scenemem.world.graph import NONE, World
from tests.agents.helpers import known_graph
from tests.conftest import scan_from_graph


def everything(world: World) -> nx.Graph:
    """The whole world as a graph."""
    return known_graph(world, list(range(len(world.viewpoints))))


def test_the_pool_is_what_networkx_finds(world: World) -> None:
    rule = PathRule(min_edges=2, max_edges=3, min_metres=4.5)
    expected = []
    graph = everything(world)
    for source, paths in nx.all_pairs_dijkstra_path(graph, weight="metres"):
        for target, path in paths.items():
            metres = nx.path_weight(graph, path, "metres")
            if world.scans[world.scan_of[source]] != "yard" and 2 <= len(path) - 1 <= 3 and metres >= 4.5:
                expected.append((source, target))
    pool = path_pool(world, ["grid", "spiral"], rule)
    assert list(zip(pool.start.tolist(), pool.goal.tolist(), strict=True)) == sorted(expected)


def step_by_step(world: World, here: int, goal: int) -> list[int]:
    if here == goal:
        return [here]
    onward = int(world.next_viewpoint(torch.tensor(here), torch.tensor(goal)))
    return [here, *step_by_step(world, onward, goal)]


def test_many_paths_at_once_equal_single_ones(world: World) -> None:
    pool = path_pool(world, world.scans, PathRule(min_edges=1, max_edges=9, min_metres=0.0))
    path, length = shortest_paths(world, pool.start, pool.goal)
    assert path.shape[1] == int(length.max())
    for row in range(0, len(pool), 7):
        walked = path[row].tolist()
        assert walked[: length[row]] == step_by_step(world, walked[0], int(pool.goal[row]))
        assert set(walked[length[row] :]) <= {NONE}


def test_a_path_names_every_viewpoint_on_the_way_or_there_is_none(world: World) -> None:
    ends = (torch.tensor([world.index_of("spiral", name)]) for name in ("s0", "s5"))
    path, _ = shortest_paths(world, *ends)
    assert [world.viewpoints[viewpoint] for viewpoint in path[0].tolist()] == ["s0", "s4", "s5"]
    path, length = shortest_paths(world, torch.tensor([3]), torch.tensor([3]))
    assert (path.tolist(), length.tolist()) == ([[3]], [1])
    here = world.index_of("grid", "g00")
    for target in (("grid", "g-alone"), ("spiral", "s0")):
        goals = torch.tensor([here, world.index_of(*target)])
        with pytest.raises(UserError, match=f"^no way leads from grid_g00 to {'_'.join(target)}$"):
            shortest_paths(world, torch.tensor([here, here]), goals)


def test_sampling_depends_on_the_generator_alone(world: World) -> None:
    pool = path_pool(world, ["grid"], PathRule(min_edges=1))
    draws = [pool.sample(40, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[2][0])
    members = set(zip(pool.start.tolist(), pool.goal.tolist(), strict=True))
    assert set(zip(draws[0][0].tolist(), draws[0][1].tolist(), strict=True)) <= members


@pytest.mark.parametrize(
    ("scan", "rule", "message"),
    [
        ("grid", {"min_edges": 0}, "expected 1 <= min_edges <= max_edges, got 0 and 6"),
        ("grid", {"max_edges": 3}, "expected 1 <= min_edges <= max_edges, got 4 and 3"),
        ("grid", {"min_metres": float("nan")}, "min_metres must be 0 or more, got nan"),
        ("attic", {}, "unknown scan 'attic'; this world has 3 scans"),
        ("yard", {"min_metres": 999.0}, r"no path of 4-6 edges and 999.0 m or more in these 1 scans"),
    ],
)
def test_impossible_rules_and_pools_are_refused(
    world: World, scan: str, rule: dict[str, Any], message: str
) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        path_pool(world, [scan], PathRule(**rule))


@pytest.mark.real_data
def test_the_real_training_scans_give_the_known_number(real_data: Path) -> None:
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    train = load_split(folder, world, "r2r", "train")
    scans = {world.scans[scan] for scan in set(train.scan.tolist())}
    assert len(scans) == 61
    assert len(path_pool(world, scans)) == 178_300


def corridor(name: str = "corridor", spacing: float = 2.0) -> Scan:
    """Viewpoints c0 .. c5 in a row, ``spacing`` metres apart."""
    graph = nx.path_graph(6)
    for node in graph:
        graph.nodes[node]["position"] = (spacing * node, 0.0, 1.5)
    return scan_from_graph(name, nx.relabel_nodes(graph, "c{}".format))


@pytest.fixture(scope="module")
def corridors() -> World:
    return build_world([corridor("corridor"), corridor("twin")])


def episode(
    path_id: int, *path: int, scan: str = "corridor", texts: int = 3, heading: float = 0.0
) -> EpisodeRecord:
    words = tuple(f"[{path_id} {i}]" for i in range(texts))
    ids = tuple(f"{path_id}_{i}" for i in range(texts))
    stated = 2.0 * (len(path) - 1)
    return EpisodeRecord(scan, path_id, tuple(f"c{i}" for i in path), heading, words, ids, stated)


def test_a_gap_is_bridged_by_the_shortest_path(corridors: World) -> None:
    first, second = episode(7, 0, 1, 2, heading=1.5), episode(9, 3, 4, 5, heading=4.0, texts=4)
    (joined,) = join_paths(corridors, [first, second], "R2R.json")
    assert joined.path == ("c0", "c1", "c2", "c3", "c4", "c5")
    assert (joined.path_id, joined.first_path_id, joined.second_path_id) == (0, 7, 9)
    assert (joined.scan, joined.heading) == ("corridor", 1.5)
    assert joined.distance == pytest.approx(10.0)
    assert joined.shortest_path == joined.path
    assert joined.shortest_path_distance == pytest.approx(10.0)
    assert joined.instructions[:5] == ("[7 0][9 0]", "[7 0][9 1]", "[7 0][9 2]", "[7 0][9 3]", "[7 1][9 0]")
    assert joined.instruction_ids == tuple(f"0_{i}" for i in range(12))


def test_paths_that_meet_share_the_viewpoint_and_may_turn_back(corridors: World) -> None:
    joined, *_ = join_paths(corridors, [episode(1, 4, 3, 2), episode(2, 2, 3, 4, 5)], "R2R.json")
    assert joined.path == ("c4", "c3", "c2", "c3", "c4", "c5")
    assert joined.shortest_path == ("c4", "c5")
    assert joined.shortest_path_distance == pytest.approx(2.0)
    assert joined.distance == pytest.approx(10.0)
    (joined,) = join_paths(corridors, [episode(5, 2, 1)], "R2R.json")
    assert joined.path == ("c2", "c1", "c2", "c1"), "a path may follow itself"


@pytest.mark.parametrize(("spacing", "joined"), [(3.0, [(1, 2)]), (3.0001, [])])
def test_the_gap_may_be_three_metres_and_no_more(spacing: float, joined: list[tuple[int, int]]) -> None:
    world = build_world([corridor(spacing=spacing)])
    found = join_paths(world, [episode(1, 0, 1, 2), episode(2, 3, 4, 5)], "R2R.json")
    assert [(e.first_path_id, e.second_path_id) for e in found] == joined


def test_pairs_come_in_file_order_scan_by_scan(corridors: World) -> None:
    twins = episode(3, 1, 2, scan="twin"), episode(2, 2, 1, scan="twin")
    episodes = [twins[0], episode(1, 2, 3), twins[1], episode(4, 2, 1)]
    joined = list(join_paths(corridors, episodes, "R2R.json"))
    pairs = [("twin", one, other) for one in (3, 2) for other in (3, 2)]
    pairs += [("corridor", one, other) for one in (1, 4) for other in (1, 4)]
    assert [(e.scan, e.first_path_id, e.second_path_id) for e in joined] == pairs
    assert [e.path_id for e in joined] == list(range(8))


def test_without_stated_lengths_there_is_no_length(corridors: World) -> None:
    stated = episode(2, 1, 2)
    plain = msgspec.structs.replace(stated, path_id=1, distance=None)
    joined = list(join_paths(corridors, [plain, stated], "R2R.json"))
    assert len(joined) == 4
    known = [(e.first_path_id, e.second_path_id) for e in joined if e.distance is not None]
    assert known == [(2, 2)]


def test_the_file_holds_what_was_counted(corridors: World, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"R2R_test.json: holds paths without a goal .* from whole paths"):
        write_r4r(corridors, [episode(1, 2)], "R2R_test.json", tmp_path / "R4R_test.json")
    assert list(tmp_path.iterdir()) == []
    done: list[tuple[int, int]] = []
    episodes = [episode(1, 2, 3), episode(2, 1, 2, scan="twin", texts=2), episode(3, 3, 2)]
    file = tmp_path / "R4R.json"
    counts = write_r4r(corridors, episodes, "R2R.json", file, progress=lambda *step: done.append(step))
    assert counts == R4RCounts(paths=5, instructions=4 * 9 + 4)
    assert done == [(1, 2), (2, 2)]
    assert read_episodes(file) == list(join_paths(corridors, episodes, "R2R.json"))


def test_joined_paths_walk_along_edges(tiny_data: Path, world: World) -> None:
    graph = everything(world)
    joined = list(join_paths(world, read_episodes(tiny_data / "r2r" / "R2R_train.json"), "R2R.json"))
    assert joined
    for e in joined:
        assert e.shortest_path is not None
        assert (e.path[0], e.path[-1]) == (e.shortest_path[0], e.shortest_path[-1])
        for path in (e.path, e.shortest_path):
            assert nx.is_path(graph, [world.index_of(e.scan, name) for name in path])


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("centre", [(25_930, 233_613), (115, 1_035), (5_018, 45_162)]),
        ("pose", [(25_921, 233_532), (115, 1_035), (5_026, 45_234)]),
    ],
)
def test_the_published_counts_come_out(
    real_data: Path, positions: Positions, expected: list[tuple[int, int]]
) -> None:
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity, positions=positions)
    found = []
    for split in ("train", "val_seen", "val_unseen"):
        source = folder.episodes("r2r", split)
        sizes = [len(e.instructions) for e in join_paths(world, read_episodes(source), source)]
        found.append((len(sizes), sum(sizes)))
    assert found == expected
