"""Feature stores are written whole and read strictly; published files are read row by row."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.errors import DataError, UserError
from scenemem.formats.features import (
    VIEWS,
    Column,
    FeatureRow,
    StoreInfo,
    count_feature_hdf5,
    estimate_feature_tsv,
    read_feature_hdf5,
    read_feature_tsv,
    read_store,
    stream_store,
    verify_store,
    write_store,
)
from tests.formats.helpers import put, refused

Table = npt.NDArray[Any]


def _rows(count: int, width: int, seed: int = 0) -> Table:
    return np.random.default_rng(seed).normal(size=(count, VIEWS, width)).astype(np.float32)


def _write(target: Path, rows: Table, **changes: Any) -> StoreInfo:
    keys = [f"scan_v{number}" for number in range(len(rows))]
    given = {"width": rows.shape[-1], "source": "made up", "encoder": "none", **changes}
    return write_store(target, keys, rows, **given)


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 12), width=st.integers(1, 7), seed=st.integers(0, 99))
def test_what_is_written_is_read_back_in_float16(
    count: int, width: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("store") / "made.up.npy"
    rows = _rows(count, width, seed)
    written = _write(target, rows)
    info, values = read_store(target)
    assert info == written
    assert info.keys == tuple(f"scan_v{number}" for number in range(count))
    np.testing.assert_array_equal(values, rows.astype(np.float16))
    np.testing.assert_array_equal(np.load(target), rows.astype(np.float16))
    assert sorted(file.name for file in target.parent.iterdir()) == ["made.up.json", "made.up.npy"]


def test_the_record_says_where_the_features_come_from(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    columns = (Column("words", 0, 2, "sum of word vectors"), Column("classes", 2, 3, "coarse class"))
    info = _write(file, _rows(3, 3), columns=list(columns))
    assert (info.columns, info.source, info.encoder, info.width) == (columns, "made up", "none", 3)
    assert info.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert msgspec.json.decode((tmp_path / "a.json").read_bytes(), type=StoreInfo) == info
    read_store(file)[1][:] = 0
    assert verify_store(file) == info, "changing the opened values never reaches the file"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"row 1: 'scan_v1', view 5, column 2 is nan, expected a finite number$"),
        (-np.inf, r"row 1: 'scan_v1', view 5, column 2 is -inf, expected a finite number$"),
        (70000.0, r"view 5, column 2 is 70000, expected a finite number; the store is float16.* 65504$"),
    ],
)
def test_numbers_that_float16_cannot_hold_are_refused(value: float, message: str, tmp_path: Path) -> None:
    rows = _rows(3, 4)
    rows[1, 5, 2] = value
    with pytest.raises(DataError, match=message):
        _write(tmp_path / "a.npy", rows)
    assert not list(tmp_path.iterdir())
    rows[1, 5, 2] = 65504.0
    _write(tmp_path / "a.npy", rows)
    assert read_store(tmp_path / "a.npy")[1].max() == 65504.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", (VIEWS, 3)), ("b", (12, 3))], "row 1: 'b' holds features of shape (12, 3), expected (36, 3)"),
        ([("a", ())], "row 0: 'a' holds features of shape (), expected (36, 0)"),
        ([("x", (VIEWS, 1)), ("y", (VIEWS, 1)), ("x", (VIEWS, 1))], "row 2: 'x' already stands in row 0"),
        ([], "holds no viewpoint, expected at least one"),
    ],
)
def test_rows_that_make_no_store_are_refused(tmp_path: Path, rows: Any, message: str) -> None:
    target = tmp_path / "a.npy"

    def write(origin: Path) -> None:
        stream = (FeatureRow(key, np.zeros(shape), f"row {n}") for n, (key, shape) in enumerate(rows))
        stream_store(target, stream, origin=str(origin), source="", encoder="")

    assert refused(write, tmp_path / "f.tsv").startswith(message)
    with pytest.raises(ValueError, match="shorter"):
        write_store(target, ["x", "y"], _rows(1, 1), width=1, source="", encoder="")
    message = "'scan_v0' holds features of shape (36, 3), expected (36, 4)"
    assert message in refused(lambda file: _write(file, _rows(2, 3), width=4), target)
    message = "is not the name of a feature store, expected <name>.npy"
    assert refused(read_store, tmp_path / "a.txt") == message
    assert not list(tmp_path.iterdir())


def _flip(target: Path) -> None:
    content = bytearray(target.read_bytes())
    content[-1] ^= 1
    target.write_bytes(content)


def _record(**changed: Any) -> Callable[[Path], object]:
    def write(target: Path) -> None:
        record = msgspec.json.decode(target.with_suffix(".json").read_bytes())
        target.with_suffix(".json").write_bytes(msgspec.json.encode({**record, **changed}))

    return write


CHANGED = r"a\.npy: its sha256 is .*, expected .*; the file changed, build the store again"
UNREADABLE = r"a\.npy: not a readable \.npy file"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip, CHANGED),
        (lambda file: np.save(file, np.load(file)[::-1]), CHANGED),
        (lambda file: file.unlink(), r"a\.npy: no such feature store; build it with"),
        (lambda file: file.with_suffix(".json").unlink(), r"incomplete feature store, 'a\.json' is missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-10]), UNREADABLE),
        (lambda file: file.write_bytes(b""), UNREADABLE),
        (lambda file: np.save(file, np.array([{}]), allow_pickle=True), UNREADABLE),
        (
            lambda file: np.save(file, np.zeros((1, VIEWS, 2), np.float16)),
            r"holds float16 \(1, 36, 2\), but 'a\.json' says float16 \(2, 36, 2\)",
        ),
        (
            lambda file: np.save(file, np.zeros((2, VIEWS, 2), np.float32)),
            r"holds float32 \(2, 36, 2\), but 'a\.json' says float16",
        ),
        (_record(keys=["a", 3]), r"a\.json: field 'keys\[1\]': expected `str`, got `int`"),
        (_record(keys=["a", "a"]), r"a\.json: keys holds the same viewpoint twice"),
    ],
)
def test_a_damaged_store_is_refused(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    _write(tmp_path / "a.npy", _rows(2, 2))
    damage(tmp_path / "a.npy")
    with pytest.raises(DataError, match=message):
        read_store(tmp_path / "a.npy")


def _failing_rows(error: Exception) -> Iterator[FeatureRow]:
    yield FeatureRow("a", np.zeros((VIEWS, 2)), "line 1")
    raise error


@pytest.mark.parametrize("before", [False, True], ids=["a new store", "another store"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, ""), "no space left on the disk while writing; nothing was left behind"),
        (DataError("f", "bad", record="line 9"), "line 9"),
    ],
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, error: Exception, message: str, before: bool
) -> None:
    old = _write(tmp_path / "a.npy", _rows(2, 2)) if before else None
    with pytest.raises(UserError, match=message):
        stream_store(tmp_path / "a.npy", _failing_rows(error), origin="f", source="", encoder="")
    if old is not None:
        assert verify_store(tmp_path / "a.npy") == old
    else:
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("renames", [0, 1, 2])
@pytest.mark.parametrize("replaces", [False, True], ids=["a new store", "another store"])
def test_a_writer_killed_between_the_files_leaves_the_old_store_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, replaces: bool
) -> None:
    target, real = tmp_path / "a.npy", os.replace
    old = _write(target, _rows(2, 2)) if replaces else None
    left = iter(range(renames))

    def killed(source: Any, goal: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(source, goal)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        _write(target, _rows(3, 2))
    monkeypatch.setattr(os, "replace", real)
    if renames == 2:  # the values stand in their place, the record still waits
        assert len(verify_store(target).keys) == 3
    elif old is not None:
        assert verify_store(target) == old
    else:
        with pytest.raises(DataError, match="no such feature store"):
            verify_store(target)
    new = _write(target, _rows(4, 2))
    assert verify_store(target) == new
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.npy"]


ROWS = np.random.default_rng(0).normal(size=(3, VIEWS, 5)).astype(np.float32)


def _line(number: int, features: str | None = None) -> str:
    text = base64.b64encode(ROWS[number].tobytes()).decode() if features is None else features
    return f"scan\tview{number}\t640\t480\t60\t{text}\n"


def test_tsv_rows_come_in_file_order(tmp_path: Path) -> None:
    text = _line(2) + _line(0) + "\n" + _line(1)
    for name in ("f.tsv", "f.tsv.gz"):
        rows = list(read_feature_tsv(put(tmp_path / name, text)))
        places = [("scan_view2", "line 1"), ("scan_view0", "line 2"), ("scan_view1", "line 4")]
        assert [(row.key, row.place) for row in rows] == places
        np.testing.assert_array_equal(np.stack([row.values for row in rows]), ROWS[[2, 0, 1]])
    assert estimate_feature_tsv(tmp_path / "f.tsv") == 3
    assert estimate_feature_tsv(put(tmp_path / "f.tsv", "")) == 0
    wide = base64.b64encode(np.zeros((VIEWS, 2048), np.float32).tobytes()).decode()
    (row,) = read_feature_tsv(put(tmp_path / "f.tsv", _line(0, wide)), columns=7)
    assert row.values.shape == (VIEWS, 7), "fields may be longer than the limit of csv"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("scan\tview\n", r"line 2: holds 2 tab-separated fields, expected 6: scanId viewpointId"),
        ("\tview\t1\t1\t1\tAAAA\n", r"line 2, field 'scanId': is empty, expected an id"),
        ("scan\t\t1\t1\t1\tAAAA\n", r"line 2, field 'viewpointId': is empty, expected an id"),
        (_line(1, "AAA"), r"line 2, field 'features': not valid base64 .*: 'AAA'"),
        (_line(1, "*" * 30), r"not valid base64 .*: '\*{20}\.\.\.'"),
        (_line(1, "ü" * 8), r"line 2, field 'features': not valid base64"),
        (_line(1, "AAAA" * 50), r"holds 150 bytes, expected a multiple of 144: 36 views of float32 numbers"),
        (_line(1, ""), r"holds 0 bytes, expected a multiple of 144"),
    ],
)
def test_a_bad_tsv_line_is_named(bad: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_feature_tsv(put(tmp_path / "f.tsv", _line(0) + bad)))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_hdf5_data_sets_of_any_float_type_are_read(kind: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        for number in (2, 0, 1):
            file.create_dataset(f"scan_view{number}", data=ROWS[number].astype(kind), compression="gzip")
    rows = list(read_feature_hdf5(tmp_path / "f.hdf5", columns=3))
    assert [row.key for row in rows] == ["scan_view0", "scan_view1", "scan_view2"]
    np.testing.assert_array_equal(np.stack([row.values for row in rows]), ROWS.astype(kind)[..., :3])
    assert count_feature_hdf5(tmp_path / "f.hdf5") == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((VIEWS, 2), int), "holds int64 of shape (36, 2), expected floats of shape (36, D)"),
        (np.zeros(3), "holds float64 of shape (3,), expected floats of shape (36, D)"),
        (None, "holds a group, expected floats of shape (36, D)"),
        (h5py.SoftLink("/gone"), "is a link, expected a data set of this file"),
    ],
)
def test_a_bad_hdf5_data_set_is_named(content: Any, message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        if content is None:
            file.create_group("k")
        else:
            file["k"] = content
    assert refused(read_feature_hdf5, tmp_path / "f.hdf5") == f"data set 'k': {message}"


def test_a_broken_hdf5_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "f.hdf5"
    assert refused(read_feature_hdf5, place) == "no such file"
    with h5py.File(place, "w") as file:
        file.create_dataset("k", data=ROWS[0], chunks=(VIEWS, 5), compression="gzip")
        begin = file["k"].id.get_chunk_info(0).byte_offset
    content = place.read_bytes()
    broken = content[:begin] + b"\xff" * 40 + content[begin + 40 :]
    assert refused(read_feature_hdf5, put(place, broken)).startswith("data set 'k': cannot be unpacked (")
    for damaged in (b"not hdf5", content[: len(content) // 2]):
        message = refused(read_feature_hdf5, put(place, damaged))
        assert message.startswith("not a readable HDF5 file (")
        assert message.endswith("; is the file complete?")


def test_without_h5py_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"needs h5py, which is not installed; run: pip install 'scenemem\["):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))
