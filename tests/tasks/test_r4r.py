"""R4R: joined paths, their fields, file order, and the published counts."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from scenemem.errors import DataError
from scenemem.formats.connectivity import Scan, Viewpoint
from scenemem.formats.episodes import Episode, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.paths import R4RCounts, join_paths, write_r4r
from scenemem.world.build import Positions, build_world, load_world
from scenemem.world.graph import World


def corridor(name: str = "corridor", spacing: float = 2.0) -> Scan:
    """Viewpoints c0 .. c5 in a row, ``spacing`` metres apart."""
    size = 6
    return Scan(
        name,
        tuple(
            Viewpoint(
                image_id=f"c{i}",
                pose=(1, 0, 0, spacing * i, 0, 1, 0, 0, 0, 0, 1, 1.5, 0, 0, 0, 1),
                included=True,
                visible=(True,) * size,
                unobstructed=tuple(abs(i - j) == 1 for j in range(size)),
                height=1.5,
            )
            for i in range(size)
        ),
    )


@pytest.fixture(scope="module")
def world() -> World:
    return build_world([corridor("corridor"), corridor("twin")])


def episode(
    path_id: int, *path: int, scan: str = "corridor", texts: int = 3, heading: float = 0.0
) -> Episode:
    words = tuple(f"[{path_id} {i}]" for i in range(texts))
    ids = tuple(f"{path_id}_{i}" for i in range(texts))
    stated = 2.0 * (len(path) - 1)
    return Episode(scan, path_id, tuple(f"c{i}" for i in path), heading, words, ids, stated)


def test_a_gap_is_bridged_by_the_shortest_path(world: World) -> None:
    first, second = episode(7, 0, 1, 2, heading=1.5), episode(9, 3, 4, 5, heading=4.0, texts=4)
    (joined,) = join_paths(world, [first, second], "R2R.json")
    assert joined.path == ("c0", "c1", "c2", "c3", "c4", "c5")
    assert (joined.path_id, joined.first_path_id, joined.second_path_id) == (0, 7, 9)
    assert (joined.scan, joined.heading) == ("corridor", 1.5)
    assert joined.distance == pytest.approx(10.0)
    assert joined.shortest_path == joined.path
    assert joined.shortest_path_distance == pytest.approx(10.0)
    assert joined.instructions[:5] == ("[7 0][9 0]", "[7 0][9 1]", "[7 0][9 2]", "[7 0][9 3]", "[7 1][9 0]")
    assert joined.instruction_ids == tuple(f"0_{i}" for i in range(12))


def test_paths_that_meet_share_the_viewpoint_and_may_turn_back(world: World) -> None:
    joined, *_ = join_paths(world, [episode(1, 4, 3, 2), episode(2, 2, 3, 4, 5)], "R2R.json")
    assert joined.path == ("c4", "c3", "c2", "c3", "c4", "c5")
    assert joined.shortest_path == ("c4", "c5")
    assert joined.shortest_path_distance == pytest.approx(2.0)
    assert joined.distance == pytest.approx(10.0)


@pytest.mark.parametrize(("spacing", "joined"), [(3.0, [(1, 2)]), (3.0001, [])])
def test_the_gap_may_be_three_metres_and_no_more(spacing: float, joined: list[tuple[int, int]]) -> None:
    world = build_world([corridor(spacing=spacing)])
    found = join_paths(world, [episode(1, 0, 1, 2), episode(2, 3, 4, 5)], "R2R.json")
    assert [(e.first_path_id, e.second_path_id) for e in found] == joined


def test_a_path_may_follow_itself(world: World) -> None:
    (joined,) = join_paths(world, [episode(5, 2, 1)], "R2R.json")
    assert joined.path == ("c2", "c1", "c2", "c1")


def test_pairs_come_in_file_order_scan_by_scan(world: World) -> None:
    episodes = [
        episode(3, 1, 2, scan="twin"),
        episode(1, 2, 3),
        episode(2, 2, 1, scan="twin"),
        episode(4, 2, 1),
    ]
    joined = list(join_paths(world, episodes, "R2R.json"))
    assert [(e.scan, e.first_path_id, e.second_path_id) for e in joined] == [
        ("twin", 3, 3),
        ("twin", 3, 2),
        ("twin", 2, 3),
        ("twin", 2, 2),
        ("corridor", 1, 1),
        ("corridor", 1, 4),
        ("corridor", 4, 1),
        ("corridor", 4, 4),
    ]
    assert [e.path_id for e in joined] == list(range(8))


def test_without_stated_lengths_there_is_no_length(world: World) -> None:
    plain = Episode("corridor", 1, ("c1", "c2"), 0.0, ("x",), ("1_0",))
    (joined,) = join_paths(world, [plain], "R2R.json")
    assert joined.distance is None


def test_splits_without_goals_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"R2R_test.json: holds paths without a goal .* built from whole paths"
    ):
        write_r4r(world, [episode(1, 2)], "R2R_test.json", tmp_path / "R4R_test.json")
    assert list(tmp_path.iterdir()) == []


def test_the_file_holds_what_was_counted(world: World, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    episodes = [episode(1, 2, 3), episode(2, 1, 2, scan="twin", texts=2), episode(3, 3, 2)]
    counts = write_r4r(
        world, episodes, "R2R.json", tmp_path / "R4R.json", progress=lambda *step: done.append(step)
    )
    written = read_episodes(tmp_path / "R4R.json")
    assert counts == R4RCounts(paths=len(written), instructions=sum(len(e.instructions) for e in written))
    assert counts == R4RCounts(paths=5, instructions=4 * 9 + 4)
    assert done == [(1, 2), (2, 2)]
    assert written == list(join_paths(world, episodes, "R2R.json"))


def test_joined_paths_walk_along_edges(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = read_episodes(tiny_data / "r2r" / "R2R_train.json")
    graphs = {
        scan: nx.Graph(
            (world.viewpoints[here], world.viewpoints[there])
            for here, row in enumerate(world.neighbour.tolist())
            for there in row
            if there >= 0 and world.scans[world.scan_of[here]] == scan
        )
        for scan in world.scans
    }
    joined = list(join_paths(world, episodes, "R2R.json"))
    assert joined
    for e in joined:
        assert e.shortest_path is not None
        assert nx.is_path(graphs[e.scan], e.path)
        assert nx.is_path(graphs[e.scan], e.shortest_path)
        assert (e.path[0], e.path[-1]) == (e.shortest_path[0], e.shortest_path[-1])


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
