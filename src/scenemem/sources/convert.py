"""Originals as their authors publish them, and the files of a data folder that are made of them.

Each is recognised by its name, or by what it holds.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    PUBLISHED,
    Label,
    ObjectPosition,
    RoomCode,
    ViewpointObjects,
    ViewpointRoom,
    box_files,
    find_captions,
    find_view_objects,
    read_captions,
    read_labels,
    read_table,
    read_view_objects,
)
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.connectivity import read_graphs, write_scan
from scenemem.formats.decoding import (
    ARCHIVES,
    check_growth,
    fitted,
    library_errors,
    lines_of,
    read_json,
    read_lines,
    read_members,
)
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import mapped_array
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.sources.table import BOXES_DIGEST, BOXES_IN_ARCHIVE

Words = tuple[tuple[str, ...], npt.NDArray[np.float32]]
"""N words and their vectors (N, D)."""

_TOKEN = re.compile(r"\w+|[^\w\s]")

ROOMS = {
    "a": "bathroom",
    "b": "bedroom",
    "c": "closet",
    "d": "dining room",
    "e": "entryway",
    "f": "family room",
    "g": "garage",
    "h": "hallway",
    "i": "library",
    "j": "laundry room",
    "k": "kitchen",
    "l": "living room",
    "m": "meeting room",
    "n": "lounge",
    "o": "office",
    "p": "porch",
    "r": "rec room",
    "s": "stairs",
    "t": "toilet",
    "u": "utility room",
    "v": "tv room",
    "w": "gym",
    "x": "outdoor",
    "y": "balcony",
    "z": "other room",
    "B": "bar",
    "C": "classroom",
    "D": "dining booth",
    "S": "spa",
    "Z": "junk",
    "-": "no label",
}
"""Region letter of Matterport3D -> short name of the kind of room."""

OUTSIDE = "z"
"""The letter of a panorama that lies in no region, as the public table of room labels has it."""

MOST_WORDS = 3_000_000
"""Of a table of vectors; the largest public one has 2.2 million."""

_NAME = re.compile("[0-9a-f]{32}")  # of a panorama; portals have a P line, too, but a number there
_LETTER, _PLACE = 5, 3  # where the label of a region and the region of a panorama stand in their lines
_DECIMALS = 4  # of a position in metres


KNOWN = (
    "a folder of .house files, vp2room_label.json, category_mapping.tsv, a BBox folder or archive, "
    "objpos.json, a GloVe .txt or .zip file, an .npy table beside its *_vocab.txt, or plain navigation graphs"
)
"""What can be converted."""


@dataclass(frozen=True)
class Converted:
    """A file that was made of an original."""

    original: Path
    file: Path
    records: int
    what: str  # of the records: viewpoints, labels, objects, words


def convert(originals: Sequence[Path], data: DataFolder) -> list[Converted]:
    """Make the files of the layout from originals, in the order in which they need each other."""
    recognised = [(recognise(place), place) for place in originals]
    order = list(_MAKERS)
    recognised.sort(key=lambda found: order.index(found[0]))
    return [_MAKERS[kind][1](place, data) for kind, place in recognised]


def recognise(place: Path) -> str:
    """What an original is: a name in the table of what makes files."""
    if not place.exists():
        raise DataError(place, "no such file or folder")
    if place.is_dir() and next(place.rglob("*.house"), None):
        return "rooms"
    if place.is_dir() and next(place.glob("*_*.json"), None):
        return "boxes"
    if place.is_file():
        with place.open("rb") as stream:
            start = stream.read(1 << 12)
        for kind, (endings, _) in _MAKERS.items():
            if place.name.lower().endswith(endings):
                if kind != "positions":
                    return kind
                rooms, graphs = (re.search(key, start) for key in (b'"(label|pano)_info"', b'"viewpoints"'))
                return "rooms" if rooms else "graphs" if graphs else kind
    raise UserError(f"{place}: is no original that can be converted; expected {KNOWN}")


def _graphs(place: Path, data: DataFolder) -> Converted:
    scans = read_graphs(place)
    for scan in scans:
        write_scan(data.connectivity, scan)
    places = [one for scan in scans for one in scan.viewpoints]
    alone = sum(not any(one.unobstructed) for one in places)  # allowed, but perhaps an edge was forgotten
    what = f"viewpoints ({alone} without an edge)" if alone else "viewpoints"
    return Converted(place, data.connectivity, len(places), what)


def _rooms(place: Path, data: DataFolder) -> Converted:
    if place.suffix == ".json":
        rooms = read_room_table(place)
    else:
        files = sorted(place.rglob("*.house")) if place.is_dir() else [place]
        rooms = [room for file in files for room in read_house(file)]
    return Converted(place, data.rooms / "viewpoint_rooms.tsv", write_rooms(data.rooms, rooms), "viewpoints")


def _labels(place: Path, data: DataFolder) -> Converted:
    file = data.objects / "labels.tsv"
    return Converted(place, file, write_table(file, read_category_mapping(place)), "labels")


def _boxes(place: Path, data: DataFolder) -> Converted:
    file = data.objects / "BBox.tar.gz"
    return Converted(place, file, pack_boxes(place, file), "viewpoints")


def _positions(place: Path, data: DataFolder) -> Converted:
    file, boxes = data.objects / "object_positions.tsv", find_view_objects(data.objects)
    if boxes is None:
        raise UserError(f"{place}: names no object; convert REVERIE's BBox files first, or with it")
    records = read_view_objects(boxes, read_labels(data.objects / "labels.tsv"))
    return Converted(place, file, write_table(file, read_object_positions(place, records)), "objects")


def _words(place: Path, data: DataFolder) -> Converted:
    if place.suffix == ".npy":
        vocabulary = place.with_name(place.name.replace("_glove.npy", "_vocab.txt"))
        words, vectors = read_glove_table(place, vocabulary)
    else:
        words, vectors = read_glove(place, words_of(data))
    write_word_vectors(data.word_vectors, words, vectors)
    return Converted(place, data.word_vectors, len(words), "words")


_MAKERS: dict[str, tuple[tuple[str, ...], Callable[[Path, DataFolder], Converted]]] = {
    "graphs": ((".jsonl",), _graphs),
    "rooms": ((".house", ".house.gz"), _rooms),
    "labels": ((".tsv",), _labels),
    "boxes": (ARCHIVES, _boxes),
    "positions": ((".json",), _positions),
    "words": ((".txt", ".txt.gz", ".zip", ".npy"), _words),
}
"""Endings of each kind of original, and what makes its files; labels name boxes, boxes name positions."""


def words_of(data: DataFolder) -> set[str]:
    """Every word of the instructions, captions, labels and rooms of a data folder, in lower case."""
    found: set[str] = set()
    for text in _texts(data):
        found.update(_TOKEN.findall(text.lower()))
    return found


def _texts(data: DataFolder) -> Iterator[str]:
    yield from ROOMS.values()
    for file in (data.episodes("r2r", split) for split in SPLITS):
        for episode in read_episodes(file) if file.is_file() else ():
            yield from episode.instructions
    for label in read_labels(data.objects / "labels.tsv").values():
        yield from (label.name, label.category, label.mpcat40)
    boxes = find_view_objects(data.objects)
    for record in read_view_objects(boxes) if boxes is not None else ():
        for entry in record.objects:
            yield from (entry.name, entry.category, entry.mpcat40)
    for captions in (find_captions(data.captions, captioner) for captioner in PUBLISHED):
        for viewpoint in read_captions(captions) if captions is not None else ():
            yield from viewpoint.captions
            yield from (found.caption for view in viewpoint.detections for found in view)


def check_boxes(archive: Path) -> None:
    """Refuse a snapshot of REVERIE's repository whose boxes are not the published ones.

    The digest is that of the files in it, because such archives are packed anew for every visitor.
    """
    # the first folder is the name of the snapshot
    boxes = read_members(archive, lambda name: name.partition("/")[2].startswith(BOXES_IN_ARCHIVE))
    lines = sorted((PurePosixPath(name).name, hashlib.sha256(content).hexdigest()) for name, content in boxes)
    seen = hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in lines).encode()).hexdigest()
    if seen != BOXES_DIGEST:
        reason = f"its {len(lines):,} files in {BOXES_IN_ARCHIVE} have the digest {seen}"
        raise DataError(archive, f"{reason}, expected {BOXES_DIGEST}; delete it and fetch it again")


def read_house(file: StrPath) -> list[ViewpointRoom]:
    """The room of every panorama of one ``<scan>.house`` file of Matterport3D.

    Regions are lines ``R number level 0 0 letter ...``, panoramas ``P name number region 0 ...``.
    """
    scan = Path(file).name.removesuffix(".gz").removesuffix(".house")
    letters, rooms = {-1: OUTSIDE}, []
    for number, line in enumerate(read_lines(file), start=1):
        words, place = line.split(), f"line {number}"
        try:
            if words[:1] == ["R"]:
                letters[int(words[1])] = words[_LETTER]
            elif words[:1] == ["P"] and _NAME.fullmatch(words[1]):
                region = max(int(words[_PLACE]), -1)
                rooms.append(_room(scan, words[1], letters[region], region, file, place))
        except KeyError as error:
            reason = f"names the region {error}, which the file does not describe"
            raise DataError(file, reason, record=place) from error
        except (IndexError, ValueError) as error:
            reason = f"cannot be read ({line.strip()[:40]!r}), expected a line of a .house file"
            raise DataError(file, reason, record=place) from error
    if not rooms:
        raise DataError(file, "holds no panorama, expected lines 'P name number region ...'")
    return rooms


class _Panorama(msgspec.Struct, frozen=True):
    region_index: int
    region_label: str


class _RoomTable(msgspec.Struct, frozen=True):
    pano_info: dict[str, dict[str, Any]]


def read_room_table(file: StrPath) -> list[ViewpointRoom]:
    """The rooms of ``vp2room_label.json``: ``{"pano_info": {scan: {viewpoint: {"region_label", ...}}}}``."""
    rooms = []
    for scan, panoramas in read_json(file, _RoomTable).pano_info.items():
        for viewpoint, value in panoramas.items():
            place = f"viewpoint '{viewpoint}'"
            found = fitted(value, _Panorama, file, place, strict=False)
            rooms.append(_room(scan, viewpoint, found.region_label, found.region_index, file, place))
    if not rooms:
        raise DataError(file, "holds no viewpoint", field="pano_info")
    return rooms


def _room(scan: str, viewpoint: str, letter: str, region: int, file: StrPath, place: str) -> ViewpointRoom:
    if letter not in ROOMS:
        reason = f"'{letter}' is no kind of room, expected one of {' '.join(ROOMS)}"
        raise DataError(file, reason, record=place)
    return ViewpointRoom(scan, viewpoint, letter, ROOMS[letter], region)


def write_rooms(folder: Path, rooms: Iterable[ViewpointRoom]) -> int:
    """Write ``viewpoint_rooms.tsv`` and ``room_codes.tsv``; returns the number of viewpoints."""
    ordered = sorted(rooms, key=lambda room: (room.scan, room.viewpoint))
    write_table(folder / "room_codes.tsv", [RoomCode(code, name) for code, name in ROOMS.items()])
    return write_table(folder / "viewpoint_rooms.tsv", ordered)


def write_table(file: Path, rows: Iterable[msgspec.Struct]) -> int:
    """Write records as a tab-separated table with a header line; returns their number."""
    count = 0
    with atomic_file(file) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        for count, row in enumerate(rows, start=1):
            values = msgspec.structs.asdict(row)
            if count == 1:
                stream.write("\t".join(values) + "\n")
            stream.write("\t".join(map(str, values.values())) + "\n")
    return count


class _Category(msgspec.Struct, frozen=True):
    raw_category: str
    category: str
    mpcat40: str


def read_category_mapping(file: StrPath) -> list[Label]:
    """The labels of Matterport3D's ``category_mapping.tsv``, written as REVERIE's BBox files write them."""
    labels: dict[str, Label] = {}
    for row in read_table(file, _Category):
        raw = row.raw_category.replace(" ", "#")  # BBox files have it where the annotators had a space
        labels.setdefault(raw, Label(raw, " ".join(row.raw_category.split()), row.category, row.mpcat40))
    return list(labels.values())


def read_object_positions(file: StrPath, records: Iterable[ViewpointObjects]) -> list[ObjectPosition]:
    """The centres of boxed objects in REVERIE's ``objpos.json``, ``{scan: {number: [x, y, z]}}``, metres."""
    table = read_json(file, dict[str, dict[int, tuple[float, float, float]]])
    named = {(one.scan, entry.id): entry for one in records for entry in one.objects}
    positions = []
    for (scan, number), entry in sorted(named.items()):
        place = table.get(scan, {}).get(number)
        if place is not None:
            category = entry.category or entry.name
            x, y, z = (round(metres, _DECIMALS) for metres in place)
            positions.append(ObjectPosition(scan, number, x, y, z, entry.name, category, entry.mpcat40))
    if not positions:
        raise DataError(file, "holds no object that a BBox file lists; do the two belong together?")
    return positions


def pack_boxes(source: Path, target: Path) -> int:
    """Pack REVERIE's BBox files, from their folder or from a snapshot of the repository, as ``BBox.tar.gz``.

    The same files give the same bytes; returns their number.
    """
    count = sum(1 for _ in read_view_objects(source))  # every file is read once, so that none is broken
    with (
        atomic_file(target) as partial,
        partial.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in sorted((PurePosixPath(name).name, file) for name, file, _ in box_files(source)):
            member = tarfile.TarInfo(f"BBox/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return count


def read_glove(file: StrPath, words: Collection[str] | None = None) -> Words:
    """Words (all, or the given ones) and vectors of a GloVe text file, plain, ``.gz`` or in a ``.zip``.

    Of an archive the file with the widest vectors is read.
    """
    kept: list[str] = []
    rows: list[npt.NDArray[np.float32]] = []
    width = 0
    for number, line in enumerate(_glove_lines(Path(file)), start=1):
        width = width or len(line.split(" ")) - 1
        word, *values = line.rsplit(" ", width)
        try:
            row = np.array(values, dtype=np.float32)
        except ValueError:
            row = np.zeros(0, dtype=np.float32)
        if width < 1 or len(row) != width or not np.isfinite(row).all():
            expected = f"a word and {width} numbers" if width > 0 else "a word and its numbers"
            reason = f"holds {line[:40]!r}, expected {expected}; is the file complete?"
            raise DataError(file, reason, record=f"line {number}")
        if words is None or word in words:
            kept.append(word)
            rows.append(row)
    if not kept:
        raise DataError(file, "holds none of the words that are needed")
    return tuple(kept), np.stack(rows)


def _glove_lines(file: Path) -> Iterator[str]:
    if file.suffix != ".zip":
        yield from read_lines(file)
        return
    with library_errors(file, "not a readable archive"), zipfile.ZipFile(file) as archive:
        texts = [name for name in archive.namelist() if name.endswith(".txt")]
        if not texts:
            raise DataError(file, "holds no .txt file, expected GloVe's")
        widest = max(texts, key=lambda name: archive.getinfo(name).file_size)
        check_growth(file, archive.getinfo(widest).file_size, widest)
        # a buffered reader respects the limit of a line
        with io.BufferedReader(cast(io.RawIOBase, archive.open(widest))) as stream:
            yield from lines_of(stream, file)


def read_glove_table(file: StrPath, vocabulary: StrPath) -> Words:
    """Vectors of an ``.npy`` table whose rows stand for the lines of a vocabulary file."""
    vectors = mapped_array(file)
    words = tuple(islice(read_lines(vocabulary), MOST_WORDS))
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(words):
        seen = f"{vectors.dtype} {vectors.shape} and {len(words)} words"
        raise DataError(file, f"{seen} do not fit, expected floats (words, columns)")
    return words, np.asarray(vectors).astype(np.float32)


def write_word_vectors(file: Path, words: Iterable[str], vectors: npt.NDArray[np.float32]) -> None:
    """Write ``glove_300d.npz``: ``words`` (N,) and ``vectors`` float16 (N, D)."""
    with atomic_file(file) as partial, partial.open("wb") as stream:
        np.savez_compressed(stream, words=np.array(list(words)), vectors=vectors.astype(np.float16))
