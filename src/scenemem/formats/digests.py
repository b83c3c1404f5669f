"""Checksums of files, remembered by size and time, so that comparing bytes at every opening costs nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import check_plain_file
from scenemem.formats.folder import cache_folder

_BLOCK = 1 << 20  # bytes read at a time
_SMALL = 4 << 20  # bytes; reading such a file is as fast as looking its checksum up
_SETTLED = 2.0  # seconds; a file changed more recently may change again within the same tick of its clock


class _Remembered(msgspec.Struct, frozen=True):
    """A checksum, and how the file looked when it was computed."""

    state: tuple[int, ...]  # size, times in nanoseconds, inode
    sha256: str


@cache
def code_digest() -> str:
    """The sha256 of this program: the names and texts of all its modules."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(b"%s\0%s\0" % (file.relative_to(root).as_posix().encode(), file.read_bytes()))
    return found.hexdigest()


def file_digest(file: StrPath, progress: Callable[[int, int], None] | None = None) -> str:
    """The sha256 of a file; computed again only when its size, times or inode have changed.

    ``progress`` is called with (bytes done, bytes in all) while it is computed.

    Raises:
        DataError: it cannot be read.
    """
    path = Path(file)
    try:
        check_plain_file(path)
        state = _state(path)
        if state[0] <= _SMALL:
            return _computed(path, progress)
        place = _place(path)
        known = _recall(place)
        if known is not None and known.state == state:
            return known.sha256
        found = _computed(path, progress)
        settled = time.time() - path.stat().st_ctime > _SETTLED
        if settled and _state(path) == state:
            with suppress(UserError):  # a cache that cannot be written only costs time
                _remember(place, _Remembered(state, found))
        return found
    except FileNotFoundError as error:
        raise DataError(path, "no such file") from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror or error})") from error


def _computed(path: Path, progress: Callable[[int, int], None] | None) -> str:
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, max(done, size))
    return digest.hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    seen = os.stat(path)
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def _place(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache_folder() / "digests" / f"{name}.json"


def _recall(place: Path) -> _Remembered | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=_Remembered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _remember(place: Path, known: _Remembered) -> None:
    with atomic_file(place) as partial:
        partial.write_bytes(msgspec.json.encode(known))
