from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file, atomic_folder

KILLED_WRITER = """
import os, sys
from pathlib import Path
from scenemem.formats.atomic import atomic_file, atomic_folder
writer = {"file": atomic_file, "folder": atomic_folder}[sys.argv[2]]
with writer(sys.argv[1]) as partial:
    inside = partial if sys.argv[2] == "file" else partial / "part"
    inside.write_text("half")
    os.kill(os.getpid(), 9)
"""


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_write_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "data.txt"
    for text in ("one", "two"):
        with atomic_file(target) as partial:
            partial.write_text(text)
            assert not target.exists() or target.read_text() == "one"
        assert target.read_text() == text
    assert _files(target.parent) == ["data.txt"]


def test_a_failed_write_leaves_nothing_and_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "data.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"), atomic_file(target) as partial:
        partial.write_text("half")
        raise RuntimeError("halfway")
    assert target.read_text() == "old"
    assert _files(tmp_path) == ["data.txt"]


def test_folders_are_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "houses"
    for name in ("a", "b"):
        with atomic_folder(target) as partial:
            (partial / name).write_text(name)
    assert _files(target) == ["b"]
    with pytest.raises(RuntimeError), atomic_folder(target) as partial:
        (partial / "c").write_text("c")
        raise RuntimeError
    assert _files(target) == ["b"]
    assert _files(tmp_path) == ["houses"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_writer_leaves_no_target_and_its_leftovers_are_cleared(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "data"
    finished = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(target), kind], check=False)
    assert finished.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(_files(tmp_path)) == 1, "the hidden partial is still there"
    with atomic_file(target) as partial:
        partial.write_text("whole")
    assert _files(tmp_path) == ["data"]


def test_partials_of_living_processes_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".data.{socket.gethostname()}-{os.getppid()}.partial"
    other.write_text("somebody is writing")
    with atomic_file(tmp_path / "data") as partial:
        partial.write_text("mine")
    assert other.exists()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left on the disk while writing; nothing was left behind"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot be written"),
    ],
)
@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_a_full_or_closed_disk_is_one_clear_line(
    tmp_path: Path, number: int, message: str, writer: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    with pytest.raises(UserError, match=message) as caught, writer(tmp_path / "data"):
        raise OSError(number, os.strerror(number))
    assert "--out" in str(caught.value)
    assert _files(tmp_path) == []


def test_other_system_errors_are_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"), atomic_file(tmp_path / "data"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
