"""Captions are read packed or unpacked, and every way they can be broken is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenemem.formats.annotations import (
    PUBLISHED,
    Captioner,
    CaptionFiles,
    Detection,
    find_captions,
    read_captions,
)
from tests.formats.helpers import pack, put, refused

LANGNAV = "img_features/r2r_blip_DETR_vis2text"
NAVGPT = "navgpt_r2r/observations_list"
DENSE = {"obj_class": "bed", "coordinates": "0 0 64 48", "confidence": "0.50", "caption": "a white bed"}
HEADINGS = [f"down: floor {n}\nmiddle: wall {n}\ntop: ceiling {n}" for n in range(8)]


def _view(number: int, *found: dict[str, Any]) -> dict[str, Any]:
    return {"global_cap": f"view {number}", "dense_cap": list(found)}


def _viewpoint(**changed: Any) -> dict[str, Any]:
    return {**{str(number): _view(number) for number in range(36)}, **changed}


def _packed(tmp_path: Path, content: Any, folder: str = LANGNAV) -> CaptionFiles:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    captioner: Captioner = "navgpt" if folder == NAVGPT else "langnav"
    members = {"LICENSE": b"MIT", f"{folder}/s.json": raw}
    return CaptionFiles(captioner, pack(tmp_path / f"{captioner}.tar.gz", members))


def test_langnav_views_are_read_in_order_and_navgpt_slots_are_rows_of_headings(tmp_path: Path) -> None:
    shown = dict(reversed(_viewpoint(**{"7": _view(7, DENSE)}).items()))
    (record,) = read_captions(_packed(tmp_path, {"v": shown}))
    assert (record.scan, record.viewpoint) == ("s", "v")
    assert record.captions == tuple(f"view {number}" for number in range(36))
    assert record.detections[7] == (Detection("bed", (0, 0, 64, 48), 0.5, "a white bed"),)
    assert record.detections[7][0].share == pytest.approx(0.01)
    assert sum(map(len, record.detections)) == 1
    (record,) = read_captions(_packed(tmp_path, {"v": HEADINGS}, NAVGPT))
    assert record.captions == tuple(f"{kind} {n}" for kind in ("floor", "wall", "ceiling") for n in range(8))
    assert record.detections == ()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
def test_one_building_can_be_read_without_the_others(packed: bool, tmp_path: Path) -> None:
    contents = {f"{LANGNAV}/{name}.json": b"no JSON" for name in ("a", "c")}
    contents[f"{LANGNAV}/b.json"] = json.dumps({"v": _viewpoint()}).encode()
    files = CaptionFiles("langnav", tmp_path / LANGNAV)
    if packed:
        files = CaptionFiles("langnav", pack(tmp_path / "langnav.tar.gz", dict(sorted(contents.items()))))
    else:
        for name, content in contents.items():
            put(tmp_path / name, content)
    assert [(record.scan, record.viewpoint) for record in read_captions(files, "b")] == [("b", "v")]
    assert list(read_captions(files, "unknown")) == []
    place = files.place if packed else files.place / "a.json"
    assert "a.json: not valid JSON" in refused(lambda _: read_captions(files, "a"), place)


def test_packed_and_unpacked_files_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"v": _viewpoint(), "w": _viewpoint()}
    packed = _packed(tmp_path / "captions", content)
    assert find_captions(tmp_path / "captions", "langnav") == packed
    assert find_captions(tmp_path / "captions", "navgpt") is None
    folder = put(tmp_path / "unpacked" / LANGNAV / "s.json", content).parent
    unpacked = find_captions(tmp_path / "unpacked", "langnav")
    assert unpacked == CaptionFiles("langnav", folder)
    said = [[record[:4] for record in read_captions(files)] for files in (packed, unpacked)]
    assert said[0] == said[1]
    assert [record[1] for record in said[0]] == ["v", "w"]
    assert unpacked.origin == "captions/r2r_blip_DETR_vis2text (unpacked copy)"
    assert packed.origin.startswith("captions/langnav.tar.gz (unknown copy, sha256 ")
    digest = packed.origin.removesuffix(")").rpartition(" ")[2]
    known = PUBLISHED["langnav"]
    monkeypatch.setitem(PUBLISHED, "langnav", type(known)(known.folder, known.archives, digest))
    assert packed.origin == f"captions/langnav.tar.gz (published, sha256 {digest})"


def _three(**changed: Any) -> dict[str, Any]:
    return {"v": _viewpoint(**{"3": _view(3, {**DENSE, **changed})})}


AT = ", viewpoint 'v', field '"
BOX = f"{AT}3.dense_cap[0]': coordinates are"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"v": {"0": _view(0)}}, ", viewpoint 'v': object missing required field `1`"),
        ({"v": _viewpoint(**{"36": _view(36)})}, ", viewpoint 'v': object contains unknown field `36`"),
        ({"v": [1]}, ", viewpoint 'v': expected `object`, got `array`"),
        ({"v": _viewpoint(**{"3": {}})}, f"{AT}3': object missing required field `global_cap`"),
        ({"v": _viewpoint(**{"3": {"global_cap": 5}})}, f"{AT}3.global_cap': expected `str`, got"),
        (_three(confidence="nan"), f"{AT}3.dense_cap[0].confidence': expected `float` >= 0.0"),
        (_three(confidence="1.5"), f"{AT}3.dense_cap[0].confidence': expected `float` <= 1.0"),
        (_three(coordinates="0 0 64"), f"{BOX} '0 0 64', expected four numbers 'x0 y0 x1 y1' with x0 <= x1"),
        (_three(coordinates="0 0 nan 5"), f"{BOX} '0 0 nan 5', expected four numbers"),
        (_three(coordinates="0 0 5 inf"), f"{BOX} '0 0 5 inf', expected four numbers"),
        (_three(coordinates="9 0 5 5"), f"{BOX} '9 0 5 5', expected four numbers"),
        (_three(coordinates="0 9 5 5"), f"{BOX} '0 9 5 5', expected four numbers"),
        (b'{"v": {"0": NaN}}', ", field 'v.0': holds NaN or Infinity, expected finite"),
        (b'{"v": "\xff"}', ": not UTF-8 text (byte 0xff at position 7)"),
        (b'{"v": {', ": not valid JSON"),
        (HEADINGS[:7], ", viewpoint 'v': expected `array` of length >= 8"),
        ([*HEADINGS, HEADINGS[0]], ", viewpoint 'v': expected `array` of length <= 8"),
        ([*HEADINGS[:7], "down: x"], f"{AT}[7]': expected `str` matching regex"),
        ([*HEADINGS[:7], HEADINGS[7] + "\n"], f"{AT}[7]': expected `str` matching regex"),
    ],
)
def test_a_broken_file_is_located(tmp_path: Path, content: Any, message: str) -> None:
    navgpt = isinstance(content, list)  # the headings of a viewpoint
    folder = NAVGPT if navgpt else LANGNAV
    files = _packed(tmp_path, {"v": content} if navgpt else content, folder)
    found = refused(lambda _: read_captions(files), files.place)
    assert found.startswith(f"{folder}/s.json{message}")


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("captioner", "digest", "captions", "detections"),
    [("langnav", "f7a80b68", 36, 614_744), ("navgpt", "2edd9583", 24, 0)],
)
def test_the_published_archives_are_known_by_their_digests_and_counts(
    captioner: Captioner, digest: str, captions: int, detections: int, real_data: Path
) -> None:
    files = find_captions(real_data / "captions", captioner)
    assert files is not None
    assert f"(published, sha256 {digest}" in files.origin
    counts = [(len(one.captions), sum(map(len, one.detections))) for one in read_captions(files)]
    assert (len(counts), {count for count, _ in counts}) == (10_567, {captions})
    assert sum(found for _, found in counts) == detections


def test_other_archives_are_refused(tmp_path: Path) -> None:
    def reason(files: CaptionFiles) -> str:
        return refused(lambda _: read_captions(files), files.place)

    body = json.dumps({"v": _viewpoint()}).encode()
    twice = {f"{LANGNAV}/s.json": body, f"copy/{LANGNAV}/s.json": body}
    found = reason(CaptionFiles("langnav", pack(tmp_path / "two.tar.gz", twice)))
    assert (
        found
        == f"copy/{LANGNAV}/s.json, viewpoint 'v': stands there twice, the first time in {LANGNAV}/s.json"
    )
    found = reason(CaptionFiles("langnav", pack(tmp_path / "langnav.tar.gz", {"other/s.json": b"{}"})))
    assert found == "holds no r2r_blip_DETR_vis2text/<scan>.json file"
    files = _packed(tmp_path, {f"v{number}": _viewpoint() for number in range(20)})
    content = files.place.read_bytes()
    for damaged in (content[: len(content) // 2], b"<html>not found</html>"):
        files.place.write_bytes(damaged)
        assert reason(files).startswith("not a readable archive (")
        assert reason(files).endswith("); is the file complete?")
    files.place.unlink()
    assert reason(files) == "no such file"
