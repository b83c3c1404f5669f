"""Writing files and folders so that a reader only ever sees nothing or a complete one."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenemem.errors import UserError

_SUFFIX = ".partial"


@contextmanager
def atomic_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; sync it and rename it into place when the block succeeds.

    When the block fails nothing is left behind. When the process is killed a hidden ``.partial`` file
    stays; the next write to the same target removes it.

    Raises:
        UserError: the folder cannot be written or the disk is full.
    """
    target = Path(target)
    with _readable_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _fresh_partial(target)
        try:
            yield partial
            _sync(partial)
            os.replace(partial, target)
            _sync(target.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``target``; rename it into place when the block succeeds.

    An existing ``target`` is replaced. Every file inside is synced first.

    Raises:
        UserError: the parent folder cannot be written or the disk is full.
    """
    target = Path(target)
    with _readable_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _fresh_partial(target)
        partial.mkdir()
        try:
            yield partial
            for file in sorted(partial.rglob("*")):
                _sync(file)
            if target.exists():
                _remove(target)
            os.replace(partial, target)
            _sync(target.parent)
        finally:
            _remove(partial)


def _fresh_partial(target: Path) -> Path:
    """A temporary name of this process; leftovers of dead processes of this machine are removed."""
    host = socket.gethostname()
    for leftover in target.parent.glob(f".{target.name}.{host}-*{_SUFFIX}"):
        owner = leftover.name.removesuffix(_SUFFIX).rpartition("-")[2]
        if owner.isdigit() and (int(owner) == os.getpid() or not _alive(int(owner))):
            _remove(leftover)
    return target.with_name(f".{target.name}.{host}-{os.getpid()}{_SUFFIX}")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
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
def _readable_os_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{target}: no space left on the disk while writing; nothing was left behind; "
                "free some space or choose another place with --out"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(
                f"{target}: cannot be written ({error.strerror}); choose another place with --out"
            ) from error
        raise
