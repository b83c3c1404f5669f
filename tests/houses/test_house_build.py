"""The data folder and its command: read back by the public readers, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scenemem.commands import data as command
from scenemem.commands.data import data_houses
from scenemem.errors import DataError, UserError
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_store, verify_store
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.houses import build
from scenemem.houses.build import (
    HousesConfig,
    HousesSummary,
    build_houses,
    default_houses,
    lay_out,
    read_plan,
)
from scenemem.houses.features import WIDTH
from scenemem.tasks.paths import shortest_paths
from scenemem.world.build import load_world

SMALL = HousesConfig(houses=3, train_routes=6, val_seen_routes=2, val_unseen_routes=5)
TINY = HousesConfig(houses=2, train_routes=1, val_seen_routes=1, val_unseen_routes=1)
Built = tuple[Path, HousesSummary, list[tuple[int, int]]]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built") / "houses"
    calls: list[tuple[int, int]] = []
    summary = build_houses(folder, SMALL, jobs=1, progress=lambda done, total: calls.append((done, total)))
    return folder, summary, calls


def test_the_summary_counts_what_is_there(built: Built) -> None:
    folder, summary, calls = built
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert summary.houses == 3
    assert summary.paths == {"train": 12, "val_seen": 4, "val_unseen": 5}
    assert summary.instructions == {"train": 36, "val_seen": 12, "val_unseen": 15}
    scans = [read_scan(file) for file in connectivity_files(folder / "connectivity")]
    assert summary.viewpoints == sum(len(scan.viewpoints) for scan in scans)
    assert summary.edges == sum(sum(v.unobstructed) for scan in scans for v in scan.viewpoints) // 2
    assert (folder / "connectivity" / "scans.txt").read_text().split() == [scan.name for scan in scans]


def test_splits_are_shortest_paths_in_disjoint_houses(
    built: Built,
) -> None:
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


def test_the_store_covers_every_viewpoint(built: Built) -> None:
    data = DataFolder(built[0])
    world = load_world(data.connectivity, cache=False)
    store = data.feature_file("houses")
    info, values = read_store(store)
    verify_store(store)
    assert info.keys == world.names
    assert values.shape == (len(world.viewpoints), 36, WIDTH)
    assert [column.start for column in info.columns] == list(range(WIDTH))
    assert (info.track, info.sensor) == (
        "houses",
        "a perfect detector and a depth sensor, in the embedded houses",
    )


def test_plans_come_back_as_the_houses_they_were(
    built: Built,
) -> None:
    plan = read_plan(built[0], "house_001")
    layout, _ = lay_out(0, 1)
    assert plan == layout.house
    with pytest.raises(DataError, match=r"house_999.json: no such file"):
        read_plan(built[0], "house_999")


def test_building_again_gives_the_same_bytes_whatever_the_number_of_jobs(
    built: Built, tmp_path: Path
) -> None:
    build_houses(tmp_path / "again", SMALL, jobs=2)
    assert digests(tmp_path / "again") == digests(built[0])


def test_another_seed_gives_other_houses(built: Built) -> None:
    layout, _ = lay_out(1, 0)
    assert layout.house != read_plan(built[0], "house_000")


def test_without_workers_the_build_goes_on_alone(
    built: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenProcessPool("workers died")

    monkeypatch.setattr(build, "ProcessPoolExecutor", broken)
    build_houses(tmp_path / "alone", SMALL, jobs=2)
    assert digests(tmp_path / "alone") == digests(built[0])


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_houses(tmp_path / "houses", SMALL, jobs=1, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_default_houses_are_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "HousesConfig", lambda: TINY)
    monkeypatch.setattr(build, "_processors", lambda: 1)
    folder = default_houses()
    assert folder.parent == cache_folder() == tmp_path
    before = digests(folder)
    monkeypatch.setattr(build, "build_houses", lambda *_, **__: pytest.fail("built twice"))
    assert default_houses() == folder
    assert digests(folder) == before


def test_a_cache_folder_finished_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "HousesConfig", lambda: TINY)
    monkeypatch.setattr(build, "_processors", lambda: 1)
    faster: list[Path] = []

    def interfere(done: int, total: int) -> None:
        if done == total:
            folder = cache_folder() / f"houses-{build._build_key(TINY)}"
            folder.mkdir()
            (folder / "made by").write_text("a faster process")
            faster.append(folder)

    assert [default_houses(interfere)] == faster
    assert list(digests(faster[0])) == ["made by"]
    assert list(tmp_path.iterdir()) == faster


def test_a_data_folder_that_was_not_built_here_is_never_replaced(tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("connectivity", "r2r"):
        shutil.copytree(tiny_data / name, data / name)
    for name in ("features", "plans"):
        (data / name).mkdir()
    before = digests(data)
    with pytest.raises(UserError) as caught:
        build_houses(data, TINY, jobs=1)
    assert str(caught.value) == (
        f"{data}: is not empty and was not built by 'scenemem data houses' "
        f"({data / 'houses.json'}: no such file); choose a new folder with --out or remove this one"
    )
    for content, reason in (
        ('{"houses": 3}', "missing required field"),
        ('{"config": {"houses": 0}, "key": ""}', "got 0"),
    ):
        (data / "houses.json").write_text(content)
        with pytest.raises(UserError, match=f"was not built by .* {reason}"):
            build_houses(data, TINY, jobs=1)
    (data / "houses.json").unlink()
    assert digests(data) == before


def test_houses_with_other_things_among_them_are_not_replaced(built: Built, tmp_path: Path) -> None:
    folder = shutil.copytree(built[0], tmp_path / "houses")
    (folder / "features" / "resnet.npy").write_text("took a day")
    message = r"holds 'features/resnet.npy', which is not part of the houses; choose a new folder with --out"
    with pytest.raises(UserError, match=message):
        build_houses(folder, TINY, jobs=1)
    assert (folder / "features" / "resnet.npy").is_file()


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file, expected a folder; choose another one with --out"):
        build_houses(tmp_path / "file", SMALL, jobs=1)


def test_an_older_build_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "houses").mkdir()  # an empty folder is in nobody's way
    build_houses(tmp_path / "houses", TINY, jobs=1)
    before = digests(tmp_path / "houses")
    build_houses(tmp_path / "houses", replace(TINY, seed=3), jobs=1)
    assert digests(tmp_path / "houses") != before


def test_a_house_that_cannot_be_laid_out_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "place_viewpoints", lambda *_: None)
    monkeypatch.setattr(build, "_ATTEMPTS", 2)
    with pytest.raises(RuntimeError, match="can be reached for house 5, seed 9"):
        lay_out(9, 5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("houses", 1, "houses must be 2 or more, got 1; choose a larger houses"),
        ("seed", -1, "seed must be 0 or more, got -1; choose a larger seed"),
        ("unseen_houses", 0, "unseen_houses must be 1 or more, got 0"),
        ("train_routes", 0, "train_routes must be 1 or more, got 0"),
        ("val_seen_routes", 0, "val_seen_routes must be 1 or more, got 0"),
        ("val_unseen_routes", -3, "val_unseen_routes must be 1 or more, got -3"),
    ],
)
def test_bad_configs_are_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HousesConfig(**{field: value})


def test_bad_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="jobs must be 1 or more, got 0; leave it out to use all processors"):
        build_houses(tmp_path / "houses", SMALL, jobs=0)


def test_a_sixth_of_few_houses_is_unseen() -> None:
    assert HousesConfig().kept_unseen == 12
    assert HousesConfig(houses=2).kept_unseen == 1
    assert HousesConfig(houses=30).kept_unseen == 5


def test_json_is_one_object_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_houses(tmp_path / "out", houses=2, jobs=1, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["houses"] == 2
    assert printed["instructions"] == {"train": 180, "val_seen": 12, "val_unseen": 90}
    assert printed["folder"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "r2r" / "R2R_train.json").is_file()


def test_people_get_one_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(target: Path, config: HousesConfig, **_: object) -> HousesSummary:
        assert (config.houses, config.seed) == (9, 4)
        return HousesSummary(str(target), 9, 400, 500, 223, {"train": 3}, {"train": 9})

    monkeypatch.setattr(command, "build_houses", build)
    data_houses(Path("x[/y]"), houses=9, seed=4)
    printed = capsys.readouterr()
    assert "written to x[/y]" in printed.err.replace("\n", " ")
    assert printed.out == ""
    assert "9 houses, 400 viewpoints, 500 edges" in printed.err
