"""Episode sets: rows per instruction, bound to the world; files that do not fit it are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.formats.episodes import Episode, read_episodes, write_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes, held_out_scans, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World


@pytest.fixture(scope="module")
def train(tiny_data: Path, world: World) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), world, "r2r", "train")


def episode(*path: str, scan: str = "grid", texts: int = 1) -> Episode:
    words = tuple(f"text {i}" for i in range(texts))
    return Episode(scan, 5, path, 0.5, words, tuple(f"5_{i}" for i in range(texts)))


def test_every_instruction_is_a_row(tiny_data: Path, world: World, train: EpisodeSet) -> None:
    records = read_episodes(tiny_data / "r2r" / "R2R_train.json")
    rows = [(i, record, k) for i, record in enumerate(records) for k in range(len(record.instructions))]
    assert len(train) == len(rows) == len(train.texts)
    assert train.name == "r2r train"
    for row, (number, record, k) in enumerate(rows):
        assert train.instruction_ids[row] == record.instruction_ids[k]
        assert train.texts[row] == record.instructions[k]
        assert int(train.record[row]) == number
        assert train.scans[train.scan[row]] == record.scan
        viewpoints = train.path[row, : train.path_length[row]].tolist()
        assert [world.viewpoints[viewpoint] for viewpoint in viewpoints] == list(record.path)
        assert set(train.path[row, train.path_length[row] :].tolist()) <= {NONE}
        assert (int(train.start[row]), int(train.goal[row])) == (viewpoints[0], viewpoints[-1])
        assert float(train.heading[row]) == record.heading
    assert train.has_goals


def test_the_goals_of_a_test_split_are_unknown(tiny_data: Path, world: World) -> None:
    test = load_split(DataFolder(tiny_data), world, "r2r", "test")
    assert not test.has_goals
    assert set(test.goal.tolist()) == {NONE}
    assert test.path.shape[1] == 1


def test_rows_can_be_selected_and_reordered(train: EpisodeSet) -> None:
    chosen = train.select([4, 0])
    assert chosen.instruction_ids == (train.instruction_ids[4], train.instruction_ids[0])
    assert chosen.texts == (train.texts[4], train.texts[0])
    assert torch.equal(chosen.path, train.path[[4, 0]])
    assert torch.equal(chosen.heading, train.heading[[4, 0]])
    assert len(train.select(torch.empty(0, dtype=torch.int64))) == 0


def test_a_split_can_be_restricted_to_scans(world: World, train: EpisodeSet) -> None:
    spiral = train.restrict(["spiral"])
    rest = train.restrict({"grid", "yard"})
    assert 0 < len(spiral) < len(train)
    assert len(spiral) + len(rest) == len(train)
    assert {world.scans[scan] for scan in spiral.scan.tolist()} == {"spiral"}
    with pytest.raises(UserError, match="unknown scan 'attic'; this world has 3 scans"):
        train.restrict(["grid", "attic"])


def test_moving_to_a_device_moves_every_tensor(train: EpisodeSet) -> None:
    moved = train.to("meta")
    for name in ("record", "scan", "start", "goal", "heading", "path", "path_length"):
        assert getattr(moved, name).device.type == "meta", name
    assert moved.texts == train.texts


BAD = {
    "scan": (episode("g00", scan="attic"), "field 'scan': unknown scan 'attic'; this world has 3 scans"),
    "viewpoint": (
        episode("g00", "nowhere"),
        "field 'path[1]': scan 'grid' has no included viewpoint 'nowhere'",
    ),
    "excluded": (
        episode("g00", "g-excluded"),
        "field 'path[1]': scan 'grid' has no included viewpoint 'g-excluded'",
    ),
    "edge": (
        episode("g00", "g10", "g21"),
        "field 'path[2]': the path goes from 'g10' to 'g21', but there is no edge between the two",
    ),
    "standing": (
        episode("g00", "g00", "g10"),
        "field 'path[1]': the path goes from 'g00' to 'g00', but there is no edge between the two",
    ),
    "isolated": (
        episode("g-alone"),
        "field 'path[0]': the start 'g-alone' has no neighbour, so no way leads anywhere",
    ),
}


def test_a_split_shows_goals_for_all_or_for_none(world: World) -> None:
    message = r"^f: record 1 \(path_id 5\), field 'path': its path is only a start, but other records show"
    with pytest.raises(DataError, match=message):
        bind_episodes(world, [episode("g00", "g10", texts=2), episode("g00")], "f", name="x")


@pytest.mark.parametrize("case", BAD)
def test_episodes_that_do_not_fit_the_world_are_refused(world: World, case: str) -> None:
    bad, message = BAD[case]
    with pytest.raises(DataError) as caught:
        bind_episodes(world, [episode("g00", "g10", "g20", "g30"), bad], "R2R_x.json", name="x")
    assert str(caught.value) == f"R2R_x.json: record 1 (path_id 5), {message}"


def test_missing_files_say_what_to_do(tiny_data: Path, world: World) -> None:
    folder = DataFolder(tiny_data)
    with pytest.raises(DataError, match=r"R2R_dev.json: no such file(?!; write R4R)"):
        load_split(folder, world, "r2r", "dev")
    with pytest.raises(DataError, match=r"R4R_train.json: no such file; write R4R .* 'scenemem data r4r'"):
        load_split(folder, world, "r4r", "train")


@pytest.mark.parametrize(("scans", "held_out"), [(61, 8), (20, 3), (4, 1), (2, 1)])
def test_a_share_of_the_buildings_is_held_out(scans: int, held_out: int) -> None:
    names = [f"scan {number}" for number in range(scans)]
    found = held_out_scans(names)
    assert len(found) == held_out
    assert set(found) < set(names)
    assert held_out_scans(reversed(names + names)) == found, "by name, whatever the order"


def test_a_single_building_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="there is only 1 training scan, so none can be held out; select"):
        held_out_scans(["a"])


@pytest.mark.parametrize(("task", "name"), [("r4r", "R4R_val.json"), ("reverie", "REVERIE_val.json.gz")])
def test_splits_of_every_task_are_found(tmp_path: Path, world: World, task: str, name: str) -> None:
    write_episodes(tmp_path / task / name, [episode("g00", "g10")])
    found = load_split(DataFolder(tmp_path), world, task, "val")
    assert (len(found), found.name) == (1, f"{task} val")


@pytest.fixture(scope="module")
def real_world(real_data: Path) -> World:
    return load_world(real_data / "connectivity")


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("task", "split", "rows"),
    [
        ("r2r", "train", 14039),
        ("r2r", "val_seen", 1021),
        ("r2r", "val_unseen", 2349),
        ("r2r", "test", 4173),
        ("reverie", "val_unseen", 3433),
    ],
)
def test_real_splits_fit_the_real_world(
    real_data: Path, real_world: World, task: str, split: str, rows: int
) -> None:
    episodes = load_split(DataFolder(real_data), real_world, task, split)
    assert len(episodes) == rows
    assert episodes.has_goals == (split != "test")
