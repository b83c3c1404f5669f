"""Captions are read packed or unpacked, and every way they can be broken is named."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import DataError
from scenemem.formats.annotations import (
    PUBLISHED,
    Captioner,
    CaptionFiles,
    Detection,
    find_captions,
    read_captions,
)

LANGNAV = "img_features/r2r_blip_DETR_vis2text"
NAVGPT = "navgpt_r2r/observations_list"


def _dense(**changed: Any) -> dict[str, Any]:
    usual = {"obj_class": "bed", "coordinates": "0 0 64 48", "confidence": "0.50", "caption": "a white bed"}
    return {**usual, **changed}


def _view(number: int, *found: dict[str, Any]) -> dict[str, Any]:
    return {"global_cap": f"view {number}", "dense_cap": list(found)}


def _viewpoint(**changed: Any) -> dict[str, Any]:
    return {**{str(number): _view(number) for number in range(36)}, **changed}


def _headings() -> list[str]:
    return [f"down: floor {n}\nmiddle: wall {n}\ntop: ceiling {n}" for n in range(8)]


def _pack(file: Path, members: dict[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file


def _packed(tmp_path: Path, content: Any, name: str = f"{LANGNAV}/s.json") -> CaptionFiles:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    captioner: Captioner = "navgpt" if name.startswith("navgpt") else "langnav"
    return CaptionFiles(captioner, _pack(tmp_path / f"{captioner}.tar.gz", {"LICENSE": b"MIT", name: raw}))


def test_langnav_views_are_read_in_order(tmp_path: Path) -> None:
    shown = dict(reversed(_viewpoint(**{"7": _view(7, _dense())}).items()))
    (record,) = read_captions(_packed(tmp_path, {"v": shown}))
    assert (record.scan, record.viewpoint) == ("s", "v")
    assert record.captions == tuple(f"view {number}" for number in range(36))
    assert record.detections[7] == (Detection("bed", (0, 0, 64, 48), 0.5, "a white bed"),)
    assert record.detections[7][0].share == pytest.approx(0.01)
    assert sum(map(len, record.detections)) == 1


def test_navgpt_slots_are_rows_of_headings(tmp_path: Path) -> None:
    (record,) = read_captions(_packed(tmp_path, {"v": _headings()}, f"{NAVGPT}/s.json"))
    assert record.captions[:8] == tuple(f"floor {n}" for n in range(8))
    assert record.captions[8] == "wall 0"
    assert record.captions[-1] == "ceiling 7"
    assert record.detections == ()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
def test_one_building_can_be_read_without_the_others(packed: bool, tmp_path: Path) -> None:
    contents = {f"{LANGNAV}/{name}.json": b"no JSON" for name in ("a", "c")}
    contents[f"{LANGNAV}/b.json"] = json.dumps({"v": _viewpoint()}).encode()
    files = CaptionFiles("langnav", tmp_path / LANGNAV)
    if packed:
        files = CaptionFiles("langnav", _pack(tmp_path / "langnav.tar.gz", dict(sorted(contents.items()))))
    else:
        files.place.mkdir(parents=True)
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
    assert [(record.scan, record.viewpoint) for record in read_captions(files, "b")] == [("b", "v")]
    assert list(read_captions(files, "unknown")) == []
    with pytest.raises(DataError, match=r"a\.json"):
        list(read_captions(files, "a"))


def test_packed_and_unpacked_files_say_the_same(tmp_path: Path) -> None:
    packed = _packed(tmp_path / "captions", {"v": _viewpoint(), "w": _viewpoint()})
    assert find_captions(tmp_path / "captions", "langnav") == packed
    with tarfile.open(packed.place) as archive:
        content = archive.extractfile(f"{LANGNAV}/s.json")
        assert content is not None
        folder = tmp_path / "unpacked" / LANGNAV
        folder.mkdir(parents=True)
        (folder / "s.json").write_bytes(content.read())
    unpacked = find_captions(tmp_path / "unpacked", "langnav")
    assert unpacked == CaptionFiles("langnav", folder)
    said = [[record[:4] for record in read_captions(files)] for files in (packed, unpacked)]
    assert said[0] == said[1]
    assert [record[1] for record in said[0]] == ["v", "w"]
    assert find_captions(tmp_path / "captions", "navgpt") is None
    assert unpacked.origin == "captions/r2r_blip_DETR_vis2text (unpacked copy)"


def test_a_copy_that_is_not_the_published_one_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _packed(tmp_path, {"v": _viewpoint()})
    assert files.origin.startswith("captions/langnav.tar.gz (unknown copy, sha256 ")
    digest = files.origin.removesuffix(")").rpartition(" ")[2]
    known = PUBLISHED["langnav"]
    monkeypatch.setitem(PUBLISHED, "langnav", type(known)(known.folder, known.archives, digest))
    assert files.origin == f"captions/langnav.tar.gz (published, sha256 {digest})"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"v": {"0": _view(0)}},
            r"s\.json, viewpoint 'v': lacks view 1 \(1 of 36 views are there\); download",
        ),
        (
            {"v": _viewpoint(**{"36": _view(36)})},
            r"viewpoint 'v': holds the view '36', expected views 0 to 35",
        ),
        ({"v": [1]}, "viewpoint 'v': holds list, expected an object per view"),
        (
            {"v": _viewpoint(**{"3": {"dense_cap": []}})},
            r"viewpoint 'v', view 3: object missing required field `global_cap`",
        ),
        (
            {"v": _viewpoint(**{"3": {"global_cap": 5, "dense_cap": []}})},
            r"viewpoint 'v', view 3, field 'global_cap': expected `str`, got `int`",
        ),
        (
            {"v": _viewpoint(**{"3": _view(3, _dense(confidence="nan"))})},
            r"view 3, field 'dense_cap\[0\]': confidence is nan, expected a number from 0 to 1",
        ),
        (
            {"v": _viewpoint(**{"3": _view(3, _dense(confidence="1.5"))})},
            "confidence is 1.5, expected a number from 0 to 1",
        ),
        (
            {"v": _viewpoint(**{"3": _view(3, _dense(coordinates="0 0 64"))})},
            "view 3: coordinates are '0 0 64', expected four numbers 'x0 y0 x1 y1' with x0 <= x1",
        ),
        (
            {"v": _viewpoint(**{"3": _view(3, _dense(coordinates="0 0 nan 5"))})},
            "coordinates are '0 0 nan 5', expected four numbers",
        ),
        (
            {"v": _viewpoint(**{"3": _view(3, _dense(coordinates="9 0 5 5"))})},
            "coordinates are '9 0 5 5', expected four numbers",
        ),
        (b'{"v": {"0": NaN}}', r"s\.json, field 'v\.0': holds NaN or Infinity, expected finite numbers"),
        (b'{"v": "\xff"}', r"s\.json: not UTF-8 text \(byte 0xff at position 7\)"),
        (b'{"v": {', r"s\.json: not valid JSON .*; is the file complete\?"),
    ],
)
def test_a_broken_langnav_file_is_located(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_captions(_packed(tmp_path, content)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_headings()[:7], "viewpoint 'v': holds 7 entries, expected 8 headings"),
        ("text", "viewpoint 'v': holds str, expected 8 headings"),
        ([*_headings()[:7], "down: x"], "viewpoint 'v', heading 7: is 'down: x', expected three lines 'down"),
    ],
)
def test_a_broken_navgpt_file_is_located(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_captions(_packed(tmp_path, {"v": value}, f"{NAVGPT}/s.json")))


def test_a_viewpoint_twice_is_named(tmp_path: Path) -> None:
    body = json.dumps({"v": _viewpoint()}).encode()
    members = {f"{LANGNAV}/s.json": body, f"copy/{LANGNAV}/s.json": body}
    across = CaptionFiles("langnav", _pack(tmp_path / "two.tar.gz", members))
    with pytest.raises(
        DataError, match=r"viewpoint 'v': stands there twice, the first time in img_features/"
    ):
        list(read_captions(across))


def test_an_unreadable_archive_is_named(tmp_path: Path) -> None:
    files = _packed(tmp_path, {f"v{number}": _viewpoint() for number in range(20)})
    content = files.place.read_bytes()
    for damaged in (content[: len(content) // 2], b"<html>not found</html>"):
        files.place.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"not a readable archive \(.*\); is the file complete\? Download"
        ):
            list(read_captions(files))
    files.place.unlink()
    with pytest.raises(DataError, match="no such file"):
        list(read_captions(files))


def test_files_without_captions_are_refused(tmp_path: Path) -> None:
    files = CaptionFiles("langnav", _pack(tmp_path / "langnav.tar.gz", {"other/s.json": b"{}"}))
    with pytest.raises(DataError, match=r"holds no r2r_blip_DETR_vis2text/<scan>\.json file"):
        list(read_captions(files))


@pytest.mark.real_data
def test_the_published_files_have_their_counts(real_data: Path) -> None:
    if not (real_data / "captions").is_dir():
        pytest.skip("needs the published captions")
    langnav, navgpt = (find_captions(real_data / "captions", name) for name in PUBLISHED)
    assert langnav is not None
    assert navgpt is not None
    assert "(published, sha256 f7a80b68" in langnav.origin
    assert "(published, sha256 2edd9583" in navgpt.origin
    viewpoints = boxes = 0
    for record in read_captions(langnav):
        viewpoints += 1
        boxes += sum(map(len, record.detections))
    assert (viewpoints, boxes) == (10_567, 614_744)
    assert sum(len(record.captions) == 24 for record in read_captions(navgpt)) == 10_567
