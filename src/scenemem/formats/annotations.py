"""Public annotations: objects and rooms of the buildings, word vectors, word labels of instructions."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar, Union, cast

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath
from scenemem.formats.decoding import (
    ARCHIVES,
    check_growth,
    decode_json,
    fitted,
    library_errors,
    read_bytes,
    read_json,
    read_json_lines,
    read_lines,
    read_members,
)

WordIndex = Annotated[int, msgspec.Meta(ge=0)]
View = Annotated[int, msgspec.Meta(ge=0, le=35)]
Box = tuple[float, float, float, float]  # x, y, width, height; pixels of a 640x480 picture, origin top left


class ListedObject(msgspec.Struct, frozen=True):
    """An object near a viewpoint and the views it can be seen in (none when it is hidden)."""

    id: int  # number of the object within its scan
    name: str  # as the annotators wrote it, cleaned
    views: tuple[View, ...]
    boxes: tuple[Box, ...]  # one per view
    category: str = ""  # official corrected name; empty when not known
    mpcat40: str = ""  # coarse class; empty when not known

    def __post_init__(self) -> None:
        if len(self.views) != len(self.boxes):
            raise ValueError(f"object {self.id} has {len(self.views)} views but {len(self.boxes)} boxes")
        for number, box in enumerate(self.boxes):
            if not all(map(math.isfinite, box)) or box[2] < 0 or box[3] < 0:
                expected = "finite numbers, width and height 0 or more"
                raise ValueError(f"boxes[{number}] of object {self.id} is {box}, expected {expected}")


class ViewpointObjects(msgspec.Struct, frozen=True):
    """The annotated objects within about two metres of a viewpoint."""

    scan: str
    viewpoint: str
    objects: tuple[ListedObject, ...]


class Label(msgspec.Struct, frozen=True):
    """What one raw object label stands for (``labels.tsv``)."""

    raw: str  # the label in the BBox files, e.g. "kitchen#counter"
    name: str
    category: str
    mpcat40: str


class ObjectPosition(msgspec.Struct, frozen=True):
    """The centre of an object (``object_positions.tsv``)."""

    scan: str
    object_id: int
    x: float  # metres, z up
    y: float
    z: float
    name: str
    category: str
    mpcat40: str

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.x, self.y, self.z)):
            raise ValueError(f"object {self.object_id} lies at ({self.x}, {self.y}, {self.z}), not a place")


class ViewpointRoom(msgspec.Struct, frozen=True):
    """The room a viewpoint stands in (``viewpoint_rooms.tsv``)."""

    scan: str
    viewpoint: str
    room_code: str  # Matterport region letter
    room: str  # short name
    region_index: int = -1  # which room of the building; -1 when unknown


class RoomCode(msgspec.Struct, frozen=True):
    """A kind of room (``room_codes.tsv``)."""

    room_code: str
    room: str


class WordLabels(msgspec.Struct, frozen=True):
    """The words of one instruction that are about one viewpoint, counted from 0 in its tokens."""

    landmark: tuple[WordIndex, ...] | None = None  # what is seen there; None when nothing was labelled
    action: tuple[WordIndex, ...] | None = None  # what is done there


LandmarkLabels = dict[str, dict[str, WordLabels]]
"""instruction id -> viewpoint -> labels; viewpoints without a label are missing"""

_Viewpoint = Union[int, dict[str, WordLabels]]  # noqa: UP007 (evaluated at run time, also on Python 3.10)
_ROW_NUMBER = "id"  # a key beside the viewpoints of a path

Row = TypeVar("Row")


def find_view_objects(folder: StrPath) -> Path | None:
    """The boxed objects of an ``objects/`` folder: the compact file, else the BBox folder or archive."""
    names = ("view_objects.jsonl.gz", "view_objects.jsonl", "BBox", "BBox.tar.gz")
    return next((place for name in names if (place := Path(folder) / name).exists()), None)


def read_view_objects(
    source: StrPath, labels: Mapping[str, Label] | None = None
) -> Iterator[ViewpointObjects]:
    """Stream the boxed objects of every viewpoint from any of their three public forms.

    Args:
        source: ``view_objects.jsonl`` (plain or ``.gz``), a ``BBox`` folder or a ``BBox.tar.gz`` archive.
        labels: meaning of raw labels by name; BBox files hold raw labels only, so without it their objects
            have no category and no coarse class.

    Raises:
        DataError: the source is missing or holds something else; the record is named.
    """
    source = Path(source)
    if source.is_dir():
        files = sorted(source.glob("*.json"))
        if not files:
            raise DataError(source, "holds no <scan>_<viewpoint>.json file")
        for file in files:
            yield _decode_bbox(read_bytes(file), file.name, file, labels or {})
    elif source.name.endswith(ARCHIVES):
        yield from _read_bbox_archive(source, labels or {})
    else:
        for _, record in read_json_lines(source, ViewpointObjects):
            yield record


def read_labels(file: StrPath) -> dict[str, Label]:
    """The meaning of every raw object label, by that label; nothing when there is no such file."""
    return {label.raw: label for label in read_table(file, Label)} if Path(file).is_file() else {}


def read_table(file: StrPath, kind: type[Row]) -> Iterator[Row]:
    """Stream a tab-separated table with a header line (plain or ``.gz``) as records of ``kind``.

    Further columns are ignored; columns of fields with a default may be missing.

    Raises:
        DataError: a column is missing, a line has another number of fields than the header, or a field does
            not have the type of the record; line and field are named.
    """
    lines = read_lines(file)
    header = next(lines, "").split("\t")
    needed = [field.name for field in msgspec.structs.fields(cast(Any, kind)) if field.required]
    missing = [field for field in needed if field not in header]
    if missing:
        raise DataError(file, f"has no column '{missing[0]}', expected {' '.join(needed)}", record="line 1")
    for number, line in enumerate(lines, start=2):
        values, record = line.split("\t"), f"line {number}"
        if len(values) != len(header):
            raise DataError(file, f"holds {len(values)} fields, expected {len(header)}", record=record)
        yield fitted(dict(zip(header, values, strict=True)), kind, file, record, strict=False)


def read_word_vectors(file: StrPath) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
    """Words and their vectors from an ``.npz`` file with ``words`` (N,) and ``vectors`` (N, D).

    Raises:
        DataError: the file cannot be read or does not hold the two arrays; pickled content is refused.
    """
    what = "not an .npz file with the arrays 'words' and 'vectors'"
    with library_errors(file, what), zipfile.ZipFile(file) as content:
        words, vectors = (_array(content, file, f"{name}.npy") for name in ("words", "vectors"))
    if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors) or vectors.dtype.kind != "f":
        seen = f"words {words.shape} and vectors {vectors.dtype} {vectors.shape}"
        raise DataError(file, f"{seen} do not fit, expected (N,) and floats (N, D)")
    if not len(words):
        raise DataError(file, "holds no word, expected at least one")
    if not np.isfinite(vectors).all():
        raise DataError(file, "holds a number that is not finite", field="vectors")
    return tuple(str(word) for word in words), vectors.astype(np.float32)


def _array(content: zipfile.ZipFile, file: StrPath, name: str) -> npt.NDArray[Any]:
    check_growth(file, content.getinfo(name).file_size, name)
    with content.open(name) as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def landmark_label_file(root: Path, split: str) -> Path:
    """``lar2r/lar2r_<split>.json``, plain or ``.gz``, in a data folder.

    Raises:
        DataError: there is no such file.
    """
    plain = root / "lar2r" / f"lar2r_{split}.json"
    packed = plain.with_name(f"{plain.name}.gz")
    found = next((file for file in (plain, packed) if file.is_file()), None)
    if found is None:
        where = "the word labels of lar2r (github.com/cwhao98/DDL) belong there, see docs/grounding.md"
        raise DataError(packed, f"no such file; {where}")
    return found


def read_landmark_labels(file: StrPath) -> LandmarkLabels:
    """Read ``{path_id: {viewpoint: {instruction number: {"landmark": [...], "action": [...]}}}}``.

    Raises:
        DataError: the file cannot be read or holds something else.
    """
    labels: LandmarkLabels = {}
    for path_id, viewpoints in read_json(file, dict[str, dict[str, _Viewpoint]]).items():
        for viewpoint, instructions in viewpoints.items():
            if isinstance(instructions, int):
                if viewpoint == _ROW_NUMBER:
                    continue
                reason = f"viewpoint '{viewpoint}' holds a number, expected labels per instruction"
                raise DataError(file, reason, record=f"path {path_id}")
            for number, words in instructions.items():
                labels.setdefault(f"{path_id}_{number}", {})[viewpoint] = words
    return labels


def is_box_file(name: str) -> bool:
    """Whether a file of an archive is a BBox file; a snapshot of the repository holds others, too."""
    return name.endswith(".json") and PurePosixPath(name).parent.name.lower()[:4] in ("", "bbox")


class _RawObject(msgspec.Struct, frozen=True):
    name: str
    visible_pos: tuple[View, ...]
    bbox2d: tuple[Box, ...]


def _read_bbox_archive(source: Path, labels: Mapping[str, Label]) -> Iterator[ViewpointObjects]:
    name = None
    for name, content in read_members(source, is_box_file):
        yield _decode_bbox(content, PurePosixPath(name).name, source, labels, record=name)
    if name is None:
        raise DataError(source, "holds no <scan>_<viewpoint>.json file")


def _decode_bbox(
    content: bytes, name: str, file: Path, labels: Mapping[str, Label], record: str | None = None
) -> ViewpointObjects:
    """One BBox file: ``{"<viewpoint>": {"<object id>": {"name", "visible_pos", "bbox2d"}}}``."""
    decoded = decode_json(content, dict[str, dict[int, _RawObject]], file, record)
    viewpoint = next(iter(decoded), "")
    stem = name.removesuffix(".json")
    if len(decoded) != 1 or not stem.endswith(f"_{viewpoint}"):
        reason = f"holds {len(decoded)} viewpoints, expected the one of its name"
        raise DataError(file, reason, record=record or name)
    try:
        objects = tuple(_listed(number, entry, labels) for number, entry in decoded[viewpoint].items())
    except ValueError as error:
        raise DataError(file, str(error), record=record or name) from error
    return ViewpointObjects(stem.removesuffix(f"_{viewpoint}"), viewpoint, objects)


def _listed(number: int, entry: _RawObject, labels: Mapping[str, Label]) -> ListedObject:
    label = labels.get(entry.name) or Label(entry.name, entry.name.replace("#", " "), "", "")
    return ListedObject(number, label.name, entry.visible_pos, entry.bbox2d, label.category, label.mpcat40)
