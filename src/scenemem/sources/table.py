"""The table of public sources: the files each task and track needs, with address, licence and checksum."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from scenemem.errors import UserError
from scenemem.formats.annotations import read_table
from scenemem.registry import suggestion

MIRROR = "SCENEMEM_MIRROR"
"""Environment variable: fetch from this address, which holds every file under its own host and path."""

TERMS = "http://dovahkiin.stanford.edu/matterport/public/MP_TOS.pdf"
"""The terms of use of Matterport3D."""

MATTERPORT = "Matterport3D terms of use (non-commercial, academic)"

FOLDER = "originals"
"""Folder of a data folder for files that are converted; may be deleted afterwards."""

Converter = Literal["rooms", "objects", "words"]


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch."""

    url: str
    target: str  # where it goes, below the data folder
    size: int | None = None  # bytes; None when not published
    sha256: str | None = None  # of the file; None when it is not known


@dataclass(frozen=True)
class Source:
    """Files of one origin, fetched together."""

    name: str
    what: str
    page: str  # its home, for people
    licence: str  # of the repository; the Matterport terms come on top where ``about_buildings``
    address: str  # of the folder that holds the files
    folder: str  # where they go, below the data folder
    makes: str  # the file that is there when the source is; {} stands for each fetched file
    about_buildings: bool = True
    archive: RemoteFile | None = None  # a snapshot of a repository, of which one folder is used
    converter: Converter | None = None
    instead: tuple[str, ...] = ()  # patterns of files that serve as well

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Everything to fetch; addresses follow ``SCENEMEM_MIRROR``."""
        listed = [
            RemoteFile(f"{self.address}/{row.file}", f"{self.folder}/{row.file}", row.bytes, row.sha256)
            for row in _rows()
            if row.source == self.name
        ]
        listed += [self.archive] if self.archive is not None else []
        mirror = os.environ.get(MIRROR)
        if not mirror:
            return tuple(listed)
        place = f"{mirror.rstrip('/')}/"
        return tuple(replace(file, url=place + file.url.partition("://")[2]) for file in listed)

    @property
    def results(self) -> tuple[str, ...]:
        """The files that are there when the source has been fetched and converted."""
        if "{}" in self.makes:
            return tuple(self.makes.format(Path(file.target).name) for file in self.files)
        return (self.makes,)


@dataclass(frozen=True)
class ByHand:
    """Files that no command may fetch: a licence has to be signed, or there is no plain address."""

    name: str
    what: str
    why: str
    steps: list[str]


@dataclass(frozen=True)
class Goal:
    """A use of data, and the sources that it takes."""

    name: str
    what: str
    sources: tuple[str, ...]
    next: tuple[str, ...] = ()  # commands that go on from there; DIR stands for the data folder
    by_hand: ByHand | None = None


BOXES_IN_ARCHIVE = "tasks/REVERIE/data/BBox/"
"""The folder of REVERIE's repository that holds the boxes."""

BOXES_DIGEST = "68582a52f252b55890b25ec3adad616a386c07a3cb9d857bc6ff5e25adc3cc22"
"""sha256 over the lines ``sha256  name`` of its files, by name; packing them anew does not change it."""

_TABLE: dict[str, dict[str, dict[str, Any]]] = msgspec.toml.decode(
    Path(__file__).with_name("sources.toml").read_bytes()
)
_BY_HAND = {name: ByHand(name, **fields) for name, fields in _TABLE["by_hand"].items()}

SOURCES = {name: msgspec.convert({"name": name, **row}, Source) for name, row in _TABLE["sources"].items()}
"""Every source by its name."""

GOALS = {
    name: Goal(**{"name": name, **row, "by_hand": _BY_HAND.pop(row.get("by_hand", ""), None)})
    for name, row in _TABLE["goals"].items()
}
"""The first words of ``scenemem data fetch``, by name."""

MORE = tuple(_BY_HAND.values())
"""Further originals that can be used and not fetched."""


def find_sources(names: tuple[str, ...]) -> list[Source]:
    """The sources behind names of goals or sources, each once, in the order of the table."""
    wanted: set[str] = set()
    for name in names:
        if name not in GOALS and name not in SOURCES:
            known = dict.fromkeys((*GOALS, *SOURCES))
            raise UserError(f"there is nothing called '{name}' to fetch; {suggestion(name, known)}")
        wanted |= set(GOALS[name].sources) if name in GOALS else {name}
    return [source for name, source in SOURCES.items() if name in wanted]


def missing_results(source: Source, root: Path) -> list[str]:
    """The results of a source that a data folder lacks, in any form that serves."""
    if any(next(root.glob(pattern), None) for pattern in source.instead):
        return []
    return [
        name for name in source.results if not any((root / form).exists() for form in (name, f"{name}.gz"))
    ]


class _Row(msgspec.Struct, frozen=True):
    source: str
    file: str
    bytes: int
    sha256: str


@cache
def _rows() -> tuple[_Row, ...]:
    return tuple(read_table(Path(__file__).with_name("files.tsv"), _Row))
