"""Instructions with their reference paths: R2R, R4R, DUET / HAMT, PREVALENT, RxR and REVERIE files."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Union

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import fitted, read_records

Identifier = Union[int, str]  # noqa: UP007 (evaluated at run time, also on Python 3.10)


class EpisodeRecord(msgspec.Struct, frozen=True):
    """One reference path and the instructions that describe it, whatever file it came from."""

    scan: str
    path_id: Identifier
    path: tuple[str, ...]  # viewpoint ids; only the start where the goal is kept secret (test splits)
    heading: float  # at the start, radians, clockwise from +y
    instructions: tuple[str, ...]
    instruction_ids: tuple[str, ...]  # one per instruction, unique in the file
    distance: float | None = None  # length of the path, metres
    instr_encodings: tuple[tuple[int, ...], ...] | None = None  # DUET / HAMT: token numbers per instruction
    object_id: Identifier | None = None  # REVERIE: the object to be found
    language: str | None = None  # RxR, for example "en-US"
    first_path_id: Identifier | None = None  # R4R: the two R2R paths that were joined
    second_path_id: Identifier | None = None
    shortest_path: tuple[str, ...] | None = None  # R4R: from start to goal
    shortest_path_distance: float | None = None  # R4R: metres

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path is empty, expected at least the start viewpoint")
        if not self.instructions:
            raise ValueError("instructions is empty, expected at least one")
        for field in ("instruction_ids", "instr_encodings"):
            entries = getattr(self, field)
            if entries is not None and len(entries) != len(self.instructions):
                expected = f"{len(self.instructions)}, one per instruction"
                raise ValueError(f"{field} holds {len(entries)} entries, expected {expected}")


def read_episodes(file: StrPath) -> list[EpisodeRecord]:
    """Read an episode file, plain or ``.gz``, JSON list or JSON lines; its first record decides the format.

    Raises:
        DataError: the content is not an episode file: not JSON, wrong schema, empty path, a number that is
            not finite, or an instruction id that occurs twice.
    """
    episodes: list[EpisodeRecord] = []
    seen: dict[str, str] = {}
    numbers: Counter[Identifier] = Counter()
    kind: type[_Route] | None = None
    for place, record in read_records(file):
        if kind is None:  # the first record decides the format
            kind = _Spoken if "instruction_id" in record else _RoomToRoom
        try:
            episode = fitted(record, kind, file, place).episode(numbers)
        except ValueError as error:
            raise DataError(file, str(error), record=place) from error
        for instruction_id in episode.instruction_ids:
            earlier = seen.setdefault(instruction_id, place)
            if earlier != place:
                reason = f"instruction id '{instruction_id}' already stands in {earlier}; ids must be unique"
                raise DataError(file, reason, record=place)
        episodes.append(episode)
    return episodes


def write_episodes(file: StrPath, episodes: Iterable[EpisodeRecord]) -> int:
    """Write an R2R / R4R JSON list, one record per line, gzipped when the name ends in ``.gz``.

    Records are taken and written one at a time; the same episodes always give the same bytes. Reading the
    file gives the same episodes back.

    Returns:
        how many episodes were written.
    """
    with atomic_file(file) as partial, partial.open("wb") as raw:
        if Path(file).suffix != ".gz":
            return write_json_list(raw, map(_written, episodes))
        # without name and time the bytes depend on the content alone
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            return write_json_list(stream, map(_written, episodes))


def write_json_list(stream: BinaryIO | gzip.GzipFile, records: Iterable[Any]) -> int:
    """Write a JSON list, one record per line, taking one record at a time  ->  how many there were"""
    count = 0
    for count, record in enumerate(records, start=1):
        stream.write((b"[\n" if count == 1 else b",\n") + msgspec.json.encode(record))
    stream.write(b"\n]\n" if count else b"[]\n")
    return count


class _Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every format has."""

    scan: str
    path: tuple[str, ...]
    heading: float
    path_id: Identifier | None = None
    distance: float | None = None
    language: str | None = None

    def episode(self, numbers: Counter[Identifier]) -> EpisodeRecord:
        """The record as an ``EpisodeRecord``; ``numbers`` counts the instructions of every path id so far."""
        raise NotImplementedError


class _RoomToRoom(_Route, frozen=True, kw_only=True, omit_defaults=True):
    """R2R and what is written like it: R4R, encoded files, one-instruction augmentation files, REVERIE."""

    instructions: tuple[str, ...]
    id: Identifier | None = None  # REVERIE, where several records share a path_id and test has none
    objId: Identifier | None = None  # noqa: N815 (the public name)
    instr_id: str | None = None
    instr_encodings: tuple[tuple[int, ...], ...] | None = None
    first_path_id: Identifier | None = None
    second_path_id: Identifier | None = None
    shortest_path: tuple[str, ...] | None = None
    shortest_path_distance: float | None = None

    def episode(self, numbers: Counter[Identifier]) -> EpisodeRecord:
        path_id = self.id if self.path_id is None else self.path_id
        if path_id is None:
            raise ValueError("path_id is missing, and so is id; expected one of them")
        return EpisodeRecord(
            path_id=path_id,
            instruction_ids=self._instruction_ids(path_id, numbers),
            object_id=self.objId,
            **_fields(self, "path_id", "id", "objId", "instr_id"),
        )

    def _instruction_ids(self, path_id: Identifier, numbers: Counter[Identifier]) -> tuple[str, ...]:
        count = len(self.instructions)
        if self.instr_id is not None:
            if count != 1:
                raise ValueError(f"instr_id names one instruction, but instructions holds {count}")
            return (self.instr_id,)
        if self.id is not None:
            return _numbered(self.id, count)
        numbers[path_id] += count
        # augmentation files repeat a path_id with one instruction each: the n-th one is number n
        return (f"{path_id}_{numbers[path_id] - 1}",) if count == 1 else _numbered(path_id, count)


class _Spoken(_Route, frozen=True, kw_only=True):
    """RxR: one instruction per record."""

    instruction_id: Identifier
    instruction: str
    instr_encoding: tuple[int, ...] | None = None

    def episode(self, numbers: Counter[Identifier]) -> EpisodeRecord:  # noqa: ARG002 (ids are given)
        return EpisodeRecord(
            path_id=self.instruction_id if self.path_id is None else self.path_id,
            instructions=(self.instruction,),
            instruction_ids=(str(self.instruction_id),),
            instr_encodings=None if self.instr_encoding is None else (self.instr_encoding,),
            **_fields(self, "path_id", "instruction_id", "instruction", "instr_encoding"),
        )


def _written(episode: EpisodeRecord) -> _RoomToRoom:
    """The R2R record of an episode; ids that do not follow from path_id are written out."""
    ids, count = episode.instruction_ids, len(episode.instructions)
    stem = ids[0].removesuffix("_0")
    follows = ids == _numbered(episode.path_id, count)
    if not follows and count > 1 and ids != _numbered(stem, count):
        raise ValueError(f"instruction ids {ids} cannot be written: expected <id>_0, <id>_1, ...")
    return _RoomToRoom(
        id=None if follows or count == 1 else stem,
        objId=episode.object_id,
        instr_id=ids[0] if count == 1 and not follows else None,
        **_fields(episode, "instruction_ids", "object_id"),
    )


def _fields(record: msgspec.Struct, *without: str) -> dict[str, Any]:
    """The fields that two kinds of records share: all but those named."""
    return {name: value for name, value in msgspec.structs.asdict(record).items() if name not in without}


def _numbered(stem: Identifier, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}_{number}" for number in range(count))
