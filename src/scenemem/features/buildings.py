"""Annotated buildings as arrays: objects, rooms and connections, and where things lie in the 36 views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    ListedObject,
    ObjectPosition,
    RoomCode,
    ViewpointObjects,
    ViewpointRoom,
    find_view_objects,
    read_labels,
    read_table,
    read_view_objects,
)
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan
from scenemem.formats.folder import DataFolder
from scenemem.world.graph import HEADINGS, ROWS, STEP

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PICTURE = 640 * 480  # pixels the boxes refer to
UNKNOWN = -1  # the room of a viewpoint without a room label
FADING = 4.0  # metres after which a thing counts 1/e
_GRID = 4096.0  # steps per unit


@dataclass(frozen=True, order=True)
class ObjectLabel:
    """A kind of object, as fine as the annotations tell."""

    category: str
    coarse: str  # mpcat40 class; empty when not known


@dataclass(frozen=True, eq=False)
class Building:
    """One scan: n included viewpoints, O objects, B boxes of objects in views."""

    keys: tuple[str, ...]  # n names "<scan>_<viewpoint>", in file order
    position: FloatArray  # (n, 3) metres, of the camera
    visible: BoolArray  # (n, n), row sees column: flagged so, or one can walk straight there
    way: BoolArray  # (n, n), one can walk from row to column
    room: IntArray  # (n,) index into the room codes, -1 when not known
    region: IntArray  # (n,) which room of the building it is, -1 when not known
    listed: BoolArray  # (n, O), the object is annotated at the viewpoint, seen from there or not
    object_label: IntArray  # (O,) index into the labels
    object_position: FloatArray  # (O, 3) metres, NaN where not known
    box_viewpoint: IntArray  # (B,) row of the viewpoint
    box_view: IntArray  # (B,) 0..35
    box_object: IntArray  # (B,) column of the object
    box_share: FloatArray  # (B,) of the picture the box covers, in [0, 1]

    @property
    def boxed(self) -> BoolArray:
        """(n, O), some view of the viewpoint has a box of the object."""
        boxed = np.zeros_like(self.listed)
        boxed[self.box_viewpoint, self.box_object] = True
        return boxed


@dataclass(frozen=True, eq=False)
class Annotations:
    """All buildings of a data folder and the vocabularies their indices refer to."""

    buildings: tuple[Building, ...]
    labels: tuple[ObjectLabel, ...]
    rooms: tuple[RoomCode, ...]  # empty when the folder has no room labels
    source: str  # where the objects come from, and what was missing


def load_annotations(data: DataFolder) -> Annotations:
    """Read all annotations of the buildings of a data folder.

    Raises:
        UserError: there are no object annotations.
        DataError: a file is broken or names a viewpoint that the connectivity files do not know.
    """
    scans = [read_scan(file) for file in connectivity_files(data.connectivity)]
    boxes, records = _objects_by_scan(data, scans)
    positions = _positions(data)
    listed = ((scan, entry) for scan, of_scan in records.items() for one in of_scan for entry in one.objects)
    labels = sorted({_label(entry, positions.get((scan, entry.id))) for scan, entry in listed})
    rooms, room_of = _rooms(data)
    numbers = {label: number for number, label in enumerate(labels)}
    buildings = tuple(
        _building(scan, records.get(scan.name, ()), positions, numbers, room_of) for scan in scans
    )
    far = "objects/object_positions.tsv" if positions else "no object positions, so only boxed objects"
    return Annotations(buildings, tuple(labels), rooms, f"{boxes}; {far}")


def unannotated(scan: Scan) -> Building:
    """A building with its connectivity file alone: no objects, no rooms."""
    return _building(scan, (), {}, {}, {})


def on_grid(values: FloatArray) -> FloatArray:
    """Round to multiples of 1/4096.

    Sums of products of such numbers are exact in float64, so neither the order of the sum nor the number of
    threads changes a feature: the same annotations give the same bytes on one machine and library version.
    The last bit of a sine, which may differ elsewhere, matters only on the edge between two multiples.
    """
    return np.round(values * _GRID) / _GRID


def _view_directions() -> FloatArray:
    heading = np.tile(np.arange(HEADINGS) * STEP, ROWS)
    elevation = np.repeat((np.arange(ROWS) - 1) * STEP, HEADINGS)
    east, north = np.sin(heading) * np.cos(elevation), np.cos(heading) * np.cos(elevation)
    return np.stack([east, north, np.sin(elevation)], axis=1)


VIEW_DIRECTIONS = _view_directions()  # (36, 3) unit vectors


def centredness(offset: FloatArray) -> FloatArray:
    """How near the middle of each view a thing lies: the cosine of twice its angle to the view's axis.

    1 in the middle, 1/2 a whole view step away, 0 from 45 degrees on, about where the picture ends.

    offset: (..., 3) metres from the camera  ->  (..., 36) in [0, 1]
    """
    length = np.linalg.norm(offset, axis=-1, keepdims=True)
    direction = np.divide(offset, length, out=np.zeros_like(offset), where=length > 0)
    along = np.maximum(direction @ VIEW_DIRECTIONS.T, 0.0)
    return np.asarray(np.maximum(2.0 * along * along - 1.0, 0.0))


def aim(offset: FloatArray) -> FloatArray:
    """How well each view points at a thing: the square of its centredness, a quarter a view step away.

    offset: (..., 3) metres from the camera  ->  (..., 36) in [0, 1]
    """
    return np.asarray(centredness(offset) ** 2)


def nearness(offset: FloatArray) -> FloatArray:
    """exp(-distance / 4 m).

    offset: (..., 3) metres  ->  (...) in (0, 1]
    """
    return np.asarray(np.exp(-np.linalg.norm(offset, axis=-1) / FADING))


def _objects_by_scan(
    data: DataFolder, scans: Sequence[Scan]
) -> tuple[str, dict[str, list[ViewpointObjects]]]:
    place = find_view_objects(data.objects)
    if place is None:
        advice = "put view_objects.jsonl.gz or REVERIE's BBox folder (or BBox.tar.gz) there"
        raise UserError(f"{data.objects}: no object annotations; {advice}")
    known = {scan.name: {viewpoint.image_id for viewpoint in scan.viewpoints} for scan in scans}
    records: dict[str, list[ViewpointObjects]] = defaultdict(list)
    for record in read_view_objects(place, read_labels(data.objects / "labels.tsv")):
        if record.scan not in known:
            continue
        if record.viewpoint not in known[record.scan]:
            reason = f"names the viewpoint '{record.viewpoint}', which the connectivity file does not hold"
            raise DataError(place, reason, record=f"scan '{record.scan}'")
        records[record.scan].append(record)
    for of_scan in records.values():
        of_scan.sort(key=lambda record: record.viewpoint)  # an archive may hold them in any order
    return f"objects/{place.name}", dict(records)


def _positions(data: DataFolder) -> dict[tuple[str, int], ObjectPosition]:
    names = ("object_positions.tsv.gz", "object_positions.tsv")
    file = next((file for name in names if (file := data.objects / name).is_file()), None)
    if file is None:
        return {}
    return {(entry.scan, entry.object_id): entry for entry in read_table(file, ObjectPosition)}


def _rooms(data: DataFolder) -> tuple[tuple[RoomCode, ...], dict[str, tuple[int, int]]]:
    """The kinds of rooms, and for every viewpoint name the index of its own kind and its region."""
    file = data.rooms / "viewpoint_rooms.tsv"
    if not file.is_file():
        return (), {}
    entries = list(read_table(file, ViewpointRoom))
    codes = data.rooms / "room_codes.tsv"
    if codes.is_file():
        kinds = list(read_table(codes, RoomCode))
    else:
        named = {RoomCode(entry.room_code, entry.room) for entry in entries}
        kinds = sorted(named, key=lambda kind: kind.room_code)
    number = {kind.room_code: index for index, kind in enumerate(kinds)}
    room_of: dict[str, tuple[int, int]] = {}
    for line, entry in enumerate(entries, start=2):
        if entry.room_code not in number:
            reason = f"'{entry.room_code}' is not in {codes.name}"
            raise DataError(file, reason, record=f"line {line}", field="room_code")
        room_of[f"{entry.scan}_{entry.viewpoint}"] = number[entry.room_code], entry.region_index
    return tuple(kinds), room_of


def _label(entry: ListedObject, place: ObjectPosition | None) -> ObjectLabel:
    category = entry.category or (place.category if place else "") or entry.name
    return ObjectLabel(category, entry.mpcat40 or (place.mpcat40 if place else ""))


def _building(
    scan: Scan,
    records: Sequence[ViewpointObjects],
    positions: dict[tuple[str, int], ObjectPosition],
    labels: dict[ObjectLabel, int],
    room_of: dict[str, tuple[int, int]],
) -> Building:
    included = [number for number, viewpoint in enumerate(scan.viewpoints) if viewpoint.included]
    names = [scan.viewpoints[number].image_id for number in included]
    keys = tuple(f"{scan.name}_{name}" for name in names)
    objects = sorted({entry.id: entry for record in records for entry in record.objects}.items())
    places = [positions.get((scan.name, number)) for number, _ in objects]
    kinds = [labels[_label(entry, place)] for (_, entry), place in zip(objects, places, strict=True)]
    spots = [(place.x, place.y, place.z) if place else (np.nan,) * 3 for place in places]
    listed, boxes = _boxes(records, names, [number for number, _ in objects])
    room, region = np.array([room_of.get(key, (UNKNOWN, UNKNOWN)) for key in keys], dtype=np.int64).T
    way = _flags([viewpoint.unobstructed for viewpoint in scan.viewpoints], included)
    return Building(
        keys=keys,
        position=np.array([scan.viewpoints[number].position for number in included]).reshape(-1, 3),
        visible=way | _flags([viewpoint.visible for viewpoint in scan.viewpoints], included),
        way=way,
        room=room,
        region=region,
        listed=listed,
        object_label=np.array(kinds, dtype=np.int64),
        object_position=np.array(spots, dtype=np.float64).reshape(-1, 3),
        box_viewpoint=boxes[:, 0].astype(np.int64),
        box_view=boxes[:, 1].astype(np.int64),
        box_object=boxes[:, 2].astype(np.int64),
        box_share=boxes[:, 3].clip(0.0, 1.0),
    )


def _boxes(
    records: Sequence[ViewpointObjects], viewpoints: Sequence[str], objects: Sequence[int]
) -> tuple[BoolArray, FloatArray]:
    """Which viewpoint lists which object (n, O); the boxes as viewpoint, view, object, share (B, 4)."""
    row = {name: number for number, name in enumerate(viewpoints)}
    column = {number: index for index, number in enumerate(objects)}
    listed = np.zeros((len(viewpoints), len(objects)), dtype=bool)
    boxes: list[tuple[int, int, int, float]] = []
    for record in records:
        here = row.get(record.viewpoint)
        if here is None:  # not included
            continue
        for entry in record.objects:
            listed[here, column[entry.id]] = True
            boxes.extend(
                (here, view, column[entry.id], width * height / PICTURE)
                for view, (_, _, width, height) in zip(entry.views, entry.boxes, strict=True)
            )
    return listed, np.array(boxes, dtype=np.float64).reshape(-1, 4)


def _flags(rows: Sequence[tuple[bool, ...]], included: Sequence[int]) -> BoolArray:
    """rows: the flags of all viewpoints of the file  ->  (n, n) of the included ones, nothing sees itself"""
    flags = np.array(rows, dtype=bool)[np.ix_(included, included)]
    np.fill_diagonal(flags, False)
    return flags
