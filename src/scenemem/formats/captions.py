"""Published captions of the views: LangNav (BLIP captions, DETR detections) and NavGPT (BLIP-2 captions)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath
from scenemem.formats.decoding import ARCHIVES, decode_json, file_digest, fitted, read_bytes, read_members
from scenemem.formats.features import VIEWS

Captioner = Literal["langnav", "navgpt"]

PICTURE = (640.0, 480.0)  # pixels the boxes refer to
NAVGPT_HEADINGS = 8  # slot i is centred on i x 45 degrees, clockwise
NAVGPT_ROWS = ("down", "middle", "top")  # elevations -30, 0 and 30 degrees


class Detection(msgspec.Struct, frozen=True):
    """A detected object: its class, where it is in the view and the caption of the cut-out."""

    kind: str  # COCO class, e.g. "potted plant"
    box: tuple[float, float, float, float]  # x0, y0, x1, y1; pixels of a 640x480 picture, origin top left
    confidence: float  # in [0, 1]
    caption: str

    @property
    def share(self) -> float:
        """Of the picture the box covers, in [0, 1]."""
        x0, y0, x1, y1 = self.box
        return min((x1 - x0) * (y1 - y0) / (PICTURE[0] * PICTURE[1]), 1.0)


class ViewpointCaptions(NamedTuple):
    """The captions of one viewpoint."""

    scan: str
    viewpoint: str
    captions: tuple[str, ...]  # LangNav: per view 0..35; NavGPT: 8 headings x 3 rows, 8 * row + heading
    detections: tuple[tuple[Detection, ...], ...]  # per view 0..35; empty for NavGPT
    place: str  # where it stands in the source, for errors


@dataclass(frozen=True)
class CaptionFiles:
    """The files of one captioner: an archive as published, or the unpacked folder."""

    captioner: Captioner
    place: Path  # the .tar.gz file, or the folder with the <scan>.json files

    @property
    def origin(self) -> str:
        """The name of the files, and whether they are the published ones as far as a checksum shows."""
        if self.place.is_dir():
            return f"captions/{self.place.name} (unpacked copy)"
        seen = file_digest(self.place)
        kind = "published" if seen == PUBLISHED[self.captioner].sha256 else "unknown copy"
        return f"captions/{self.place.name} ({kind}, sha256 {seen})"


@dataclass(frozen=True)
class Publication:
    """How the files of a captioner were published."""

    folder: str  # that holds the <scan>.json files, in the archive and unpacked
    archives: str  # pattern of the archive's name
    sha256: str  # of the published archive


PUBLISHED: dict[Captioner, Publication] = {
    "langnav": Publication(
        "r2r_blip_DETR_vis2text",
        "langnav*",
        "f7a80b6823578918c58d3f08e8a2ca669b96e30c0fe0e9d5274704584d4eeaf3",
    ),
    "navgpt": Publication(
        "observations_list",
        "navgpt*",
        "2edd95837bf2509076919d23d1c4906379fab906d94789186c6f33838473b91c",
    ),
}
"""captioner -> its publication"""


def find_captions(folder: StrPath, captioner: Captioner) -> CaptionFiles | None:
    """The files of a captioner in a ``captions/`` folder: the archive, else the unpacked folder."""
    published = PUBLISHED[captioner]
    root = Path(folder)
    archives = (file for file in sorted(root.glob(published.archives)) if file.name.endswith(ARCHIVES))
    unpacked = (place for place in sorted(root.rglob(published.folder)) if place.is_dir())
    place = next(iter((*archives, *unpacked)), None)
    return None if place is None else CaptionFiles(captioner, place)


def read_captions(files: CaptionFiles, scan: str | None = None) -> Iterator[ViewpointCaptions]:
    """Stream the captions of every viewpoint; one building is in memory at a time.

    Args:
        files: of one captioner.
        scan: the only building to read, which may be missing; the files of the others are passed over.

    Raises:
        DataError: the archive is broken or holds links or paths that leave it; a file is not UTF-8 or not
            JSON; a viewpoint stands there twice, lacks a view or holds something else than captions and
            detections. The file, the viewpoint and the view are named.
    """
    decode = _decode_langnav if files.captioner == "langnav" else _decode_navgpt
    places: dict[tuple[str, str], str] = {}
    for building, content, file, record in _buildings(files, scan):
        viewpoints = decode_json(content, dict[str, Any], file, record)
        for viewpoint, value in viewpoints.items():
            place = ", ".join(part for part in (record, f"viewpoint '{viewpoint}'") if part)
            if (building, viewpoint) in places:
                first = places[building, viewpoint]
                raise DataError(file, f"stands there twice, the first time in {first}", record=place)
            places[building, viewpoint] = record or file.name
            yield decode(building, viewpoint, value, file, place)
    if scan is None and not places:
        raise DataError(files.place, f"holds no {PUBLISHED[files.captioner].folder}/<scan>.json file")


def _buildings(files: CaptionFiles, scan: str | None) -> Iterator[tuple[str, bytes, Path, str | None]]:
    """Scan, content, file and (in an archive) member of every building file, or of that of one scan."""
    if files.place.is_dir():
        for file in sorted(files.place.glob("*.json")):
            if scan in (None, file.stem):
                yield file.stem, read_bytes(file), file, None
        return
    folder = PUBLISHED[files.captioner].folder

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        return path.parent.name == folder and path.suffix == ".json" and scan in (None, path.stem)

    for name, content in read_members(files.place, wanted):
        yield PurePosixPath(name).stem, content, files.place, name
        if scan is not None:
            return  # what follows need not be unpacked


class _DenseCaption(msgspec.Struct, frozen=True):
    obj_class: str
    coordinates: str
    confidence: float
    caption: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:  # also refuses NaN
            raise ValueError(f"confidence is {self.confidence}, expected a number from 0 to 1")

    @property
    def box(self) -> tuple[float, float, float, float]:
        expected = "four numbers 'x0 y0 x1 y1' with x0 <= x1 and y0 <= y1"
        try:
            x0, y0, x1, y1 = (float(part) for part in self.coordinates.split())
        except ValueError as error:
            raise ValueError(f"coordinates are '{self.coordinates}', expected {expected}") from error
        if not all(map(math.isfinite, (x0, y0, x1, y1))) or x1 < x0 or y1 < y0:
            raise ValueError(f"coordinates are '{self.coordinates}', expected {expected}")
        return x0, y0, x1, y1


class _LangNavView(msgspec.Struct, frozen=True):
    global_cap: str
    dense_cap: tuple[_DenseCaption, ...]


def _decode_langnav(scan: str, viewpoint: str, value: Any, file: Path, place: str) -> ViewpointCaptions:
    """``{"0".."35": {"global_cap": str, "dense_cap": [{obj_class, coordinates, confidence, caption}]}}``"""
    names = [str(view) for view in range(VIEWS)]
    _check_names(value, names, "view", file, place)
    captions, detections = [], []
    for name in names:
        here = f"{place}, view {name}"
        try:
            view = fitted(value[name], _LangNavView, file, here, strict=False)
            found = tuple(
                Detection(entry.obj_class, entry.box, entry.confidence, entry.caption)
                for entry in view.dense_cap
            )
        except ValueError as error:
            raise DataError(file, str(error), record=here) from error
        captions.append(view.global_cap)
        detections.append(found)
    return ViewpointCaptions(scan, viewpoint, tuple(captions), tuple(detections), place)


def _decode_navgpt(scan: str, viewpoint: str, value: Any, file: Path, place: str) -> ViewpointCaptions:
    """Eight texts, one per heading, of three lines each: ``down: ...``, ``middle: ...``, ``top: ...``."""
    if not isinstance(value, list) or len(value) != NAVGPT_HEADINGS:
        seen = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        raise DataError(file, f"holds {seen}, expected {NAVGPT_HEADINGS} headings", record=place)
    rows: list[list[str]] = [[] for _ in NAVGPT_ROWS]
    for heading, text in enumerate(value):
        lines = str(text).split("\n")
        labels = tuple(line.partition(":")[0] for line in lines)
        if labels != NAVGPT_ROWS:
            expected = "three lines 'down: ...', 'middle: ...', 'top: ...'"
            raise DataError(file, f"is {text!r}, expected {expected}", record=f"{place}, heading {heading}")
        for row, line in zip(rows, lines, strict=True):
            row.append(line.partition(":")[2].strip())
    return ViewpointCaptions(scan, viewpoint, tuple(caption for row in rows for caption in row), (), place)


def _check_names(value: Any, expected: Iterable[str], what: str, file: Path, place: str) -> None:
    if not isinstance(value, dict):
        raise DataError(file, f"holds {type(value).__name__}, expected an object per {what}", record=place)
    known = set(expected)
    if missing := [name for name in expected if name not in value]:
        reason = f"lacks {what} {missing[0]} ({len(value)} of {len(known)} {what}s are there)"
        raise DataError(file, f"{reason}; download the file again", record=place)
    if foreign := [name for name in value if name not in known]:
        raise DataError(file, f"holds the {what} '{foreign[0]}', expected {what}s 0 to 35", record=place)
