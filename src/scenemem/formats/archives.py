"""Packed files of strangers: how much they may unpack to, and the members of tar archives.

Nothing is ever unpacked to disk. What a file may unpack to is bounded by its own size, so that a small file
cannot fill the memory.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from scenemem.errors import DataError

RATIO = 100
"""A packed file may unpack to this many times its size; text packs to a tenth or a twentieth."""

AT_LEAST = 64 << 20
"""Bytes that any packed file may unpack to, however small it is."""

LARGEST = 4 << 30
"""Bytes of a file that is read as a whole."""

LARGEST_MEMBER = 256 << 20
"""Bytes of one file in an archive."""

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError)


def check_plain_file(path: Path) -> int:
    """The size of a file; pipes and devices, which have no end, are refused.

    Raises:
        DataError: it is neither a file nor a folder.
        OSError: there is no such file.
    """
    seen = path.stat()
    if not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
        raise DataError(path, "is a device or a pipe, expected a plain file")
    return seen.st_size


def open_packed(path: Path) -> BinaryIO:
    """The content of a file, unpacked when gzipped; reading more than it may hold is a ``DataError``."""
    size = check_plain_file(path)
    stream = path.open("rb")
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    if not packed:
        return stream
    limit = max(RATIO * size, AT_LEAST)
    return cast(BinaryIO, _Bounded(path, cast(BinaryIO, gzip.GzipFile(fileobj=stream)), stream, limit))


def read_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every ``.json`` file in a tar archive, plain or gzipped, in their order.

    Raises:
        DataError: the archive is missing or broken, unpacks to too much, or holds anything but plain files
            and folders with relative names.
    """
    try:
        with open_packed(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                path = _safe_path(member, archive)
                if not member.isfile() or path.suffix != ".json":
                    continue
                if member.size > LARGEST_MEMBER:
                    reason = f"is {member.size >> 20} MB large, expected at most {LARGEST_MEMBER >> 20}"
                    raise DataError(archive, reason, record=member.name)
                content = members.extractfile(member)
                assert content is not None, "a plain file has content"
                yield member.name, content.read()
    except FileNotFoundError as error:
        raise DataError(archive, "no such file") from error
    except _BROKEN as error:
        reason = f"not a readable archive ({error}); is the file complete? Download it again"
        raise DataError(archive, reason) from error


def _safe_path(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    """The path of a member. Nothing is unpacked, but an archive with such members is not the real one."""
    path = PurePosixPath(member.name)
    advice = "expected plain files and folders; download the archive again"
    if path.is_absolute() or ".." in path.parts:
        raise DataError(archive, f"leads out of the archive; {advice}", record=member.name)
    if not (member.isfile() or member.isdir()):
        kind = f"is a link to '{member.linkname}'" if member.linkname else "is no plain file"
        raise DataError(archive, f"{kind}; {advice}", record=member.name)
    return path


class _Bounded(io.BufferedIOBase):
    """A stream that refuses to give more than a number of bytes."""

    def __init__(self, path: Path, unpacked: BinaryIO, packed: BinaryIO, limit: int) -> None:
        self._path, self._unpacked, self._packed = path, unpacked, packed
        self._limit = limit
        self._given = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to ``size`` bytes, or all of them."""
        left = self._limit - self._given
        wanted = left + 1 if size is None or size < 0 else min(size, left + 1)
        return self._counted(self._unpacked.read(wanted))

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line, or its first ``size`` bytes."""
        left = self._limit - self._given
        wanted = left + 1 if size is None or size < 0 else min(size, left + 1)
        return self._counted(self._unpacked.readline(wanted))

    def close(self) -> None:
        """Close the file, too."""
        self._unpacked.close()
        self._packed.close()
        super().close()

    def _counted(self, block: bytes) -> bytes:
        self._given += len(block)
        if self._given > self._limit:
            seen = f"unpacks to more than {self._limit >> 20} MB, {RATIO} times its size"
            raise DataError(self._path, f"{seen}; no data file does that, so it is not read further")
        return block
