"""Objects, rooms, word vectors and labels of words: all public forms are read, bad ones are named."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
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
from tests.formats.helpers import pack, put, refused

BOXES = ((1.0, 2.0, 3.0, 4.0), (5.5, 6.0, 7.0, 8.0))
RAW = {"7": {"name": "bath#tub", "visible_pos": [0, 35], "bbox2d": BOXES}}
NAMES = {"name": "bath tub", "category": "tub", "mpcat40": "bathtub"}
LISTED = {"id": 7, **NAMES, "views": [0, 35], "boxes": BOXES}
RECORD = ViewpointObjects("scan_1", "v", (ListedObject(7, "bath tub", (0, 35), BOXES, "tub", "bathtub"),))


def _compact(folder: Path) -> Path:
    line = {"scan": "scan_1", "viewpoint": "v", "objects": [{**LISTED, "raw": "bath#tub"}]}
    return put(folder / "view_objects.jsonl.gz", line)


def _folder(folder: Path, content: Any = None) -> Path:
    return put(folder / "BBox" / "scan_1_v.json", {"v": RAW} if content is None else content).parent


def _archive(folder: Path) -> Path:
    return pack(folder / "BBox.tar.gz", {"BBox/scan_1_v.json": json.dumps({"v": RAW}).encode()})


@pytest.mark.parametrize("make", [_compact, _folder, _archive])
def test_all_public_forms_give_the_same_records(make: Callable[[Path], Path], tmp_path: Path) -> None:
    assert find_view_objects(tmp_path / "objects") is None
    assert read_labels(tmp_path / "labels.tsv") == {}
    text = "raw\tname\tcategory\tmpcat40\tmore\nbath#tub\tbath tub\ttub\tbathtub\t3\n"
    labels = read_labels(put(tmp_path / "labels.tsv", text))
    assert labels == {"bath#tub": Label("bath#tub", "bath tub", "tub", "bathtub")}
    place = make(tmp_path / "objects")
    assert find_view_objects(tmp_path / "objects") == place
    assert list(read_view_objects(place, labels)) == [RECORD]
    ((bare,),) = (record.objects for record in read_view_objects(place))
    if make is not _compact:
        assert bare == ListedObject(7, "bath tub", (0, 35), BOXES), "the cleaned name, but no category"
        compact = _compact(tmp_path / "objects")
        assert find_view_objects(tmp_path / "objects") == compact, "the compact file is preferred"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": [36]}, r"line 1, field 'objects[0].views[0]': expected `int` <= 35"),
        ({"views": [3]}, "line 1, field 'objects[0]': object 7 has 1 views but 2 boxes"),
        ({"boxes": [[1, 2]]}, "line 1, field 'objects[0].boxes[0]': expected `array` of length 4"),
        ({"boxes": [[1, 2, 0, -3]]}, "line 1, field 'objects[0].boxes[0][3]': expected `float` >= 0.0"),
        ({"boxes": [[1, 2, math.nan, 3]]}, "line 1, field 'objects[0].boxes[0][2]': holds NaN or Infinity"),
        ({"id": "x"}, "line 1, field 'objects[0].id': expected `int`, got `str`"),
    ],
)
def test_a_bad_record_of_the_compact_file_is_named(change: Any, message: str, tmp_path: Path) -> None:
    line = {"scan": "s", "viewpoint": "v", "objects": [{**LISTED, **change}]}
    assert refused(read_view_objects, put(tmp_path / "view_objects.jsonl", line)).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "scan_1_v.json: holds 0 viewpoints, expected the one of its name"),
        ({"w": {}}, "scan_1_v.json: holds 1 viewpoints, expected the one of its name"),
        ({"v": {"x": {}}}, "scan_1_v.json: expected `int`, got `str` - at `key`"),
        ({"v": {"7": {"name": "a"}}}, "scan_1_v.json, field '[...][...]': object missing required field"),
        ({"v": {"7": {**RAW["7"], "bbox2d": []}}}, "scan_1_v.json: object 7 has 2 views but 0 boxes"),
        ("{", "scan_1_v.json: not valid JSON"),
    ],
)
def test_a_bad_bbox_file_is_named(content: Any, message: str, tmp_path: Path) -> None:
    file = _folder(tmp_path, content) / "scan_1_v.json"
    assert refused(lambda file: read_view_objects(file.parent), file).startswith(message)
    packed = {"BBox/scan_1_v.json": file.read_bytes()}
    assert refused(read_view_objects, pack(tmp_path / "b.tar", packed)).startswith(f"BBox/{message}")


def test_bbox_sources_without_content_are_refused(tmp_path: Path) -> None:
    (tmp_path / "BBox").mkdir()
    for place in (tmp_path / "BBox", pack(tmp_path / "BBox.tar.gz", {"BBox/readme.txt": b""})):
        assert refused(read_view_objects, place) == "holds no <scan>_<viewpoint>.json file"
    assert refused(read_view_objects, tmp_path / "none.tar.gz") == "no such file"


@pytest.mark.real_data
def test_the_real_archive_and_the_compact_file_hold_the_same_objects(real_data: Path) -> None:
    objects = real_data / "objects"
    compact = {one.viewpoint: one for one in read_view_objects(objects / "view_objects.jsonl.gz")}
    records = list(read_view_objects(objects / "BBox.tar.gz", read_labels(objects / "labels.tsv")))
    assert len(records) == len(compact) == 10_567
    for record in records:
        twin = compact[record.viewpoint]
        assert record.scan == twin.scan
        assert {one.id: one for one in record.objects} == {one.id: one for one in twin.objects}


POSITIONS = "scan\tobject_id\tx\ty\tz\tname\tcategory\tmpcat40\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: has no column 'scan', expected scan object_id x y z name category mpcat40"),
        ("scan\tx\n", "line 1: has no column 'object_id'"),
        (POSITIONS + "s\t1\n", "line 2: holds 2 fields, expected 8"),
        (POSITIONS + "s\tone\t1\t2\t3\ta\tb\tc\n", "line 2, field 'object_id': expected `int`, got `str`"),
        (POSITIONS + "s\t1\t1\tup\t3\ta\tb\tc\n", "line 2, field 'y': expected `float`, got `str`"),
        (POSITIONS + "s\t1\t1\tnan\t3\ta\tb\tc\n", "line 2, field 'y': expected `float` > -1000000.0"),
        (POSITIONS + "s\t1\t1\t2\tinf\ta\tb\tc\n", "line 2, field 'z': expected `float` < 1000000.0"),
    ],
)
def test_a_bad_table_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = put(tmp_path / "p.tsv", text)
    assert refused(lambda file: read_table(file, ObjectPosition), file).startswith(message)


def test_tables_and_word_vectors_are_read(tmp_path: Path) -> None:
    file = put(tmp_path / "room_codes.tsv", "extra\troom\troom_code\n1\tbed room\tb\n2\tno label\t-\n")
    assert list(read_table(file, RoomCode)) == [RoomCode("b", "bed room"), RoomCode("-", "no label")]
    vectors = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.savez(tmp_path / "g.npz", words=np.array(["a", "lamp"]), vectors=vectors)
    words, read = read_word_vectors(tmp_path / "g.npz")
    assert words == ("a", "lamp")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, vectors.astype(np.float32))


ONE = np.array(["a"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": ONE}, "not an .npz file with the arrays 'words' and 'vectors'"),
        ({"words": np.zeros(0, "U1"), "vectors": np.zeros((0, 2))}, "holds no word, expected at least one"),
        ({"words": np.array([{}]), "vectors": np.zeros((1, 2))}, "not an .npz file"),
        ({"words": ONE, "vectors": np.zeros((2, 2))}, "words (1,) and vectors float64 (2, 2) do not fit"),
        ({"words": ONE, "vectors": np.zeros((1, 2), int)}, "words (1,) and vectors int64 (1, 2) do not fit"),
        ({"words": ONE, "vectors": np.full((1, 2), np.inf)}, "field 'vectors': holds a number that is not"),
    ],
)
def test_bad_word_vectors_are_refused(arrays: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "g.npz"
    assert refused(read_word_vectors, file) == "no such file"
    assert refused(read_word_vectors, put(file, b"PK\x03\x04 broken")).startswith("not an .npz file")
    np.savez(file, **arrays)
    assert refused(read_word_vectors, file).startswith(message)
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("words", "vectors"):
            archive.writestr(f"{name}.npy", b"no array")
    assert refused(read_word_vectors, file).startswith("words () and vectors |S8 () do not fit")


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_labels_are_found_by_instruction_and_viewpoint(tmp_path: Path, ending: str) -> None:
    with pytest.raises(DataError, match=r"lar2r_train.json.gz: no such file; the word labels of lar2r"):
        landmark_label_file(tmp_path, "train")
    first = {"0": {"action": [0, 1], "landmark": [3]}, "2": {"action": []}}
    content = {"7": {"a": first, "b": {"0": {"landmark": [5]}}, "id": 0}}
    file = put(tmp_path / "lar2r" / f"lar2r_train{ending}", content)
    assert landmark_label_file(tmp_path, "train") == file
    assert read_landmark_labels(file) == {
        "7_0": {"a": WordLabels(landmark=(3,), action=(0, 1)), "b": WordLabels(landmark=(5,))},
        "7_2": {"a": WordLabels(action=())},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"7": {"a": 3}}, "path 7, field '[...]': expected `object`, got `int`"),
        ({"7": {"a": {"0": {"action": [-1]}}}}, "path 7, field '[...][...].action[0]': expected `int` >= 0"),
        ({"7": {"a": {"0": {"action": ["walk"]}}}}, "path 7, field '[...][...].action[0]': expected `int`"),
        ([], "expected `object`, got `array`"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    assert refused(read_landmark_labels, put(tmp_path / "l.json", content)).startswith(message)


@pytest.mark.real_data
@pytest.mark.parametrize(("split", "instructions"), [("val_seen", 1021), ("val_unseen", 2349)])
def test_real_labels_cover_every_instruction(real_data: Path, split: str, instructions: int) -> None:
    assert len(read_landmark_labels(landmark_label_file(real_data, split))) == instructions
