"""Episode sets: rows per instruction, bound to the world; files that do not fit it are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.formats.episodes import EpisodeRecord, read_episodes, write_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes, held_out_scans, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World


def episode(*path: str, scan: str = "grid", texts: int = 1) -> EpisodeRecord:
    words = tuple(f"text {i}" for i in range(texts))
    return EpisodeRecord(scan, 5, path, 0.5, words, tuple(f"5_{i}" for i in range(texts)))


def test_every_instruction_is_a_row(tiny_data: Path, world: World, episodes: EpisodeSet) -> None:
    records = read_episodes(tiny_data / "r2r" / "R2R_train.json")
    rows = [(i, record, k) for i, record in enumerate(records) for k in range(len(record.instructions))]
    assert len(episodes) == len(rows) == len(episodes.texts)
    assert episodes.name == "r2r train"
    for row, (number, record, k) in enumerate(rows):
        assert episodes.instruction_ids[row] == record.instruction_ids[k]
        assert episodes.texts[row] == record.instructions[k]
        assert int(episodes.record[row]) == number
        assert episodes.scans[episodes.scan[row]] == record.scan
        viewpoints = episodes.path[row, : episodes.path_length[row]].tolist()
        assert [world.viewpoints[viewpoint] for viewpoint in viewpoints] == list(record.path)
        assert set(episodes.path[row, episodes.path_length[row] :].tolist()) <= {NONE}
        assert (int(episodes.start[row]), int(episodes.goal[row])) == (viewpoints[0], viewpoints[-1])
        assert float(episodes.heading[row]) == record.heading
    assert episodes.has_goals


def test_the_goals_of_a_test_split_are_unknown(secret_episodes: EpisodeSet) -> None:
    assert not secret_episodes.has_goals
    assert set(secret_episodes.goal.tolist()) == {NONE}
    assert secret_episodes.path.shape[1] == 1


def test_rows_can_be_selected_and_moved(episodes: EpisodeSet) -> None:
    chosen, moved = episodes.select([4, 0]), episodes.to("meta")
    assert chosen.instruction_ids == (episodes.instruction_ids[4], episodes.instruction_ids[0])
    assert chosen.texts == (episodes.texts[4], episodes.texts[0])
    assert moved.texts == episodes.texts
    for name in ("record", "scan", "start", "goal", "heading", "path", "path_length"):
        assert torch.equal(getattr(chosen, name), getattr(episodes, name)[[4, 0]]), name
        assert getattr(moved, name).device.type == "meta", name
    assert len(episodes.select(torch.empty(0, dtype=torch.int64))) == 0


def test_a_split_can_be_restricted_to_scans(world: World, episodes: EpisodeSet) -> None:
    spiral = episodes.restrict(["spiral"])
    rest = episodes.restrict({"grid", "yard"})
    assert 0 < len(spiral) < len(episodes)
    assert len(spiral) + len(rest) == len(episodes)
    assert {world.scans[scan] for scan in spiral.scan.tolist()} == {"spiral"}
    with pytest.raises(UserError, match="unknown scan 'attic'; this world has 3 scans"):
        episodes.restrict(["grid", "attic"])


BAD = {
    "scan": (episode("g00", scan="attic"), "field 'scan': unknown scan 'attic'; this world has 3 scans"),
    "viewpoint": (episode("g00", "ghost"), "field 'path[1]': scan 'grid' has no included viewpoint 'ghost'"),
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
    "a start": (
        episode("g00"),
        "field 'path': its path is only a start, but other records show their goals; "
        "a split shows all or none",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_episodes_that_do_not_fit_the_world_are_refused(world: World, case: str) -> None:
    bad, message = BAD[case]
    with pytest.raises(DataError) as caught:
        bind_episodes(world, [episode("g00", "g10", "g20", "g30"), bad], "R2R_x.json", name="x")
    assert str(caught.value) == f"R2R_x.json: record 1 (path_id 5), {message}"


def test_splits_of_every_task_are_found_or_what_to_do_is_said(tmp_path: Path, world: World) -> None:
    folder = DataFolder(tmp_path)
    for task, name in (("r4r", "R4R_val.json"), ("reverie", "REVERIE_val.json.gz")):
        write_episodes(tmp_path / task / name, [episode("g00", "g10")])
        found = load_split(folder, world, task, "val")
        assert (len(found), found.name) == (1, f"{task} val")
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
    with pytest.raises(UserError, match="there is only 1 training scan, so none can be held out; select"):
        held_out_scans(["a"])


@pytest.mark.real_data
def test_real_splits_fit_the_real_world(real_data: Path) -> None:
    rows = {"r2r train": 14039, "r2r val_seen": 1021, "r2r val_unseen": 2349, "r2r test": 4173}
    folder, world = DataFolder(real_data), load_world(real_data / "connectivity")
    for name, count in {**rows, "reverie val_unseen": 3433}.items():
        task, split = name.split()
        episodes = load_split(folder, world, task, split)
        assert len(episodes) == count
        assert episodes.has_goals == (split != "test")
