"""Result files: the leaderboard format, and the DUET style with one list of viewpoints per action."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Union

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.decoding import decode_json
from scenemem.formats.episodes import record_parts

_DEEPEST = 3  # trajectory[action][point][part]; anything deeper is not a trajectory


class Point(NamedTuple):
    """Where an agent stood and looked; systems that only keep viewpoints leave the angles out."""

    viewpoint: str
    heading: float | None = None  # radians, clockwise from +y
    elevation: float | None = None  # radians, positive upwards


class Trajectory(msgspec.Struct, frozen=True):
    """What an agent did for one instruction: every point it passed, turns in place included."""

    instruction_id: str
    points: tuple[Point, ...]


class _Result(msgspec.Struct, frozen=True):
    instr_id: Union[int, str]  # noqa: UP007 (evaluated at run time, also on Python 3.10)
    trajectory: list[Any]


def read_trajectories(file: str | os.PathLike[str]) -> list[Trajectory]:
    """Read a result file, plain or ``.gz``, JSON list or JSON lines.

    An entry of ``trajectory`` may be ``[viewpoint, heading, elevation]`` (leaderboard), a viewpoint, or a
    list of these (DUET: the route walked by one action); lists of lists are flattened.

    Raises:
        DataError: wrong schema, an empty trajectory, or an instruction id that occurs twice.
    """
    trajectories: list[Trajectory] = []
    seen: dict[str, str] = {}
    for place, part in record_parts(file):
        result = decode_json(part, _Result, file, place)
        name = str(result.instr_id)
        if name in seen:
            raise DataError(
                file,
                f"instruction id '{name}' already stands in {seen[name]}; ids must be unique",
                record=place,
                field="instr_id",
            )
        seen[name] = place
        try:
            points = tuple(_points(result.trajectory, "trajectory"))
        except _EntryError as error:
            raise DataError(file, error.reason, record=place, field=error.field) from error
        if not points:
            raise DataError(
                file, "is empty, expected at least the start viewpoint", record=place, field="trajectory"
            )
        trajectories.append(Trajectory(name, points))
    return trajectories


def write_trajectories(file: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write the leaderboard format, one record per line; the file appears complete or not at all.

    Returns:
        how many trajectories were written.

    Raises:
        ValueError: a point has no heading or elevation, which the leaderboard asks for.
    """
    count = 0
    with atomic_file(file) as partial, partial.open("wb") as stream:
        for count, trajectory in enumerate(trajectories, start=1):
            if any(None in point for point in trajectory.points):
                raise ValueError(f"trajectory '{trajectory.instruction_id}' holds a point without angles")
            record = {"instr_id": trajectory.instruction_id, "trajectory": trajectory.points}
            stream.write((b"[\n" if count == 1 else b",\n") + msgspec.json.encode(record))
        stream.write(b"\n]\n" if count else b"[]\n")
    return count


class _EntryError(ValueError):
    def __init__(self, field: str, entry: Any, expected: str) -> None:
        self.field = field
        self.reason = f"holds {msgspec.json.encode(entry).decode()[:80]}, expected {expected}"


def _points(entry: Any, field: str) -> Iterator[Point]:
    """The points of one entry, at whatever depth they stand; ``field`` says where in errors."""
    if isinstance(entry, str):
        yield Point(entry)
    elif isinstance(entry, list) and _is_point(entry):
        yield Point(entry[0], _angle(entry[1], f"{field}[1]"), _angle(entry[2], f"{field}[2]"))
    elif isinstance(entry, list) and field.count("[") < _DEEPEST:
        for number, part in enumerate(entry):
            yield from _points(part, f"{field}[{number}]")
    else:
        raise _EntryError(field, entry, "[viewpoint, heading, elevation], a viewpoint or a list of these")


def _is_point(entry: list[Any]) -> bool:
    return (
        len(entry) == 3
        and isinstance(entry[0], str)
        and all(isinstance(angle, (int, float)) and not isinstance(angle, bool) for angle in entry[1:])
    )


def _angle(value: float, field: str) -> float:
    try:
        return float(value)
    except OverflowError as error:  # JSON knows integers of any length
        raise _EntryError(field, value, "an angle in radians") from error
