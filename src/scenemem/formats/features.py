"""View features on disk: the store SceneMem reads and writes, and the published TSV and HDF5 files.

A store is ``<name>.npy``, float16 (V, 36, D), memory-mapped, and ``<name>.json`` beside it. A TSV has one
line per viewpoint with base64 of float32 (36, D); an HDF5 file one (36, D) data set ``<scan>_<viewpoint>``.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import check_growth, file_digest, library_errors, read_json, read_lines

VIEWS = 36  # views of a panorama: 12 headings x 3 elevations
_LARGEST = float(np.finfo(np.float16).max)
_TSV_FIELDS = ("scanId", "viewpointId", "image_w", "image_h", "vfov", "features")
_TSV_VALUE = np.dtype("<f4")
_MOST_COLUMNS = 1 << 16  # per view; the widest published features have 2048
_EXCERPT = 20  # characters of a field worth showing in an error


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
    track: str = ""  # e.g. "captions"; empty in stores of older versions
    sensor: str = ""  # what the features stand for, e.g. "a camera with a captioner"

    def __post_init__(self) -> None:
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("keys holds the same viewpoint twice")

    @property
    def layout(self) -> str:
        """A digest of everything but the values: track, encoder, columns and the viewpoints of the rows."""
        meaning = (self.track, self.encoder, self.width, self.columns, self.keys)
        return hashlib.sha256(msgspec.json.encode(meaning)).hexdigest()


class FeatureRow(NamedTuple):
    """The features of one viewpoint on their way into a store."""

    key: str  # "<scan>_<viewpoint>"
    values: npt.NDArray[Any]  # (36, D), any float type
    place: str  # where the row stands in its file, for errors: "line 12"


def write_store(
    target: StrPath, keys: Sequence[str], rows: Iterable[npt.NDArray[Any]], **about: Any
) -> StoreInfo:
    """Write a store from one (36, width) array per key; ``about`` as in ``stream_store``."""
    pairs = enumerate(zip(keys, rows, strict=True))
    named = (FeatureRow(key, values, f"row {number}") for number, (key, values) in pairs)
    return stream_store(target, named, origin=target, **about)


def stream_store(
    target: StrPath,
    rows: Iterable[FeatureRow],
    *,
    origin: StrPath,
    source: str,
    encoder: str,
    width: int | None = None,
    columns: Sequence[Column] = (),
    track: str = "",
    sensor: str = "",
) -> StoreInfo:
    """Write a store from a stream of rows whose number need not be known; one row is in memory at a time.

    A store that is replaced is never gone: the new ``.json`` waits under a hidden name until the new ``.npy``
    stands in its place, and a reader that finds the two apart takes the one whose checksum fits.

    ``rows`` come in the order of the store, out of the file ``origin``, which only locates errors; ``width``
    is that of the first row when not given, and the rest is noted in ``StoreInfo``.
    """
    target, record = _store_paths(target)
    with atomic_file(target) as partial:
        with partial.open("w+b") as stream:
            keys, width = _write_rows(stream, rows, width, origin)
        info = StoreInfo(keys, width, source, encoder, file_digest(partial), tuple(columns), track, sensor)
        with atomic_file(_waiting(record)) as waiting:
            waiting.write_bytes(msgspec.json.encode(info))
    os.replace(_waiting(record), record)  # everything is readable before and after this
    return info


def read_store(target: StrPath) -> tuple[StoreInfo, np.memmap[Any, np.dtype[np.float16]]]:
    """Open a store (its ``.npy`` file); the values are compared with their checksum.

    Returns:
        what it holds, and the memory-mapped values (V, 36, D), copy-on-write: nothing done to them reaches
        the file.
    """
    target, record = _store_paths(target)
    info = read_store_info(target)
    values = mapped_array(target)
    expected = (len(info.keys), VIEWS, info.width)
    if values.shape != expected or values.dtype != np.float16 or not values.flags.c_contiguous:
        says = f"'{record.name}' says float16 {expected}, C order; build the store again"
        raise DataError(target, f"holds {values.dtype} {values.shape}, but {says}")
    if (seen := file_digest(target)) != info.sha256:
        reason = f"its sha256 is {seen}, expected {info.sha256}; the file changed, build the store again"
        raise DataError(target, reason)
    return info, values


def read_store_info(target: StrPath) -> StoreInfo:
    """The record of a store."""
    target, record = _store_paths(target)
    if not target.exists():
        commands = "`scenemem data captions`, `data objects` or `data features`"
        raise DataError(target, f"no such feature store; build it with {commands}")
    with suppress(DataError):  # of a writer that was killed before the last step
        waiting = read_json(_waiting(record), StoreInfo)
        if file_digest(target) == waiting.sha256:
            return waiting
    if not record.exists():
        reason = f"incomplete feature store, '{record.name}' is missing beside it; build the store again"
        raise DataError(target, reason)
    return read_json(record, StoreInfo)


def verify_store(target: StrPath) -> StoreInfo:
    """What a store holds, its values compared with their checksum; raises as ``read_store`` does."""
    info, values = read_store(target)
    for key, panorama in zip(info.keys, values, strict=True):
        if not np.isfinite(panorama).all():
            view, column = (int(axis) for axis in np.argwhere(~np.isfinite(panorama))[0])
            reason = f"view {view}, column {column} is {panorama[view, column]}, expected a finite number"
            raise DataError(target, f"{reason}; build the store again", record=f"'{key}'")
    return info


def mapped_array(file: StrPath) -> np.memmap[Any, Any]:
    """The array in an ``.npy`` file, memory-mapped, copy-on-write; a declared size is not believed."""
    with library_errors(file, "not a readable .npy file"):
        values = np.load(file, mmap_mode="c", allow_pickle=False)
        if not isinstance(values, np.memmap):  # a zip file under the name of an array
            raise ValueError("it is an archive")
        return values


def _waiting(record: Path) -> Path:
    return record.with_name(f".{record.name}.next")


def read_feature_tsv(file: StrPath, columns: int | None = None) -> Iterator[FeatureRow]:
    """Stream the rows of a feature TSV in file order, one line in memory at a time.

    Only the first ``columns`` of every view are kept. Lines are split here rather than by the csv module: its
    fields are limited in size, these are not.
    """
    for number, line in enumerate(read_lines(file), start=1):
        place, fields = f"line {number}", line.split("\t")
        if not line:
            continue
        if len(fields) != len(_TSV_FIELDS):
            expected = f"{len(_TSV_FIELDS)}: {' '.join(_TSV_FIELDS)}"
            reason = f"holds {len(fields)} tab-separated fields, expected {expected}"
            raise DataError(file, reason, record=place)
        for name, value in zip(_TSV_FIELDS[:2], fields, strict=False):
            if not value:
                raise DataError(file, "is empty, expected an id", record=place, field=name)
        try:
            values = np.frombuffer(_decoded(fields[-1]), dtype=_TSV_VALUE).reshape(VIEWS, -1)
        except ValueError as error:
            raise DataError(file, str(error), record=place, field=_TSV_FIELDS[-1]) from error
        yield FeatureRow(f"{fields[0]}_{fields[1]}", values[:, :columns], place)


def estimate_feature_tsv(file: StrPath) -> int:
    """About how many rows a feature TSV holds: all lines are about as long as the first."""
    first = next(read_lines(file), "")
    return os.path.getsize(file) // (len(first) + 1)


def _decoded(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:
        excerpt = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
        raise ValueError(f"not valid base64 ({error}): '{excerpt}'") from error
    view = VIEWS * _TSV_VALUE.itemsize
    if not content or len(content) % view:
        expected = f"a multiple of {view}: {VIEWS} views of float32 numbers"
        raise ValueError(f"holds {len(content)} bytes, expected {expected}")
    return content


def count_feature_hdf5(file: StrPath) -> int:
    """The number of data sets in an HDF5 file."""
    with _opened(file) as (_, keys):
        return len(keys)


def read_feature_hdf5(file: StrPath, columns: int | None = None) -> Iterator[FeatureRow]:
    """Stream the data sets of an HDF5 file in the order of their names, one in memory at a time.

    Only the first ``columns`` of every view are kept; some files append class scores.
    """
    grown = 0
    with _opened(file) as (source, keys):
        for key in keys:
            row = _hdf5_row(source, key, columns, file)
            grown += row.values.nbytes
            check_growth(file, grown, row.place)
            yield row


def _hdf5_row(source: Any, key: str, columns: int | None, file: StrPath) -> FeatureRow:
    """One data set that lies in this file and nowhere else, and is no larger than features can be."""
    import h5py

    place, expected = f"data set '{key}'", f"expected floats of shape ({VIEWS}, D)"
    with library_errors(file, "cannot be unpacked", place):
        reason = None
        entry: Any = source[key] if isinstance(source.get(key, getlink=True), h5py.HardLink) else None
        if entry is None:
            reason = "is a link, expected a data set of this file"
        elif not isinstance(entry, h5py.Dataset):
            reason = f"holds a group, {expected}"
        elif entry.shape is None or len(entry.shape) != 2 or entry.dtype.kind != "f":
            reason = f"holds {entry.dtype} of shape {entry.shape}, {expected}"
        elif entry.is_virtual or entry.external:
            reason = "takes its values from another file, which is not followed"
        elif max(math.prod(entry.shape), math.prod(entry.chunks or ())) > VIEWS * _MOST_COLUMNS:
            reason = f"has the shape {entry.shape}, expected ({VIEWS}, D) with D at most {_MOST_COLUMNS}"
        if reason is not None:
            raise DataError(file, reason, record=place)
        return FeatureRow(key, np.asarray(entry[:, :columns]), place)


@contextmanager
def _opened(file: StrPath) -> Iterator[Any]:
    """An HDF5 file and the names of its data sets."""
    try:
        import h5py
    except ImportError as error:
        advice = "run: pip install 'scenemem[features]'"
        raise UserError(f"{file}: reading HDF5 needs h5py, which is not installed; {advice}") from error
    with library_errors(file, "not a readable HDF5 file"), h5py.File(file, "r") as source:
        yield source, list(source)


def _store_paths(target: StrPath) -> tuple[Path, Path]:
    target = Path(target)
    if target.suffix != ".npy":
        raise DataError(target, "is not the name of a feature store, expected <name>.npy")
    return target, target.with_suffix(".json")


def _write_rows(
    stream: BinaryIO, rows: Iterable[FeatureRow], width: int | None, origin: StrPath
) -> tuple[tuple[str, ...], int]:
    """Write header and rows; the header is written again at the end, when the number of rows is known."""
    places: dict[str, str] = {}
    for row in rows:
        if width is None:
            width = row.values.shape[-1] if row.values.ndim else 0
        if not places:
            _write_header(stream, 0, width)
        if row.key in places:
            raise DataError(origin, f"'{row.key}' already stands in {places[row.key]}", record=row.place)
        places[row.key] = row.place
        stream.write(_half_precision(row, width, origin).tobytes())
    if width is None or not places:
        raise DataError(origin, "holds no viewpoint, expected at least one")
    stream.seek(0)
    _write_header(stream, len(places), width)
    stream.flush()
    return tuple(places), width


def _write_header(stream: BinaryIO, rows: int, width: int) -> None:
    """Write the .npy header; numpy pads it, so that its length is the same for any number of rows."""
    header = {"descr": np.dtype(np.float16).str, "fortran_order": False, "shape": (rows, VIEWS, width)}
    np.lib.format.write_array_header_1_0(stream, header)


def _half_precision(row: FeatureRow, width: int, origin: StrPath) -> npt.NDArray[np.float16]:
    """values: (36, D) any float  ->  (36, D) float16, C order; every number is finite before and after."""
    values = row.values
    if values.shape != (VIEWS, width):
        expected = f"({VIEWS}, {width}): {VIEWS} views of {width} columns"
        reason = f"'{row.key}' holds features of shape {values.shape}, expected {expected}"
        raise DataError(origin, reason, record=row.place)
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(values, dtype=np.float16)
    finite = np.isfinite(half)
    if not finite.all():
        view, column = (int(axis) for axis in np.argwhere(~finite)[0])
        seen = float(values[view, column])
        limit = f"; the store is float16, which ends at {_LARGEST:g}" if np.isfinite(seen) else ""
        reason = f"'{row.key}', view {view}, column {column} is {seen:g}, expected a finite number{limit}"
        raise DataError(origin, reason, record=row.place)
    return half
