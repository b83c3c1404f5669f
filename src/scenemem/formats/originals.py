"""Annotations as their authors published them: rooms, labels, positions, boxes, word vectors."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError
from scenemem.formats.annotations import (
    Label,
    ObjectPosition,
    RoomCode,
    ViewpointObjects,
    ViewpointRoom,
    is_box_file,
    read_view_objects,
)
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import (
    check_growth,
    library_errors,
    lines_of,
    read_json,
    read_lines,
    read_members,
)

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

_NAME = 32  # hex digits of a panorama's name; portals have a P line, too, but a number there
_LETTER, _PLACE = 5, 3  # where the label of a region and the region of a panorama stand in their lines
_DECIMALS = 4  # of a position in metres
_DIGITS = set("0123456789abcdef")


def read_house(file: StrPath) -> list[ViewpointRoom]:
    """The room of every panorama of one ``<scan>.house`` file of Matterport3D.

    Regions are lines ``R number level 0 0 letter ...``, panoramas ``P name number region 0 ...``.

    Raises:
        DataError: a line is cut short, a letter is not known, or there is no panorama.
    """
    scan = Path(file).name.removesuffix(".gz").removesuffix(".house")
    letters: dict[int, str] = {}
    places: list[tuple[int, str, int]] = []
    for number, line in enumerate(read_lines(file), start=1):
        words = line.split()
        try:
            if words[:1] == ["R"]:
                letters[int(words[1])] = words[_LETTER]
            elif words[:1] == ["P"] and len(words[1]) == _NAME and set(words[1]) <= _DIGITS:
                places.append((number, words[1], int(words[_PLACE])))
        except (IndexError, ValueError) as error:
            reason = f"cannot be read ({line.strip()[:40]!r}), expected a line of a .house file"
            raise DataError(file, reason, record=f"line {number}") from error
    if not places:
        raise DataError(file, "holds no panorama, expected lines 'P name number region ...'")
    rooms = []
    for number, name, region in places:
        letter = letters.get(region) if region >= 0 else OUTSIDE
        if letter is None:
            reason = f"names the region {region}, which the file does not describe"
            raise DataError(file, reason, record=f"line {number}")
        rooms.append(_room(scan, name, letter, region, file, f"line {number}"))
    return rooms


class _Panorama(msgspec.Struct, frozen=True):
    region_index: int | str
    region_label: str


class _RoomTable(msgspec.Struct, frozen=True):
    pano_info: dict[str, dict[str, _Panorama]]


def read_room_table(file: StrPath) -> list[ViewpointRoom]:
    """The rooms of ``vp2room_label.json``: ``{"pano_info": {scan: {viewpoint: {"region_label", ...}}}}``.

    Raises:
        DataError: the file holds something else.
    """
    rooms = []
    for scan, panoramas in read_json(file, _RoomTable).pano_info.items():
        for viewpoint, panorama in panoramas.items():
            place = f"viewpoint '{viewpoint}'"
            try:
                region = int(panorama.region_index)
            except ValueError as error:
                reason = f"is '{panorama.region_index}', expected a number"
                raise DataError(file, reason, record=place, field="region_index") from error
            rooms.append(_room(scan, viewpoint, panorama.region_label, region, file, place))
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


def read_category_mapping(file: StrPath) -> list[Label]:
    """The labels of Matterport3D's ``category_mapping.tsv``, written as REVERIE's BBox files write them.

    Raises:
        DataError: a column is missing or a line is cut short.
    """
    lines = read_lines(file)
    header = next(lines, "").split("\t")
    needed = ("raw_category", "category", "mpcat40")
    missing = [name for name in needed if name not in header]
    if missing:
        raise DataError(file, f"has no column '{missing[0]}', expected {' '.join(needed)}", record="line 1")
    columns = [header.index(name) for name in needed]
    labels: dict[str, Label] = {}
    for number, line in enumerate(lines, start=2):
        values = line.split("\t")
        if len(values) <= max(columns):
            raise DataError(
                file, f"holds {len(values)} fields, expected {len(header)}", record=f"line {number}"
            )
        raw, category, coarse = (values[column] for column in columns)
        labels.setdefault(raw_label(raw), Label(raw_label(raw), " ".join(raw.split()), category, coarse))
    return list(labels.values())


def raw_label(text: str) -> str:
    """A label as BBox files write it: ``#`` where the annotators had a space."""
    return text.replace(" ", "#")


def read_object_positions(file: StrPath, records: Iterable[ViewpointObjects]) -> list[ObjectPosition]:
    """The centres of REVERIE's ``objpos.json`` for the objects that some viewpoint lists.

    Args:
        file: ``{scan: {object number: [x, y, z]}}``, metres.
        records: the boxed objects, which know their names and categories.

    Raises:
        DataError: the file holds something else.
    """
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

    Raises:
        DataError: a file is broken or there is none.
    """
    count = sum(1 for _ in read_view_objects(source))  # every file is read once, so that none is broken
    with (
        atomic_file(target) as partial,
        partial.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in sorted(_box_files(source)):
            member = tarfile.TarInfo(f"BBox/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return count


def _box_files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for file in source.glob("*.json"):
            yield file.name, file.read_bytes()
        return
    for name, content in read_members(source, is_box_file):
        yield PurePosixPath(name).name, content


def read_glove(
    file: StrPath, words: Collection[str] | None = None
) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
    """Words and vectors of a GloVe text file (``word number number ...``), plain, ``.gz`` or in a ``.zip``.

    Of an archive the file with the widest vectors is read.

    Args:
        file: for example ``glove.6B.300d.txt`` or ``glove.6B.zip``.
        words: keep only these; all of them when not given.

    Raises:
        DataError: a line is no word with as many numbers as the first line has, or no word is kept.
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


def read_glove_table(file: StrPath, vocabulary: StrPath) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
    """Vectors of an ``.npy`` table whose rows stand for the lines of a vocabulary file.

    Raises:
        DataError: the two do not fit, or the table cannot be read; pickled content is refused.
    """
    with library_errors(file, "not an .npy table of numbers"):
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)  # a declared size is not believed
        if not isinstance(vectors, np.memmap):  # a zip file under the name of an array
            raise ValueError("it is an archive")
    words = tuple(islice(read_lines(vocabulary), MOST_WORDS))
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(words):
        seen = f"{vectors.dtype} {vectors.shape} and {len(words)} words"
        raise DataError(file, f"{seen} do not fit, expected floats (words, columns)")
    return words, np.asarray(vectors).astype(np.float32)


def write_word_vectors(file: Path, words: Iterable[str], vectors: npt.NDArray[np.float32]) -> None:
    """Write ``glove_300d.npz``: ``words`` (N,) and ``vectors`` float16 (N, D)."""
    with atomic_file(file) as partial, partial.open("wb") as stream:
        np.savez_compressed(stream, words=np.array(list(words)), vectors=vectors.astype(np.float16))
