"""Tables against networkx, and the cache."""

from __future__ import annotations

import math
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from scenemem.errors import DataError
from scenemem.formats.connectivity import Scan, Viewpoint, connectivity_files, read_scan, write_scan
from scenemem.formats.folder import cache_folder
from scenemem.world.build import CENTRE_OFFSET, build_world, graph_digest, load_world
from scenemem.world.graph import NONE, World, direction, nearest_view


def graph_of(scan: Scan) -> nx.Graph:
    """The navigation graph straight from the records, without any of the code under test."""
    graph = nx.Graph()
    included = {n: viewpoint for n, viewpoint in enumerate(scan.viewpoints) if viewpoint.included}
    graph.add_nodes_from(viewpoint.image_id for viewpoint in included.values())
    for here, viewpoint in included.items():
        for there, other in included.items():
            if there > here and viewpoint.unobstructed[there]:
                metres = float(np.linalg.norm(np.subtract(viewpoint.position, other.position)))
                graph.add_edge(viewpoint.image_id, other.image_id, metres=metres)
    return graph


def assert_distances_equal_dijkstra(world: World, scan: Scan) -> None:
    graph = graph_of(scan)
    nodes = list(graph.nodes)
    index = torch.tensor([world.index_of(scan.name, node) for node in nodes])
    metres = dict(nx.all_pairs_dijkstra_path_length(graph, weight="metres"))
    expected = [[metres[source].get(target, math.inf) for target in nodes] for source in nodes]
    seen = world.geodesic(index.unsqueeze(1), index.unsqueeze(0))
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-12)


def assert_every_next_slot_leads_closer_by_its_length(world: World) -> None:
    """One step from everywhere towards everywhere: what is left shrinks by exactly the edge just walked.

    By induction, following the slots then reaches every goal over exactly the geodesic length.
    """
    sizes = torch.bincount(world.scan_of)
    source = torch.arange(len(world.viewpoints)).repeat_interleave(sizes[world.scan_of])
    goal = torch.cat([torch.where(world.scan_of == scan)[0].repeat(int(n)) for scan, n in enumerate(sizes)])
    distance, slot = world.geodesic(source, goal), world.next_slot(source, goal)
    assert torch.equal(slot == NONE, (source == goal) | distance.isinf())
    source, goal, distance, slot = (values[slot != NONE] for values in (source, goal, distance, slot))
    there, walked = world.neighbour[source, slot], world.neighbour_length[source, slot]
    assert torch.equal(world.next_viewpoint(source, goal), there)
    assert (walked > 0).all()
    torch.testing.assert_close(walked + world.geodesic(there, goal), distance, atol=1e-9, rtol=1e-12)


def assert_same_tables(first: World, second: World) -> None:
    assert (first.scans, first.viewpoints) == (second.scans, second.viewpoints)
    for field in fields(World):
        value = getattr(first, field.name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(second, field.name)), field.name


@pytest.fixture
def connectivity(tiny_data: Path) -> Path:
    return tiny_data / "connectivity"


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "worlds"


def test_distances_equal_dijkstra_and_next_slots_descend_to_every_goal(connectivity: Path) -> None:
    world = load_world(connectivity)
    for file in connectivity_files(connectivity):
        assert_distances_equal_dijkstra(world, read_scan(file))
    assert_every_next_slot_leads_closer_by_its_length(world)
    across = world.scan_of.unsqueeze(1) != world.scan_of
    everywhere = torch.arange(len(world.viewpoints))
    assert world.geodesic(everywhere.unsqueeze(1), everywhere)[across].isinf().all()
    assert (world.next_slot(everywhere.unsqueeze(1), everywhere)[across] == NONE).all()


def test_neighbour_rows_hold_the_edges_their_lengths_and_directions(connectivity: Path) -> None:
    world = load_world(connectivity)
    edges = {
        (world.index_of(name, a), world.index_of(name, b))
        for file in connectivity_files(connectivity)
        for name, graph in [(read_scan(file).name, graph_of(read_scan(file)))]
        for a, b in graph.to_directed().edges
    }
    here, slot = world.neighbour_mask.nonzero(as_tuple=True)
    there = world.neighbour[here, slot]
    assert set(zip(here.tolist(), there.tolist(), strict=True)) == edges
    assert (slot < world.degree[here]).all(), "neighbours fill the first slots"
    lengths = (world.position[there] - world.position[here]).norm(dim=-1)
    torch.testing.assert_close(world.neighbour_length[here, slot], lengths)
    heading, elevation = direction(world.position[here], world.position[there])
    torch.testing.assert_close(world.neighbour_heading[here, slot], heading.float())
    torch.testing.assert_close(world.neighbour_elevation[here, slot], elevation.float())
    assert torch.equal(world.neighbour_view[here, slot], nearest_view(heading, elevation))
    pads = ~world.neighbour_mask
    assert pads.any()
    assert (world.neighbour[pads] == NONE).all()
    assert world.neighbour_length[pads].isinf().all()
    for table in (world.neighbour_view, world.neighbour_heading, world.neighbour_elevation):
        assert not table[pads].any()


def test_excluded_viewpoints_have_no_index_and_open_no_way(connectivity: Path) -> None:
    world = load_world(connectivity)
    assert "g-excluded" not in world.viewpoints
    assert len(world.viewpoints) == (12 + 1) + 9 + (9 + 1)
    assert int(world.degree[world.index_of("grid", "g00")]) == 2


def test_a_scan_without_any_edge_still_makes_a_world(connectivity: Path) -> None:
    scan = read_scan(connectivity / "grid_connectivity.json")
    cut = tuple(
        msgspec.structs.replace(v, unobstructed=(False,) * len(v.unobstructed)) for v in scan.viewpoints
    )
    world = build_world([Scan("cut", cut)])
    everywhere = torch.arange(len(world.viewpoints))
    assert world.neighbour.shape == (len(everywhere), 1)
    assert (world.next_slot(everywhere.unsqueeze(1), everywhere) == NONE).all()


def test_a_hall_of_two_hundred_connected_viewpoints_keeps_its_slots_apart() -> None:
    size = 200
    viewpoints = tuple(
        Viewpoint(
            image_id=f"v{n}",
            pose=(*(1.0, 0.0, 0.0, n * 1.0), *(0.0, 1.0, 0.0, n * n * 0.01), *np.eye(4)[2:].flat),
            included=True,
            visible=(True,) * size,
            unobstructed=tuple(n != other for other in range(size)),
            height=1.5,
        )
        for n in range(size)
    )
    world = build_world([Scan("hall", viewpoints)])
    everywhere = torch.arange(size)
    assert torch.equal(
        world.next_viewpoint(everywhere.unsqueeze(1), everywhere), everywhere.expand(size, size)
    )


def test_centre_positions_follow_the_camera_offset(connectivity: Path, tmp_path: Path) -> None:
    quarter_turn = (0.0, -1.0, 0.0, 4.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0, 1.0, 6.0, 0.0, 0.0, 0.0, 1.0)
    scan = read_scan(connectivity / "spiral_connectivity.json")
    turned = (msgspec.structs.replace(scan.viewpoints[0], pose=quarter_turn), *scan.viewpoints[1:])
    write_scan(tmp_path, Scan("spiral", turned))
    pose, centre = load_world(tmp_path), load_world(tmp_path, positions="centre")
    x, y, z = CENTRE_OFFSET
    assert pose.position[0].tolist() == [4.0, 5.0, 6.0]
    assert centre.position[0].tolist() == pytest.approx([4.0 + y, 5.0 - x, 6.0 - z])
    assert centre.position[1].tolist() == pytest.approx((pose.position[1] - torch.tensor([x, y, z])).tolist())
    torch.testing.assert_close(
        centre.neighbour_length[0, 0], (centre.position[centre.neighbour[0, 0]] - centre.position[0]).norm()
    )


def test_the_second_load_reads_the_cache_and_is_equal(connectivity: Path, fresh_cache: Path) -> None:
    calls: list[int] = []
    first = load_world(connectivity, cache=False)
    assert not fresh_cache.exists()
    assert_same_tables(load_world(connectivity), first)
    assert cache_folder() == fresh_cache.parent
    assert len(list(fresh_cache.iterdir())) == 1
    second = load_world(connectivity, progress=lambda done, _: calls.append(done))
    assert calls == [], "tables were computed again"
    assert_same_tables(first, second)


DAMAGED = ("empty", "foreign", "truncated", "other tables", "other numbers", "unsigned", "other graphs")


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_cache_file_that_is_damaged_or_of_other_graphs_is_rebuilt(
    connectivity: Path, fresh_cache: Path, tmp_path: Path, damage: str
) -> None:
    write_scan(tmp_path / "copy", read_scan(connectivity / "yard_connectivity.json"))
    load_world(tmp_path / "copy")
    (other,) = fresh_cache.iterdir()
    first = load_world(connectivity)
    (stored,) = set(fresh_cache.iterdir()) - {other}
    with safe_open(stored, framework="pt") as file:
        tensors, texts = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    halved = {**tensors, "pair_distance": tensors["pair_distance"] / 2}
    contents = {
        "empty": b"",
        "foreign": b"not a cache",
        "truncated": stored.read_bytes()[:-100],
        "other tables": save({"position": torch.zeros(3)}, {"scans": "[]", "viewpoints": "[]"}),
        "other numbers": save(halved, texts),
        "unsigned": save(halved, {key: text for key, text in texts.items() if key != "sha256"}),
        "other graphs": other.read_bytes(),
    }
    stored.write_bytes(contents[damage])
    rebuilt: list[int] = []
    for _ in range(2):
        assert_same_tables(load_world(connectivity, progress=lambda done, _: rebuilt.append(done)), first)
    assert rebuilt == [1, 2, 3], "rebuilt once, then read from the mended cache"


def test_changed_content_or_positions_get_their_own_cache_file(
    connectivity: Path, fresh_cache: Path, tmp_path: Path
) -> None:
    scan = read_scan(connectivity / "yard_connectivity.json")
    write_scan(tmp_path / "copy", scan)
    load_world(tmp_path / "copy")
    load_world(tmp_path / "copy", positions="centre")
    assert len(list(fresh_cache.iterdir())) == 2
    moved = list(scan.viewpoints[0].pose)
    moved[3] += 0.5
    first = msgspec.structs.replace(scan.viewpoints[0], pose=tuple(moved))
    digest = graph_digest(tmp_path / "copy")
    assert graph_digest(Path(shutil.copytree(tmp_path / "copy", tmp_path / "same"))) == digest
    write_scan(tmp_path / "copy", Scan("yard", (first, *scan.viewpoints[1:])))
    assert graph_digest(tmp_path / "copy") != digest
    assert float(load_world(tmp_path / "copy").position[0, 0]) == pytest.approx(0.5)
    assert len(list(fresh_cache.iterdir())) == 3


@pytest.mark.parametrize("reason", ["a file in the way", "a full disk"])
def test_a_cache_that_cannot_be_written_only_costs_time(
    connectivity: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r", **named: Any) -> Any:
        if "w" in mode:
            raise OSError(28, "no space")
        return opened(path, mode, **named)

    if reason == "a full disk":
        monkeypatch.setattr(Path, "open", full)
    else:
        fresh_cache.parent.write_text("in the way")
    for _ in range(2):
        assert_same_tables(load_world(connectivity), load_world(connectivity, cache=False))
    assert not list(fresh_cache.glob("*"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such folder, expected one with <scan>_connectivity"):
        load_world(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def real_world(real_data: Path) -> World:
    return load_world(real_data / "connectivity")


@pytest.mark.real_data
def test_the_real_graphs_have_their_published_size(real_world: World) -> None:
    assert len(real_world.scans) == 90
    assert len(real_world.viewpoints) == 10_567
    assert int(real_world.degree.sum()) == 2 * 21_468
    assert int((real_world.degree == 0).sum()) == 8
    assert real_world.neighbour.shape == (10_567, 13)
    assert int(real_world.degree.max()) == 13


@pytest.mark.real_data
def test_every_real_scan_is_as_dijkstra_says(real_world: World, real_data: Path) -> None:
    for file in connectivity_files(real_data / "connectivity"):
        assert_distances_equal_dijkstra(real_world, read_scan(file))
    assert_every_next_slot_leads_closer_by_its_length(real_world)
