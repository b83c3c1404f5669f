"""The commands doctor, data check, data fetch and data convert: what a folder holds and how it is filled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from scenemem import __version__
from scenemem.formats.decoding import file_digest
from scenemem.formats.folder import DataFolder
from scenemem.runs.data_check import FolderReport, Readiness, SplitCount, inspect_folder
from scenemem.sources.table import SOURCES
from scenemem.world.build import load_world
from tests.commands.helpers import Shell, write_features
from tests.features.caption_houses import write_captions
from tests.sources.conftest import mirror, originals  # noqa: F401 (a fixture)
from tests.sources.server import Served

GRAPH = "connectivity/grid_connectivity.json"
FOLDER = "r2r_blip_DETR_vis2text"


@pytest.fixture
def own_data(tiny_data: Path, tmp_path: Path) -> Path:
    """A copy of the tiny data folder that a test may spoil."""
    return Path(shutil.copytree(tiny_data, tmp_path / "data"))


def _report(data: Path) -> FolderReport:
    return inspect_folder(DataFolder(data))


def test_a_sound_folder_is_counted_and_shown(tiny_data: Path, shell: Shell) -> None:
    report = _report(tiny_data)
    assert report.problems == []
    assert (report.scans, report.viewpoints, report.isolated) == (3, 13 + 9 + 10, 2)
    assert report.edges == (3 * 3 + 4 * 2) + 9 + (2 * 3 + 3 * 2)
    items = json.loads((tiny_data / "r2r" / "R2R_train.json").read_text())
    assert report.splits["r2r"]["train"] == SplitCount(len(items), 3 * len(items), 2)
    assert report.path_pool
    assert report.tasks["r2r"].complete
    r4r = report.tasks["r4r"]
    assert (r4r.missing, r4r.commands) == (["r4r/"], [f"scenemem data r4r --data {tiny_data}"])
    words = ("data", "check", "--data", tiny_data)
    assert shell.json(*words) == json.loads(msgspec.json.encode(report))
    shown = shell(*words)
    assert "32 included, 2 without an edge" in shown
    assert "track state captions missing: captions/r2r_blip_DETR_vis2text/<scan>.json" in shown
    assert "r2r complete (Room-to-Room)" in shown


def test_feature_stores_are_listed(own_data: Path) -> None:
    write_features(own_data, "whole", track="captions")
    write_features(own_data, "part", keys=slice(5))
    report = _report(own_data)
    found = [(one.name, one.viewpoints, one.complete, one.buildings, one.track) for one in report.features]
    assert found == [("part", 5, False, 0, ""), ("whole", 32, True, 3, "captions")]


def test_every_track_is_there_or_has_what_builds_it(own_data: Path, shell: Shell) -> None:
    own_data = own_data.rename(own_data.with_name("my data"))
    write_captions(own_data)
    report = _report(own_data)
    tracks = report.tracks
    assert list(tracks) == ["captions", "objects", "images", "oracle"]
    assert report.annotations == {"langnav captions": 32, "navgpt captions": 32}
    commands = [f"scenemem data {words} --data '{own_data}'" for words in ("fetch captions", "captions")]
    what, words = "a camera with a captioner, and a depth sensor", ["glove/glove_300d.npz"]
    assert tracks["captions"] == Readiness(what, False, worse_without=words, commands=commands)
    assert tracks["objects"].missing == ["objects/BBox.tar.gz"]
    assert tracks["oracle"].missing == ["objects/BBox.tar.gz", "rooms/viewpoint_rooms.tsv"]
    check = ("data", "check", "--data", own_data)
    assert "captions can be built, better with glove/glove_300d.npz" in shell(*check)
    write_features(own_data, "oracle", track="oracle")
    write_features(own_data, "both", track="captions+objects")
    tracks = _report(own_data).tracks
    assert tracks["oracle"].stores == ["oracle"]
    assert tracks["captions+objects"].stores == ["both"]
    assert "oracle complete: oracle (no sensor: annotations, an upper bound)" in shell(*check)
    write_features(own_data, "views", encoder="scenemem.houses.features")
    assert _report(own_data).tracks == {}, "the embedded houses lack no track"


def test_advice_leads_on_and_never_in_a_circle(own_data: Path, shell: Shell) -> None:
    """With boxes but no room labels, building 'objects' again would not give 'oracle'."""
    boxes = own_data / "objects" / "BBox"
    boxes.mkdir(parents=True)
    (boxes / "yard_g00.json").write_text(json.dumps({"g00": {}}))
    shown = shell("data", "objects", "--data", own_data)
    assert f"for 'oracle' get them with 'scenemem data fetch rooms --data {own_data}'" in shown
    tracks = _report(own_data).tracks
    assert tracks["objects"].complete
    assert tracks["oracle"].missing == ["rooms/viewpoint_rooms.tsv"]
    commands = [f"scenemem data {words} --data {own_data}" for words in ("fetch oracle", "objects")]
    assert tracks["oracle"].commands == commands
    words = ("train", "ssm", "--features", "oracle", "--data", own_data, "--out", own_data / "run")
    expected = f"'scenemem data check --data {own_data}' shows what it takes to build it"
    assert expected in shell.refused(*words)


def test_every_folder_of_the_layout_is_known(own_data: Path, shell: Shell) -> None:
    for name in ("glove", "lar2r", "originals", "notes"):
        (own_data / name).mkdir()
    vectors = np.ones((2, 3), dtype=np.float16)
    np.savez(own_data / "glove" / "glove_300d.npz", words=np.array(["bed", "lamp"]), vectors=vectors)
    labels = json.dumps({"1": {"g00": {"0": {"landmark": [1]}}, "id": 3}})
    (own_data / "lar2r" / "lar2r_train.json").write_text(labels)
    report = _report(own_data)
    assert report.annotations == {"word vectors": 2, "word labels train": 1}
    assert report.unknown == ["notes"]
    shown = shell("data", "check", "--data", own_data)
    assert "folder 'notes' not looked into by any command" in shown


def test_without_sound_graphs_nothing_is_ready(own_data: Path) -> None:
    (own_data / GRAPH).write_text("[")
    for reason in ("not valid JSON", "no such folder"):
        report = _report(own_data)
        assert reason in report.problems[0].reason
        for state in (report.tasks["r2r"], report.tracks["captions"]):
            assert state.missing[0] == "connectivity/<scan>_connectivity.json"
        shutil.rmtree(own_data / "connectivity", ignore_errors=True)


def test_problems_of_all_files_are_collected(own_data: Path, shell: Shell) -> None:
    train = own_data / "r2r" / "R2R_train.json"
    items = json.loads(train.read_text())
    items[4]["path"][2] = items[4]["path"][0]
    train.write_text(json.dumps(items))
    (own_data / "r2r" / "R2R_val_seen.json").write_text('[{"scan": "gr')
    report = _report(own_data)
    first, second = report.problems
    assert [Path(one.file).name for one in (first, second)] == ["R2R_train.json", "R2R_val_seen.json"]
    assert first.record is not None
    assert first.record.startswith("record 4")
    assert "there is no edge between the two" in first.reason
    assert "not valid JSON" in second.reason
    assert "val_unseen" in report.splits["r2r"], "the sound files are still counted"
    r2r = report.tasks["r2r"]
    assert r2r.missing == ["r2r/R2R_train.json", "r2r/R2R_val_seen.json"]
    assert r2r.commands == [f"scenemem data fetch r2r --data {own_data}"]
    refused = shell.refused("data", "check", "--data", own_data)
    assert "error: 2 problem(s) found; see the list above" in refused


def _flipped_store(data: Path) -> None:
    store = write_features(data, "zeros")
    content = bytearray(store.read_bytes())
    content[-1] ^= 1
    store.write_bytes(content)


def _nan_store(data: Path) -> None:
    store = write_features(data, "zeros")
    values = np.load(store)
    values[2, 35, 1] = np.nan
    np.save(store, values)
    record = store.with_suffix(".json")
    record.write_text(json.dumps({**json.loads(record.read_bytes()), "sha256": file_digest(store)}))


def _cut_captions(data: Path) -> None:
    write_captions(data)
    file = data / "captions" / FOLDER / "grid.json"
    file.write_text(file.read_text()[:1000])


def _texts(**files: str) -> Callable[[Path], None]:
    def write(data: Path) -> None:
        for name, text in files.items():
            (data / name).parent.mkdir(exist_ok=True)
            (data / name).write_text(text)

    return write


GRAPHS = {f"connectivity/{name}_connectivity.json": "[]" for name in ("grid", "yard")}
ANNOTATIONS = {"objects/view_objects.jsonl": "{}\n", "rooms/viewpoint_rooms.tsv": "nonsense\n"}


@pytest.mark.parametrize(
    ("spoil", "files"),
    [
        (_texts(**GRAPHS), ["grid_connectivity.json", "yard_connectivity.json"]),
        (_texts(**ANNOTATIONS), ["view_objects.jsonl", "viewpoint_rooms.tsv"]),
        (_flipped_store, ["zeros.npy"]),
        (_nan_store, ["zeros.npy"]),
        (_cut_captions, ["grid.json"]),
    ],
)
def test_no_broken_file_hides_another(
    own_data: Path, spoil: Callable[[Path], None], files: list[str]
) -> None:
    spoil(own_data)
    report = _report(own_data)
    assert [Path(problem.file).name for problem in report.problems] == files
    if spoil is _nan_store:
        assert report.problems[0].record == f"'{load_world(own_data / 'connectivity').names[2]}'"
        assert "view 35, column 1 is nan, expected a finite number" in report.problems[0].reason
    if spoil is _cut_captions:
        assert report.annotations == {"navgpt captions": 32}


def test_a_folder_too_small_for_the_path_pool_is_no_problem(own_data: Path) -> None:
    train = own_data / "r2r" / "R2R_train.json"
    yard = json.loads((own_data / "r2r" / "R2R_val_unseen.json").read_text())
    train.write_text(json.dumps([{**item, "path": item["path"][:2], "scan": "yard"} for item in yard]))
    report = _report(own_data)
    assert (report.problems, report.path_pool is None) == ([], False)


def test_a_missing_folder_is_one_line(tmp_path: Path, shell: Shell) -> None:
    printed = shell.split("data", "check", "--data", tmp_path / "nowhere", code=2)
    assert printed.out == ""
    assert "no such folder; --data expects one that holds connectivity/ and r2r/" in printed.err


@pytest.mark.real_data
def test_the_real_data_has_its_published_counts(real_data: Path) -> None:
    report = _report(real_data)
    counts = report.scans, report.viewpoints, report.edges, report.isolated
    assert counts == (90, 10_567, 21_468, 8)
    instructions = [split.instructions for split in report.splits["r2r"].values()]
    assert instructions == [14_039, 1_021, 2_349, 4_173]
    assert report.path_pool == 178_300


def test_the_machine_and_the_data_are_described(copied_data: Path, shell: Shell) -> None:
    found = json.loads(shell.split("doctor", "--json").out)
    assert found["versions"]["scenemem"] == __version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["torch threads"] == torch.get_num_threads()
    assert "data" not in found
    assert "graphics cards" in shell.split("doctor").out
    report = json.loads(msgspec.json.encode(_report(copied_data)))
    assert shell.json("doctor", "--data", copied_data)["data"] == report


Mirror = Callable[[str], Served]


def test_without_a_name_the_table_is_shown(shell: Shell) -> None:
    printed = shell.split("data", "fetch")
    for name, source in SOURCES.items():
        assert name in printed.out
        assert source.page.removeprefix("https://github.com/") in "".join(printed.out.split())
    assert "Matterport3D terms of use (non-commercial, academic)" in printed.out
    by_hand = "house-files: room labels from the .house files of Matterport3D; not fetched here, because"
    assert by_hand in printed.err
    table = json.loads(shell.split("data", "fetch", "--json").out)
    assert table["goals"]["oracle"]["sources"][0] == "graphs"
    assert len(table["sources"]["graphs"]["files"][0]["sha256"]) == 64
    assert table["sources"]["graphs"]["about_buildings"] is True
    assert "images" in table["by_hand"]


@pytest.mark.usefixtures("mirror")
def test_a_track_is_fetched_and_followed_by_what_comes_next(tmp_path: Path, shell: Shell) -> None:
    data = tmp_path / "my $data!"
    shown = shell("data", "fetch", "oracle", "--data", data)
    assert "9 files to fetch, 0.0 MB and 1 of unknown size, 0 are there" in shown
    rooms = "rooms: room of every viewpoint (LAD); https://github.com/zehao-wang/LAD, licence: none stated,"
    assert rooms in shown
    assert f"{data}/rooms/viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in shown
    assert f"next: scenemem data check --data '{data}' next: scenemem data objects --data '{data}'" in shown
    assert "all 9 files are there" in shell("data", "fetch", "oracle", "--data", data)
    shown = shell("data", "fetch", "images", "--data", data)
    assert "the pictures are given out only to people who have signed the Matterport3D terms of use" in shown


@pytest.mark.usefixtures("mirror")
def test_files_that_are_not_the_published_ones_are_named(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "r2r").mkdir()
    (tmp_path / "r2r" / "R2R_test.json").write_text("mine")
    words = ("data", "fetch", "r2r", "--data", tmp_path)
    kept = "R2R_test.json: is there, but is not the published file; kept (--replace fetches it again)"
    assert kept in shell(*words)
    assert shell.json(*words, "--replace")["fetched"] == ["r2r/R2R_test.json"]
    assert (tmp_path / "r2r" / "R2R_test.json").read_bytes() == originals()["R2R_test.json"]


def test_without_a_network_the_way_round_is_named(tmp_path: Path, mirror: Mirror, shell: Shell) -> None:  # noqa: F811
    mirror("R2R_train.json").status = 404
    words = ("data", "fetch", "r2r", "--data", tmp_path)
    refused = shell.refused(*words)
    assert "2 files are still missing; how to fetch them elsewhere:" in refused, "one has arrived"
    assert f"scenemem data fetch r2r --data {tmp_path} --instructions" in refused
    assert "error: http://127.0.0.1" in refused
    printed = shell.split(*words, "--instructions")
    assert printed.out.startswith("mkdir -p r2r\ncurl -fL -C - -o r2r/R2R_train.json http://127.0.0.1")
    assert printed.out.rstrip().endswith("END")
    assert "2 files to fetch, 0.0 MB; run this where there is a network" in printed.err


def test_files_and_folders_have_to_be_named(tmp_path: Path, shell: Shell) -> None:
    refused = shell.split("data", "fetch", "r2r", code=2).err
    assert "error: name the folder to fill: scenemem data fetch r2r --data DIR" in refused
    refused = shell.refused("data", "fetch", "r2r", "--data", tmp_path / "x", "--timeout", -1)
    assert "--timeout must be more than 0 seconds, got -1.0" in refused
    assert not (tmp_path / "x").exists()
    refused = shell.refused("data", "convert", "--data", tmp_path)
    assert "error: name the files to convert: a folder of .house files" in refused


def test_originals_are_converted(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "vp2room_label.json"
    file.write_bytes(originals()["vp2room_label.json"])
    words = ("data", "convert", file, "--data", tmp_path)
    assert "viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in shell(*words)
    assert shell.json(*words)["converted"][0]["records"] == 1


def test_viewpoints_without_an_edge_are_counted(tmp_path: Path, shell: Shell) -> None:
    places = [{"id": name, "position": [x, 0, 1.5]} for x, name in enumerate("abc")]
    file = tmp_path / "shed.json"
    for edges, alone in (([["a", "b"], ["b", "c"]], ""), ([["a", "b"]], " (1 without an edge)")):
        file.write_text(json.dumps([{"scan": "shed", "viewpoints": places, "edges": edges}]))
        shown = shell("data", "convert", file, "--data", tmp_path)
        assert f"{tmp_path}/connectivity: 3 viewpoints{alone}, from shed.json" in shown
