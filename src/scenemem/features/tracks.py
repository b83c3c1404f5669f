"""Tracks: the kinds of view features by the sensor they stand for, and stores joined into unions of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError, UserError
from scenemem.formats.features import Column, StoreInfo, read_store, write_store
from scenemem.houses import house as houses
from scenemem.world.build import Progress

JOINT = "+"  # between the names of the tracks of a union


@dataclass(frozen=True)
class Track:
    """A kind of view features; results are compared within one track only."""

    name: str  # of the track and of the store that its command builds
    sensor: str  # what an agent would have to carry to know as much
    command: str  # builds the store
    privileged: bool = False  # holds what no sensor measures from where the agent stands


CAPTIONS = Track("captions", "a camera with a captioner, and a depth sensor", "scenemem data captions")
OBJECTS = Track("objects", "a perfect object detector, and a depth sensor", "scenemem data objects")
IMAGES = Track("images", "a camera with an image encoder", "scenemem data images --images DIR")
ORACLE = Track("oracle", "no sensor: annotations, an upper bound", "scenemem data objects", privileged=True)
HOUSES = Track(houses.TRACK, houses.SENSOR, "scenemem data houses")

TRACKS = {track.name: track for track in (CAPTIONS, OBJECTS, IMAGES, ORACLE, HOUSES)}
"""Tracks by name: those of real buildings from strict to privileged, then that of the embedded houses."""


def column_groups(groups: Sequence[tuple[str, int, str]]) -> tuple[Column, ...]:
    """Name, width and description of neighbouring groups  ->  their columns; empty groups are left out."""
    columns, start = [], 0
    for name, width, description in groups:
        if width:
            columns.append(Column(name, start, start + width, description))
        start += width
    return tuple(columns)


def join_stores(stores: Mapping[str, Path], target: Path, progress: Progress | None = None) -> StoreInfo:
    """Write the union of some stores: the columns of all of them, one after the other.

    A group of columns that an earlier store holds with the same values, free space for example, is not
    repeated.

    Args:
        stores: their ``.npy`` files by name; all hold the same viewpoints, in any order.
        target: the ``.npy`` file to write.
        progress: called with (viewpoints done, in all).

    Raises:
        UserError: fewer than two stores are named, or one has no track.
        DataError: a store is broken, or one lacks a viewpoint that another has.
    """
    if len(stores) < 2:
        raise UserError(f"a union takes two stores or more, got {len(stores)}: {', '.join(stores)}")
    opened = {name: read_store(file) for name, file in stores.items()}
    for name, (info, _) in opened.items():
        if not info.track:
            raise UserError(f"{stores[name]}: has no track; build it again with this version")
    keys = next(iter(opened.values()))[0].keys
    parts: list[_Part] = []
    groups: list[tuple[str, int, str]] = []
    for name, (info, values) in opened.items():
        rows = _row_order(keys, info, stores[name])
        columns = info.columns or (Column(name, 0, info.width, info.encoder),)
        for column in columns:
            part = _Part(values, rows, column)
            if not any(part.repeats(earlier) for earlier in parts):
                parts.append(part)
                groups.append((column.name, column.stop - column.start, column.description))
    infos = [info for info, _ in opened.values()]
    names = [info.track for info in infos]
    columns = column_groups(groups)
    return write_store(
        target,
        keys,
        _joined(parts, len(keys), progress),
        width=columns[-1].stop,
        source="; ".join(info.source for info in infos),
        encoder=" + ".join(info.encoder for info in infos),
        columns=columns,
        track=JOINT.join(names),
        sensor=" + ".join(
            info.sensor or TRACKS[track].sensor for info, track in zip(infos, names, strict=True)
        ),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """A group of columns of a store, in the order of another store's rows."""

    values: npt.NDArray[Any]  # (R, 36, D), memory-mapped
    rows: npt.NDArray[np.int64]  # (V,)
    column: Column

    def row(self, number: int) -> npt.NDArray[np.float16]:
        """(36, width of the group)"""
        return np.asarray(self.values[self.rows[number], :, self.column.start : self.column.stop])

    def repeats(self, other: _Part) -> bool:
        """Whether the other holds the same group with the same values."""
        described = (self.column.name, self.column.description)
        if described != (other.column.name, other.column.description):
            return False
        return all(np.array_equal(self.row(number), other.row(number)) for number in range(len(self.rows)))


def _row_order(keys: Sequence[str], info: StoreInfo, file: Path) -> npt.NDArray[np.int64]:
    """The row of every key in a store."""
    rows = {key: number for number, key in enumerate(info.keys)}
    if unlike := sorted(set(keys) ^ set(rows)):
        lacks = "lacks" if unlike[0] not in rows else "alone holds"
        reason = f"{lacks} the viewpoint '{unlike[0]}'; only stores of the same viewpoints can be joined"
        raise DataError(file, reason)
    return np.array([rows[key] for key in keys], dtype=np.int64)


def _joined(
    parts: Sequence[_Part], count: int, progress: Progress | None
) -> Iterator[npt.NDArray[np.float16]]:
    for number in range(count):
        yield np.concatenate([part.row(number) for part in parts], axis=-1)
        if progress is not None:
            progress(number + 1, count)
