from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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


WRITERS: dict[str, Writer] = {"file": atomic_file, "folder": atomic_folder}


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(partial: Path, kind: str, text: str) -> None:
    """Write a text: into the file, or into a file of the folder that is named after it."""
    (partial if kind == "file" else partial / text).write_text(text)


def content(target: Path) -> list[str]:
    """The texts of a file or of a folder."""
    return [file.read_text() for file in ([target] if target.is_file() else sorted(target.iterdir()))]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_write_appears_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "deep" / "er" / "data"
    for text in ("one", "two"):
        with WRITERS[kind](target) as partial:
            fill(partial, kind, text)
            assert not target.exists() or content(target) == ["one"]
        assert content(target) == [text]
    with pytest.raises(RuntimeError, match="halfway"), WRITERS[kind](target) as partial:
        fill(partial, kind, "half")
        raise RuntimeError("halfway")
    assert content(target) == ["two"]
    assert _files(target.parent) == ["data"]


@pytest.mark.parametrize("kind", WRITERS)
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


@pytest.mark.parametrize("kind", WRITERS)
def test_threads_that_write_the_same_target_do_not_mix(tmp_path: Path, kind: str) -> None:
    target, together = tmp_path / "data", Barrier(8)

    def write(number: int) -> None:
        with WRITERS[kind](target) as partial:
            together.wait()
            fill(partial, kind, f"{number} {number}")
            if kind == "folder":
                (partial / "more").write_text(f"{number} {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    parts = " ".join(content(target)).split()
    assert len(parts) == (2 if kind == "file" else 4)
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


FULL = "no space left on the disk while writing; nothing was left behind; free some space"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, f"{FULL} or choose another place"),
        (errno.EROFS, "cannot be written (Read-only file system); choose another place"),
        (errno.EACCES, "cannot be written (Permission denied); choose another place"),
        (errno.EIO, "cannot be written ([Errno 5] Input/output error); choose another place"),
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_or_closed_disk_is_one_clear_line(
    tmp_path: Path, number: int, message: str, kind: str
) -> None:
    with pytest.raises(UserError) as caught, WRITERS[kind](tmp_path / "data"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"{tmp_path / 'data'}: {message} with `out`"
    assert _files(tmp_path) == []


def test_a_tensor_file_that_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    command = [sys.executable, "-c", CROWDED_WRITER, str(target)]
    shown = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    expected = "cannot be written ([Errno 27] File too large); choose another place with `out`"
    assert shown == f"{target}: {expected}\n"
    assert _files(tmp_path) == []


IN_THE_WAY = "cannot be written, '{}' is a file, expected a folder; choose another place"
PLACES = {
    "file/data": IN_THE_WAY,
    "file/deep/data": IN_THE_WAY,
    ".": "is a folder, expected a file; choose another name",
    "n" * 300: "the name is too long for this file system; choose a shorter one",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    for kind in ("file",) if place == "." else WRITERS:
        with pytest.raises(UserError) as caught, WRITERS[kind](tmp_path / place) as partial:
            partial.write_text("x")
        message = PLACES[place].format(tmp_path / "file")
        assert str(caught.value) == f"{tmp_path / place}: {message} with `out`"
    assert _files(tmp_path) == ["file"]


# Folders that stand where another one is written


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[Path]:
    """A folder with the file 'old'; afterwards nothing else is beside it."""
    target = tmp_path / "houses"
    target.mkdir()
    (target / "old").write_text("old")
    yield target
    assert _files(tmp_path) == ["houses"]


def test_an_existing_folder_can_be_kept(houses: Path) -> None:
    with atomic_folder(houses, keep_existing=True) as late:
        (late / "late").write_text("the same content, finished later")
    assert _files(houses) == ["old"]


def test_a_folder_that_appears_meanwhile_is_replaced(houses: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, others = os.rename, iter(["first", "second"])

    def interfering(source: Path, goal: Path) -> None:
        if goal == houses and (other := next(others, None)):
            houses.mkdir()
            (houses / other).write_text("by another process")
        rename(source, goal)

    monkeypatch.setattr(os, "rename", interfering)
    with atomic_folder(houses) as partial:
        (partial / "mine").write_text("mine")
    assert _files(houses) == ["mine"]


@pytest.mark.parametrize(("renames", "survivor"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_writer_killed_while_replacing_loses_neither_folder(
    houses: Path, renames: int, survivor: str
) -> None:
    command = [sys.executable, "-c", KILLED_REPLACER, str(houses), str(renames)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError), atomic_folder(houses):
        raise RuntimeError("beginning to write is enough to clear up")
    assert _files(houses) == [survivor]


def test_the_old_folder_stays_when_the_new_one_cannot_be_moved_in(
    houses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def refusing(source: Path, goal: Path) -> None:
        if source.name.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, goal)

    monkeypatch.setattr(os, "rename", refusing)
    with pytest.raises(UserError, match="Input/output error"), atomic_folder(houses):
        pass
    assert _files(houses) == ["old"]


def test_a_link_is_replaced_and_what_it_points_to_stays(houses: Path) -> None:
    link = houses / "link"
    link.symlink_to(houses)
    with atomic_folder(link) as partial:
        (partial / "new").write_text("new")
    assert not link.is_symlink()
    assert _files(houses) == ["link", "old"]
