"""Episode files of every public format become the same records; bad ones are refused, naming the place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.formats.episodes import EpisodeRecord, read_episodes, write_episodes
from tests.formats.helpers import put, refused


def r2r_item(path_id: Any = 7, **changes: Any) -> dict[str, Any]:
    """A record of R2R; a field that becomes ... is left out."""
    item = {
        "distance": 6.5,
        "scan": "house",
        "path_id": path_id,
        "path": ["a", "b", "c"],
        "heading": 1.25,
        "instructions": ["Go left.", "Turn left.", "Left!"],
    }
    return {key: value for key, value in {**item, **changes}.items() if value is not ...}


JOINED = {"first_path_id": 3, "second_path_id": "4", "shortest_path_distance": 2.5}
SPOKEN = {
    "split": "train",
    "language": "te-IN",
    "scan": "house",
    "heading": 0,
    "instruction": "ముందుకు",
    "edit_distance": 0.1,
    "timed_instruction": [{"word": "x", "start_time": 0.0}],
}
# records, and fields of the episodes they become
FORMATS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "R2R": (
        [r2r_item()],
        [
            {
                "scan": "house",
                "path_id": 7,
                "path": ("a", "b", "c"),
                "heading": 1.25,
                "distance": 6.5,
                "instructions": ("Go left.", "Turn left.", "Left!"),
                "instruction_ids": ("7_0", "7_1", "7_2"),
                "instr_encodings": None,
                "language": None,
                "object_id": None,
                "first_path_id": None,
            }
        ],
    ),
    "R2R, test": ([r2r_item(path=["a"], distance=...)], [{"path": ("a",), "distance": None}]),
    "R4R": (
        [r2r_item(0, shortest_path=["a", "c"], **JOINED)],
        [{**JOINED, "path_id": 0, "shortest_path": ("a", "c")}],
    ),
    "DUET": (
        [r2r_item(i, instr_encodings=[[101, i, 102]] * 3) for i in range(2)],
        [{"path_id": i, "instr_encodings": ((101, i, 102),) * 3} for i in range(2)],
    ),
    "augmentation": (  # repeats path ids, but instruction ids stay unique
        [r2r_item(path_id, instructions=["text"]) for path_id in (5, 5, "5b", 6, 5, "5b")],
        [{"instruction_ids": (name,)} for name in ("5_0", "5_1", "5b_0", "6_0", "5_2", "5b_1")],
    ),
    "own id": ([r2r_item(instructions=["Go."], instr_id="x9")], [{"instruction_ids": ("x9",)}]),
    "RxR": (
        [
            {**SPOKEN, "path_id": 12, "instruction_id": 345, "path": ["a", "b"]},
            {**SPOKEN, "instruction_id": 346, "path": ["a"], "instr_encoding": [1, 2]},
        ],
        [
            {"path_id": 12, "instruction_ids": ("345",), "language": "te-IN", "instructions": ("ముందుకు",)},
            {"path_id": 346, "instr_encodings": ((1, 2),)},
        ],
    ),
    "REVERIE": (
        [r2r_item(7, id=f"7_{object_id}", objId=object_id) for object_id in (11, 12)],
        [
            {"path_id": 7, "object_id": 11, "instruction_ids": ("7_11_0", "7_11_1", "7_11_2")},
            {"path_id": 7, "object_id": 12, "instruction_ids": ("7_12_0", "7_12_1", "7_12_2")},
        ],
    ),
    "REVERIE, test": (
        [r2r_item(id="2021", path=["a"], path_id=...)],
        [{"path_id": "2021", "instruction_ids": ("2021_0", "2021_1", "2021_2")}],
    ),
}


@pytest.mark.parametrize("ending", [".json", ".json.gz", ".jsonl"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_public_format_is_read_and_survives_writing(tmp_path: Path, name: str, ending: str) -> None:
    items, expected = FORMATS[name]
    content = "\n".join(map(json.dumps, items)) if ending == ".jsonl" else items
    episodes = read_episodes(put(tmp_path / f"e{ending}", content))
    for episode, fields in zip(episodes, expected, strict=True):
        assert {field: getattr(episode, field) for field in fields} == fields
    write_episodes(tmp_path / "written.json", episodes)
    assert read_episodes(tmp_path / "written.json") == episodes


@pytest.mark.parametrize(
    ("told", "ids", "written"),
    [
        (2, ("7_0", "7_1"), {}),
        (2, ("x_0", "x_1"), {"id": "x"}),
        (1, ("7_0",), {}),
        (1, ("x9",), {"instr_id": "x9"}),
    ],
)
def test_only_ids_that_do_not_follow_are_written(
    tmp_path: Path, told: int, ids: tuple[str, ...], written: dict[str, str]
) -> None:
    episode = EpisodeRecord("house", 7, ("a", "b"), 0.0, ("Go.",) * told, ids)
    write_episodes(tmp_path / "e.json", [episode])
    (item,) = json.loads((tmp_path / "e.json").read_bytes())
    assert {name: item[name] for name in ("id", "instr_id") if item.get(name) is not None} == written
    assert read_episodes(tmp_path / "e.json") == [episode]


STANDS = "already stands in record 0; ids must be unique"
BAD: dict[str, tuple[Any, str]] = {
    "a number": ([3], "record 0: expected `object`, got `int`"),
    "empty list": ([], "holds no record, expected at least one"),
    "no scan": ([{"path": []}], "record 0: object missing required field `scan`"),
    "another kind": ([r2r_item(), {"instruction_id": 3}], "record 1: object missing required field `scan`"),
    "viewpoint": ([r2r_item(path=["a", 3])], "record 0, field 'path[1]': expected `str`, got `int`"),
    "heading": ([r2r_item(heading="north")], "record 0, field 'heading': expected `float`, got `str`"),
    "no finite heading": (
        json.dumps([r2r_item()]).replace("1.25", "1e999"),
        "record 0, field 'heading': holds NaN or Infinity, expected finite numbers",
    ),
    "empty path": (
        [r2r_item(), r2r_item(8, path=[])],
        "record 1: path is empty, expected at least the start viewpoint",
    ),
    "no text": ([r2r_item(instructions=[])], "record 0: instructions is empty, expected at least one"),
    "no id": ([r2r_item(path_id=...)], "record 0: path_id is missing, and so is id; expected one of them"),
    "encodings": (
        [r2r_item(instr_encodings=[[1]])],
        "record 0: instr_encodings holds 1 entries, expected 3, one per instruction",
    ),
    "one id for three": (
        [r2r_item(instr_id="x")],
        "record 0: instr_id names one instruction, but instructions holds 3",
    ),
    "ids": ([r2r_item(7), r2r_item(8), r2r_item(7)], f"record 2: instruction id '7_0' {STANDS}"),
    "explicit ids": (
        [r2r_item(i, instructions=["Go."], instr_id="x") for i in range(2)],
        f"record 1: instruction id 'x' {STANDS}",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_refused(tmp_path: Path, case: str) -> None:
    items, message = BAD[case]
    assert refused(read_episodes, put(tmp_path / "bad.json", items)) == message


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DRAWN = st.tuples(
    st.integers(1, 2),
    st.lists(TEXT, min_size=1, max_size=3),
    st.floats(0, 7),
    st.none() | st.floats(0, 99),
)


@given(drawn=st.lists(DRAWN, max_size=4), packed=st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_back(
    drawn: list[tuple[int, list[str], float, float | None]],
    packed: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    episodes = []
    for number, (length, texts, heading, distance) in enumerate(drawn):
        ids = tuple(f"{number}_{i}" for i in range(len(texts)))
        path = ("a", "b")[:length]
        episodes.append(EpisodeRecord("house", number, path, heading, tuple(texts), ids, distance))
    file = tmp_path_factory.mktemp("round") / ("e.json.gz" if packed else "e.json")
    assert write_episodes(file, iter(episodes)) == len(episodes)
    first = file.read_bytes()
    write_episodes(file, episodes)
    assert file.read_bytes() == first
    if episodes:
        assert read_episodes(file) == episodes
    else:
        assert json.loads(gzip.decompress(first) if packed else first) == []


def test_ids_that_no_file_can_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    episode = EpisodeRecord("house", 1, ("a",), 0.0, ("x", "y"), ("p", "q"))
    with pytest.raises(ValueError, match=r"instruction ids .* cannot be written"):
        write_episodes(tmp_path / "e.json", [episode])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("file", "paths", "instructions"),
    [
        ("reverie/REVERIE_train.json.gz", 4071, 10290),
        ("reverie/REVERIE_test.json.gz", 2244, 6144),
        ("fgr2r/FGR2R_val_unseen.json.gz", 783, 2349),
    ],
)
def test_real_files(real_data: Path, file: str, paths: int, instructions: int) -> None:
    episodes = read_episodes(real_data / file)
    assert len(episodes) == paths
    assert sum(len(episode.instructions) for episode in episodes) == instructions
