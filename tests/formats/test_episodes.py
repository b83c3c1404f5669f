"""Episode files of every public format become the same records; bad ones are refused, naming the place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.formats.episodes import Episode, read_episodes, write_episodes
from tests.formats.helpers import put, refused


def r2r_item(path_id: int | str = 7, **changes: Any) -> dict[str, Any]:
    item = {
        "distance": 6.5,
        "scan": "house",
        "path_id": path_id,
        "path": ["a", "b", "c"],
        "heading": 1.25,
        "instructions": ["Go left.", "Turn left.", "Left!"],
    }
    return {**item, **changes}


def dump(file: Path, items: list[dict[str, Any]], *, lines: bool = False) -> Path:
    return put(file, "\n".join(map(json.dumps, items)) if lines else items)


@pytest.mark.parametrize("name", ["R2R_train.json", "R2R_train.json.gz"])
def test_r2r_instructions_are_numbered_by_path_id(tmp_path: Path, name: str) -> None:
    (episode,) = read_episodes(dump(tmp_path / name, [r2r_item()]))
    assert episode == Episode(
        scan="house",
        path_id=7,
        path=("a", "b", "c"),
        heading=1.25,
        instructions=("Go left.", "Turn left.", "Left!"),
        instruction_ids=("7_0", "7_1", "7_2"),
        distance=6.5,
    )


def test_r2r_test_records_hold_only_the_start(tmp_path: Path) -> None:
    item = r2r_item(path=["a"])
    del item["distance"]
    (episode,) = read_episodes(dump(tmp_path / "t.json", [item]))
    assert episode.path == ("a",)
    assert episode.distance is None


def test_r4r_keeps_where_it_came_from(tmp_path: Path) -> None:
    extra = {
        "first_path_id": 3,
        "second_path_id": 4,
        "shortest_path": ["a", "c"],
        "shortest_path_distance": 2.5,
    }
    (episode,) = read_episodes(dump(tmp_path / "R4R.json", [r2r_item(0, **extra)]))
    assert (episode.first_path_id, episode.second_path_id) == (3, 4)
    assert (episode.shortest_path, episode.shortest_path_distance) == (("a", "c"), 2.5)


@pytest.mark.parametrize("lines", [False, True])
def test_duet_files_carry_token_numbers(tmp_path: Path, lines: bool) -> None:
    items = [r2r_item(i, instr_encodings=[[101, i, 102]] * 3) for i in range(2)]
    episodes = read_episodes(dump(tmp_path / "R2R_enc", items, lines=lines))
    assert [episode.path_id for episode in episodes] == [0, 1]
    assert episodes[1].instr_encodings == ((101, 1, 102),) * 3


def test_augmentation_repeats_path_ids_but_instruction_ids_stay_unique(tmp_path: Path) -> None:
    path_ids: list[int | str] = [5, 5, "5b", 6, 5, "5b"]
    items = [r2r_item(path_id, instructions=[f"text {i}"]) for i, path_id in enumerate(path_ids)]
    episodes = read_episodes(dump(tmp_path / "aug.json", items))
    ids = [instruction_id for episode in episodes for instruction_id in episode.instruction_ids]
    assert ids == ["5_0", "5_1", "5b_0", "6_0", "5_2", "5b_1"]


def test_one_instruction_may_name_itself(tmp_path: Path) -> None:
    (episode,) = read_episodes(dump(tmp_path / "a.json", [r2r_item(instructions=["Go."], instr_id="x9")]))
    assert episode.instruction_ids == ("x9",)


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
    episode = Episode("house", 7, ("a", "b"), 0.0, ("Go.",) * told, ids)
    write_episodes(tmp_path / "e.json", [episode])
    (item,) = json.loads((tmp_path / "e.json").read_bytes())
    assert {name: item[name] for name in ("id", "instr_id") if item.get(name) is not None} == written
    assert read_episodes(tmp_path / "e.json") == [episode]


def test_rxr_is_one_instruction_per_line(tmp_path: Path) -> None:
    line = {
        "path_id": 12,
        "split": "train",
        "instruction_id": 345,
        "language": "te-IN",
        "scan": "house",
        "path": ["a", "b"],
        "heading": 0,
        "instruction": "ముందుకు",
        "edit_distance": 0.1,
        "timed_instruction": [{"word": "x", "start_time": 0.0}],
    }
    test_line = {key: value for key, value in line.items() if key != "path_id"} | {
        "instruction_id": 346,
        "path": ["a"],
        "instr_encoding": [1, 2],
    }
    file = dump(tmp_path / "rxr_train_guide.jsonl.gz", [line, test_line], lines=True)
    first, second = read_episodes(file)
    assert (first.path_id, first.instruction_ids, first.language) == (12, ("345",), "te-IN")
    assert first.instructions == ("ముందుకు",)
    assert (second.path_id, second.instr_encodings) == (346, ((1, 2),))


def test_reverie_is_numbered_by_its_own_id(tmp_path: Path) -> None:
    items = [r2r_item(7, id=f"7_{object_id}", objId=object_id) for object_id in (11, 12)]
    episodes = read_episodes(dump(tmp_path / "REVERIE.json", items))
    assert episodes[1].instruction_ids == ("7_12_0", "7_12_1", "7_12_2")
    assert (episodes[1].path_id, episodes[1].object_id) == (7, 12)


def test_reverie_test_has_no_path_id(tmp_path: Path) -> None:
    item = r2r_item(id="2021", path=["a"])
    del item["path_id"]
    (episode,) = read_episodes(dump(tmp_path / "REVERIE_test.json", [item]))
    assert episode.path_id == "2021"
    assert episode.instruction_ids == ("2021_0", "2021_1", "2021_2")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in r2r_item().items() if key != name}


STANDS = "already stands in record 0; ids must be unique"
BAD: dict[str, tuple[Any, str]] = {
    "a number": ([3], "record 0: expected `object`, got `int`"),
    "empty list": ([], "holds no record, expected at least one"),
    "no scan": ([{"path": []}], "record 0: object missing required field `scan`"),
    "another kind": (
        [r2r_item(), {"instruction_id": 3}],
        "record 1: object missing required field `scan`",
    ),
    "viewpoint": ([r2r_item(path=["a", 3])], "record 0, field 'path[1]': expected `str`, got `int`"),
    "heading": ([r2r_item(heading="north")], "record 0, field 'heading': expected `float`, got `str`"),
    "empty path": (
        [r2r_item(), r2r_item(8, path=[])],
        "record 1: path is empty, expected at least the start viewpoint",
    ),
    "no instruction": (
        [r2r_item(instructions=[])],
        "record 0: instructions is empty, expected at least one",
    ),
    "no id": ([without("path_id")], "record 0: path_id is missing, and so is id; expected one of them"),
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


def test_a_heading_is_a_finite_number(tmp_path: Path) -> None:
    text = json.dumps([r2r_item()]).replace("1.25", "1e999")
    message = refused(read_episodes, put(tmp_path / "huge.json", text))
    assert message == "record 0, field 'heading': holds NaN or Infinity, expected finite numbers"


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
    episodes = [
        Episode(
            "house",
            number,
            ("a", "b")[:length],
            heading,
            tuple(texts),
            tuple(f"{number}_{i}" for i in range(len(texts))),
            distance,
        )
        for number, (length, texts, heading, distance) in enumerate(drawn)
    ]
    file = tmp_path_factory.mktemp("round") / ("e.json.gz" if packed else "e.json")
    assert write_episodes(file, iter(episodes)) == len(episodes)
    first = file.read_bytes()
    write_episodes(file, episodes)
    assert file.read_bytes() == first
    if episodes:
        assert read_episodes(file) == episodes
    else:
        assert json.loads(gzip.decompress(first) if packed else first) == []


def test_every_format_survives_writing(tmp_path: Path) -> None:
    joined = {
        "first_path_id": 1,
        "second_path_id": "2",
        "shortest_path": ["a"],
        "shortest_path_distance": 0.0,
    }
    spoken = {"scan": "h", "path": ["a"], "heading": 0.5, "instruction_id": 4, "instruction": "x"}
    sources: list[list[dict[str, Any]]] = [
        [r2r_item(i, **joined) for i in range(2)],
        [r2r_item(5, instructions=[text]) for text in ("one", "two", "three")],
        [r2r_item(7, id=f"7_{i}", objId=i) for i in range(2)],
        [r2r_item(i, instr_encodings=[[1], [2], []]) for i in range(2)],
        [{**spoken, "language": "en"}],
    ]
    for number, items in enumerate(sources):
        episodes = read_episodes(dump(tmp_path / f"in{number}.json", items))
        write_episodes(tmp_path / f"out{number}.json", episodes)
        assert read_episodes(tmp_path / f"out{number}.json") == episodes


def test_ids_that_no_file_can_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    episode = Episode("house", 1, ("a",), 0.0, ("x", "y"), ("p", "q"))
    with pytest.raises(ValueError, match=r"instruction ids .* cannot be written"):
        write_episodes(tmp_path / "e.json", [episode])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("file", "paths", "instructions"),
    [
        ("r2r/R2R_train.json", 4675, 14039),
        ("r2r/R2R_val_seen.json", 340, 1021),
        ("r2r/R2R_val_unseen.json", 783, 2349),
        ("r2r/R2R_test.json", 1391, 4173),
        ("reverie/REVERIE_train.json.gz", 4071, 10290),
        ("reverie/REVERIE_test.json.gz", 2244, 6144),
        ("fgr2r/FGR2R_val_unseen.json.gz", 783, 2349),
    ],
)
def test_real_files(real_data: Path, file: str, paths: int, instructions: int) -> None:
    episodes = read_episodes(real_data / file)
    assert len(episodes) == paths
    assert sum(len(episode.instructions) for episode in episodes) == instructions
