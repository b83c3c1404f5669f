from __future__ import annotations

import base64
import builtins
import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.features import (
    VIEWS,
    count_feature_hdf5,
    estimate_feature_tsv,
    read_feature_hdf5,
    read_feature_tsv,
)

ROWS = np.random.default_rng(0).normal(size=(3, VIEWS, 5)).astype(np.float32)


def _line(number: int, features: str | None = None) -> str:
    text = base64.b64encode(ROWS[number].tobytes()).decode() if features is None else features
    return f"scan\tview{number}\t640\t480\t60\t{text}\n"


def test_tsv_rows_come_in_file_order(tmp_path: Path) -> None:
    text = _line(2) + _line(0) + "\n" + _line(1)
    (tmp_path / "f.tsv").write_text(text)
    (tmp_path / "f.tsv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("f.tsv", "f.tsv.gz"):
        rows = list(read_feature_tsv(tmp_path / name))
        assert [(row.key, row.place) for row in rows] == [
            ("scan_view2", "line 1"),
            ("scan_view0", "line 2"),
            ("scan_view1", "line 4"),
        ]
        np.testing.assert_array_equal(np.stack([row.values for row in rows]), ROWS[[2, 0, 1]])


def test_tsv_fields_may_be_longer_than_the_csv_limit(tmp_path: Path) -> None:
    wide = np.zeros((VIEWS, 2048), np.float32)
    (tmp_path / "f.tsv").write_text(_line(0, base64.b64encode(wide.tobytes()).decode()))
    assert next(read_feature_tsv(tmp_path / "f.tsv", columns=7)).values.shape == (VIEWS, 7)


def test_the_number_of_tsv_rows_is_estimated_from_the_size(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text(_line(0) + _line(1) + _line(2))
    assert estimate_feature_tsv(tmp_path / "f.tsv") == 3
    (tmp_path / "f.tsv").write_text("")
    assert estimate_feature_tsv(tmp_path / "f.tsv") == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("scan\tview\n", r"f\.tsv: line 2: holds 2 tab-separated fields, expected 6: scanId viewpointId"),
        ("\tview\t1\t1\t1\tAAAA\n", r"f\.tsv: line 2, field 'scanId': is empty, expected an id"),
        ("scan\t\t1\t1\t1\tAAAA\n", r"f\.tsv: line 2, field 'viewpointId': is empty, expected an id"),
        (_line(1, "AAA"), r"f\.tsv: line 2, field 'features': not valid base64 .*: 'AAA'"),
        (_line(1, "*" * 30), r"not valid base64 .*: '\*{20}\.\.\.'"),
        (_line(1, "ü" * 8), r"f\.tsv: line 2, field 'features': not valid base64"),
        (_line(1, "AAAA" * 50), r"holds 150 bytes, expected a multiple of 144: 36 views of float32 numbers"),
        (_line(1, ""), r"holds 0 bytes, expected a multiple of 144"),
    ],
)
def test_a_bad_tsv_line_is_named(bad: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text(_line(0) + bad, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        list(read_feature_tsv(tmp_path / "f.tsv"))


def test_a_missing_or_binary_tsv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f\.tsv: no such file"):
        list(read_feature_tsv(tmp_path / "f.tsv"))
    (tmp_path / "f.tsv").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"f\.tsv: line 1: not UTF-8 text"):
        list(read_feature_tsv(tmp_path / "f.tsv"))


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
        (
            np.zeros((VIEWS, 2), int),
            r"data set 'k': holds int64 of shape \(36, 2\), expected floats of",
        ),
        (np.zeros(3), r"data set 'k': holds float64 of shape \(3,\), expected floats"),
        (None, r"data set 'k': holds a group, expected floats"),
    ],
)
def test_a_bad_hdf5_data_set_is_named(content: Any, message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        if content is None:
            file.create_group("k")
        else:
            file["k"] = content
    with pytest.raises(DataError, match=message):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_a_broken_compressed_data_set_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file.create_dataset("k", data=ROWS[0], chunks=(VIEWS, 5), compression="gzip")
        place = file["k"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "f.hdf5").read_bytes())
    content[place : place + 40] = b"\xff" * 40
    (tmp_path / "f.hdf5").write_bytes(content)
    with pytest.raises(DataError, match=r"f\.hdf5: data set 'k': cannot be unpacked"):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


@pytest.mark.parametrize("link", [h5py.SoftLink("/gone"), h5py.ExternalLink("gone.hdf5", "/k")])
def test_a_link_to_nothing_is_named(link: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file["k"] = link
    with pytest.raises(DataError, match=r"f\.hdf5: data set 'k': cannot be opened \("):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_an_unreadable_hdf5_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f\.hdf5: no such file"):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))
    (tmp_path / "f.hdf5").write_text("not hdf5")
    with pytest.raises(DataError, match=r"f\.hdf5: not a readable HDF5 file .*; is the file complete\?"):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_a_truncated_hdf5_file_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file["k"] = ROWS[0]
    content = (tmp_path / "f.hdf5").read_bytes()
    (tmp_path / "f.hdf5").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"f\.hdf5: not a readable HDF5 file"):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_without_h5py_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_h5py(name: str, *rest: Any) -> Any:
        if name == "h5py":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_h5py)
    with pytest.raises(UserError, match=r"needs h5py, which is not installed; run: pip install 'scenemem\["):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))
