"""The data folder and its command: read back by the public readers, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem.commands import data as command
from scenemem.commands.data import data_houses
from scenemem.errors import DataError, UserError
from scenemem.formats.connectivity import connectivity_files, read_graphs, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_store, verify_store
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.houses import build
from scenemem.houses.build import HousesConfig, HousesSummary, build_houses, default_houses, lay_out
from scenemem.houses.features import WIDTH
from scenemem.houses.house import read_plan
from scenemem.tasks.paths import shortest_paths
from scenemem.world.build import load_world

SMALL = HousesConfig(houses=3, train_routes=6, val_seen_routes=2, val_unseen_routes=5)
TINY = HousesConfig(houses=2, train_routes=1, val_seen_routes=1, val_unseen_routes=1)
Built = tuple[Path, HousesSummary]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built") / "houses"
    return folder, build_houses(folder, SMALL, jobs=1)


def test_the_summary_counts_what_is_there_and_the_store_covers_every_viewpoint(built: Built) -> None:
    folder, summary = built
    assert summary.houses == 3
    assert summary.paths == {"train": 12, "val_seen": 4, "val_unseen": 5}
    assert summary.instructions == {"train": 36, "val_seen": 12, "val_unseen": 15}
    scans = [read_scan(file) for file in connectivity_files(folder / "connectivity")]
    assert summary.viewpoints == sum(len(scan.viewpoints) for scan in scans)
    assert summary.edges == sum(sum(v.unobstructed) for scan in scans for v in scan.viewpoints) // 2
    assert (folder / "connectivity" / "scans.txt").read_text().split() == [scan.name for scan in scans]

    store = DataFolder(folder).feature_file("houses")
    info, values = read_store(store)
    verify_store(store)
    assert info.keys == load_world(folder / "connectivity", cache=False).names
    assert values.shape == (summary.viewpoints, 36, WIDTH)
    assert [column.start for column in info.columns] == list(range(WIDTH))
    assert info.track == "houses"
    assert info.sensor == "a perfect detector and a depth sensor, in the embedded houses"


def test_splits_are_shortest_paths_in_disjoint_houses(built: Built) -> None:
    data = DataFolder(built[0])
    world = load_world(data.connectivity, cache=False)
    scans: dict[str, set[str]] = {}
    ids: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for split in ("train", "val_seen", "val_unseen"):
        for episode in read_episodes(data.episodes("r2r", split)):
            scans.setdefault(split, set()).add(episode.scan)
            path = [world.index_of(episode.scan, viewpoint) for viewpoint in episode.path]
            start, goal = torch.tensor([path[0]]), torch.tensor([path[-1]])
            assert shortest_paths(world, start, goal)[0].tolist() == [path]
            geodesic = float(world.geodesic(start, goal))
            assert geodesic >= 5.0
            assert episode.distance == round(geodesic, 2)
            assert 4 <= len(path) - 1 <= 6
            assert 0 <= episode.heading <= 2 * math.pi
            assert len(set(episode.instructions)) == 3
            assert ids.isdisjoint(episode.instruction_ids)
            ids.update(episode.instruction_ids)
            pairs.add((episode.path[0], episode.path[-1]))
    assert len(pairs) == 21  # val_seen repeats no training route
    assert scans["val_seen"] <= scans["train"] == {"house_000", "house_001"}
    assert scans["val_unseen"] == {"house_002"}
    unseen = [HousesConfig(houses=houses).kept_unseen for houses in (2, 30, 72)]
    assert unseen == [1, 5, 12], "a sixth"


def test_the_folder_is_a_data_set_whose_card_names_its_files(built: Built) -> None:
    yaml: Any = pytest.importorskip("yaml", reason="needs PyYAML, which mkdocs brings")
    folder, _ = built
    scans = [read_scan(file) for file in connectivity_files(folder / "connectivity")]
    assert read_graphs(folder / "graphs.jsonl") == scans, "nothing is lost in the plain graphs"
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(front)
    assert (card["license"], card["size_categories"]) == ("mit", ["n<1K"])
    episodes, graphs = card["configs"]
    assert episodes["default"]
    named = {entry["split"]: folder / entry["path"] for entry in episodes["data_files"]}
    assert {split: len(json.loads(file.read_bytes())) for split, file in named.items()} == built[1].paths
    assert graphs["data_files"] == [{"split": "houses", "path": "graphs.jsonl"}]
    assert "| val_unseen | 5 | 15 |" in text


def test_plans_come_back_as_the_houses_they_were(built: Built) -> None:
    plan = read_plan(built[0], "house_001")
    layout, _ = lay_out(0, 1)
    assert plan == layout.house != lay_out(1, 1)[0].house, "another seed, another house"
    with pytest.raises(DataError, match=r"house_999.json: no such file"):
        read_plan(built[0], "house_999")


@pytest.mark.parametrize("broken", [False, True], ids=["two workers", "workers that die"])
def test_building_again_gives_the_same_bytes(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    def dead(*_: object, **__: object) -> None:
        raise BrokenProcessPool("workers died")

    if broken:
        monkeypatch.setattr(build, "ProcessPoolExecutor", dead)
    build_houses(tmp_path / "again", SMALL, jobs=2)
    assert digests(tmp_path / "again") == digests(built[0])


def test_default_houses_are_built_once_and_those_finished_meanwhile_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "HousesConfig", lambda: TINY)
    monkeypatch.setattr(build, "_processors", lambda: 1)
    faster = tmp_path / f"houses-{build._build_key(TINY)}"

    def interfere(done: int, total: int) -> None:
        if done == total:
            faster.mkdir()
            (faster / "made by").write_text("a faster process")

    assert default_houses(interfere) == faster
    assert list(digests(faster)) == ["made by"]
    assert list(tmp_path.iterdir()) == [faster]
    assert cache_folder() == tmp_path
    shutil.rmtree(faster)
    assert (default_houses() / "houses.json").is_file()
    monkeypatch.setattr(build, "build_houses", lambda *_, **__: pytest.fail("built twice"))
    assert default_houses() == faster


def test_only_a_new_or_empty_folder_is_written(tmp_path: Path) -> None:
    file = tmp_path / "houses.json"
    file.write_text("mine")
    for target in (tmp_path, file):
        with pytest.raises(UserError, match=f"{target}: is no empty folder; choose a new one with `out` or"):
            build_houses(target, TINY, jobs=1)
    assert file.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="jobs must be 1 or more, got 0; leave it out to use all processors"):
        build_houses(tmp_path / "empty", TINY, jobs=0)
    build_houses(tmp_path / "empty", TINY, jobs=1)
    assert json.loads((tmp_path / "empty" / "houses.json").read_bytes())["houses"] == 2


def test_a_house_that_cannot_be_laid_out_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "place_viewpoints", lambda *_: None)
    monkeypatch.setattr(build, "_ATTEMPTS", 2)
    with pytest.raises(RuntimeError, match="can be reached for house 5, seed 9"):
        lay_out(9, 5)


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [
        *(("houses", 1, 2), ("seed", -1, 0), ("unseen_houses", 0, 1), ("train_routes", 0, 1)),
        *(("val_seen_routes", 0, 1), ("val_unseen_routes", -3, 1)),
    ],
)
def test_bad_configs_are_refused(field: str, value: int, least: int) -> None:
    told = f"{field} must be {least} or more, got {value}; choose a larger {field}"
    with pytest.raises(UserError, match=told):
        HousesConfig(**{field: value})


def test_the_command_prints_one_line_or_one_json_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_houses(tmp_path / "out", houses=2, jobs=1, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["houses"] == 2
    assert printed["instructions"] == {"train": 180, "val_seen": 12, "val_unseen": 90}
    assert printed["folder"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "r2r" / "R2R_train.json").is_file()

    def build(target: Path, config: HousesConfig, **_: object) -> HousesSummary:
        assert (config.houses, config.seed) == (9, 4)
        return HousesSummary(str(target), 9, 400, 500, 223, {"train": 3}, {"train": 9})

    monkeypatch.setattr(command, "build_houses", build)
    data_houses(Path("x[/y]"), houses=9, seed=4)
    out, told = capsys.readouterr()
    said = told.replace("\n", " ")
    assert "9 houses, 400 viewpoints, 500 edges" in said
    assert "written to x[/y]" in said
    assert out == ""
