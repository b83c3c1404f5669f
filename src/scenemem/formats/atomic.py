"""Writing files and folders so that a reader only ever sees nothing or a complete one."""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scenemem.errors import UserError

_PARTIAL = ".partial"  # what is being written
_REPLACED = ".replaced"  # the folder that was there before
_ATTEMPTS = 10  # to rename a folder into place while others do the same
_ABANDONED = 7 * 24 * 3600.0  # seconds after which a partial file of an unknown machine is abandoned

_OWNED = re.compile(rf"(.*)-(\d+)-[0-9a-f]+({_PARTIAL}|{_REPLACED})")  # machine, process

StrPath = str | os.PathLike[str]

_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
_writing: set[str] = set()  # temporary names that threads of this process are using now


@contextmanager
def atomic_file(target: StrPath, *, previous: StrPath | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; sync it and rename it into place when the block succeeds.

    When the block fails nothing is left behind. When the process is killed a hidden ``.partial`` file
    stays; the next write to the same target removes it. What ``target`` was before is kept as ``previous``,
    in the same folder; at every moment one of the two is complete.

    Raises:
        UserError: the place cannot be written, the disk is full or anything else the system refuses.
    """
    target = Path(target)
    with _readable_errors(target):
        if target.is_dir():  # the last step would fail, after all the work
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _own_name(target, _PARTIAL) as partial:
            try:
                yield partial
                _sync(partial)
                if previous is not None and target.exists():
                    os.replace(target, previous)
                os.replace(partial, target)
                _sync(target.parent)
            finally:
                partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: StrPath, *, keep_existing: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``target``; rename it into place when the block succeeds.

    Every file inside is synced first. An existing ``target`` is renamed aside, and deleted when the new one
    stands in its place; a process killed between the two renames leaves it under a hidden name, and the next
    write to the same target puts it back. With ``keep_existing``, for folders whose name stands for their
    content, a ``target`` that is there by then stays and what was written is dropped.

    Raises:
        UserError: the place cannot be written, the disk is full or anything else the system refuses.
    """
    target = Path(target)
    with _readable_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _own_name(target, _PARTIAL) as partial:
            partial.mkdir()
            try:
                yield partial
                for entry in (*sorted(partial.rglob("*")), partial):
                    _sync(entry)
                _move_in(partial, target, keep_existing)
                _sync(target.parent)
            finally:
                _remove(partial)


def _move_in(partial: Path, target: Path, keep_existing: bool) -> None:
    """Rename ``partial`` to ``target``; a folder that stands there is kept, or deleted after that."""
    with _own_name(target, _REPLACED) as aside:
        for attempt in range(1, _ATTEMPTS + 1):
            if not keep_existing:
                with suppress(FileNotFoundError):
                    os.rename(target, aside)
            try:
                os.rename(partial, target)
            except OSError as error:
                if error.errno in _OCCUPIED and keep_existing:
                    return
                if error.errno in _OCCUPIED and attempt < _ATTEMPTS:
                    _remove(aside)  # another process was faster, and its folder is replaced now
                    continue
                _put_back(aside, target)
                raise
            _remove(aside)
            return


def _put_back(aside: Path, target: Path) -> None:
    """Undo a replacement that got no further than renaming the old folder; drop the old one otherwise."""
    if os.path.lexists(target):
        _remove(aside)
    elif os.path.lexists(aside):
        os.rename(aside, target)


@contextmanager
def _own_name(target: Path, ending: str) -> Iterator[Path]:
    """A temporary name that no other process, thread or container has; leftovers of dead ones are cleared."""
    _clear_leftovers(target)
    name = f".{target.name}.{_machine()}-{os.getpid()}-{secrets.token_hex(4)}{ending}"
    _writing.add(name)
    try:
        yield target.with_name(name)
    finally:
        _writing.discard(name)


def _clear_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*-*-*.*"):
        found = _OWNED.fullmatch(leftover.name.removeprefix(f".{target.name}."))
        if found is None or leftover.name in _writing or not _abandoned(leftover, found[1], int(found[2])):
            continue
        if leftover.suffix == _REPLACED:
            _put_back(leftover, target)
        else:
            _remove(leftover)


def _machine() -> str:
    """Where process numbers mean the same: the host, and on Linux the namespace; containers have one each."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}-{namespace}"


def _abandoned(leftover: Path, machine: str, process: int) -> bool:
    if machine != _machine():  # where the number of the process means nothing
        with suppress(OSError):  # cleared by another process
            age = time.time() - leftover.stat().st_mtime
            return leftover.suffix == _PARTIAL and leftover.is_file() and age > _ABANDONED
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, of another user
        return False
    return process == os.getpid()  # whose own names are known


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _readable_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{target}: {_worded(error, target)} with `out`") from error


def _worded(error: OSError, target: Path) -> str:
    """What went wrong and what to do, up to the name of the option."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        seen = "no space left on the disk while writing; nothing was left behind"
        return f"{seen}; free some space or choose another place"
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long for this file system; choose a shorter one"
    if error.errno == errno.EISDIR and target.is_dir():
        return "is a folder, expected a file; choose another name"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        blocking = next((parent for parent in target.parents if parent.is_file()), None)
        if blocking is not None:
            return f"cannot be written, '{blocking}' is a file, expected a folder; choose another place"
    reason = error.strerror if error.errno in _CLOSED else error
    return f"cannot be written ({reason}); choose another place"
