"""Reading text, JSON and archives of strangers, plain or packed; errors name file, record and field.

What a file may take is bounded while it is read: bytes that a packed file unpacks to, bytes of what is read
as a whole, values and depth of JSON. Nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
import re
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath

T = TypeVar("T")

RATIO = 100
"""A packed file may unpack to this many times its size; text packs to a tenth or a twentieth."""

AT_LEAST = 16 << 20
"""Bytes that any packed file may unpack to, however small it is."""

LARGEST = 32 << 20
"""Bytes of a file, or of a file in an archive, that is read as a whole; the longest public one has 4 MB."""

LARGEST_TOML = 1 << 20
"""Bytes of a configuration."""

LONGEST_LINE = 16 << 20
"""Bytes of a line; the features of a viewpoint, as text, take half a megabyte."""

LONGEST_RECORD = 4 << 20
"""Characters of a record of a list."""

MOST_VALUES = 1_000_000
"""Of JSON that is decoded as a whole, counted as commas and brackets; the largest public file has 450,000."""

ARCHIVES = (".tar.gz", ".tgz", ".tar")
"""Endings of archives."""

_BLOCK = 1 << 20  # characters read at a time
_GAP = re.compile(r"\s*(,?)\s*")
# msgspec ends its messages with the place, e.g. "Expected `str`, got `int` - at `$[3].path[1]`"
_PLACE = re.compile(r"^(?P<reason>.*) - at `\$(?:\[(?P<record>\d+)\])?\.?(?P<field>.*)`$", re.DOTALL)
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError)

_REFUSALS: dict[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder, expected a file",
    PermissionError: "cannot be read (permission denied)",
    NotADirectoryError: "no such file; a part of the path is a file, expected a folder",
}


def check_plain_file(path: Path) -> int:
    """The size of a file; pipes and devices, which have no end, are refused.

    Raises:
        DataError: it is neither a file nor a folder.
        OSError: there is no such file.
    """
    seen = path.stat()
    if not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
        raise DataError(path, "is a device or a pipe, expected a plain file")
    return seen.st_size


def check_growth(path: StrPath, size: int, record: str | None = None) -> None:
    """Refuse a packed file that unpacks to ``size`` bytes, far more than data does."""
    limit = max(RATIO * Path(path).stat().st_size, AT_LEAST)
    if size > limit:
        seen = f"unpacks to more than {limit >> 20} MB, {RATIO} times its size"
        raise DataError(path, f"{seen}; no data file does that, so it is not read further", record=record)


class _Unpacked(io.RawIOBase):
    """The content of a gzipped file, as far as it may grow."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        self._path, self._packed = path, packed
        self._content = gzip.GzipFile(fileobj=packed)
        self._given = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as there is content."""
        given = self._content.readinto(buffer)
        self._given += given
        check_growth(self._path, self._given)
        return given

    def close(self) -> None:
        """Close the file, too."""
        self._packed.close()
        super().close()


def open_packed(path: Path) -> BinaryIO:
    """The content of a file, unpacked when it is gzipped; one that unpacks to too much is a ``DataError``."""
    check_plain_file(path)
    stream = path.open("rb")
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    return io.BufferedReader(_Unpacked(path, stream), _BLOCK) if packed else stream


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files in a tar archive, plain or gzipped, in their order.

    Raises:
        DataError: the archive is missing or broken, unpacks to too much, or holds anything but plain files
            and folders with relative names.
    """
    try:
        with open_packed(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                _check_safe(member, archive)
                if not member.isfile() or not wanted(member.name):
                    continue
                _check_size(archive, member.size, member.name)
                content = members.extractfile(member)
                assert content is not None, "a plain file has content"
                yield member.name, content.read()
    except FileNotFoundError as error:
        raise DataError(archive, "no such file") from error
    except _BROKEN as error:
        reason = f"not a readable archive ({error}); is the file complete? Download it again"
        raise DataError(archive, reason) from error


def _check_safe(member: tarfile.TarInfo, archive: Path) -> None:
    """Refuse links and paths that leave the archive: nothing is unpacked, but no real archive has them."""
    path = PurePosixPath(member.name)
    advice = "expected plain files and folders; download the archive again"
    if path.is_absolute() or ".." in path.parts:
        raise DataError(archive, f"leads out of the archive; {advice}", record=member.name)
    if not (member.isfile() or member.isdir()):
        kind = f"is a link to '{member.linkname}'" if member.linkname else "is no plain file"
        raise DataError(archive, f"{kind}; {advice}", record=member.name)


def _check_size(file: StrPath, size: int, record: str | None = None, largest: int = LARGEST) -> None:
    if size > largest:
        raise DataError(file, f"is larger than {largest >> 20} MB; no data file is", record=record)


def read_bytes(file: StrPath, largest: int = LARGEST) -> bytes:
    """The whole content of a file, unpacked when it is gzipped.

    Raises:
        DataError: the file is missing, unreadable, too large, or its compressed stream is broken.
    """
    path = Path(file)
    with _readable_errors(path), open_packed(path) as stream:
        content = stream.read(largest + 1)
    _check_size(path, len(content), largest=largest)
    return content


def read_toml(file: StrPath) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        DataError: as ``read_bytes``, and for content that is no TOML.
    """
    try:
        content: dict[str, Any] = msgspec.toml.decode(read_bytes(file, LARGEST_TOML))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise DataError(file, f"is no TOML ({error})") from error
    return content


def read_lines(file: StrPath) -> Iterator[str]:
    """Stream the lines of a UTF-8 text file (plain or gzipped) without their line ends.

    Raises:
        DataError: as ``read_bytes``, and for bytes that are not UTF-8 (with the line number).
    """
    path = Path(file)
    with _readable_errors(path), open_packed(path) as stream:
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


def read_json(file: StrPath, kind: type[T]) -> T:
    """Decode a JSON file (plain or gzipped) as ``kind``.

    Raises:
        DataError: as ``read_bytes``, and for content that is not JSON or does not fit ``kind``.
    """
    return decode_json(read_bytes(file), kind, file)


def decode_json(content: bytes | str, kind: type[T], file: StrPath, record: str | None = None) -> T:
    """Decode JSON text as ``kind``; ``file`` and ``record`` only name the place in errors.

    Of two values under one name some readers take the first and some the last, so an object that holds a
    name twice is refused. So is what Python's reader takes and JSON lacks: NaN, and half a character.
    """
    with _json_errors(file, record):
        text = (content if isinstance(content, str) else content.decode("utf-8")).strip()
        if sum(map(text.count, ",[{")) > MOST_VALUES:
            raise DataError(file, f"holds more than {MOST_VALUES:,} values; no data file does", record=record)
        value, end = _decoded(text, 0)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        return fitted(value, kind, file, record)


def fitted(value: Any, kind: type[T], file: StrPath, record: str | None = None, *, strict: bool = True) -> T:
    """What JSON became as ``kind``; texts become numbers unless it is ``strict``."""
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        raise located(error, file, record) from error


def check_version(content: dict[str, Any], version: int, what: str, file: StrPath, advice: str) -> None:
    """Refuse a file of another version."""
    seen = content.get("version")
    if seen != version:
        reason = f"is {what} of version {seen}, this program reads version {version}; {advice}"
        raise DataError(file, reason, field="version")


def read_json_lines(file: StrPath, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Stream ``(line number, record)`` from a JSON-lines file (plain or gzipped), skipping blank lines."""
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield number, decode_json(line, kind, file, f"line {number}")


def read_records(file: StrPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stream ``(place, record)`` from a list of JSON objects, or from JSON lines, one at a time.

    Raises:
        DataError: the file cannot be read, is not JSON or holds no record.
    """
    path, place = Path(file), None
    with _readable_errors(path), open_packed(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8")
        with _json_errors(path):
            block = text.read(_BLOCK).lstrip()
        if block.startswith("{"):  # a JSON list starts with [
            for number, line in read_json_lines(path, dict[str, Any]):
                place = f"line {number}"
                yield place, line
        elif not block.startswith("["):
            decode_json(block, list[Any], path)  # raises with the reason
        else:
            for number, record in enumerate(_list_entries(text, block, path)):
                place = f"record {number}"
                yield place, record
    if place is None:
        raise DataError(file, "holds no record, expected at least one")


def _list_entries(stream: io.TextIOBase, block: str, path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list whose text begins with ``block``; one that is cut off is tried with more."""
    number, begin, end = 0, 1, False
    while True:
        with _json_errors(path, f"record {number}"):
            try:
                gap = _GAP.match(block, begin)
                assert gap is not None, "it matches nothing, too"
                if not gap[1] and block.startswith("]", gap.end()):
                    if rest := block[gap.end() + 1 :].strip() or stream.read(_BLOCK).strip():
                        raise ValueError(f"not valid JSON ({rest[:20]!r} follows the list)")
                    return
                if bool(gap[1]) != bool(number):
                    raise json.JSONDecodeError("Expecting ',' delimiter", block, begin)
                value, begin_next = _decoded(block, gap.end())
                yield msgspec.convert(value, dict[str, Any])
                number, begin = number + 1, begin_next
                continue
            except json.JSONDecodeError:
                if end or len(block) - begin > LONGEST_RECORD:
                    raise
            more = stream.read(_BLOCK)
            block, begin, end = block[begin:] + more, 0, not more


def _decoded(text: str, begin: int) -> tuple[Any, int]:
    """The JSON value that begins at a place of a text, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except _NotFiniteError as error:
        place = _not_finite(json.JSONDecoder().raw_decode(text, begin)[0])
        raise msgspec.ValidationError(f"{error} - at `{place}`") from None
    if text.find("\\u", begin, end) >= 0:  # half a character can be neither printed nor written
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


@contextmanager
def _json_errors(file: StrPath, record: str | None = None) -> Iterator[None]:
    """Turn what is wrong with JSON into ``DataError``."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise located(error, file, record) from error
    except json.JSONDecodeError as error:
        raise DataError(file, f"not valid JSON ({error}); is the file complete?", record=record) from error
    except UnicodeDecodeError as error:
        raise DataError(file, _not_utf8(error), record=record) from error
    except RecursionError as error:
        raise DataError(file, "JSON nested too deeply to be a data file", record=record) from error
    except MemoryError as error:
        raise DataError(file, "takes more memory than there is", record=record) from error
    except UnicodeEncodeError as error:
        raise DataError(file, f"holds half a character ({error.reason})", record=record) from error
    except ValueError as error:
        raise DataError(file, str(error), record=record) from error


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


class _NotFiniteError(ValueError):
    """A number that JSON lacks, or that is too large to be one."""


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFiniteError("holds NaN or Infinity, expected finite numbers")
    return value


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        times = "twice" if count == 2 else f"{count} times"
        raise ValueError(f"{name!r:.60} stands {times} in one object, expected once")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_object, parse_float=_number, parse_constant=_number)


def _not_finite(value: Any) -> str:
    """Where the first number that is not finite stands, worded as msgspec does: $[3].path[1]"""
    waiting: list[tuple[str, Any]] = [("$", value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((f"{place}.{key}", part) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend((f"{place}[{n}]", value[n]) for n in reversed(range(len(value))))
        elif isinstance(value, float) and not math.isfinite(value):
            return place
    return "$"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at position {error.start})"


@contextmanager
def library_errors(file: StrPath, what: str, record: str | None = None) -> Iterator[None]:
    """Turn whatever a library makes of a damaged file into ``DataError``; ``what`` is what it is not.

    Raises:
        DataError: the file is missing, is no plain file, or could not be read.
    """
    try:
        check_plain_file(Path(file))
        yield
    except DataError:
        raise
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise DataError(file, _REFUSALS[type(error)], record=record) from error
    except Exception as error:  # they have many, of memory too
        raise DataError(file, f"{what} ({error}); is the file complete?", record=record) from error


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
