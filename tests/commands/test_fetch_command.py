from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scenemem.cli import main
from scenemem.sources.table import SOURCES
from tests.sources.conftest import mirror, originals  # noqa: F401 (a fixture)
from tests.sources.server import Served

Mirror = Callable[[str], Served]


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["data", *words])
    shown = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, shown.out, shown.err


def test_without_a_name_the_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "fetch")
    assert code == 0
    for name, source in SOURCES.items():
        assert name in out
        assert source.page.removeprefix("https://github.com/") in "".join(out.split())
    assert "Matterport3D terms of use (non-commercial, academic)" in out
    assert "house-files: room labels from the .house files of Matterport3D; not fetched here, because" in err
    _, out, _ = _run(capsys, "fetch", "--json")
    table = json.loads(out)
    assert table["goals"]["oracle"]["sources"][0] == "graphs"
    assert len(table["sources"]["graphs"]["files"][0]["sha256"]) == 64
    assert "images" in table["by_hand"]


@pytest.mark.usefixtures("mirror")
def test_a_track_is_fetched_told_and_followed_by_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    code, _, err = _run(capsys, "fetch", "oracle", "--data", str(data))
    assert code == 0
    shown = " ".join(err.split())
    assert "9 files to fetch, 0.0 MB and 1 of unknown size, 0 are there" in shown
    assert (
        "rooms: room of every viewpoint (LAD); https://github.com/zehao-wang/LAD, licence: none stated,"
        in shown
    )
    assert f"{data}/rooms/viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in shown
    assert f"next: scenemem data check --data {data} next: scenemem data objects --data {data}" in shown
    code, _, err = _run(capsys, "fetch", "oracle", "--data", str(data))
    assert (code, "all 9 files are there" in err) == (0, True)


@pytest.mark.usefixtures("mirror")
def test_files_that_are_not_the_published_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r2r").mkdir()
    (tmp_path / "r2r" / "R2R_test.json").write_text("mine")
    code, _, err = _run(capsys, "fetch", "r2r", "--data", str(tmp_path))
    assert code == 0
    assert "R2R_test.json: is there, but is not the published file; kept (--replace fetches it again)" in err
    code, out, _ = _run(capsys, "fetch", "r2r", "--data", str(tmp_path), "--replace", "--json")
    assert code == 0
    assert json.loads(out)["fetched"] == ["r2r/R2R_test.json"]
    assert (tmp_path / "r2r" / "R2R_test.json").read_bytes() == originals()["R2R_test.json"]


def test_images_are_explained(tmp_path: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    code, _, err = _run(capsys, "fetch", "images", "--data", str(tmp_path))
    assert code == 0
    assert "the pictures are given out only to people who have signed the Matterport3D terms of use" in err


def test_without_a_network_the_way_round_is_named(
    tmp_path: Path,
    mirror: Mirror,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror("R2R_train.json").status = 404
    code, _, err = _run(capsys, "fetch", "r2r", "--data", str(tmp_path))
    assert code == 2
    assert "2 files are still missing; how to fetch them elsewhere:" in err, "one has arrived"
    assert f"scenemem data fetch r2r --data {tmp_path} --instructions" in err
    assert "error: http://127.0.0.1" in err
    code, out, err = _run(capsys, "fetch", "r2r", "--data", str(tmp_path), "--instructions")
    assert code == 0
    assert out.startswith("mkdir -p r2r\ncurl -fL -C - -o r2r/R2R_train.json http://127.0.0.1")
    assert out.rstrip().endswith("END")
    assert "2 files to fetch, 0.0 MB; run this where there is a network" in err


def test_a_folder_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "fetch", "r2r")
    assert code == 2
    assert "error: name the folder to fill: scenemem data fetch r2r --data DIR" in err
    code, _, err = _run(capsys, "fetch", "r2r", "--data", "x", "--timeout", "-1")
    assert (code, "--timeout must be more than 0 seconds, got -1.0" in err) == (2, True)
    assert not Path("x").exists()


def test_originals_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vp2room_label.json"
    file.write_bytes(originals()["vp2room_label.json"])
    code, _, err = _run(capsys, "convert", str(file), "--data", str(tmp_path))
    assert code == 0
    assert "viewpoint_rooms.tsv: 1 viewpoints, from vp2room_label.json" in err
    code, out, _ = _run(capsys, "convert", str(file), "--data", str(tmp_path), "--json")
    assert json.loads(out)["converted"][0]["records"] == 1
    code, _, err = _run(capsys, "convert", "--data", str(tmp_path))
    assert (code, "error: name the files to convert: a folder of .house files" in err) == (2, True)
