"""Result files: trajectories (leaderboard format and DUET's), and the outcome of every episode of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import check_version, fitted, read_json, read_json_lines, read_records
from scenemem.formats.episodes import write_json_list
from scenemem.formats.traces import Origin

_DEEPEST = 3  # trajectory[action][point][part]; anything deeper is not a trajectory

STAMP_VERSION = 1
"""Of ``ResultStamp``; a change that old readers cannot read makes it one more."""

Outcome = Literal["reached", "passed", "cut", "early", "astray"]
"""How an episode ended:

reached: nearer than 3 m to the goal
passed: it had been nearer than 3 m to the goal and went on
cut: cut off before it decided to stop
early: stopped on the way, with less than 3 m of detour behind it
astray: stopped somewhere else
"""

Amount = Annotated[float, msgspec.Meta(ge=0.0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Point(NamedTuple):
    """Where an agent stood and looked; systems that only keep viewpoints leave the angles out."""

    viewpoint: str
    heading: float | None = None  # radians, clockwise from +y
    elevation: float | None = None  # radians, positive upwards


class Trajectory(msgspec.Struct, frozen=True):
    """What an agent did for one instruction: every point it passed, turns in place included."""

    instruction_id: str
    points: tuple[Point, ...]


class EpisodeResult(msgspec.Struct, frozen=True):
    """One episode: the weights that walked it, its instruction, and its outcome."""

    instr_id: str
    checkpoint: Literal["best", "last"]  # of the run
    iteration: Count  # of these weights
    outcome: Outcome
    words: Count  # of the instruction
    reference: Amount  # length of the reference path, metres
    hops: Count  # moves from one viewpoint to the next
    jumps: Count  # decisions to go back to another frontier
    tl: Amount  # the metrics, see docs/evaluation.md
    ne: Amount
    sr: Amount
    osr: Amount
    spl: Amount
    spl_ref: Amount
    cls: Amount
    ndtw: Amount
    sdtw: Amount


class ResultStamp(Origin, frozen=True, kw_only=True):
    """What the results of a split come from, written beside them."""

    checkpoint: Literal["best", "last"]
    iteration: Count
    name: str  # of the preset
    seed: int
    preset: dict[str, Any]
    task: str
    files: dict[str, str]  # name of every result file -> its sum
    code: str = ""  # sum of the program that walked; older stamps have none
    version: Count = STAMP_VERSION

    def __post_init__(self) -> None:
        for name in self.files:
            if PurePath(name).name != name or name in ("", ".."):
                raise ValueError(f"files names {name!r}, expected the name of a file beside it")


def read_stamp(file: StrPath) -> ResultStamp | None:
    """The stamp in a file; None when there is none, or none that can be read.

    Raises:
        DataError: it was written by a newer version, whose results are not to be taken for ours or replaced.
    """
    try:
        content = read_json(file, dict[str, Any])
        version = content.get("version", STAMP_VERSION)
        if isinstance(version, int) and version > STAMP_VERSION:
            advice = "use the program that wrote it, or move these results elsewhere"
            check_version(content, STAMP_VERSION, "a stamp", file, advice)
        return fitted(content, ResultStamp, file)
    except DataError as error:
        if error.field == "version":
            raise
        return None


def write_stamp(file: StrPath, stamp: ResultStamp) -> None:
    """Write the stamp of results that are written already; one that is there first would be believed."""
    with atomic_file(file) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(stamp), indent=2) + b"\n")


class _Result(msgspec.Struct, frozen=True):
    instr_id: Union[int, str]  # noqa: UP007 (evaluated at run time, also on Python 3.10)
    trajectory: list[Any]


def read_trajectories(file: StrPath) -> list[Trajectory]:
    """Read a result file, plain or ``.gz``, JSON list or JSON lines.

    An entry of ``trajectory`` may be ``[viewpoint, heading, elevation]`` (leaderboard), a viewpoint, or a
    list of these (DUET: the route walked by one action); lists of lists are flattened.
    """
    trajectories: list[Trajectory] = []
    seen: dict[str, str] = {}
    for place, record in read_records(file):
        result = fitted(record, _Result, file, place)
        name = str(result.instr_id)
        if name in seen:
            reason = f"instruction id '{name}' already stands in {seen[name]}; ids must be unique"
            raise DataError(file, reason, record=place)
        try:
            points = tuple(_points(result.trajectory, "trajectory"))
        except ValueError as error:
            raise DataError(file, str(error), record=place) from error
        if not points:
            raise DataError(file, "trajectory is empty, expected at least the start viewpoint", record=place)
        seen[name] = place
        trajectories.append(Trajectory(name, points))
    return trajectories


def write_trajectories(file: StrPath, trajectories: Iterable[Trajectory]) -> int:
    """Write the leaderboard format, one record per line; the file appears complete or not at all.

    Returns:
        how many trajectories were written.
    """

    def record(trajectory: Trajectory) -> dict[str, Any]:
        if any(None in point for point in trajectory.points):
            raise ValueError(f"trajectory '{trajectory.instruction_id}' holds a point without angles")
        return {"instr_id": trajectory.instruction_id, "trajectory": trajectory.points}

    with atomic_file(file) as partial, partial.open("wb") as stream:
        return write_json_list(stream, map(record, trajectories))


def read_episode_results(file: StrPath) -> list[EpisodeResult]:
    """Read a file that ``write_episode_results`` wrote."""
    results = [result for _, result in read_json_lines(file, EpisodeResult)]
    if not results:
        raise DataError(file, "holds no episode; evaluate the run again with 'scenemem eval'")
    weights = {(result.checkpoint, result.iteration) for result in results}
    if len(weights) > 1:
        raise DataError(file, "mixes results of different weights; evaluate the run again")
    return results


def write_episode_results(file: StrPath, results: Iterable[EpisodeResult]) -> None:
    """Write one line per episode; the file appears complete or not at all."""
    with atomic_file(file) as partial, partial.open("wb") as stream:
        for result in results:
            stream.write(msgspec.json.encode(result) + b"\n")


def _points(entry: Any, field: str) -> Iterator[Point]:
    """The points of one entry, at whatever depth they stand; ``field`` names the place in errors."""
    if isinstance(entry, str):
        yield Point(entry)
    elif isinstance(entry, list) and _is_point(entry):
        yield Point(entry[0], _angle(entry[1], f"{field}[1]"), _angle(entry[2], f"{field}[2]"))
    elif isinstance(entry, list) and field.count("[") < _DEEPEST:
        for number, part in enumerate(entry):
            yield from _points(part, f"{field}[{number}]")
    else:
        seen = msgspec.json.encode(entry).decode()[:80]
        expected = "[viewpoint, heading, elevation], a viewpoint or a list of these"
        raise ValueError(f"{field} holds {seen}, expected {expected}")


def _angle(number: float, field: str) -> float:
    try:
        return float(number)
    except OverflowError as error:  # JSON has integers of any length
        raise ValueError(f"{field} holds {str(number)[:20]}..., expected an angle in radians") from error


def _is_point(entry: list[Any]) -> bool:
    kinds = [type(part) for part in entry]
    return len(kinds) == 3 and kinds[0] is str and set(kinds[1:]) <= {int, float}
