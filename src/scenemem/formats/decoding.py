"""Reading files of strangers: checksums, text, JSON and archives, plain or packed; errors name the place.

What a file may take is bounded while it is read: bytes that a packed file unpacks to, bytes of what is read
as a whole, values and depth of JSON. Nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import stat
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import msgspec

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.folder import cache_folder

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

_BLOCK = 1 << 20  # bytes or characters read at a time
_SMALL = 4 << 20  # bytes; reading such a file is as fast as looking its checksum up
_SETTLED = 2.0  # seconds; a file changed more recently may change again within the same tick of its clock
_TOO_LARGE = "is larger than {} MB; no data file is"
_NO_JSON = "not valid JSON"
_GAP = re.compile(r"\s*(,?)\s*")
# msgspec ends its messages with the place, e.g. "Expected `str`, got `int` - at `$[3].path[1]`"
_PLACE = re.compile(r"(.*?)(?: - at `\$(?:\[(\d+)\])?\.?(.*)`)?", re.DOTALL)

_REFUSALS: dict[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder, expected a file",
    PermissionError: "cannot be read (permission denied)",
    NotADirectoryError: "no such file; a part of the path is a file, expected a folder",
}


@contextmanager
def library_errors(file: StrPath, what: str, record: str | None = None) -> Iterator[None]:
    """Turn whatever a library makes of a damaged file into ``DataError``; ``what`` is what it is not."""
    with _located_errors(file, what, record):
        mode = os.stat(file).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError(file, "is a device or a pipe, expected a plain file")
        yield


@contextmanager
def _located_errors(file: StrPath, what: str, record: str | None = None) -> Iterator[None]:
    """Turn every error into ``DataError``; ``file`` and ``record`` only name the place."""
    try:
        yield
    except DataError:
        raise
    except msgspec.ValidationError as error:
        raise _located(error, file, record) from error
    except Exception as error:  # libraries have many, of memory too
        raise DataError(file, _worded(error, what), record=record) from error


def _worded(error: Exception, what: str) -> str:
    if isinstance(error, OSError) and error.errno is not None:  # those of libraries have none
        return _REFUSALS.get(type(error), f"cannot be read ({error.strerror})")
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at position {error.start})"
    if isinstance(error, UnicodeEncodeError):
        return f"holds half a character ({error.reason})"
    if isinstance(error, RecursionError):
        return f"{what}: nested too deeply to be a data file"
    if isinstance(error, MemoryError):
        return "takes more memory than there is"
    return f"{what} ({error}); is the file complete?"


def _located(error: msgspec.ValidationError, file: StrPath, record: str | None) -> DataError:
    """The error with record and field."""
    match = _PLACE.fullmatch(str(error))
    assert match is not None, "the place may be missing"
    reason, index, field = match.groups()
    if record is None and index is not None:
        record = f"record {index}"
    elif index is not None:
        field = f"[{index}]" + (f".{field}" if field else "")
    return DataError(file, reason[:1].lower() + reason[1:], record=record, field=field or None)


def check_growth(path: StrPath, size: int, record: str | None = None) -> None:
    """Refuse a packed file that unpacks to ``size`` bytes, far more than data does."""
    limit = max(RATIO * Path(path).stat().st_size, AT_LEAST)
    if size > limit:
        seen = f"unpacks to more than {limit >> 20} MB, {RATIO} times its size"
        raise DataError(path, f"{seen}; no data file does that, so it is not read further", record=record)


class _Unpacked(io.RawIOBase):
    """The content of a gzipped file, as far as it may grow."""

    def __init__(self, path: Path) -> None:
        self._path, self._content = path, gzip.GzipFile(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        given = self._content.readinto(buffer)
        check_growth(self._path, self._content.tell())
        return given

    def close(self) -> None:
        self._content.close()
        super().close()


@contextmanager
def _opened(path: Path, what: str = "broken gzip stream") -> Iterator[BinaryIO]:
    """The content of a file, unpacked when it is gzipped."""
    with library_errors(path, what), path.open("rb") as plain:
        if plain.read(2) == b"\x1f\x8b":
            with io.BufferedReader(_Unpacked(path), _BLOCK) as content:
                yield content
        else:
            plain.seek(0)
            yield plain


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted files in a tar archive, plain or gzipped, in their order."""
    what = "not a readable archive"
    with _opened(archive, what) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
        for member in members:
            _check_safe(member, archive)
            if member.isfile() and wanted(member.name):
                if member.size > LARGEST:
                    raise DataError(archive, _TOO_LARGE.format(LARGEST >> 20), record=member.name)
                content = members.extractfile(member)
                assert content is not None, "a plain file has content"
                yield member.name, content.read()


def _check_safe(member: tarfile.TarInfo, archive: Path) -> None:
    """Refuse links and paths that leave the archive: nothing is unpacked, but no real archive has them."""
    path, reason = PurePosixPath(member.name), None
    if path.is_absolute() or ".." in path.parts:
        reason = "leads out of the archive"
    elif not (member.isfile() or member.isdir()):
        reason = f"is a link to '{member.linkname}'" if member.linkname else "is no plain file"
    if reason is not None:
        advice = "expected plain files and folders; download the archive again"
        raise DataError(archive, f"{reason}; {advice}", record=member.name)


def read_bytes(file: StrPath, largest: int = LARGEST) -> bytes:
    """The whole content of a file, unpacked when it is gzipped."""
    with _opened(Path(file)) as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise DataError(file, _TOO_LARGE.format(largest >> 20))
    return content


def read_toml(file: StrPath) -> dict[str, Any]:
    """The content of a TOML file."""
    with _located_errors(file, "is no TOML"):
        content: dict[str, Any] = msgspec.toml.decode(read_bytes(file, LARGEST_TOML))
    return content


def read_lines(file: StrPath) -> Iterator[str]:
    """Stream the lines of a UTF-8 text file (plain or gzipped) without their line ends."""
    path = Path(file)
    with _opened(path) as stream:
        yield from lines_of(stream, path)


def lines_of(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The lines of an open file, none of them too long."""
    for number in itertools.count(1):
        line = stream.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise DataError(path, f"is longer than {LONGEST_LINE >> 20} MB", record=f"line {number}")
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(path, _worded(error, ""), record=f"line {number}") from error


def read_json(file: StrPath, kind: type[T]) -> T:
    """Decode a JSON file (plain or gzipped) as ``kind``."""
    return decode_json(read_bytes(file), kind, file)


def decode_json(content: bytes | str, kind: type[T], file: StrPath, record: str | None = None) -> T:
    """Decode JSON text as ``kind``; ``file`` and ``record`` only name the place in errors.

    Of two values under one name some readers take the first and some the last, so an object that holds a
    name twice is refused. So is what Python's reader takes and JSON lacks: NaN, and half a character.
    """
    with _located_errors(file, _NO_JSON, record):
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
        raise _located(error, file, record) from error


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
    """Stream ``(place, record)`` from a list of JSON objects, or from JSON lines, one at a time."""
    path, place = Path(file), None
    with _opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8")
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
        with _located_errors(path, _NO_JSON, f"record {number}"):
            try:
                gap = _GAP.match(block, begin)
                assert gap is not None, "it matches nothing, too"
                if not gap[1] and block.startswith("]", gap.end()):
                    if rest := block[gap.end() + 1 :].strip() or stream.read(_BLOCK).strip():
                        raise ValueError(f"{rest[:20]!r} follows the list")
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
    except FloatingPointError:
        place = _not_finite(json.JSONDecoder().raw_decode(text, begin)[0])
        reason = "holds NaN or Infinity, expected finite numbers"
        raise msgspec.ValidationError(f"{reason} - at `{place}`") from None
    if text.find("\\u", begin, end) >= 0:  # half a character can be neither printed nor written
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FloatingPointError
    return value


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        times = "twice" if count == 2 else f"{count} times"
        raise msgspec.ValidationError(f"{name!r:.60} stands {times} in one object, expected once")
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


@cache
def code_digest() -> str:
    """The sha256 of this program: the names and texts of all its modules."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(b"%s\0%s\0" % (file.relative_to(root).as_posix().encode(), file.read_bytes()))
    return found.hexdigest()


def file_digest(file: StrPath) -> str:
    """The sha256 of a file; computed again only when its size, times or inode have changed."""
    path = Path(file)
    with library_errors(path, "cannot be read"):
        state = _state(path)
        if state[0] <= _SMALL:
            return _computed(path)
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        place = cache_folder() / "digests" / f"{name}.json"
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            seen, known = msgspec.json.decode(place.read_bytes(), type=tuple[tuple[int, ...], str])
            if seen == state:
                return known
        found = _computed(path)
        settled = time.time() - path.stat().st_ctime > _SETTLED
        if settled and _state(path) == state:
            # a cache that cannot be written only costs time
            with suppress(UserError), atomic_file(place) as partial:
                partial.write_bytes(msgspec.json.encode((state, found)))
        return found


def _computed(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    """Size, times in nanoseconds, inode."""
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino
