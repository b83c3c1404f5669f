from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scenemem.errors import DataError
from scenemem.formats import decoding
from scenemem.formats.decoding import file_digest


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large and old enough for its checksum to be remembered."""
    monkeypatch.setattr(decoding, "_SMALL", 0)
    monkeypatch.setattr(decoding, "_SETTLED", 0.0)
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_bytes(b"content")
    time.sleep(0.02)
    return tmp_path / "file"


def _readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were read to compute a checksum."""
    seen: list[Path] = []
    compute = decoding._computed

    def noted(path: Path, told: Callable[[int, int], None] | None) -> str:
        seen.append(path)
        return compute(path, told)

    monkeypatch.setattr(decoding, "_computed", noted)
    return seen


def test_the_bytes_are_read_once(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _readings(monkeypatch)
    for _ in range(3):
        assert file_digest(large) == hashlib.sha256(b"content").hexdigest()
    assert seen == [large]


def test_a_change_is_seen_even_when_size_and_time_are_kept(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_digest(large)
    before = large.stat()
    large.write_bytes(b"CONTENT")
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(large) == hashlib.sha256(b"CONTENT").hexdigest()


def test_a_file_that_was_changed_just_now_is_not_remembered(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_SETTLED", 60.0)
    seen = _readings(monkeypatch)
    file_digest(large)
    file_digest(large)
    assert seen == [large, large]


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"file": 3}', b"\xff", b'{"sha256": "0"}'])
def test_a_damaged_memory_is_ignored(large: Path, content: bytes) -> None:
    expected = file_digest(large)
    (remembered,) = (large.parent / "cache" / "digests").iterdir()
    remembered.write_bytes(content)
    assert file_digest(large) == expected


def test_a_cache_that_cannot_be_written_only_costs_time(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(large))  # a file, so nothing can be kept below it
    assert file_digest(large) == hashlib.sha256(b"content").hexdigest()


def test_progress_counts_bytes(large: Path) -> None:
    told: list[tuple[int, int]] = []
    file_digest(large, lambda done, total: told.append((done, total)))
    assert told == [(7, 7)]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: no such file"):
        file_digest(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read"):
        file_digest(tmp_path)
