from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import msgspec
import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats import decoding
from scenemem.formats.decoding import read_bytes, read_json, read_json_lines, read_lines, read_records


class Point(msgspec.Struct, frozen=True):
    x: int
    tags: tuple[str, ...] = ()


def _file(folder: Path, content: bytes, name: str = "points.json") -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


def test_plain_and_gzipped_files_read_the_same(tmp_path: Path) -> None:
    content = b'[{"x": 1, "tags": ["a"]}, {"x": 2}]'
    plain = _file(tmp_path, content)
    packed = _file(tmp_path, gzip.compress(content), "points.json.gz")
    expected = (Point(1, ("a",)), Point(2))
    assert read_json(plain, tuple[Point, ...]) == read_json(packed, tuple[Point, ...]) == expected
    assert list(read_lines(plain)) == list(read_lines(packed)) == [content.decode()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"x": 1}, {"x": "two"}]', "record 1, field 'x': expected `int`, got `str`"),
        (b'[{"x": 1, "tags": ["a", 3]}]', "record 0, field 'tags[1]': expected `str`, got `int`"),
        (b'[{"tags": []}]', "record 0: object missing required field `x`"),
        (b'{"x": 1}', "expected `array`, got `object`"),
        (
            b'[{"x": 1}, {"x"',
            "not valid JSON (Expecting ':' delimiter: line 1 column 16 (char 15)); is the file complete?",
        ),
        (b"hello", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'[{"x": 1, "tags": ["\xff"]}]', "not UTF-8 text (byte 0xff at position"),
        (b'[{"x": 1, "more": ' + b"[" * 100_000, "nested too deeply"),
        (b'[{"x": NaN}]', "record 0, field 'x': holds NaN or Infinity, expected finite numbers"),
        (
            b'[{"x": 1}, {"x": 1, "more": [{"a": 2, "b": [1.5, -Infinity]}, NaN]}]',
            "record 1, field 'more[0].b[1]': holds NaN or Infinity, expected finite numbers",
        ),
        (b'[{"x": 1, "x": 2}]', "'x' stands twice in one object, expected once"),
        (b'[{"x": 1, "\\u0078": 2, "x": 3}]', "'x' stands 3 times in one object, expected once"),
        (b'[{"x": 1, "more": [{"a": {"b": 1, "c": 2, "b": 3}}]}]', "'b' stands twice in one object"),
        (b'[{"x": 1, "more": {"\xff": 1}}]', "not UTF-8 text (byte 0xff at position"),
        (b'[{"x": 1, "more": ' + b"9" * 5000 + b"}]", "Exceeds the limit (4300 digits)"),
        (b'[{"x": 1, "more": 1e999}]', "record 0, field 'more': holds NaN or Infinity"),
        (b'[{"x": 1, "tags": ["\\ud800"]}]', "holds half a character"),
        (b'[{"x": 1}] [', "not valid JSON (Extra data"),
        (b"[" + b"0," * 1_000_000 + b"0]", "holds more than 1,000,000 values"),
    ],
)
def test_bad_json_names_file_record_and_field(tmp_path: Path, content: bytes, message: str) -> None:
    file = _file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_json(file, tuple[Point, ...])
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"x": null}', r"line 3, field 'x': expected `int`, got `null`"),
        (b'{"x": 1, "tags": ["x"], "x": 1}', r"line 3: 'x' stands twice in one object, expected once"),
        (b'{"x": 1, "more": ' + b"[" * 100_000, "line 3: JSON nested too deeply to be a data file"),
        (b'[{"x": "a"}]', r"line 3: expected `object`, got `array`"),
    ],
)
def test_json_lines_name_the_line(tmp_path: Path, line: bytes, message: str) -> None:
    lines = read_json_lines(_file(tmp_path, b'{"x": 1}\n\n' + line + b"\n", "points.jsonl"), Point)
    assert next(lines) == (1, Point(1))
    with pytest.raises(DataError, match=message):
        next(lines)


def test_the_same_name_in_different_objects_is_fine(tmp_path: Path) -> None:
    content = b'[{"x": 1, "more": {"x": 2, "smile": "\\ud83d\\ude00"}}, {"x": 1}]'
    assert read_json(_file(tmp_path, content), tuple[Point, ...]) == (Point(1), Point(1))


LIST = b'[{"x": 1, "s": "a]}\\""}, \n {"x": [2]}]'


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("packed", [True, False])
def test_records_are_streamed_from_a_list_or_from_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, packed: bool
) -> None:
    monkeypatch.setattr(decoding, "_BLOCK", block)
    pack = gzip.compress if packed else bytes
    records = list(read_records(_file(tmp_path, pack(LIST))))
    assert records == [("record 0", {"x": 1, "s": 'a]}"'}), ("record 1", {"x": [2]})]
    lines = list(read_records(_file(tmp_path, pack(b'{"x": 1}\n\n{"x": 2}'), "points.jsonl")))
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
    with pytest.raises(DataError) as caught:
        list(read_records(_file(tmp_path, content)))
    assert message in str(caught.value)


def test_the_largest_file_is_read_and_the_next_one_refused(tmp_path: Path) -> None:
    assert read_bytes(_file(tmp_path, b"1234"), largest=4) == b"1234"
    with pytest.raises(DataError, match="is larger than 0 MB; no data file is"):
        read_bytes(_file(tmp_path, b"12345"), largest=4)


def test_lines_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    file = _file(tmp_path, b"fine\nbad \xe9\n", "text.txt")
    with pytest.raises(DataError, match=r"text.txt: line 2: not UTF-8 text \(byte 0xe9 at position 4\)"):
        list(read_lines(file))


def test_unreadable_files_are_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.json: no such file"):
        read_bytes(tmp_path / "none.json")
    with pytest.raises(UserError, match="is a folder, expected a file"):
        read_bytes(tmp_path)
    whole = gzip.compress(b"x" * 10_000)
    for broken in (whole[:20], whole[:-12] + b"\0" * 12):
        with pytest.raises(DataError, match="broken gzip stream"):
            read_bytes(_file(tmp_path, broken, "broken.json.gz"))
        with pytest.raises(DataError, match="broken gzip stream"):
            list(read_lines(_file(tmp_path, broken, "broken.txt.gz")))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, r"cannot be read \(permission denied\)"),
        (errno.EIO, r"cannot be read \(Input/output error\)"),
    ],
)
def test_other_system_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    file = _file(tmp_path, b"")
    with pytest.raises(DataError) as caught:
        read_bytes(file / "below")
    reason = "no such file; a part of the path is a file, expected a folder"
    assert str(caught.value) == f"{file / 'below'}: {reason}"
    with pytest.raises(DataError, match=r"cannot be read \(File name too long\)"):
        list(read_lines(tmp_path / ("n" * 300)))

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(DataError, match=message):
        read_bytes(file)
