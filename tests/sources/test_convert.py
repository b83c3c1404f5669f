from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenemem.errors import UserError
from scenemem.formats.annotations import (
    Label,
    ListedObject,
    RoomCode,
    ViewpointObjects,
    ViewpointRoom,
    read_table,
    read_view_objects,
    read_word_vectors,
)
from scenemem.formats.folder import DataFolder
from scenemem.sources.convert import (
    ROOMS,
    convert,
    pack_boxes,
    read_category_mapping,
    read_glove,
    read_glove_table,
    read_house,
    read_object_positions,
    read_room_table,
    recognise,
    words_of,
    write_rooms,
    write_word_vectors,
)
from tests.formats.helpers import put, refused

NAME = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
HOUSE = f"""ASCII 1.1
H 17DRP5sb8fy - 0 2 0 0 0 0 0 2 1 1 0 0 0 0 0 0 0 0 1 1 1 0 0 0 0 0
L 0 2 - 0 0 0 0 0 0 1 1 1 0 0 0 0 0
R 0 0 0 0 k 0 0 0 0 0 0 1 1 1 0 0 0 0 0
R 1 0 0 0 B 0 0 0 0 0 0 1 1 1 0 0 0 0 0
P 0 0 1 d 0 0 0 1 1 1 0 0 0 0
P {NAME} 0 1 0 1.0 2.0 3.0 0 0 0 0 0
P {OTHER} 1 -1 0 1.0 2.0 3.0 0 0 0 0 0
"""


def _house(folder: Path, text: str = HOUSE) -> Path:
    file = folder / "17DRP5sb8fy.house"
    file.write_text(text)
    return file


def test_a_house_file_tells_the_room_of_every_panorama(tmp_path: Path) -> None:
    assert read_house(_house(tmp_path)) == [
        ViewpointRoom("17DRP5sb8fy", NAME, "B", "bar", 1),
        ViewpointRoom("17DRP5sb8fy", OTHER, "z", "other room", -1),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("R 1 0 0 0 B", "R 1"), "), expected a line of a .house file"),
        (("R 1 0 0 0 B", "R 1 0 0 0 q"), "line 7: 'q' is no kind of room, expected one of a b c"),
        (("R 1 0 0 0 B", "R 2 0 0 0 B"), "line 7: names the region 1, which the file does not describe"),
        ((f"{NAME} 0 1", f"{NAME} 0 x"), "line 7: cannot be read"),
    ],
)
def test_a_broken_house_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = HOUSE.replace(*change)
    text = text if change[1] != "R 1" else text.replace("R 1 0 0", "R 1\n#")
    assert message in refused(read_house, _house(tmp_path, text))
    assert "holds no panorama" in refused(read_house, _house(tmp_path, "H\n"))


def test_the_room_table_and_the_house_files_agree(tmp_path: Path) -> None:
    panoramas = {
        NAME: {"region_index": "1", "region_label": "B", "label": "B"},
        OTHER: {"region_index": -1, "region_label": "z"},
    }
    content = {"label_info": {}, "pano_info": {"17DRP5sb8fy": panoramas}}
    assert read_room_table(put(tmp_path / "rooms.json", content)) == read_house(_house(tmp_path))


@pytest.mark.parametrize(
    ("panoramas", "message"),
    [
        ({"x": {"region_index": "one", "region_label": "a"}}, "'x', field 'region_index': expected `int`"),
        ({"x": {"region_index": 1, "region_label": "Q"}}, "viewpoint 'x': 'Q' is no kind of room"),
        ({"x": {"region_index": 1}}, "region_label"),
        ({}, "holds no viewpoint"),
    ],
)
def test_a_broken_room_table_is_named(tmp_path: Path, panoramas: Any, message: str) -> None:
    file = put(tmp_path / "rooms.json", {"pano_info": {"s": panoramas}})
    assert message in refused(read_room_table, file)


def test_rooms_are_written_as_they_are_read(tmp_path: Path) -> None:
    rooms = read_house(_house(tmp_path))
    assert write_rooms(tmp_path / "rooms", reversed(rooms)) == 2
    assert list(read_table(tmp_path / "rooms" / "viewpoint_rooms.tsv", ViewpointRoom)) == rooms
    codes = list(read_table(tmp_path / "rooms" / "room_codes.tsv", RoomCode))
    assert [code.room_code for code in codes] == list(ROOMS)


def test_the_category_mapping_explains_raw_labels(tmp_path: Path) -> None:
    text = "index\traw_category\tcategory\tx\tmpcat40\n1\tbath tub\tbathtub\t-\tbathtub\n"
    file = put(tmp_path / "category_mapping.tsv", text)
    assert read_category_mapping(file) == [Label("bath#tub", "bath tub", "bathtub", "bathtub")]
    message = "line 1: has no column 'category', expected raw_category category mpcat40"
    assert refused(read_category_mapping, put(file, "index\traw_category\tmpcat40\n")) == message
    file = put(file, "raw_category\tcategory\tmpcat40\nbed\tbed\n")
    assert refused(read_category_mapping, file) == "line 2: holds 2 fields, expected 3"


def test_positions_of_listed_objects_are_kept(tmp_path: Path) -> None:
    places = {"s": {"7": [0.123456, 1, 2], "9": [0, 0, 0]}, "other": {"7": [0, 0, 0]}}
    file = put(tmp_path / "objpos.json", places)
    records = [ViewpointObjects("s", "v", (ListedObject(7, "bath tub", (), (), "bathtub", "bathtub"),))]
    (position,) = read_object_positions(file, records)
    assert (position.scan, position.object_id, position.x, position.category) == ("s", 7, 0.1235, "bathtub")
    message = "holds no object that a BBox file lists; do the two belong together?"
    assert refused(lambda file: read_object_positions(file, []), file) == message


def _boxes(folder: Path) -> Path:
    for viewpoint in "wv":
        boxes = {viewpoint: {"7": {"name": "bed", "visible_pos": [1], "bbox2d": [[1, 2, 3, 4]]}}}
        put(folder / "BBox" / f"s_{viewpoint}.json", boxes)
    return folder / "BBox"


def test_packed_boxes_hold_the_same_records_and_the_same_bytes(tmp_path: Path) -> None:
    boxes = _boxes(tmp_path)
    assert pack_boxes(boxes, tmp_path / "a" / "BBox.tar.gz") == 2
    assert list(read_view_objects(tmp_path / "a" / "BBox.tar.gz")) == list(read_view_objects(boxes))
    pack_boxes(tmp_path / "a" / "BBox.tar.gz", tmp_path / "b.tar.gz")
    assert (tmp_path / "b.tar.gz").read_bytes() == (tmp_path / "a" / "BBox.tar.gz").read_bytes()
    broken = put(boxes / "s_v.json", {})
    assert "holds 0 viewpoints" in refused(lambda _: pack_boxes(boxes, tmp_path / "c.tar.gz"), broken)
    assert not (tmp_path / "c.tar.gz").exists()


GLOVE = "the 1.0 2.0\n. . 3 4\nbed -5e-1 6\n"


@pytest.mark.parametrize("form", ["txt", "txt.gz", "zip"])
def test_glove_files_are_read_in_every_form(tmp_path: Path, form: str) -> None:
    file = put(tmp_path / f"glove.{form}", GLOVE)
    if form == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("glove.1d.txt", "the 1\n")
            archive.writestr("glove.2d.txt", GLOVE)
    words, vectors = read_glove(file)
    assert words == ("the", ". .", "bed"), "a word may hold a space"
    np.testing.assert_array_equal(vectors, [[1, 2], [3, 4], [-0.5, 6]])
    assert read_glove(file, {"bed", "sofa"})[0] == ("bed",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\nbed 1\n", "line 2: holds 'bed 1', expected a word and 2 numbers; is the file complete"),
        ("the 1 2\nbed 1 x\n", "line 2: holds 'bed 1 x'"),
        ("the 1 nan\n", "line 1: holds 'the 1 nan'"),
        ("<html>\n", "line 1: holds '<html>', expected a word and its numbers"),
        ("", "holds none of the words that are needed"),
    ],
)
def test_a_broken_glove_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    assert refused(read_glove, put(tmp_path / "glove.txt", text)).startswith(message)


def test_a_broken_glove_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "glove.zip"
    assert refused(read_glove, file) == "no such file"
    assert refused(read_glove, put(file, b"PK")).startswith("not a readable archive (")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.md", "")
    assert refused(read_glove, file) == "holds no .txt file, expected GloVe's"


def test_a_table_of_vectors_needs_its_vocabulary(tmp_path: Path) -> None:
    file, vocabulary = tmp_path / "t_glove.npy", put(tmp_path / "t_vocab.txt", "a\n. .\n")

    def read(file: Path) -> object:
        return read_glove_table(file, vocabulary)

    assert refused(read, file) == "no such file"
    np.save(file, np.ones((2, 3), dtype=np.float32))
    words, vectors = read_glove_table(file, vocabulary)
    assert (words, vectors.shape) == (("a", ". ."), (2, 3))
    put(vocabulary, "a\n")
    message = "float32 (2, 3) and 1 words do not fit, expected floats (words, columns)"
    assert refused(read, file) == message
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    assert refused(read, file).startswith("not a readable .npy file")


@given(
    words=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, unique=True
    )
)
def test_word_vectors_are_written_as_they_are_read(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    file = tmp_path_factory.mktemp("words") / "glove_300d.npz"
    vectors = np.arange(2 * len(words), dtype=np.float32).reshape(-1, 2)
    write_word_vectors(file, words, vectors)
    read, back = read_word_vectors(file)
    assert read == tuple(words)
    np.testing.assert_array_equal(back, vectors)


def test_originals_are_recognised_and_converted_in_the_order_they_need(
    tmp_path: Path, tiny_data: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "r2r").symlink_to(tiny_data / "r2r")
    own = tmp_path / "originals"
    boxes = _boxes(own)
    _house(own)
    put(own / "objpos.json", {"s": {"7": [0, 1, 2]}})
    put(own / "category_mapping.tsv", "raw_category\tcategory\tmpcat40\nbed\tbed\tbed\n")
    put(own / "glove.txt", "bed 1 2\nwalk 3 4\nunneeded 5 6\n")
    originals = [own / "glove.txt", own / "objpos.json", boxes, own / "category_mapping.tsv", own]
    done = convert(originals, DataFolder(data))
    assert [(one.file.name, one.records) for one in done] == [
        ("viewpoint_rooms.tsv", 2),
        ("labels.tsv", 1),
        ("BBox.tar.gz", 2),
        ("object_positions.tsv", 1),
        ("glove_300d.npz", 2),
    ]
    assert {"walk", "bed", "bathroom", ".", "!"} <= words_of(DataFolder(data))


def test_what_is_no_original_is_refused(tmp_path: Path) -> None:
    notes, positions = put(tmp_path / "notes.md", ""), put(tmp_path / "objpos.json", {})
    message = r"notes\.md: is no original that can be converted; expected a folder of"
    with pytest.raises(UserError, match=message):
        recognise(notes)
    assert refused(recognise, tmp_path / "none") == "no such file or folder"
    with pytest.raises(UserError, match="names no object; convert REVERIE's BBox files first, or with it"):
        convert([positions], DataFolder(tmp_path))
