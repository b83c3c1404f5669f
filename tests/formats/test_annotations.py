from __future__ import annotations

import gzip
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenemem.errors import DataError
from scenemem.formats.annotations import (
    Label,
    ListedObject,
    ObjectPosition,
    RoomCode,
    ViewpointObjects,
    WordLabels,
    find_view_objects,
    landmark_label_file,
    read_labels,
    read_landmark_labels,
    read_table,
    read_view_objects,
    read_word_vectors,
)

LABELS = "raw\tname\tcategory\tmpcat40\tmore\nbath#tub\tbath tub\tbathtub\tbathtub\t3\n"
POSITIONS = "scan\tobject_id\tx\ty\tz\tname\tcategory\tmpcat40\n"
BOXES = {"7": {"name": "bath#tub", "visible_pos": [0, 35], "bbox2d": [[1, 2, 3, 4], [5.5, 6, 7, 8]]}}
RECORD = ViewpointObjects(
    "scan_1",
    "v",
    (
        ListedObject(
            7, "bath tub", (0, 35), ((1, 2, 3, 4), (5.5, 6, 7, 8)), category="bathtub", mpcat40="bathtub"
        ),
    ),
)


def _compact(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    line = {
        "scan": "scan_1",
        "viewpoint": "v",
        "objects": [
            {
                "id": 7,
                "name": "bath tub",
                "raw": "bath#tub",
                "category": "bathtub",
                "mpcat40": "bathtub",
                "views": [0, 35],
                "boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8]],
            }
        ],
    }
    file = folder / "view_objects.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line).encode()))
    return file


def _bbox_folder(folder: Path, content: Any = None) -> Path:
    (folder / "BBox").mkdir(parents=True)
    text = json.dumps({"v": BOXES} if content is None else content)
    (folder / "BBox" / "scan_1_v.json").write_text(text)
    return folder / "BBox"


def _bbox_archive(folder: Path, name: str = "BBox/scan_1_v.json", content: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    content = json.dumps({"v": BOXES}).encode() if content is None else content
    with tarfile.open(folder / "BBox.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("BBox")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return folder / "BBox.tar.gz"


@pytest.mark.parametrize("make", [_compact, _bbox_folder, _bbox_archive])
def test_all_public_forms_give_the_same_records(make: Any, tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text(LABELS)
    labels = read_labels(tmp_path / "labels.tsv")
    assert labels == {"bath#tub": Label("bath#tub", "bath tub", "bathtub", "bathtub")}
    place = make(tmp_path / "objects")
    assert find_view_objects(tmp_path / "objects") == place
    assert list(read_view_objects(place, labels)) == [RECORD]


@pytest.mark.parametrize("make", [_bbox_folder, _bbox_archive])
def test_bbox_files_without_labels_keep_the_cleaned_name_only(make: Any, tmp_path: Path) -> None:
    (record,) = read_view_objects(make(tmp_path / "objects"))
    assert record.objects[0].name == "bath tub"
    assert (record.objects[0].category, record.objects[0].mpcat40) == ("", "")
    assert record.objects[0].boxes == RECORD.objects[0].boxes


def test_the_compact_file_is_preferred(tmp_path: Path) -> None:
    assert find_view_objects(tmp_path / "nowhere") is None
    _bbox_folder(tmp_path)
    assert find_view_objects(tmp_path) == tmp_path / "BBox"
    _compact(tmp_path)
    assert find_view_objects(tmp_path) == tmp_path / "view_objects.jsonl.gz"


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (
            [{"id": 1, "name": "a", "views": [36], "boxes": []}],
            r"line 1, field '.*views\[0\]': exp.*35",
        ),
        ([{"id": 1, "name": "a", "views": [3], "boxes": []}], r"line 1.*: object 1 has 1 views but 0 boxes"),
        (
            [{"id": 1, "name": "a", "views": [3], "boxes": [[1, 2]]}],
            r"line 1, field '.*boxes\[0\]': expected",
        ),
        (
            [{"id": 1, "name": "a", "views": [3, 4], "boxes": [[1, 2, 0, 4], [1, 2, -3, 4]]}],
            r"line 1, field 'objects\[0\]': boxes\[1\] of object 1 is \(1\.0, 2\.0, -3\.0, 4\.0\), "
            r"expected finite numbers, width and height 0 or more",
        ),
        (
            [{"id": 1, "name": "a", "views": [3], "boxes": [[1, 2, 3, math.nan]]}],
            r"line 1, field 'objects\[0\]\.boxes\[0\]\[3\]': holds NaN or Infinity",
        ),
        ([{"id": "x"}], r"line 1, field 'objects\[0\]\.id': expected `int`, got `str`"),
        (3, r"line 1, field 'objects': expected `array`, got `int`"),
    ],
)
def test_a_bad_record_of_the_compact_file_is_named(objects: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "view_objects.jsonl"
    file.write_text(json.dumps({"scan": "s", "viewpoint": "v", "objects": objects}))
    with pytest.raises(DataError, match=r"view_objects\.jsonl: " + message):
        list(read_view_objects(file))


def test_a_box_is_finite_wherever_it_comes_from() -> None:
    with pytest.raises(
        ValueError, match=r"boxes\[0\] of object 7 is \(0, inf, 1, 1\), expected finite numbers"
    ):
        ListedObject(7, "lamp", (0,), ((0, math.inf, 1, 1),))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, r"scan_1_v\.json: scan_1_v\.json: holds 0 viewpoints, expected the one of its name"),
        ({"w": {}}, r"scan_1_v\.json: holds 1 viewpoints, expected the one of its name"),
        ({"v": {"x": {}}}, r"scan_1_v\.json: expected `int`, got `str` - at `key`"),
        (
            {"v": {"7": {"name": "a"}}},
            r"scan_1_v\.json: field .*: object missing required field",
        ),
        (
            {"v": {"7": {"name": "a", "visible_pos": [1], "bbox2d": []}}},
            r"object 7 has 1 views but 0 boxes",
        ),
        (
            {"v": {"7": {"name": "a", "visible_pos": [1], "bbox2d": [[1, 2, 3, -4]]}}},
            r"scan_1_v\.json: scan_1_v\.json: boxes\[0\] of object 7 is .*, expected finite numbers",
        ),
    ],
)
def test_a_bad_bbox_file_is_named(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_view_objects(_bbox_folder(tmp_path, content)))


def test_bbox_sources_without_content_are_refused(tmp_path: Path) -> None:
    (tmp_path / "BBox").mkdir()
    with pytest.raises(DataError, match=r"BBox: holds no <scan>_<viewpoint>\.json file"):
        list(read_view_objects(tmp_path / "BBox"))
    with pytest.raises(DataError, match=r"BBox\.tar\.gz: holds no <scan>_<viewpoint>\.json file"):
        list(read_view_objects(_bbox_archive(tmp_path, name="BBox/readme.txt")))
    with pytest.raises(DataError, match=r"none\.tar\.gz: no such file"):
        list(read_view_objects(tmp_path / "none.tar.gz"))


def test_a_bad_member_of_an_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"BBox\.tar\.gz: BBox/scan_1_v\.json: not valid JSON"):
        list(read_view_objects(_bbox_archive(tmp_path, content=b"{")))


def test_tables_are_read_by_their_header(tmp_path: Path) -> None:
    (tmp_path / "room_codes.tsv").write_text("extra\troom\troom_code\n1\tbed room\tb\n2\tno label\t-\n")
    assert list(read_table(tmp_path / "room_codes.tsv", RoomCode)) == [
        RoomCode("b", "bed room"),
        RoomCode("-", "no label"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: has no column 'scan', expected scan object_id x y z name category mpcat40"),
        ("scan\tx\n", r"line 1: has no column 'object_id'"),
        (POSITIONS + "s\t1\n", r"line 2: holds 2 fields, expected 8"),
        (POSITIONS + "s\tone\t1\t2\t3\ta\tb\tc\n", r"line 2, field 'object_id': expected `int`, got `str`"),
        (POSITIONS + "s\t1\t1\tup\t3\ta\tb\tc\n", r"line 2, field 'y': expected `float`, got `str`"),
        (
            POSITIONS + "s\t1\t1\tnan\t3\ta\tb\tc\n",
            r"line 2: object 1 lies at \(1\.0, nan, 3\.0\), not",
        ),
    ],
)
def test_a_bad_table_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(DataError, match=r"p\.tsv: " + message):
        list(read_table(tmp_path / "p.tsv", ObjectPosition))


def test_word_vectors_are_read(tmp_path: Path) -> None:
    vectors = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.savez(tmp_path / "g.npz", words=np.array(["a", "lamp"]), vectors=vectors)
    words, read = read_word_vectors(tmp_path / "g.npz")
    assert words == ("a", "lamp")
    np.testing.assert_array_equal(read, vectors.astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": np.array(["a"])}, r"not an \.npz file with the arrays 'words' and 'vectors'"),
        ({"words": np.zeros(0, "U1"), "vectors": np.zeros((0, 2))}, r"holds no word, expected at least one"),
        ({"words": np.array([{}]), "vectors": np.zeros((1, 2))}, r"not an \.npz file"),
        ({"words": np.array(["a"]), "vectors": np.zeros((2, 2))}, r"words \(1,\) and vectors .* do not fit"),
        (
            {"words": np.array(["a"]), "vectors": np.full((1, 2), np.inf)},
            r"field 'vectors': holds a number",
        ),
    ],
)
def test_bad_word_vectors_are_refused(arrays: Any, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_word_vectors(tmp_path / "g.npz")


def test_a_missing_or_broken_word_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"g\.npz: no such file"):
        read_word_vectors(tmp_path / "g.npz")
    (tmp_path / "g.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(DataError, match=r"g\.npz: not an \.npz file"):
        read_word_vectors(tmp_path / "g.npz")


@pytest.mark.real_data
def test_the_real_archive_and_the_compact_file_agree(real_data: Path) -> None:
    labels = read_labels(real_data / "objects" / "labels.tsv")
    compact = {r.viewpoint: r for r in read_view_objects(real_data / "objects" / "view_objects.jsonl.gz")}
    count = 0
    for record in read_view_objects(real_data / "objects" / "BBox.tar.gz", labels):
        twin = compact[record.viewpoint]
        assert record.scan == twin.scan
        assert {o.id: o for o in record.objects} == {o.id: o for o in twin.objects}
        count += 1
    assert count == len(compact) == 10_567


def _write(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


CONTENT = {
    "7": {
        "a": {"0": {"action": [0, 1], "landmark": [3]}, "2": {"action": []}},
        "b": {"0": {"landmark": [5]}},
        "id": 0,
    }
}


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_labels_are_found_by_instruction_and_viewpoint(tmp_path: Path, ending: str) -> None:
    file = _write(tmp_path / "lar2r" / f"lar2r_train{ending}", CONTENT)
    assert landmark_label_file(tmp_path, "train") == file
    assert read_landmark_labels(file) == {
        "7_0": {"a": WordLabels(landmark=(3,), action=(0, 1)), "b": WordLabels(landmark=(5,))},
        "7_2": {"a": WordLabels(action=())},
    }


def test_a_missing_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lar2r_val_unseen.json.gz: no such file; the word labels of lar2r"):
        landmark_label_file(tmp_path, "val_unseen")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"7": {"a": 3}}, "path 7: viewpoint 'a' holds a number, expected labels per instruction"),
        ({"7": {"a": {"0": {"action": [-1]}}}}, "expected `int` >= 0"),
        ({"7": {"a": {"0": {"action": ["walk"]}}}}, "expected `int`, got `str`"),
        ([], "expected `object`, got `array`"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_landmark_labels(_write(tmp_path / "l.json", content))
    assert message in str(caught.value)


@pytest.mark.real_data
@pytest.mark.parametrize(("split", "instructions"), [("val_seen", 1021), ("val_unseen", 2349)])
def test_real_labels_cover_every_instruction(real_data: Path, split: str, instructions: int) -> None:
    assert len(read_landmark_labels(landmark_label_file(real_data, split))) == instructions
