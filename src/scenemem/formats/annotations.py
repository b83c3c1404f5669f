"""Public annotations: objects, rooms and captions of the buildings, word vectors, words of instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath
from scenemem.formats.decoding import (
    ARCHIVES,
    check_growth,
    decode_json,
    file_digest,
    fitted,
    library_errors,
    read_bytes,
    read_json,
    read_json_lines,
    read_lines,
    read_members,
)
from scenemem.formats.features import VIEWS

WordIndex = Annotated[int, msgspec.Meta(ge=0)]
View = Annotated[int, msgspec.Meta(ge=0, le=VIEWS - 1)]
Size = Annotated[float, msgspec.Meta(ge=0.0)]
Metres = Annotated[float, msgspec.Meta(gt=-1e6, lt=1e6)]  # also refuses NaN
Box = tuple[float, float, Size, Size]  # x, y, width, height; pixels of a 640x480 picture, origin top left


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
    x: Metres  # z is up
    y: Metres
    z: Metres
    name: str
    category: str
    mpcat40: str


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

_ROW_NUMBER = "id"  # a key beside the viewpoints of a path

Row = TypeVar("Row")


def find_view_objects(folder: StrPath) -> Path | None:
    """The boxed objects of an ``objects/`` folder: the compact file, else the BBox folder or archive."""
    names = ("view_objects.jsonl.gz", "view_objects.jsonl", "BBox", "BBox.tar.gz")
    return next((place for name in names if (place := Path(folder) / name).exists()), None)


def read_view_objects(
    source: StrPath, labels: Mapping[str, Label] | None = None
) -> Iterator[ViewpointObjects]:
    """Stream the boxed objects of every viewpoint from a file of lines, or a BBox folder or archive.

    BBox files hold raw labels only; without ``labels`` their objects have no category and no coarse class.
    """
    source = Path(source)
    if source.is_dir() or source.name.endswith(ARCHIVES):
        for name, content, file in box_files(source):
            yield _decode_bbox(content, file, name, labels or {})
    else:
        for _, record in read_json_lines(source, ViewpointObjects):
            yield record


def box_files(source: Path) -> Iterator[tuple[str, bytes, Path]]:
    """The BBox files in a folder or an archive, which may hold other files, too."""
    name = None
    for name, content, file in _json_files(source, lambda path: path.parent.name.lower()[:4] in ("", "bbox")):
        yield name, content, file
    if name is None:
        raise DataError(source, "holds no <scan>_<viewpoint>.json file")


def _json_files(source: Path, wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[str, bytes, Path]]:
    """Name and content of the JSON files in a folder or an archive, and the file that errors name."""
    if source.is_dir():
        for file in sorted(source.glob("*.json")):
            if wanted(PurePosixPath(file.name)):
                yield file.name, read_bytes(file), file
    else:
        members = read_members(source, lambda name: name.endswith(".json") and wanted(PurePosixPath(name)))
        yield from ((name, content, source) for name, content in members)


class _RawObject(msgspec.Struct, frozen=True):
    name: str
    visible_pos: tuple[View, ...]
    bbox2d: tuple[Box, ...]


def _decode_bbox(content: bytes, file: Path, record: str, labels: Mapping[str, Label]) -> ViewpointObjects:
    """One BBox file: ``{"<viewpoint>": {"<object id>": {"name", "visible_pos", "bbox2d"}}}``."""
    decoded = decode_json(content, dict[str, dict[int, _RawObject]], file, record)
    viewpoint, stem = next(iter(decoded), ""), PurePosixPath(record).stem
    if len(decoded) != 1 or not stem.endswith(f"_{viewpoint}"):
        reason = f"holds {len(decoded)} viewpoints, expected the one of its name"
        raise DataError(file, reason, record=record)
    objects = []
    for number, entry in decoded[viewpoint].items():
        label = labels.get(entry.name) or Label(entry.name, entry.name.replace("#", " "), "", "")
        try:
            objects.append(
                ListedObject(
                    number, label.name, entry.visible_pos, entry.bbox2d, label.category, label.mpcat40
                )
            )
        except ValueError as error:
            raise DataError(file, str(error), record=record) from error
    return ViewpointObjects(stem.removesuffix(f"_{viewpoint}"), viewpoint, tuple(objects))


def read_labels(file: StrPath) -> dict[str, Label]:
    """The meaning of every raw object label, by that label; nothing when there is no such file."""
    return {label.raw: label for label in read_table(file, Label)} if Path(file).is_file() else {}


def read_table(file: StrPath, kind: type[Row]) -> Iterator[Row]:
    """Stream a tab-separated table with a header line (plain or ``.gz``) as records of ``kind``.

    Further columns are ignored; columns of fields with a default may be missing.
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
    """Words and their vectors from an ``.npz`` file with ``words`` (N,) and ``vectors`` (N, D)."""
    what = "not an .npz file with the arrays 'words' and 'vectors'"
    with (
        library_errors(file, what),
        Path(file).open("rb") as stream,  # numpy leaves the file of a broken archive open
        np.load(stream, allow_pickle=False) as content,
    ):
        for name in ("words", "vectors"):
            check_growth(file, content.zip.getinfo(f"{name}.npy").file_size, name)
        # what is no array comes as bytes
        words, vectors = np.asarray(content["words"]), np.asarray(content["vectors"])
    if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors) or vectors.dtype.kind != "f":
        seen = f"words {words.shape} and vectors {vectors.dtype} {vectors.shape}"
        raise DataError(file, f"{seen} do not fit, expected (N,) and floats (N, D)")
    if not len(words):
        raise DataError(file, "holds no word, expected at least one")
    if not np.isfinite(vectors).all():
        raise DataError(file, "holds a number that is not finite", field="vectors")
    return tuple(str(word) for word in words), vectors.astype(np.float32)


def landmark_label_file(root: Path, split: str) -> Path:
    """``lar2r/lar2r_<split>.json``, plain or ``.gz``, in a data folder."""
    plain = root / "lar2r" / f"lar2r_{split}.json"
    packed = plain.with_name(f"{plain.name}.gz")
    found = next((file for file in (plain, packed) if file.is_file()), None)
    if found is None:
        where = "the word labels of lar2r (github.com/cwhao98/DDL) belong there, see docs/grounding.md"
        raise DataError(packed, f"no such file; {where}")
    return found


def read_landmark_labels(file: StrPath) -> LandmarkLabels:
    """Read ``{path_id: {viewpoint: {instruction number: {"landmark": [...], "action": [...]}}}}``."""
    labels: LandmarkLabels = {}
    for path_id, viewpoints in read_json(file, dict[str, dict[str, Any]]).items():
        viewpoints.pop(_ROW_NUMBER, None)
        kind = dict[str, dict[str, WordLabels]]
        for viewpoint, instructions in fitted(viewpoints, kind, file, f"path {path_id}").items():
            for number, words in instructions.items():
                labels.setdefault(f"{path_id}_{number}", {})[viewpoint] = words
    return labels


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
    """Stream the captions of every viewpoint, or of one building; one building is in memory at a time."""
    folder = PUBLISHED[files.captioner].folder
    decode = _decode_langnav if files.captioner == "langnav" else _decode_navgpt
    places: dict[tuple[str, str], str] = {}

    def wanted(path: PurePosixPath) -> bool:
        return path.parent.name in ("", folder) and scan in (None, path.stem)

    for name, content, file in _json_files(files.place, wanted):
        building = PurePosixPath(name).stem
        for viewpoint, value in decode_json(content, dict[str, Any], file, name).items():
            place = f"{name}, viewpoint '{viewpoint}'"
            if (building, viewpoint) in places:
                first = places[building, viewpoint]
                raise DataError(file, f"stands there twice, the first time in {first}", record=place)
            places[building, viewpoint] = name
            yield ViewpointCaptions(building, viewpoint, *decode(value, file, place), place)
        if scan is not None:
            return  # what follows need not be unpacked
    if scan is None and not places:
        raise DataError(files.place, f"holds no {folder}/<scan>.json file")


class _DenseCaption(msgspec.Struct, frozen=True):
    obj_class: str
    coordinates: str
    confidence: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]  # also refuses NaN
    caption: str

    def __post_init__(self) -> None:
        try:
            x0, y0, x1, y1 = self.box
        except ValueError:
            x0 = y0 = x1 = y1 = math.nan
        if not (-math.inf < x0 <= x1 < math.inf and -math.inf < y0 <= y1 < math.inf):
            expected = "four numbers 'x0 y0 x1 y1' with x0 <= x1 and y0 <= y1"
            raise ValueError(f"coordinates are '{self.coordinates}', expected {expected}")

    @property
    def box(self) -> tuple[float, ...]:
        return tuple(float(part) for part in self.coordinates.split())


class _LangNavView(msgspec.Struct, frozen=True):
    global_cap: str
    dense_cap: tuple[_DenseCaption, ...]


_Captions = tuple[tuple[str, ...], tuple[tuple[Detection, ...], ...]]
_LangNavViewpoint = msgspec.defstruct(
    "_LangNavViewpoint",
    [(f"view_{view}", _LangNavView, msgspec.field(name=str(view))) for view in range(VIEWS)],
    frozen=True,
    forbid_unknown_fields=True,
)
_ROWS_OF_TEXT = r"\A" + r"\n".join(f"{row}:.*" for row in NAVGPT_ROWS) + r"\Z"
_NavGPTViewpoint: Any = Annotated[
    tuple[Annotated[str, msgspec.Meta(pattern=_ROWS_OF_TEXT)], ...],
    msgspec.Meta(min_length=NAVGPT_HEADINGS, max_length=NAVGPT_HEADINGS),
]


def _decode_langnav(value: Any, file: Path, place: str) -> _Captions:
    """``{"0".."35": {"global_cap": str, "dense_cap": [{obj_class, coordinates, confidence, caption}]}}``"""
    views = msgspec.structs.astuple(fitted(value, _LangNavViewpoint, file, place, strict=False))
    detections = (
        tuple(
            Detection(entry.obj_class, cast(Any, entry.box), entry.confidence, entry.caption)
            for entry in view.dense_cap
        )
        for view in views
    )
    return tuple(view.global_cap for view in views), tuple(detections)


def _decode_navgpt(value: Any, file: Path, place: str) -> _Captions:
    """Eight texts, one per heading, of three lines each: ``down: ...``, ``middle: ...``, ``top: ...``."""
    texts = fitted(value, _NavGPTViewpoint, file, place)
    columns = [[line.partition(":")[2].strip() for line in text.split("\n")] for text in texts]
    return tuple(caption for row in zip(*columns, strict=True) for caption in row), ()
