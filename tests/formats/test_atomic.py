from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Barrier

import pytest
import torch

from scenemem.errors import UserError
from scenemem.formats.atomic import _machine, atomic_file, atomic_folder
from scenemem.formats.tensors import write_tensor_file

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

KILLED_REPLACER = """
import os, sys
from scenemem.formats.atomic import atomic_folder
rename, left = os.rename, int(sys.argv[2])
def counted(source, goal):
    global left
    if left == 0:
        os.kill(os.getpid(), 9)
    left -= 1
    rename(source, goal)
os.rename = counted
import shutil
shutil.rmtree = lambda path: os.kill(os.getpid(), 9)
with atomic_folder(sys.argv[1]) as partial:
    (partial / "new").write_text("new")
"""

CROWDED_WRITER = """
import resource, signal, sys
import torch
from scenemem.errors import UserError
from scenemem.formats.tensors import write_tensor_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_tensor_file(sys.argv[1], {"x": torch.zeros(1 << 16)}, {})
except UserError as error:
    print(error)
"""

Writer = Callable[[Path], AbstractContextManager[Path]]


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "data.txt"
    for text in ("one", "two"):
        with atomic_file(target) as partial:
            partial.write_text(text)
            assert not target.exists() or target.read_text() == "one"
        assert target.read_text() == text
    with pytest.raises(RuntimeError, match="halfway"), atomic_file(target) as partial:
        partial.write_text("half")
        raise RuntimeError("halfway")
    assert target.read_text() == "two"
    assert _files(target.parent) == ["data.txt"]


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


OURS, OTHERS = _machine(), f"{socket.gethostname()}-1"  # another container of the same name


@pytest.mark.parametrize(
    ("machine", "process", "old", "stays"),
    [
        (OURS, os.getppid(), True, True),  # alive
        (OURS, os.getpid(), False, False),  # in a container the first process always has the same number
        (OTHERS, os.getpid(), False, True),  # our own number belongs to another process there
        (OTHERS, os.getpid(), True, False),  # a week old
    ],
    ids=["alive", "our own number", "our number in another container", "a week old"],
)
def test_leftovers_are_cleared_when_their_writer_is_gone(
    tmp_path: Path, machine: str, process: int, old: bool, stays: bool
) -> None:
    other = tmp_path / f".data.{machine}-{process}-0123abcd.partial"
    other.write_text("half")
    if old:
        os.utime(other, (0, 0))
    with atomic_file(tmp_path / "data") as partial:
        partial.write_text("mine")
    assert _files(tmp_path) == [other.name] * stays + ["data"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_threads_that_write_the_same_target_do_not_mix(tmp_path: Path, kind: str) -> None:
    target, together = tmp_path / "data", Barrier(8)

    def write(number: int) -> None:
        with (atomic_file if kind == "file" else atomic_folder)(target) as partial:
            together.wait()
            if kind == "file":
                partial.write_text(f"{number} {number}")
            else:
                for part in ("a", "b"):
                    (partial / part).write_text(str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    parts = target.read_text().split() if kind == "file" else [file.read_text() for file in target.iterdir()]
    assert len(parts) == 2
    assert len(set(parts)) == 1, "all of one writer"
    assert _files(tmp_path) == ["data"]


def test_the_file_that_was_there_before_is_kept_when_asked_for(tmp_path: Path) -> None:
    target, previous = tmp_path / "data", tmp_path / "previous"
    for text in ("one", "two", "three"):
        with atomic_file(target, previous=previous) as partial:
            partial.write_text(text)
    assert (target.read_text(), previous.read_text()) == ("three", "two")
    assert _files(tmp_path) == ["data", "previous"]


def test_files_have_the_mode_the_user_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensor_file(tmp_path / "tensors", {"x": torch.zeros(1)}, {})
        with atomic_file(tmp_path / "text") as partial:
            partial.write_text("x")
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("tensors", "text")] == ["0o640"] * 2


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            "no space left on the disk while writing; nothing was left behind; free some space or choose "
            "another place",
        ),
        (errno.EROFS, "cannot be written (Read-only file system); choose another place"),
        (errno.EACCES, "cannot be written (Permission denied); choose another place"),
        (errno.EIO, "cannot be written ([Errno 5] Input/output error); choose another place"),
    ],
)
@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_a_full_or_closed_disk_is_one_clear_line(
    tmp_path: Path, number: int, message: str, writer: Writer
) -> None:
    with pytest.raises(UserError) as caught, writer(tmp_path / "data"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"{tmp_path / 'data'}: {message} with --out"
    assert _files(tmp_path) == []


IN_THE_WAY = "cannot be written, '{}' is a file, expected a folder; choose another place"


@pytest.mark.parametrize(
    ("place", "writers", "message"),
    [
        ("file/data", (atomic_file, atomic_folder), IN_THE_WAY),
        ("file/deep/data", (atomic_file, atomic_folder), IN_THE_WAY),
        (".", (atomic_file,), "is a folder, expected a file; choose another name"),
        (
            "n" * 300,
            (atomic_file, atomic_folder),
            "the name is too long for this file system; choose a shorter one",
        ),
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, place: str, writers: tuple[Writer, ...], message: str
) -> None:
    (tmp_path / "file").write_text("mine")
    for writer in writers:
        with pytest.raises(UserError) as caught, writer(tmp_path / place) as partial:
            partial.write_text("x")
        assert str(caught.value) == f"{tmp_path / place}: {message.format(tmp_path / 'file')} with --out"
    assert _files(tmp_path) == ["file"]


def test_a_tensor_file_that_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    finished = subprocess.run(
        [sys.executable, "-c", CROWDED_WRITER, str(target)], check=False, capture_output=True, text=True
    )
    expected = "cannot be written ([Errno 27] File too large); choose another place with --out"
    assert finished.stdout == f"{target}: {expected}\n"
    assert _files(tmp_path) == []


def test_an_existing_folder_can_be_kept(tmp_path: Path) -> None:
    target = tmp_path / "houses"
    with atomic_folder(target, keep_existing=True) as late:
        (late / "late").write_text("the same content, finished later")
        target.mkdir()
        (target / "early").write_text("another process was faster")
    assert _files(target) == ["early"]
    assert _files(tmp_path) == ["houses"]


def test_a_folder_that_appears_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "houses"
    rename = os.rename
    others = iter(["first", "second"])

    def interfering(source: Path, goal: Path) -> None:
        if goal == target and (other := next(others, None)):
            target.mkdir()
            (target / other).write_text("by another process")
        rename(source, goal)

    monkeypatch.setattr(os, "rename", interfering)
    with atomic_folder(target) as partial:
        (partial / "mine").write_text("mine")
    assert _files(target) == ["mine"]
    assert _files(tmp_path) == ["houses"]


@pytest.mark.parametrize(("renames", "survivor"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_writer_killed_while_replacing_loses_neither_folder(
    tmp_path: Path, renames: int, survivor: str
) -> None:
    target = tmp_path / "houses"
    target.mkdir()
    (target / "old").write_text("old")
    command = [sys.executable, "-c", KILLED_REPLACER, str(target), str(renames)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError), atomic_folder(target):
        raise RuntimeError("beginning to write is enough to clear up")
    assert _files(tmp_path) == ["houses"]
    assert _files(target) == [survivor]


def test_the_old_folder_stays_when_the_new_one_cannot_be_moved_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "houses"
    target.mkdir()
    (target / "old").write_text("old")
    rename = os.rename

    def refusing(source: Path, goal: Path) -> None:
        if source.name.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, goal)

    monkeypatch.setattr(os, "rename", refusing)
    with pytest.raises(UserError, match="Input/output error"), atomic_folder(target):
        pass
    assert _files(target) == ["old"]
    assert _files(tmp_path) == ["houses"]


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "houses").symlink_to(tmp_path / "precious")
    with atomic_folder(tmp_path / "houses") as partial:
        (partial / "new").write_text("new")
    assert not (tmp_path / "houses").is_symlink()
    assert _files(tmp_path) == ["houses", "precious"]
