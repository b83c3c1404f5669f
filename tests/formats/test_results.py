"""Result files: both styles give the same walk, bad ones are refused, written ones are complete or absent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats.results import (
    STAMP_VERSION,
    EpisodeResult,
    Point,
    Trajectory,
    read_episode_results,
    read_stamp,
    read_trajectories,
    write_episode_results,
    write_trajectories,
)
from tests.formats.helpers import put, refused

STYLES: dict[str, Any] = {
    "leaderboard": [["a", 0.5, 0.0], ["b", 1, 0], ["c", 2.0, -0.5]],
    "duet": [["a"], ["b", "c"]],
    "nested": [[["a", 0.5, 0.0]], [["b", 1, 0], ["c", 2.0, -0.5]]],
    "ids": ["a", "b", "c"],
    "empty action": [["a"], [], ["b", "c"]],
    "three ids per action": [["a", "b", "c"]],
}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_flattened(tmp_path: Path, style: str) -> None:
    record = {"instr_id": "7_0", "trajectory": STYLES[style], "details": {"extra": 1}}
    (trajectory,) = read_trajectories(put(tmp_path / "r.json", [record]))
    assert trajectory.instruction_id == "7_0"
    assert [point.viewpoint for point in trajectory.points] == ["a", "b", "c"]
    if style in ("leaderboard", "nested"):
        assert trajectory.points == (Point("a", 0.5, 0.0), Point("b", 1.0, 0.0), Point("c", 2.0, -0.5))
    else:
        assert all(point.heading is None and point.elevation is None for point in trajectory.points)


def test_json_lines_gzip_and_number_ids(tmp_path: Path) -> None:
    lines = [json.dumps({"instr_id": number, "trajectory": [["a", 0, 0]]}) for number in (1, 2)]
    file = put(tmp_path / "val.jsonl.gz", "\n".join(lines))
    assert [trajectory.instruction_id for trajectory in read_trajectories(file)] == ["1", "2"]


EXPECTED = "expected [viewpoint, heading, elevation], a viewpoint or a list of these"
ANGLE = "holds 10000000000000000000..., expected an angle in radians"
# the trajectory of the record '1', or whole records
BAD: dict[str, tuple[Any, str]] = {
    "no id": ([{"trajectory": [["a", 0, 0]]}], "record 0: object missing required field `instr_id`"),
    "no list": ("a", "record 0, field 'trajectory': expected `array`, got `str`"),
    "empty": ([], "record 0: trajectory is empty, expected at least the start viewpoint"),
    "a number": ([["a", 0, 0], [5]], f"record 0: trajectory[1][0] holds 5, {EXPECTED}"),
    "text and number": ([["a", "north", 0.5]], f"record 0: trajectory[0][2] holds 0.5, {EXPECTED}"),
    "an object": ([[{"x": 1}]], f'record 0: trajectory[0][0] holds {{"x":1}}, {EXPECTED}'),
    "a huge heading": ([["a", 0, 0], ["b", 10**400, 0]], f"record 0: trajectory[1][1] {ANGLE}"),
    "a huge elevation": ([[["a", 0, 10**400]]], f"record 0: trajectory[0][0][2] {ANGLE}"),
    "a heading that is no number": (
        [["a", 0, 0], ["b", math.nan, 0]],
        "record 0, field 'trajectory[1][1]': holds NaN or Infinity, expected finite numbers",
    ),
    "too deep": ([[[["a"]]]], f'record 0: trajectory[0][0][0] holds ["a"], {EXPECTED}'),
    "twice": (
        [{"instr_id": "1", "trajectory": ["a"]}, {"instr_id": "1", "trajectory": ["b"]}],
        "record 1: instruction id '1' already stands in record 0; ids must be unique",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_results_are_refused(tmp_path: Path, case: str) -> None:
    given, message = BAD[case]
    records = given if given and isinstance(given[0], dict) else [{"instr_id": "1", "trajectory": given}]
    assert refused(read_trajectories, put(tmp_path / "bad.json", records)) == message


def test_the_leaderboard_format_is_written_and_read_back(tmp_path: Path) -> None:
    trajectories = [
        Trajectory("7_0", (Point("a", 0.25, 0.0), Point("b", 1.0, -0.5))),
        Trajectory("7_1", (Point("a", 0.25, 0.0),)),
    ]
    file = tmp_path / "new" / "test.json"
    assert write_trajectories(file, iter(trajectories)) == 2
    assert json.loads(file.read_text()) == [
        {"instr_id": "7_0", "trajectory": [["a", 0.25, 0.0], ["b", 1.0, -0.5]]},
        {"instr_id": "7_1", "trajectory": [["a", 0.25, 0.0]]},
    ]
    assert read_trajectories(file) == trajectories


def test_nothing_is_written_without_angles(tmp_path: Path) -> None:
    trajectories = [Trajectory("1", (Point("a", 0.0, 0.0),)), Trajectory("2", (Point("a"),))]
    with pytest.raises(ValueError, match="trajectory '2' holds a point without angles"):
        write_trajectories(tmp_path / "r.json", trajectories)
    assert list(tmp_path.iterdir()) == []
    assert write_trajectories(tmp_path / "r.json", []) == 0
    assert json.loads((tmp_path / "r.json").read_text()) == []


MEASURED = {"tl": 10.25, "ne": 0.0, "sr": 1.0, "osr": 1.0, "spl": 0.9268292682926829, "spl_ref": 0.93}
RESULT = EpisodeResult(
    instr_id="7_0",
    checkpoint="last",
    iteration=500,
    outcome="reached",
    words=20,
    reference=9.5,
    hops=5,
    jumps=1,
    cls=0.9,
    ndtw=0.8,
    sdtw=0.8,
    **MEASURED,
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    results = [RESULT, msgspec.structs.replace(RESULT, instr_id="7_1", outcome="astray", sr=0.0)]
    write_episode_results(tmp_path / "r.jsonl", results)
    assert read_episode_results(tmp_path / "r.jsonl") == results
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2


def test_a_stamp_of_a_version_that_is_not_known_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.stamp.json"
    file.write_text(f'{{"version": {STAMP_VERSION + 1}, "weights": ["told", "another", "way"]}}')
    seen = f"is a stamp of version {STAMP_VERSION + 1}, this program reads version {STAMP_VERSION}"
    advice = "use the program that wrote it, or move these results elsewhere"
    assert refused(read_stamp, file) == f"field 'version': {seen}; {advice}"
    file.write_text("{}")
    assert read_stamp(file) is None, "results that do not say what they come from are walked again"


WON, OTHER = (
    {**msgspec.to_builtins(RESULT), "outcome": "won"},
    {**msgspec.to_builtins(RESULT), "iteration": 4},
)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "holds no episode; evaluate the run again with 'scenemem eval'"),
        ([{"instr_id": "7_0"}], "line 1: object missing required field"),
        ([WON], "invalid enum value 'won'"),
        ([msgspec.to_builtins(RESULT), OTHER], "mixes results of different weights; evaluate the run again"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, records: list[Any], message: str) -> None:
    text = "\n".join(map(json.dumps, records))
    assert message in refused(read_episode_results, put(tmp_path / "r.jsonl", text))
