"""Reading plain or gzipped text and JSON into typed records, with errors that name file, record and field."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from scenemem.errors import DataError
from scenemem.formats.archives import LARGEST, check_plain_file, open_packed
from scenemem.formats.atomic import StrPath

T = TypeVar("T")

LONGEST_LINE = 64 << 20
"""Bytes of a line; the features of a viewpoint, as text, take half a megabyte."""

# msgspec ends its messages with the place, e.g. "Expected `str`, got `int` - at `$[3].path[1]`"
_PLACE = re.compile(r"^(?P<reason>.*) - at `\$(?:\[(?P<record>\d+)\])?\.?(?P<field>.*)`$", re.DOTALL)

_TOO_DEEP = "JSON nested too deeply to be a data file"

_REFUSALS: dict[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder, expected a file",
    PermissionError: "cannot be read (permission denied)",
    NotADirectoryError: "no such file; a part of the path is a file, expected a folder",
}


def read_bytes(file: StrPath) -> bytes:
    """The whole content of a file, unpacked when its name ends in ``.gz``.

    Raises:
        DataError: the file is missing, unreadable or its compressed stream is broken.
    """
    path = Path(file)
    with _readable_errors(path):
        size = check_plain_file(path)
        if size > LARGEST:
            reason = f"is {size >> 30} GB large, expected at most {LARGEST >> 30} GB of text"
            raise DataError(path, reason)
        if path.suffix != ".gz":
            return path.read_bytes()
        with _unpacked(path) as stream:
            return stream.read()


def read_lines(file: StrPath) -> Iterator[str]:
    """Stream the lines of a UTF-8 text file (plain or ``.gz``) without their line ends.

    Raises:
        DataError: as ``read_bytes``, and for bytes that are not UTF-8 (with the line number).
    """
    path = Path(file)
    with _readable_errors(path), _unpacked(path) if path.suffix == ".gz" else _opened(path) as stream:
        yield from lines_of(stream, path)


def lines_of(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The lines of an open file, none of them too long.

    Raises:
        DataError: a line is too long or not UTF-8.
    """
    for number in itertools.count(1):
        line = stream.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise DataError(path, f"is longer than {LONGEST_LINE >> 20} MB", record=f"line {number}")
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(path, _not_utf8(error), record=f"line {number}") from error


def _opened(path: Path) -> BinaryIO:
    check_plain_file(path)
    return path.open("rb")


def _unpacked(path: Path) -> BinaryIO:
    """A file whose name says that it is gzipped."""
    stream = open_packed(path)
    if isinstance(stream, io.BufferedReader):  # its content does not
        with stream:
            begin = stream.read(2)
        raise gzip.BadGzipFile(f"not a gzipped file ({begin!r})")
    return stream


def read_json(file: StrPath, kind: type[T]) -> T:
    """Decode a JSON file (plain or ``.gz``) as ``kind``.

    Raises:
        DataError: as ``read_bytes``, and for content that is not JSON or does not fit ``kind``.
    """
    return decode_json(read_bytes(file), kind, file)


def decode_json(
    content: bytes | str, kind: type[T], file: StrPath, record: str | None = None, *, unique: bool = True
) -> T:
    """Decode JSON text as ``kind``; ``file`` and ``record`` only name the place in errors.

    Of two values under one name some readers take the first and some the last, so an object that holds a
    name twice is refused; with ``unique=False`` it is not, for texts whose parts are decoded later.
    """
    try:
        value = msgspec.json.decode(content, type=kind)
        if unique:
            _check_unique(content, file, record)
        return value
    except msgspec.ValidationError as error:
        raise located(error, file, record) from error
    except msgspec.DecodeError as error:
        _locate_non_number(content, file, record)
        raise DataError(file, f"not valid JSON ({error}); is the file complete?", record=record) from error
    except UnicodeDecodeError as error:
        raise DataError(file, _not_utf8(error), record=record) from error
    except RecursionError as error:
        raise DataError(file, _TOO_DEEP, record=record) from error


def read_json_lines(file: StrPath, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Stream ``(line number, record)`` from a JSON-lines file (plain or ``.gz``), skipping blank lines."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        try:
            value = decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            # the slow path words the error; the fast path only decodes
            decode_json(line, kind, file, record=f"line {number}")
            raise AssertionError("a decoder refused what decode_json accepts") from error
        _check_unique(line, file, f"line {number}")
        yield number, value


def located(error: Exception, file: StrPath, record: str | None = None) -> DataError:
    """Turn a msgspec error into a ``DataError`` with record and field."""
    match = _PLACE.match(str(error))
    if match is None:
        return DataError(file, _lowered(str(error)), record=record)
    index, field = match["record"], match["field"] or None
    if record is None and index is not None:
        record = f"record {index}"
    elif index is not None:
        field = f"[{index}]" + (f".{field}" if field else "")
    return DataError(file, _lowered(match["reason"]), record=record, field=field)


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ, for ``json.loads(..., object_pairs_hook=unique_object)``.

    Raises:
        ValueError: a name stands there twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        times = "twice" if count == 2 else f"{count} times"
        raise ValueError(f"{name!r:.60} stands {times} in one object, expected once")
    return found


def _check_unique(content: bytes | str, file: StrPath, record: str | None) -> None:
    """Refuse an object that holds a name twice; ``content`` is known to be JSON."""
    # the bytes of fields nobody asked for may be anything, and integers too long for int()
    text = content if isinstance(content, str) else content.decode("utf-8", "surrogateescape")
    try:
        json.loads(text, object_pairs_hook=unique_object, parse_int=float)
    except json.JSONDecodeError as error:
        raise DataError(file, f"not valid JSON ({error}); is the file complete?", record=record) from error
    except ValueError as error:
        raise DataError(file, str(error), record=record) from error
    except RecursionError as error:
        raise DataError(file, _TOO_DEEP, record=record) from error


def _locate_non_number(content: bytes | str, file: StrPath, record: str | None) -> None:
    """Say where NaN or Infinity stands, which Python writes but JSON lacks; return if it is not that."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    waiting: list[tuple[str, Any]] = [("$", value)]  # places worded as msgspec does: $[3].path[1]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((f"{place}.{key}", part) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend((f"{place}[{n}]", value[n]) for n in reversed(range(len(value))))
        elif isinstance(value, float) and not math.isfinite(value):
            reason = f"holds NaN or Infinity, expected finite numbers - at `{place}`"
            raise located(ValueError(reason), file, record)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at position {error.start})"


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    """Turn operating-system and gzip errors on reading ``path`` into ``DataError``."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(path, f"broken gzip stream ({error}); is the file complete?") from error
    except OSError as error:
        reason = _REFUSALS.get(type(error), f"cannot be read ({error.strerror or error})")
        raise DataError(path, reason) from error
