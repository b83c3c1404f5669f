from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scenemem.sources.table import SOURCES
from tests.commands.helpers import Shell
from tests.sources.conftest import mirror, originals  # noqa: F401 (a fixture)
from tests.sources.server import Served

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
    assert table["sources"]["graphs"]["matterport_terms"] is True
    assert "images" in table["by_hand"]


@pytest.mark.usefixtures("mirror")
def test_a_track_is_fetched_and_followed_by_what_comes_next(tmp_path: Path, shell: Shell) -> None:
    data = tmp_path / "data"
    shown = shell("data", "fetch", "oracle", "--data", data)
    assert "9 files to fetch, 0.0 MB and 1 of unknown size, 0 are there" in shown
    rooms = "rooms: room of every viewpoint (LAD); https://github.com/zehao-wang/LAD, licence: none stated,"
    assert rooms in shown
    assert f"{data}/rooms/viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in shown
    assert f"next: scenemem data check --data {data} next: scenemem data objects --data {data}" in shown
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


def test_a_folder_has_to_be_named(tmp_path: Path, shell: Shell) -> None:
    refused = shell.split("data", "fetch", "r2r", code=2).err
    assert "error: name the folder to fill: scenemem data fetch r2r --data DIR" in refused
    refused = shell.refused("data", "fetch", "r2r", "--data", tmp_path / "x", "--timeout", -1)
    assert "--timeout must be more than 0 seconds, got -1.0" in refused
    assert not (tmp_path / "x").exists()


def test_originals_are_converted(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "vp2room_label.json"
    file.write_bytes(originals()["vp2room_label.json"])
    words = ("data", "convert", file, "--data", tmp_path)
    assert "viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in shell(*words)
    assert shell.json(*words)["converted"][0]["records"] == 1
    refused = shell.refused("data", "convert", "--data", tmp_path)
    assert "error: name the files to convert: a folder of .house files" in refused
