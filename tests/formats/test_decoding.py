"""Files are read whole or in streams, plain or packed; what is wrong with them is named; checksums."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats import decoding
from scenemem.formats.decoding import (
    file_digest,
    read_bytes,
    read_json,
    read_json_lines,
    read_lines,
    read_records,
)
from tests.formats.helpers import put, refused


class Point(msgspec.Struct, frozen=True):
    x: int
    tags: tuple[str, ...] = ()


def _points(file: Path) -> tuple[Point, ...]:
    return read_json(file, tuple[Point, ...])


def test_plain_and_gzipped_files_read_the_same(tmp_path: Path) -> None:
    content = b'[{"x": 1, "tags": ["a"], "more": {"x": 2, "smile": "\\ud83d\\ude00"}}, {"x": 2}]'
    for name in ("points.json", "points.json.gz"):
        file = put(tmp_path / name, content)
        assert _points(file) == (Point(1, ("a",)), Point(2))
        assert list(read_lines(file)) == [content.decode()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"x": 1}, {"x": "two"}]', "record 1, field 'x': expected `int`, got `str`"),
        (b'[{"x": 1, "tags": ["a", 3]}]', "record 0, field 'tags[1]': expected `str`, got `int`"),
        (b'[{"tags": []}]', "record 0: object missing required field `x`"),
        (b'{"x": 1}', "expected `array`, got `object`"),
        (b'[{"x": 1}, {"x"', "not valid JSON (Expecting ':' delimiter: line 1 column 16 (char 15)); is the"),
        (b"hello", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'[{"x": 1, "tags": ["\xff"]}]', "not UTF-8 text (byte 0xff at position"),
        (b'[{"x": 1, "more": ' + b"[" * 100_000, "not valid JSON: nested too deeply to be a data file"),
        (b'[{"x": NaN}]', "record 0, field 'x': holds NaN or Infinity, expected finite numbers"),
        (
            b'[{"x": 1}, {"x": 1, "more": [{"a": 2, "b": [1.5, -Infinity]}, NaN]}]',
            "record 1, field 'more[0].b[1]': holds NaN or Infinity, expected finite numbers",
        ),
        (b'[{"x": 1, "x": 2}]', "'x' stands twice in one object, expected once"),
        (b'[{"x": 1, "\\u0078": 2, "x": 3}]', "'x' stands 3 times in one object, expected once"),
        (b'[{"x": 1, "more": [{"a": {"b": 1, "c": 2, "b": 3}}]}]', "'b' stands twice in one object"),
        (b'[{"x": 1, "more": {"\xff": 1}}]', "not UTF-8 text (byte 0xff at position"),
        (b'[{"x": 1, "more": ' + b"9" * 5000 + b"}]", "not valid JSON (Exceeds the limit (4300 digits)"),
        (b'[{"x": 1, "more": 1e999}]', "record 0, field 'more': holds NaN or Infinity"),
        (b'[{"x": 1, "tags": ["\\ud800"]}]', "holds half a character"),
        (b'[{"x": 1}] [', "not valid JSON (Extra data"),
        (b"[" + b"0," * 1_000_000 + b"0]", "holds more than 1,000,000 values"),
    ],
)
def test_bad_json_names_record_and_field(tmp_path: Path, content: bytes, message: str) -> None:
    assert refused(_points, put(tmp_path / "p.json", content)).startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"x": null}', "line 3, field 'x': expected `int`, got `null`"),
        (b'{"x": 1, "tags": ["x"], "x": 1}', "line 3: 'x' stands twice in one object, expected once"),
        (b'[{"x": "a"}]', "line 3: expected `object`, got `array`"),
    ],
)
def test_json_lines_name_the_line(tmp_path: Path, line: bytes, message: str) -> None:
    file = put(tmp_path / "points.jsonl", b'{"x": 1}\n\n' + line + b"\n")
    assert next(read_json_lines(file, Point)) == (1, Point(1))
    assert refused(lambda file: read_json_lines(file, Point), file).startswith(message)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_records_are_streamed_from_a_list_or_from_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, ending: str
) -> None:
    monkeypatch.setattr(decoding, "_BLOCK", block)
    content = b'[{"x": 1, "s": "a]}\\""}, \n {"x": [2]}]'
    records = list(read_records(put(tmp_path / f"p.json{ending}", content)))
    assert records == [("record 0", {"x": 1, "s": 'a]}"'}), ("record 1", {"x": [2]})]
    lines = list(read_records(put(tmp_path / f"p.jsonl{ending}", b'{"x": 1}\n\n{"x": 2}')))
    assert lines == [("line 1", {"x": 1}), ("line 3", {"x": 2})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "holds no record, expected at least one"),
        (b"", "not valid JSON"),
        (b"3", "expected `array`, got `int`"),
        (b'[{"x": 1}, 3]', "record 1: expected `object`, got `int`"),
        (b'[{"x": 1} {"x": 1}]', "record 1: not valid JSON (Expecting ',' delimiter"),
        (b'[, {"x": 1}]', "record 0: not valid JSON (Expecting ',' delimiter"),
        (b'[{"x": 1},]', "record 1: not valid JSON"),
        (b'[{"x": 1}', "record 1: not valid JSON"),
        (b'[{"x": 1}] {"x": 2}', "record 1: not valid JSON ('{\"x\": 2}' follows the list)"),
        (b'[{"x": 1, "x": 1}]', "record 0: 'x' stands twice"),
        (b'[{"a": [1, NaN]}]', "record 0, field 'a[1]': holds NaN or Infinity"),
        (b'[{"x": "' + b"a" * (5 << 20), "record 0: not valid JSON"),
    ],
)
def test_a_bad_list_of_records_names_the_record(tmp_path: Path, content: bytes, message: str) -> None:
    assert refused(read_records, put(tmp_path / "p.json", content)).startswith(message)


def test_the_largest_file_is_read_and_the_next_one_refused(tmp_path: Path) -> None:
    assert read_bytes(put(tmp_path / "f", b"1234"), largest=4) == b"1234"
    message = refused(lambda file: read_bytes(file, largest=4), put(tmp_path / "f", b"12345"))
    assert message == "is larger than 0 MB; no data file is"


@pytest.mark.parametrize("read", [read_bytes, read_lines, file_digest])
def test_files_that_cannot_be_read_are_named(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "file.txt", b"fine\nbad \xe9\n")
    assert refused(read, tmp_path / "none") == "no such file"
    assert refused(read, tmp_path) == "is a folder, expected a file"
    beyond = "no such file; a part of the path is a file, expected a folder"
    assert refused(read, file / "below") == beyond
    assert refused(read, tmp_path / ("n" * 300)) == "cannot be read (File name too long)"
    if read is read_lines:
        assert refused(read, file) == "line 2: not UTF-8 text (byte 0xe9 at position 4)"
    whole = gzip.compress(b"x" * 10_000)
    for broken in (whole[:20], whole[:-12] + b"\0" * 12):
        if read is not file_digest:
            assert refused(read, put(tmp_path / "broken", broken)).startswith("broken gzip stream (")
    for number, reason in ((errno.EACCES, "permission denied"), (errno.EIO, "Input/output error")):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(Path, "open", lambda *_, error=error: (_ for _ in ()).throw(error))
        assert refused(read, file) == f"cannot be read ({reason})"


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large and old enough for its checksum to be remembered."""
    monkeypatch.setattr(decoding, "_SMALL", 0)
    monkeypatch.setattr(decoding, "_SETTLED", 0.0)
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "cache"))
    file = put(tmp_path / "file", b"content")
    time.sleep(0.02)
    return file


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read to compute a checksum."""
    seen: list[Path] = []
    compute = decoding._computed

    def noted(path: Path) -> str:
        seen.append(path)
        return compute(path)

    monkeypatch.setattr(decoding, "_computed", noted)
    return seen


DIGEST = hashlib.sha256(b"content").hexdigest()


def test_the_bytes_are_read_once_when_they_are_settled(
    large: Path, computed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_SETTLED", 60.0)
    assert [file_digest(large) for _ in range(2)] == [DIGEST] * 2
    assert computed == [large] * 2, "a file that was changed just now may change again"
    monkeypatch.setattr(decoding, "_SETTLED", 0.0)
    assert [file_digest(large) for _ in range(3)] == [DIGEST] * 3
    assert computed == [large] * 3


def test_a_change_is_seen_even_when_size_and_time_are_kept(large: Path) -> None:
    file_digest(large)
    before = large.stat()
    large.write_bytes(b"CONTENT")
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(large) == hashlib.sha256(b"CONTENT").hexdigest()


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"file": 3}', b"\xff", b"[[0], 3]"])
def test_a_damaged_memory_is_ignored(large: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file_digest(large)
    (remembered,) = (large.parent / "cache" / "digests").iterdir()
    remembered.write_bytes(content)
    assert file_digest(large) == DIGEST
    monkeypatch.setenv("SCENEMEM_CACHE", str(large))  # a file, so nothing can be kept below it
    assert file_digest(large) == DIGEST, "a cache that cannot be written only costs time"
