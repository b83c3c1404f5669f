from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenemem.cli import main
from scenemem.formats.features import write_store
from scenemem.presets import PRESETS
from scenemem.world.build import load_world
from tests.features.caption_houses import write_captions


def _check(data: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["data", "check", "--data", str(data), *flags])
    shown = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, shown.out, shown.err


def _report(data: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code, out, _ = _check(data, capsys, "--json")
    return code, json.loads(out)


@pytest.fixture
def own_data(tiny_data: Path, tmp_path: Path) -> Path:
    """A copy of the tiny data folder that a test may spoil."""
    return Path(shutil.copytree(tiny_data, tmp_path / "data"))


def test_a_sound_folder_is_counted(tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _report(tiny_data, capsys)
    assert code == 0
    assert report["problems"] == []
    assert (report["scans"], report["viewpoints"], report["isolated"]) == (3, 13 + 9 + 10, 2)
    assert report["edges"] == (3 * 3 + 4 * 2) + 9 + (2 * 3 + 3 * 2)
    items = json.loads((tiny_data / "r2r" / "R2R_train.json").read_text())
    assert report["splits"]["r2r"]["train"] == {
        "paths": len(items),
        "instructions": 3 * len(items),
        "scans": 2,
    }
    assert report["path_pool"] > 0
    assert "feature store" in report["needs"]["ssm"]
    assert "scenemem data r4r" in report["needs"]["any preset on R4R"]
    assert "leaderboard submission" not in report["needs"]


def test_the_table_says_the_same(tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _check(tiny_data, capsys)
    assert code == 0
    assert "32 included, 2 without an edge" in out
    assert "still needed" in out


def test_feature_stores_are_listed_and_satisfy_the_need(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = load_world(own_data / "connectivity").names
    rows = np.zeros((len(names), 36, 3), dtype=np.float16)
    for name, count in (("whole", len(names)), ("part", 5)):
        target = own_data / "features" / f"{name}.npy"
        track = "captions" if name == "whole" else ""
        write_store(target, names[:count], rows[:count], width=3, source="", encoder="zeros", track=track)
    code, report = _report(own_data, capsys)
    assert code == 0
    assert report["features"] == [
        {"name": "part", "width": 3, "viewpoints": 5, "complete": False, "track": ""},
        {"name": "whole", "width": 3, "viewpoints": len(names), "complete": True, "track": "captions"},
    ]
    anywhere = {name for name, preset in PRESETS.items() if preset.data.features is None}
    assert not set(report["needs"]) & anywhere
    assert report["needs"]["ssm-r2r-oracle"] == "the feature store 'oracle' ('scenemem data objects')"
    assert "R4R_train.json" in report["needs"]["ssm-r4r-oracle"]


def test_every_track_says_whether_it_is_there_or_what_builds_it(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_captions(own_data)
    _, report = _report(own_data, capsys)
    tracks = report["tracks"]
    assert list(tracks) == ["captions", "objects", "images", "oracle"]
    assert report["annotations"] == {"langnav captions": 32, "navgpt captions": 32}
    assert tracks["captions"] == {
        "sensor": "a camera with a captioner, and a depth sensor",
        "stores": [],
        "command": "scenemem data captions --data DIR",
        "missing": "",
    }
    assert tracks["objects"]["missing"] == "objects/view_objects.jsonl.gz or objects/BBox/"
    assert tracks["oracle"]["missing"].endswith(" and rooms/viewpoint_rooms.tsv")
    assert report["needs"]["ssm"].startswith("a feature store ('scenemem data captions --data DIR')")
    names = load_world(own_data / "connectivity").names
    rows = np.zeros((len(names), 36, 3), dtype=np.float16)
    for name, track in (("objects+rooms", ""), ("both", "captions+objects")):
        target = own_data / "features" / f"{name}.npy"
        write_store(target, names, rows, width=3, source="", encoder="", track=track)
    _, report = _report(own_data, capsys)
    assert report["tracks"]["oracle"]["stores"] == ["objects+rooms"]
    assert report["tracks"]["captions+objects"]["stores"] == ["both"]
    assert "ssm-r2r-oracle" not in report["needs"]
    _, out, _ = _check(own_data, capsys)
    shown = " ".join(out.split())
    assert "track captions can be built: 'scenemem data captions --data DIR'" in shown
    assert "track oracle there: objects+rooms (no sensor: annotations, an upper bound)" in shown
    assert "track oracle, now called 'oracle'" in shown


def test_broken_captions_are_found(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_captions(own_data)
    file = own_data / "captions" / "r2r_blip_DETR_vis2text" / "grid.json"
    file.write_text(file.read_text()[:1000])
    code, report = _report(own_data, capsys)
    assert code == 2
    assert [Path(problem["file"]).name for problem in report["problems"]] == ["grid.json"]
    assert report["annotations"] == {"navgpt captions": 32}


def test_problems_of_all_files_are_collected(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = own_data / "r2r" / "R2R_train.json"
    items = json.loads(train.read_text())
    items[4]["path"][2] = items[4]["path"][0]
    train.write_text(json.dumps(items))
    (own_data / "r2r" / "R2R_val_seen.json").write_text('[{"scan": "gr')
    code, report = _report(own_data, capsys)
    assert code == 2
    assert [Path(problem["file"]).name for problem in report["problems"]] == [
        "R2R_train.json",
        "R2R_val_seen.json",
    ]
    assert report["problems"][0]["record"].startswith("record 4")
    assert "there is no edge between the two" in report["problems"][0]["reason"]
    assert "not valid JSON" in report["problems"][1]["reason"]
    assert "val_unseen" in report["splits"]["r2r"], "the sound files are still counted"
    code, out, err = _check(own_data, capsys)
    assert code == 2
    assert "problem" in out
    assert "error: 2 problem(s) found; see the list above" in err


def test_without_graphs_the_report_says_so(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(own_data / "connectivity")
    code, report = _report(own_data, capsys)
    assert code == 2
    assert "no such folder" in report["problems"][0]["reason"]
    assert "connectivity/<scan>_connectivity.json" in report["needs"]["basic"]


def test_one_bad_graph_does_not_hide_another(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("grid", "yard"):
        (own_data / "connectivity" / f"{name}_connectivity.json").write_text("[]")
    code, report = _report(own_data, capsys)
    assert code == 2
    assert [Path(problem["file"]).name for problem in report["problems"]] == [
        "grid_connectivity.json",
        "yard_connectivity.json",
    ]


def test_broken_annotations_are_found(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_data / "objects").mkdir()
    (own_data / "objects" / "view_objects.jsonl").write_text("{}\n")
    (own_data / "rooms").mkdir()
    (own_data / "rooms" / "viewpoint_rooms.tsv").write_text("nonsense\n")
    code, report = _report(own_data, capsys)
    assert code == 2
    assert {Path(problem["file"]).name for problem in report["problems"]} == {
        "view_objects.jsonl",
        "viewpoint_rooms.tsv",
    }


def test_a_store_with_changed_bytes_is_found(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = own_data / "features" / "zeros.npy"
    names = load_world(own_data / "connectivity").names
    rows = np.zeros((len(names), 36, 3), dtype=np.float16)
    write_store(store, names, rows, width=3, source="test", encoder="zeros")
    content = bytearray(store.read_bytes())
    content[-1] ^= 1
    store.write_bytes(content)
    code, report = _report(own_data, capsys)
    assert code == 2
    assert Path(report["problems"][0]["file"]).name == "zeros.npy"


def test_a_folder_too_small_for_the_path_pool_is_no_problem(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = own_data / "r2r" / "R2R_train.json"
    yard = json.loads((own_data / "r2r" / "R2R_val_unseen.json").read_text())
    train.write_text(json.dumps([{**item, "path": item["path"][:2], "scan": "yard"} for item in yard]))
    code, report = _report(own_data, capsys)
    assert code == 0
    assert report["path_pool"] is not None


def test_a_missing_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _check(tmp_path / "nowhere", capsys)
    assert (code, out) == (2, "")
    assert "no such folder; --data expects one that holds connectivity/ and r2r/" in err


@pytest.mark.real_data
def test_the_real_data_has_its_published_counts(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _report(real_data, capsys)
    assert code == 0
    assert [report[key] for key in ("scans", "viewpoints", "edges", "isolated")] == [90, 10_567, 21_468, 8]
    instructions = [split["instructions"] for split in report["splits"]["r2r"].values()]
    assert instructions == [14_039, 1_021, 2_349, 4_173]
    assert report["path_pool"] == 178_300
