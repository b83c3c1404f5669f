"""Fetching sources into a data folder: what is there is kept, the rest is fetched and converted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scenemem.formats.digests import file_digest
from scenemem.formats.folder import DataFolder
from scenemem.sources.convert import Converted, check_boxes, convert
from scenemem.sources.download import RetryPolicy, download
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


@dataclass
class Fetched:
    """What a fetch did."""

    files: list[str] = field(default_factory=list)
    converted: list[Converted] = field(default_factory=list)


def plan(root: Path, sources: Sequence[Source], *, replace: bool = False) -> Plan:
    """Look at a data folder and say what has to be fetched; nothing is changed.

    Args:
        root: the data folder, which need not be there yet.
        sources: what is wanted.
        replace: fetch files again that are there but are not the published ones.
    """
    states: dict[_State, list[RemoteFile]] = {"fetch": [], "there": [], "unlike": []}
    for source in sources:
        lacking = bool(missing_results(source, root))
        for file in source.files:
            states[_state(source, file, root, lacking, replace)].append(file)
    there, unlike = (tuple(file.target for file in states[name]) for name in ("there", "unlike"))
    return Plan(root, tuple(sources), tuple(states["fetch"]), there, unlike)


def fetch(plan: Plan, retries: RetryPolicy | None = None, progress: Progress | None = None) -> Fetched:
    """Carry out a plan: fetch its files one after the other, then convert the originals.

    Raises:
        UserError: a server cannot be reached, a file is not the published one, or a place cannot be written.
            What has arrived until then is kept.
    """
    plan.root.mkdir(parents=True, exist_ok=True)
    done = Fetched()
    arrived, total = 0, plan.size

    def told(further: int) -> None:
        nonlocal arrived, total
        arrived += further
        total = max(total, arrived)
        if progress is not None:
            progress(arrived, total)

    for file in plan.fetch:
        download(file, plan.root / file.target, retries, told)
        done.files.append(file.target)
    done.converted = _convert(plan)
    return done


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


def _convert(plan: Plan) -> list[Converted]:
    """Convert the originals whose result is missing or older."""
    originals = []
    for source in plan.sources:
        fresh = any(file in plan.fetch for file in source.files)
        if source.converter is None or not (fresh or missing_results(source, plan.root)):
            continue
        place = plan.root / source.files[0].target
        if source.archive is not None:
            check_boxes(place)
        originals.append(place)
    return convert(originals, DataFolder(plan.root))
