"""Originals into the layout of a data folder: each is recognised by its name, or by what it holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    find_view_objects,
    read_labels,
    read_view_objects,
)
from scenemem.formats.captions import PUBLISHED, find_captions, read_captions
from scenemem.formats.decoding import ARCHIVES, read_members
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

_ENDINGS = {
    "boxes": ARCHIVES,
    "rooms": (".house", ".house.gz"),
    "word table": (".npy",),
    "words": (".txt", ".txt.gz", ".zip"),
    "labels": (".tsv",),
    "positions": (".json",),
}
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
    return [_MAKERS[kind](place, data) for kind in _MAKERS for found, place in recognised if found == kind]


def recognise(place: Path) -> str:
    """What an original is: a name in the table of what makes files."""
    if not place.exists():
        raise DataError(place, "no such file or folder")
    if place.is_dir() and next(place.rglob("*.house"), None):
        return "rooms"
    if place.is_dir() and next(place.glob("*_*.json"), None):
        return "boxes"
    for kind, endings in _ENDINGS.items():
        if place.is_file() and place.name.lower().endswith(endings):
            return "rooms" if kind == "positions" and _is_room_table(place) else kind
    raise UserError(f"{place}: is no original that can be converted; expected {KNOWN}")


def _is_room_table(place: Path) -> bool:
    with place.open("rb") as stream:
        start = stream.read(1 << 12)
    return b'"label_info"' in start or b'"pano_info"' in start


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


_MAKERS: dict[str, Callable[[Path, DataFolder], Converted]] = {
    "rooms": _rooms,
    "labels": _labels,
    "boxes": _boxes,
    "positions": _positions,
    "words": _words,
    "word table": _words,
}
"""What makes the files of each kind of original: labels name the boxes, boxes name the positions."""


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
    for label in read_labels(data.objects / "labels.tsv").values():
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
