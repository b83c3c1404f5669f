"""Originals into the layout of a data folder: each is recognised by its name, or by what it holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    ViewpointObjects,
    ViewpointRoom,
    find_view_objects,
    read_labels,
    read_view_objects,
)
from scenemem.formats.captions import PUBLISHED, find_captions, read_captions
from scenemem.formats.decoding import read_members
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.formats.originals import (
    ROOMS,
    pack_boxes,
    read_category_mapping,
    read_glove,
    read_glove_table,
    read_house,
    read_object_positions,
    read_room_table,
    write_rooms,
    write_table,
    write_word_vectors,
)
from scenemem.sources.table import BOXES_DIGEST, BOXES_IN_ARCHIVE

Kind = Literal["house files", "room table", "labels", "boxes", "positions", "glove text", "glove table"]

_ORDER: tuple[Kind, ...] = (
    "house files",
    "room table",
    "labels",
    "boxes",
    "positions",
    "glove text",
    "glove table",
)  # labels name the boxes, boxes name the positions
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_TOKEN = re.compile(r"\w+|[^\w\s]")

KNOWN = (
    "a folder of .house files, vp2room_label.json, category_mapping.tsv, a BBox folder or archive, "
    "objpos.json, a GloVe .txt or .zip file, or an .npy table beside its *_vocab.txt"
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
    """Make the files of the layout from originals, in the order in which they need each other.

    Raises:
        UserError: something is no original that is known.
        DataError: an original is broken.
    """
    recognised = [(recognise(place), place) for place in originals]
    done = []
    for kind in _ORDER:
        for found, place in recognised:
            if found == kind:
                done.append(_made(kind, place, data))
    return done


def recognise(place: Path) -> Kind:
    """What an original is."""
    name = place.name.lower()
    if not place.exists():
        raise DataError(place, "no such file or folder")
    if place.is_dir():
        if next(place.rglob("*.house"), None):
            return "house files"
        if next(place.glob("*_*.json"), None):
            return "boxes"
    elif name.endswith((".house", ".house.gz")):
        return "house files"
    elif name.endswith(_ARCHIVES):
        return "boxes"
    elif name.endswith(".npy"):
        return "glove table"
    elif name.endswith((".txt", ".txt.gz", ".zip")):
        return "glove text"
    elif name.endswith(".tsv"):
        return "labels"
    elif name.endswith(".json"):
        with place.open("rb") as stream:
            start = stream.read(1 << 12)
        return "room table" if b'"label_info"' in start or b'"pano_info"' in start else "positions"
    raise UserError(f"{place}: is no original that can be converted; expected {KNOWN}")


def _made(kind: Kind, place: Path, data: DataFolder) -> Converted:
    if kind in ("house files", "room table"):
        rooms = data.rooms / "viewpoint_rooms.tsv"
        read = _house_rooms(place) if kind == "house files" else read_room_table(place)
        return Converted(place, rooms, write_rooms(data.rooms, read), "viewpoints")
    if kind == "labels":
        file = data.objects / "labels.tsv"
        return Converted(place, file, write_table(file, read_category_mapping(place)), "labels")
    if kind == "boxes":
        file = data.objects / "BBox.tar.gz"
        return Converted(place, file, pack_boxes(place, file), "viewpoints")
    if kind == "positions":
        file = data.objects / "object_positions.tsv"
        boxes = find_view_objects(data.objects)
        if boxes is None:
            raise UserError(f"{place}: names no object; convert REVERIE's BBox files first, or with it")
        positions = read_object_positions(place, _read_boxes(boxes, data))
        return Converted(place, file, write_table(file, positions), "objects")
    if kind == "glove table":
        vocabulary = place.with_name(place.name.replace("_glove.npy", "_vocab.txt"))
        words, vectors = read_glove_table(place, vocabulary)
    else:
        words, vectors = read_glove(place, words_of(data))
    write_word_vectors(data.word_vectors, words, vectors)
    return Converted(place, data.word_vectors, len(words), "words")


def words_of(data: DataFolder) -> set[str]:
    """Every word of the instructions, captions, labels and rooms of a data folder, in lower case."""
    found: set[str] = set()
    for text in _texts(data):
        found.update(_TOKEN.findall(text.lower()))
    return found


def _texts(data: DataFolder) -> Iterator[str]:
    yield from ROOMS.values()
    for split in SPLITS:
        file = data.episodes("r2r", split)
        if file.is_file():
            for episode in read_episodes(file):
                yield from episode.instructions
    labels = data.objects / "labels.tsv"
    if labels.is_file():
        for label in read_labels(labels).values():
            yield from (label.name, label.category, label.mpcat40)
    boxes = find_view_objects(data.objects)
    if boxes is not None:
        for record in read_view_objects(boxes):
            for entry in record.objects:
                yield from (entry.name, entry.category, entry.mpcat40)
    for captioner in PUBLISHED:
        captions = find_captions(data.captions, captioner)
        if captions is not None:
            for viewpoint in read_captions(captions):
                yield from viewpoint.captions
                for view in viewpoint.detections:
                    yield from (detection.caption for detection in view)


def _house_rooms(place: Path) -> list[ViewpointRoom]:
    files = sorted(place.rglob("*.house")) if place.is_dir() else [place]
    return [room for file in files for room in read_house(file)]


def _read_boxes(place: Path, data: DataFolder) -> Iterator[ViewpointObjects]:
    labels = data.objects / "labels.tsv"
    return read_view_objects(place, read_labels(labels) if labels.is_file() else None)


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
