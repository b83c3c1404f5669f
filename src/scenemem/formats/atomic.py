"""Writing files and folders so that a reader only ever sees nothing or a complete one."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from scenemem.errors import UserError

_PARTIAL = ".partial"  # what is being written
_REPLACED = ".replaced"  # the folder that was there before, for the moment between two renames
_ATTEMPTS = 10  # to rename a folder into place while others do the same

StrPath = str | os.PathLike[str]

_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def atomic_file(target: StrPath) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; sync it and rename it into place when the block succeeds.

    When the block fails nothing is left behind. When the process is killed a hidden ``.partial`` file
    stays; the next write to the same target removes it.

    Raises:
        UserError: the place cannot be written, the disk is full or anything else the system refuses.
    """
    target = Path(target)
    with _readable_errors(target):
        if target.is_dir():  # the last step would fail, after all the work
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
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
def atomic_folder(target: StrPath, *, keep_existing: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``target``; rename it into place when the block succeeds.

    Every file inside is synced first. An existing ``target`` is renamed aside, and deleted only when the new
    one stands in its place. A process killed between the two renames leaves the old folder under a hidden
    name; the next write to the same target puts it back first.

    Args:
        target: the folder to write.
        keep_existing: leave a ``target`` that is there by then as it is and drop what was written, for
            folders whose name stands for their content.

    Raises:
        UserError: the place cannot be written, the disk is full or anything else the system refuses.
    """
    target = Path(target)
    with _readable_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _fresh_partial(target)
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
    aside = _own_name(target, _REPLACED)
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


def _fresh_partial(target: Path) -> Path:
    """A temporary name of this process; leftovers of dead processes of this machine are cleared."""
    start = f".{target.name}.{socket.gethostname()}-"
    for ending in (_PARTIAL, _REPLACED):
        for leftover in target.parent.glob(f"{glob.escape(start)}*{ending}"):
            owner = leftover.name.removeprefix(start).removesuffix(ending)
            if not owner.isdigit() or (int(owner) != os.getpid() and _alive(int(owner))):
                continue
            if ending == _REPLACED:
                _put_back(leftover, target)
            else:
                _remove(leftover)
    return _own_name(target, _PARTIAL)


def _own_name(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{socket.gethostname()}-{os.getpid()}{ending}")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and somebody else's
        pass
    return True


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
        raise UserError(f"{target}: {_worded(error, target)} with --out") from error
    except SafetensorError as error:  # the library wraps what the system says
        raise UserError(
            f"{target}: writing failed ({error}); the disk may be full; nothing was left behind; "
            "free some space or choose another place with --out"
        ) from error


def _worded(error: OSError, target: Path) -> str:
    """What went wrong and what to do, up to the name of the option."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "no space left on the disk while writing; nothing was left behind; "
            "free some space or choose another place"
        )
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
