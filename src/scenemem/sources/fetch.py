"""Fetching sources into a data folder: what is there is kept, the rest is fetched and converted.

A download goes on where it stopped, is checked, and appears complete or not at all.
"""

from __future__ import annotations

import http.client
import os
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scenemem import __version__
from scenemem.errors import DataError, UserError
from scenemem.formats.decoding import file_digest
from scenemem.formats.folder import DataFolder
from scenemem.sources.convert import Converted, check_boxes, convert
from scenemem.sources.table import RemoteFile, Source, missing_results

Progress = Callable[[int, int], None]
"""Told (bytes there, bytes in all as far as they are known)."""


@dataclass(frozen=True)
class Plan:
    """What a fetch will do."""

    root: Path
    sources: tuple[Source, ...]
    fetch: tuple[RemoteFile, ...]
    there: tuple[str, ...]  # files that need not be fetched
    unlike: tuple[str, ...]  # files that are there and are not the published ones; they are kept

    @property
    def size(self) -> int:
        """Bytes to fetch, as far as they are known."""
        return sum(file.size or 0 for file in self.fetch)

    @property
    def unknown(self) -> int:
        """Files to fetch whose size is not known."""
        return sum(file.size is None for file in self.fetch)


def plan(root: Path, sources: Sequence[Source], *, replace: bool = False) -> Plan:
    """Look at a data folder, which need not be there yet, and list what has to be fetched.

    Files that are there but are not the published ones are fetched again with ``replace``.
    """
    states: dict[_State, list[RemoteFile]] = {"fetch": [], "there": [], "unlike": []}
    for source in sources:
        lacking = bool(missing_results(source, root))
        for file in source.files:
            states[_state(source, file, root, lacking, replace)].append(file)
    there, unlike = (tuple(file.target for file in states[name]) for name in ("there", "unlike"))
    return Plan(root, tuple(sources), tuple(states["fetch"]), there, unlike)


def fetch(
    plan: Plan, retries: RetryPolicy | None = None, progress: Progress | None = None
) -> list[Converted]:
    """Carry out a plan: fetch its files one after the other, then convert originals without a result.

    Raises:
        UserError: a server cannot be reached, a file is not the published one, or a place cannot be written.
            What has arrived until then is kept.
    """
    plan.root.mkdir(parents=True, exist_ok=True)
    arrived, total = 0, plan.size

    def told(further: int) -> None:
        nonlocal arrived, total
        arrived += further
        total = max(total, arrived)
        if progress is not None:
            progress(arrived, total)

    for file in plan.fetch:
        download(file, plan.root / file.target, retries, told)
    originals = []
    for source in plan.sources:
        fresh = any(file in plan.fetch for file in source.files)
        if source.converter is not None and (fresh or missing_results(source, plan.root)):
            originals.append(plan.root / source.files[0].target)
            if source.archive is not None:
                check_boxes(originals[-1])
    return convert(originals, DataFolder(plan.root))


def fetch_script(plan: Plan) -> Iterator[str]:
    """The commands that fetch the same files on another machine, and check them where that can be done."""
    known = [file for file in plan.fetch if file.sha256 is not None]
    for folder in sorted({str(Path(file.target).parent) for file in plan.fetch}):
        yield f"mkdir -p {shlex.quote(folder)}"
    for file in plan.fetch:
        yield f"curl -fL -C - -o {shlex.quote(file.target)} {shlex.quote(file.url)}"
    if known:
        yield "sha256sum -c - <<'END'"
        yield from (f"{file.sha256}  {file.target}" for file in known)
        yield "END"


_State = Literal["fetch", "there", "unlike"]


def _state(source: Source, file: RemoteFile, root: Path, lacking: bool, replace: bool) -> _State:
    target = root / file.target
    if source.converter is not None:  # an original, needed until its result is there
        needed = lacking or replace
        return "fetch" if needed and not (target.exists() and _published(file, target)) else "there"
    if target.exists():
        if _published(file, target):
            return "there"
        return "fetch" if replace else "unlike"
    packed = target.with_name(f"{target.name}.gz")
    return "fetch" if lacking and not packed.exists() else "there"


def _published(file: RemoteFile, target: Path) -> bool:
    """Whether a file that is there is the one to fetch, as far as size and checksum are known."""
    if file.size is not None and target.stat().st_size != file.size:
        return False
    return file.sha256 is None or file_digest(target) == file.sha256


_BLOCK = 1 << 16
_PAGE = (b"<!doctype html", b"<html")
_OFFLINE = "is there a network? 'scenemem data fetch NAME --instructions' prints how to fetch it elsewhere"
_BREAKS = (TimeoutError, ConnectionError, http.client.HTTPException)  # worth another attempt
_BUSY = (429, 500, 502, 503, 504)  # answers, the same
_TOO_FAR = 416  # more was there than the file has

Arrived = Callable[[int], None]
"""Called with the number of further bytes that have arrived; negative when some have to come again."""


class NoAnswerError(UserError):
    """The server could not be reached, or does not have the file."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a download waits and how often it tries."""

    seconds: float = 30.0
    """without a byte before a connection counts as broken"""
    attempts: int = 4
    """connections per file; each goes on where the one before broke"""
    pause: float = 1.0
    """seconds before the second attempt; twice as long before each further one"""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise UserError(f"`timeout` must be more than 0 seconds, got {self.seconds}")
        if self.attempts < 1:
            raise UserError(f"attempts must be 1 or more, got {self.attempts}")


def download(
    file: RemoteFile, target: Path, retries: RetryPolicy | None = None, progress: Arrived | None = None
) -> None:
    """Fetch a file; what has arrived before is kept beside it, hidden, and not fetched again.

    Raises:
        NoAnswerError: the server cannot be reached or has no such file.
        DataError: what arrived is not the file; nothing of it is kept.
        UserError: the connection broke too often, or the place cannot be written.
    """
    retries = retries or RetryPolicy()
    if not file.url.startswith(("https://", "http://")):
        raise UserError(f"{file.url}: only http and https addresses are fetched")
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(retries.attempts):
            if attempt:
                time.sleep(retries.pause * 2 ** (attempt - 1))
            if _received(file, part, retries.seconds, progress or (lambda _bytes: None)):
                break
        else:
            of = f" of {file.size:,}" if file.size is not None else ""
            raise UserError(
                f"{file.url}: the connection broke {retries.attempts} times, {_size(part):,}{of} bytes have "
                "arrived; the same command goes on from there"
            )
        if file.sha256 is not None and (seen := file_digest(part)) != file.sha256:
            raise _wrong(file, part, f"has sha256 {seen}, expected {file.sha256}")
        os.replace(part, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _received(file: RemoteFile, part: Path, seconds: float, progress: Arrived) -> bool:
    """One connection; whether the file is complete now."""
    have = _size(part)
    if have and have == file.size:
        return True
    try:
        with _opened(file.url, have, seconds) as answer:
            begins = _first_byte(answer)
            if begins != have:  # the server sends everything, or another piece than was requested
                progress(-have)
                part.unlink(missing_ok=True)
                if begins:
                    return False
            return _stored(file, part, answer, progress)
    except urllib.error.HTTPError as error:
        if error.code == _TOO_FAR:
            progress(-have)
            part.unlink(missing_ok=True)
        elif error.code not in _BUSY:
            reason = f"the server answers {error.code} {error.reason}"
            raise NoAnswerError(f"{file.url}: {reason}; {_OFFLINE}") from error
    except urllib.error.URLError as error:
        if not isinstance(error.reason, _BREAKS):
            raise NoAnswerError(f"{file.url}: cannot be reached ({error.reason}); {_OFFLINE}") from error
    except _BREAKS:
        pass
    return False


def _stored(file: RemoteFile, part: Path, answer: Any, progress: Arrived) -> bool:
    """Append what arrives to what is there, also when the connection breaks; whether that is all."""
    have, length = _size(part), answer.headers.get("Content-Length", "")
    whole = have + int(length) if length.isdigit() else None
    with part.open("ab") as stream:
        with suppress(*_BREAKS):
            while block := answer.read1(_BLOCK):
                stream.write(block)
                have += len(block)
                progress(len(block))
                if file.size is not None and have > file.size:
                    break
        stream.flush()
        os.fsync(stream.fileno())
    if file.size is None:
        return whole is None or have == whole
    if whole is not None and whole != file.size:
        raise _wrong(file, part, f"has {whole:,} bytes, expected {file.size:,}")
    if have > file.size:
        raise _wrong(file, part, f"has more than the expected {file.size:,} bytes")
    return have == file.size


def _opened(url: str, have: int, seconds: float) -> Any:
    headers = {"User-Agent": f"scenemem/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.urlopen(request, timeout=seconds)


def _first_byte(answer: Any) -> int:
    """Where the piece that the server sends begins."""
    if answer.status != 206:
        return 0
    begin = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(begin) if begin.isdigit() else -1


def _wrong(file: RemoteFile, part: Path, reason: str) -> DataError:
    """Something else than the file arrived; nothing of it is kept."""
    with part.open("rb") as stream:
        page = " (it is a web page)" if stream.read(64).lstrip().lower().startswith(_PAGE) else ""
    part.unlink()
    advice = "it was changed or damaged on the way; nothing of it was kept. Try again, or fetch it by hand"
    return DataError(file.url, f"{reason}{page}; {advice}")
