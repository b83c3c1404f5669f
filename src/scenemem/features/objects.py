"""The tracks objects (what a perfect detector sees) and oracle (rooms, doors and degrees as well).

Annotated buildings become arrays, and these the columns of the 36 views. Shape letters: n viewpoints of a
building, O objects, B boxes of objects in views, P pairs of viewpoints or of viewpoint and object.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scenemem.errors import DataError, UserError
from scenemem.features.store import OBJECTS, ORACLE, column_groups
from scenemem.features.words import (
    FloatArray,
    IntArray,
    hashed_label_vectors,
    on_grid,
    reduced_label_vectors,
)
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
    read_word_vectors,
)
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan
from scenemem.formats.features import Column, StoreInfo, write_store
from scenemem.formats.folder import DataFolder
from scenemem.world.build import Progress
from scenemem.world.graph import HEADINGS, ROWS, STEP, VIEWS

BoolArray = npt.NDArray[np.bool_]

PICTURE = 640 * 480  # pixels the boxes refer to
UNKNOWN = -1  # the room of a viewpoint without a room label
FADING = 4.0  # metres after which a thing counts 1/e
WORD_COLUMNS = 128
SPACE = ("sight", "place", "way", "rise", "fall", "rise in sight", "fall in sight")
WAYS = ("end", "crossing", "near")  # the first two are about the neighbour, so only oracle has them
DOORS = ("stays", "leaves")
MANY = 6.0  # ways; a place with that many or more counts as a full crossing
FAR = 10.0  # metres; a direction open that far or further counts as fully open
STEEP = 2.0  # metres; a place that much or more above or below counts fully
SPACE_GROUP = ("space", len(SPACE), f"by the viewpoints in sight and in reach: {', '.join(SPACE)}")


# Buildings as arrays


@dataclass(frozen=True, order=True)
class ObjectLabel:
    """A kind of object, as fine as the annotations are."""

    category: str
    coarse: str  # mpcat40 class; empty when not known


@dataclass(frozen=True, eq=False)
class Building:
    """One scan, its included viewpoints only."""

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

    @property
    def coarse_classes(self) -> list[str]:
        """All that are known, sorted."""
        return sorted({label.coarse for label in self.labels if label.coarse})


def load_annotations(data: DataFolder) -> Annotations:
    """Read all annotations of the buildings of a data folder.

    Raises:
        UserError: there are no object annotations.
        DataError: a file is broken or names a viewpoint that the connectivity files do not hold.
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
    return f"objects/{place.name}", records


def _positions(data: DataFolder) -> dict[tuple[str, int], ObjectPosition]:
    files = (data.objects / f"object_positions.tsv{ending}" for ending in (".gz", ""))
    file = next((file for file in files if file.is_file()), None)
    entries = read_table(file, ObjectPosition) if file else ()
    return {(entry.scan, entry.object_id): entry for entry in entries}


def _rooms(data: DataFolder) -> tuple[tuple[RoomCode, ...], dict[str, tuple[int, int]]]:
    """The kinds of rooms, and for every viewpoint name the index of its own kind and its region."""
    file, codes = data.rooms / "viewpoint_rooms.tsv", data.rooms / "room_codes.tsv"
    if not file.is_file():
        return (), {}
    entries = list(read_table(file, ViewpointRoom))
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
        if record.viewpoint not in row:  # not included
            continue
        here = row[record.viewpoint]
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


# Where things lie in the views


_HEADING = np.tile(np.arange(HEADINGS) * STEP, ROWS)  # (36,) radians
_ELEVATION = np.repeat((np.arange(ROWS) - 1) * STEP, HEADINGS)
_LEVEL = np.cos(_ELEVATION)
VIEW_DIRECTIONS: FloatArray = np.stack(
    [np.sin(_HEADING) * _LEVEL, np.cos(_HEADING) * _LEVEL, np.sin(_ELEVATION)], axis=1
)
"""(36, 3) unit vectors: east, north, up"""


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
    """How well each view points at a thing: the square of its centredness, a quarter a view step away."""
    return np.asarray(centredness(offset) ** 2)


def nearness(offset: FloatArray) -> FloatArray:
    """exp(-distance / 4 m).  offset: (..., 3) metres  ->  (...) in (0, 1]"""
    return np.asarray(np.exp(-np.linalg.norm(offset, axis=-1) / FADING))


def _presence(offset: FloatArray) -> FloatArray:
    """offset: (P, 3) metres  ->  how much of a thing there each view shows (P, 36) in [0, 1]"""
    return on_grid(centredness(offset) * nearness(offset)[:, None])


def _slopes(offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.clip(offset[:, 2] / STEEP, 0.0, 1.0), np.clip(-offset[:, 2] / STEEP, 0.0, 1.0)


def _pairs(building: Building, flags: BoolArray) -> tuple[IntArray, IntArray, FloatArray]:
    """flags: (n, n)  ->  row (P,), column (P,) and offset (P, 3) in metres of every true one"""
    here, there = np.nonzero(flags)
    return here, there, building.position[there] - building.position[here]


def _best(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    """The largest values of each index, 0 where there are none.  (P,), (P, C)  ->  (size, C)"""
    best = np.zeros((size, values.shape[1]))
    if len(index):
        order = np.argsort(index, kind="stable")
        rows, starts = np.unique(index[order], return_index=True)
        best[rows] = np.maximum.reduceat(values[order], starts, axis=0)
    return best


def _spread(
    here: IntArray, share: FloatArray, amounts: Sequence[FloatArray | BoolArray], building: Building
) -> list[FloatArray]:
    """The largest product of share (P, 36) and amount (P,) in every view  ->  (n, 36) per amount"""
    return [_best(here, on_grid(share * amount[:, None]), len(building.keys)) for amount in amounts]


# Groups of columns


def seen_labels(building: Building, seen_from: BoolArray | None = None) -> tuple[IntArray, FloatArray]:
    """How much of each kind of object every view shows: the labels that occur (l,), weights (n, 36, l).

    A boxed object counts by the size of its box. An object annotated only elsewhere counts, by its 3-D
    position, where a viewpoint it is seen from is visible; centred and near ones count more. Of several
    objects of a kind the best counts.

    seen_from: (n, O), ``building.boxed`` unless given; the oracle takes ``listed``, hidden objects included
    """
    present, kind = np.unique(building.object_label, return_inverse=True)
    size = (len(building.keys), len(present))
    seen_from = building.boxed if seen_from is None else seen_from
    in_sight = building.visible.astype(np.float32) @ seen_from.astype(np.float32) > 0
    placed = np.isfinite(building.object_position).all(axis=1)
    here, thing = np.nonzero(in_sight & ~building.listed & placed)
    offset = building.object_position[thing] - building.position[here]
    weight = _best(here * size[1] + kind[thing], _presence(offset), size[0] * size[1]).reshape(*size, VIEWS)
    box = (building.box_viewpoint, kind[building.box_object], building.box_view)
    np.maximum.at(weight, box, on_grid(building.box_share**0.25))
    return present, weight.transpose(0, 2, 1)


def space(building: Building) -> FloatArray:
    """What the visible and the reachable viewpoints show about each view (n, 36, 7); see ``SPACE``."""
    here, _, offset = _pairs(building, building.visible)
    far = np.minimum(np.linalg.norm(offset, axis=1) / FAR, 1.0)
    seen = (far, nearness(offset), *_slopes(offset))
    walk_from, _, walk = _pairs(building, building.way)
    ways = (np.ones(len(walk)), *_slopes(walk))
    sight, place, rise_seen, fall_seen = _spread(here, centredness(offset), seen, building)
    way, rise, fall = _spread(walk_from, centredness(walk), ways, building)
    return np.stack([sight, place, way, rise, fall, rise_seen, fall_seen], axis=-1)


def ways(building: Building) -> FloatArray:
    """What each view's way leads to: a dead end, a place with many ways, a place near by (n, 36, 3)."""
    here, there, offset = _pairs(building, building.way)
    onward = building.way.sum(axis=1)[there]
    amounts = ((onward <= 1).astype(np.float64), np.minimum(onward / MANY, 1.0), nearness(offset))
    return np.stack(_spread(here, aim(offset), amounts, building), axis=-1)


def doors(building: Building) -> FloatArray:
    """Whether each view's way stays in the room or leaves it (n, 36, 2); rooms of one kind are told apart."""
    known = building.region != UNKNOWN
    here, there, offset = _pairs(building, building.way & known & known[:, None])
    leaves = building.region[here] != building.region[there]
    return np.stack(_spread(here, aim(offset), (~leaves, leaves), building), axis=-1)


def rooms_next(building: Building, kinds: int) -> FloatArray:
    """The room of the place each view's way leads to (n, 36, kinds)."""
    return _by_room(building, kinds, building.way, lambda offset: on_grid(aim(offset)))


def rooms_ahead(building: Building, kinds: int) -> FloatArray:
    """The rooms of the visible viewpoints in each view, centred and near ones more (n, 36, kinds)."""
    return _by_room(building, kinds, building.visible, _presence)


def _by_room(
    building: Building, kinds: int, flags: BoolArray, weigh: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """The largest weight in every view of each kind of room at the flagged viewpoints  ->  (n, 36, kinds)"""
    here, there, offset = _pairs(building, flags & (building.room != UNKNOWN))
    best = _best(here * kinds + building.room[there], weigh(offset), len(building.keys) * kinds)
    return best.reshape(-1, kinds, VIEWS).transpose(0, 2, 1)


# Stores


def object_features(
    annotations: Annotations, building: Building, vectors: FloatArray, privileged: bool
) -> FloatArray:
    """The features of one building (n, 36, D); those of ``oracle`` when privileged.

    vectors: (L, 128), one per label
    """
    coarse = np.array([label.coarse for label in annotations.labels])
    present, weight = seen_labels(building, building.listed if privileged else None)
    of_class = (weight[..., coarse[present] == name] for name in annotations.coarse_classes)
    # the sum of label vectors by weight, shortened where much is in view
    total = np.sqrt(np.maximum((weight * weight).sum(axis=-1, keepdims=True), 1.0))
    parts = [(weight @ vectors[present]) / total]
    parts += [weights.max(axis=-1, initial=0.0)[..., None] for weights in of_class]
    parts += [space(building)]
    if privileged:
        kinds = len(annotations.rooms)
        room = (building.room[:, None] == np.arange(kinds)).astype(np.float64)  # the same in all views
        parts += [ways(building), rooms_ahead(building, kinds), np.repeat(room[:, None], VIEWS, axis=1)]
        parts += [rooms_next(building, kinds), doors(building)]
    else:
        parts += [ways(building)[..., WAYS.index("near") :]]
    return np.concatenate(parts, axis=-1)


def _columns(annotations: Annotations, privileged: bool) -> tuple[Column, ...]:
    classes = annotations.coarse_classes
    kinds = [kind.room for kind in annotations.rooms]
    shown = WAYS if privileged else WAYS[WAYS.index("near") :]
    groups = [
        ("words", WORD_COLUMNS, "label vectors of the objects in sight, summed by weight"),
        ("classes", len(classes), f"largest weight of an object of each coarse class: {', '.join(classes)}"),
        SPACE_GROUP,
        ("ways", len(shown), f"what the way in the middle of the view leads to: {', '.join(shown)}"),
    ]
    if privileged:
        groups += [
            ("room ahead", len(kinds), f"rooms of the viewpoints in sight: {', '.join(kinds)}"),
            ("room here", len(kinds), f"room of the viewpoint itself: {', '.join(kinds)}"),
            ("room next", len(kinds), f"room of the place one step along the view: {', '.join(kinds)}"),
            ("doors", len(DOORS), f"the step along the view, as to rooms: {', '.join(DOORS)}"),
        ]
    return column_groups(groups)


def label_vectors(data: DataFolder, annotations: Annotations) -> tuple[FloatArray, str]:
    """One vector per label (L, 128) and a word on where they come from."""
    spellings = [(label.category, label.coarse) for label in annotations.labels]
    file = data.word_vectors
    if not file.is_file():
        return hashed_label_vectors(spellings, WORD_COLUMNS), "annotations, hashed words (no glove/)"
    table = dict(zip(*read_word_vectors(file), strict=True))
    reduced = reduced_label_vectors(spellings, table, WORD_COLUMNS)
    return reduced, f"annotations, glove/{file.name} reduced to {WORD_COLUMNS}"


def build_object_features(
    data: DataFolder, folder: Path, *, oracle: bool = True, progress: Progress | None = None
) -> dict[str, StoreInfo]:
    """Build the store ``objects`` and, when wanted and room labels are known, the store ``oracle``.

    ``progress`` is called with (buildings done, in all).

    Raises:
        UserError: there are no object annotations, or the folder cannot be written.
        DataError: a file is broken.
    """
    annotations = load_annotations(data)
    vectors, encoder = label_vectors(data, annotations)
    wanted = (OBJECTS, ORACLE) if oracle and annotations.rooms else (OBJECTS,)
    done, total = itertools.count(1), len(wanted) * len(annotations.buildings)

    def rows(privileged: bool) -> Iterator[FloatArray]:
        for building in annotations.buildings:
            yield from object_features(annotations, building, vectors, privileged)
            if progress is not None:
                progress(next(done), total)

    stores = {}
    for track in wanted:
        columns = _columns(annotations, track.privileged)
        note = "rooms/viewpoint_rooms.tsv" if track.privileged else "no room labels"
        stores[track.name] = write_store(
            folder / f"{track.name}.npy",
            [key for building in annotations.buildings for key in building.keys],
            rows(track.privileged),
            width=columns[-1].stop,
            source=f"{annotations.source}; {note}",
            encoder=encoder,
            columns=columns,
            **track.about,
        )
    return stores
