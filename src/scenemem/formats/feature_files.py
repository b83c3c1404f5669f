"""The view-feature store: ``<name>.npy`` float16 (V, 36, D), memory-mapped, and ``<name>.json`` beside it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.decoding import read_json

VIEWS = 36  # views of a panorama: 12 headings x 3 elevations
_LARGEST = float(np.finfo(np.float16).max)
_BLOCK = 1 << 20  # bytes read at a time when a checksum is computed


class Column(msgspec.Struct, frozen=True):
    """A named group of neighbouring columns of a store."""

    name: str
    start: int  # first column of the group
    stop: int  # one past its last column
    description: str


class StoreInfo(msgspec.Struct, frozen=True):
    """What a store holds and where it came from; the content of ``<name>.json``."""

    keys: tuple[str, ...]  # "<scan>_<viewpoint>" of every row, in row order
    width: int  # columns per view
    source: str  # the files the features were made from
    encoder: str  # the network or procedure that made them
    sha256: str  # of the bytes of the .npy file
    columns: tuple[Column, ...] = ()  # what the columns are, when that is known

    def __post_init__(self) -> None:
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("keys holds the same viewpoint twice")


class FeatureRow(NamedTuple):
    """The features of one viewpoint on their way into a store."""

    key: str  # "<scan>_<viewpoint>"
    values: npt.NDArray[Any]  # (36, D), any float type
    place: str  # where the row stands in its file, for errors: "line 12"


def write_store(
    target: str | os.PathLike[str],
    keys: Sequence[str],
    rows: Iterable[npt.NDArray[Any]],
    *,
    width: int,
    source: str,
    encoder: str,
    columns: Sequence[Column] = (),
) -> StoreInfo:
    """Write the store ``target`` (``.../<name>.npy``) row by row; see ``stream_store``.

    Args:
        target: the ``.npy`` file to write; the ``.json`` file goes beside it.
        keys: ``"<scan>_<viewpoint>"`` of every row.
        rows: one (36, width) array per key, in the same order.
        width: columns per view.
        source: the files the features were made from.
        encoder: the network or procedure that made them.
        columns: what the columns are, when that is known.
    """
    named = (
        FeatureRow(key, values, f"row {number}")
        for number, (key, values) in enumerate(zip(keys, rows, strict=True))
    )
    return stream_store(
        target, named, origin=target, width=width, source=source, encoder=encoder, columns=columns
    )


def stream_store(
    target: str | os.PathLike[str],
    rows: Iterable[FeatureRow],
    *,
    origin: str | os.PathLike[str],
    source: str,
    encoder: str,
    width: int | None = None,
    columns: Sequence[Column] = (),
) -> StoreInfo:
    """Write a store from a stream of rows whose number need not be known; one row is in memory at a time.

    The ``.json`` appears last and an older one is removed first, so a process killed at any time leaves
    either no store or a complete one.

    Args:
        target: the ``.npy`` file to write; the ``.json`` file goes beside it.
        rows: the rows, in the order of the store.
        origin: the file the rows come from; only used to locate errors.
        source: the files the features were made from.
        encoder: the network or procedure that made them.
        width: columns per view; that of the first row when not given.
        columns: what the columns are, when that is known.

    Raises:
        DataError: a row has the wrong shape, repeats a viewpoint or holds NaN, Inf or a number that float16
            cannot hold; or there is no row at all.
        UserError: the place cannot be written or the disk is full.
    """
    target, record = _store_paths(target)
    with atomic_file(record) as record_partial, atomic_file(target) as partial:
        with partial.open("w+b") as stream:
            keys, width = _write_rows(stream, rows, width, origin)
            stream.seek(0)
            info = StoreInfo(keys, width, source, encoder, _digest(stream), tuple(columns))
            os.fsync(stream.fileno())
        record_partial.write_bytes(msgspec.json.encode(info))
        # from here on nothing but a kill can fail, so an older store is only given up for a complete new one
        record.unlink(missing_ok=True)
    return info


def read_store(target: str | os.PathLike[str]) -> tuple[StoreInfo, np.memmap[Any, np.dtype[np.float16]]]:
    """Open a store without reading its values.

    Returns:
        what it holds, and the memory-mapped values (V, 36, D), copy-on-write: nothing done to them reaches
        the file.

    Raises:
        DataError: one of the two files is missing or broken, or they do not belong together.
    """
    target, record = _store_paths(target)
    if not target.exists():
        raise DataError(
            target, "no such feature store; build it with `scenemem data objects` or `data features`"
        )
    if not record.exists():
        raise DataError(
            target, f"incomplete feature store, '{record.name}' is missing beside it; build the store again"
        )
    info = read_json(record, StoreInfo)
    try:
        values = np.load(target, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(target, f"not a readable .npy file ({error}); build the store again") from error
    expected = (len(info.keys), VIEWS, info.width)
    if values.shape != expected or values.dtype != np.float16 or not values.flags.c_contiguous:
        raise DataError(
            target,
            f"holds {values.dtype} {values.shape}, but '{record.name}' says float16 {expected}, C order; "
            "build the store again",
        )
    return info, values


def verify_store(target: str | os.PathLike[str]) -> StoreInfo:
    """Recompute the checksum of a store.

    Raises:
        DataError: as ``read_store``, and when the checksum differs from the recorded one.
    """
    info, _ = read_store(target)
    with Path(target).open("rb") as stream:
        seen = _digest(stream)
    if seen != info.sha256:
        raise DataError(
            target, f"its sha256 is {seen}, expected {info.sha256}; the file changed, build the store again"
        )
    return info


def _store_paths(target: str | os.PathLike[str]) -> tuple[Path, Path]:
    target = Path(target)
    if target.suffix != ".npy":
        raise DataError(target, "is not the name of a feature store, expected <name>.npy")
    return target, target.with_suffix(".json")


def _write_rows(
    stream: BinaryIO, rows: Iterable[FeatureRow], width: int | None, origin: str | os.PathLike[str]
) -> tuple[tuple[str, ...], int]:
    """Write header and rows; the header is written again at the end, when the number of rows is known."""
    places: dict[str, str] = {}
    body = None
    for row in rows:
        if width is None:
            width = row.values.shape[-1] if row.values.ndim else 0
        if body is None:
            body = _write_header(stream, 0, width)
        if row.key in places:
            raise DataError(origin, f"'{row.key}' already stands in {places[row.key]}", record=row.place)
        places[row.key] = row.place
        stream.write(_half_precision(row, width, origin).tobytes())
    if body is None or width is None:
        raise DataError(origin, "holds no viewpoint, expected at least one")
    stream.seek(0)
    if _write_header(stream, len(places), width) != body:
        raise AssertionError("the .npy header changed its length with the number of rows")
    stream.flush()
    return tuple(places), width


def _write_header(stream: BinaryIO, rows: int, width: int) -> int:
    """Write the .npy header at the current place; numpy pads it so that the number of rows may grow."""
    descr = np.lib.format.dtype_to_descr(np.dtype(np.float16))
    header = {"descr": descr, "fortran_order": False, "shape": (rows, VIEWS, width)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.tell()


def _half_precision(row: FeatureRow, width: int, origin: str | os.PathLike[str]) -> npt.NDArray[np.float16]:
    """values: (36, D) any float  ->  (36, D) float16, C order; every number is finite before and after."""
    values = row.values
    if values.shape != (VIEWS, width):
        raise DataError(
            origin,
            f"'{row.key}' holds features of shape {values.shape}, expected ({VIEWS}, {width}): "
            f"{VIEWS} views of {width} columns",
            record=row.place,
        )
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(values, dtype=np.float16)
    finite = np.isfinite(half)
    if not finite.all():
        view, column = (int(axis) for axis in np.argwhere(~finite)[0])
        seen = float(values[view, column])
        limit = f"; the store is float16, which ends at {_LARGEST:g}" if np.isfinite(seen) else ""
        raise DataError(
            origin,
            f"'{row.key}', view {view}, column {column} is {seen:g}, expected a finite number{limit}",
            record=row.place,
        )
    return half


def _digest(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in _blocks(stream):
        digest.update(block)
    return digest.hexdigest()


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block
