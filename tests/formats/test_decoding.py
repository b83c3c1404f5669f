from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.decoding import read_bytes, read_json, read_json_lines, read_lines


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
        (b'[{"x": 1}, {"x"', "not valid JSON (Input data was truncated); is the file complete?"),
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
        (b'[{"x": 1, "more": {"\xff": 1, "\xff": 2}}]', "stands twice in one object"),
    ],
)
def test_bad_json_names_file_record_and_field(tmp_path: Path, content: bytes, message: str) -> None:
    file = _file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_json(file, tuple[Point, ...])
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_json_lines_name_the_line(tmp_path: Path) -> None:
    file = _file(tmp_path, b'{"x": 1}\n\n{"x": null}\n', "points.jsonl")
    lines = read_json_lines(file, Point)
    assert next(lines) == (1, Point(1))
    with pytest.raises(DataError, match=r"line 3, field 'x': expected `int`, got `null`"):
        next(lines)


def test_a_name_twice_in_one_object_of_a_line_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, b'{"x": 1}\n{"x": 1, "tags": ["x"], "x": 1}\n', "points.jsonl")
    lines = read_json_lines(file, Point)
    assert next(lines) == (1, Point(1))
    with pytest.raises(DataError, match=r"line 2: 'x' stands twice in one object, expected once"):
        next(lines)


def test_a_line_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, b'{"x": 1, "more": ' + b"[" * 100_000 + b"\n", "points.jsonl")
    with pytest.raises(DataError, match="line 1: JSON nested too deeply to be a data file"):
        next(read_json_lines(file, Point))


def test_the_same_name_in_different_objects_and_long_numbers_are_fine(tmp_path: Path) -> None:
    content = b'[{"x": 1, "more": {"x": ' + b"9" * 5000 + b'}}, {"x": 1}]'
    assert read_json(_file(tmp_path, content), tuple[Point, ...]) == (Point(1), Point(1))


def test_the_largest_file_is_read_and_the_next_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.formats.decoding.LARGEST", 4)
    assert read_bytes(_file(tmp_path, b"1234")) == b"1234"
    with pytest.raises(DataError, match="large, expected at most"):
        read_bytes(_file(tmp_path, b"12345"))


def test_json_lines_name_the_field_inside_a_list_record(tmp_path: Path) -> None:
    file = _file(tmp_path, b'[{"x": "a"}]\n', "points.jsonl")
    with pytest.raises(DataError, match=r"line 1, field '\[0\]\.x': expected `int`"):
        next(read_json_lines(file, tuple[Point, ...]))


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
    for broken in (whole[:20], b"not gzip at all", whole[:-12] + b"\0" * 12):
        with pytest.raises(DataError, match="broken gzip stream"):
            read_bytes(_file(tmp_path, broken, "broken.json.gz"))
        with pytest.raises(DataError, match="broken gzip stream"):
            list(read_lines(_file(tmp_path, broken, "broken.txt.gz")))


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(permission denied\)"):
        read_bytes(_file(tmp_path, b""))


def test_other_system_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, b"")
    with pytest.raises(DataError) as caught:
        read_bytes(file / "below")
    reason = "no such file; a part of the path is a file, expected a folder"
    assert str(caught.value) == f"{file / 'below'}: {reason}"
    with pytest.raises(DataError, match=r"cannot be read \(File name too long\)"):
        list(read_lines(tmp_path / ("n" * 300)))

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(DataError, match=r"points.json: cannot be read \(Input/output error\)"):
        read_bytes(file)
