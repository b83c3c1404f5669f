"""The tracks objects (what a perfect detector sees) and oracle (rooms, doors and degrees as well)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from scenemem.features.buildings import (
    UNKNOWN,
    Annotations,
    BoolArray,
    Building,
    FloatArray,
    IntArray,
    aim,
    centredness,
    load_annotations,
    nearness,
    on_grid,
)
from scenemem.features.tracks import OBJECTS, ORACLE, column_groups
from scenemem.features.words import hashed_label_vectors, reduced_label_vectors
from scenemem.formats.annotations import read_word_vectors
from scenemem.formats.features import Column, StoreInfo, write_store
from scenemem.formats.folder import DataFolder
from scenemem.world.build import Progress
from scenemem.world.graph import VIEWS

WORD_COLUMNS = 128
SPACE = ("sight", "place", "way", "rise", "fall", "rise in sight", "fall in sight")
WAYS = ("end", "crossing", "near")  # the first two tell about the neighbour, so only oracle has them
DOORS = ("stays", "leaves")
MANY = 6.0  # ways; a place with that many or more counts as a full crossing
FAR = 10.0  # metres; a direction open that far or further counts as fully open
STEEP = 2.0  # metres; a place that much or more above or below counts fully
SPACE_GROUP = ("space", len(SPACE), f"by the viewpoints in sight and in reach: {', '.join(SPACE)}")


def build_object_features(
    data: DataFolder, folder: Path, *, oracle: bool = True, progress: Progress | None = None
) -> dict[str, StoreInfo]:
    """Build the store ``objects`` and, when wanted and room labels are known, the store ``oracle``.

    Args:
        data: the data folder with connectivity files and object annotations.
        folder: where the stores go.
        oracle: also build the privileged store; skipped when the data folder has no room labels.
        progress: called with (buildings done, in all).

    Returns:
        what each store holds, by its name.

    Raises:
        UserError: there are no object annotations, or the folder cannot be written.
        DataError: a file is broken.
    """
    annotations = load_annotations(data)
    vectors, encoder = label_vectors(data, annotations)
    keys = [key for building in annotations.buildings for key in building.keys]
    wanted = (OBJECTS, ORACLE) if oracle and annotations.rooms else (OBJECTS,)
    stores = {}
    for number, track in enumerate(wanted):
        privileged = track.privileged
        columns = _columns(annotations, privileged)
        note = "rooms/viewpoint_rooms.tsv" if privileged else "no room labels"

        def part(done: int, total: int, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, len(wanted) * total)

        stores[track.name] = write_store(
            folder / f"{track.name}.npy",
            keys,
            _rows(annotations, vectors, privileged, part),
            width=columns[-1].stop,
            source=f"{annotations.source}; {note}",
            encoder=encoder,
            columns=columns,
            track=track.name,
            sensor=track.sensor,
        )
    return stores


def seen_labels(building: Building, seen_from: BoolArray | None = None) -> tuple[IntArray, FloatArray]:
    """How much of each kind of object every view shows.

    A boxed object counts by the size of its box. An object annotated only elsewhere counts, by its 3-D
    position, where a viewpoint it is seen from is visible; centred and near ones count more. Of several
    objects of a kind the best counts.

    Args:
        building: with its objects.
        seen_from: (n, O), which viewpoint sees which object; ``building.boxed`` when not given. The oracle
            takes ``building.listed``, hidden objects included.

    Returns:
        the labels that occur (l,), and their weights (n, 36, l) in [0, 1].
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
    """What the visible and the reachable viewpoints tell about each view (n, 36, 7); see ``SPACE``."""
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
    here, there, offset = _pairs(building, building.way & (building.room != UNKNOWN))
    return _by_room(building, kinds, here, there, on_grid(aim(offset)))


def rooms_ahead(building: Building, kinds: int) -> FloatArray:
    """The rooms of the visible viewpoints in each view, centred and near ones more (n, 36, kinds)."""
    here, there, offset = _pairs(building, building.visible & (building.room != UNKNOWN))
    return _by_room(building, kinds, here, there, _presence(offset))


def room_here(building: Building, kinds: int) -> FloatArray:
    """1 for the room of the viewpoint, the same in all its views (n, 36, kinds)."""
    one_hot = (building.room[:, None] == np.arange(kinds)).astype(np.float64)
    return np.repeat(one_hot[:, None], VIEWS, axis=1)


def object_features(
    annotations: Annotations, building: Building, vectors: FloatArray, privileged: bool
) -> FloatArray:
    """The features of one building (n, 36, D).

    Args:
        annotations: the vocabularies that the indices of the building refer to.
        building: one of its buildings.
        vectors: (L, 128), one per label.
        privileged: for the track ``oracle``, which has rooms, degrees and hidden objects.
    """
    coarse = np.array([label.coarse for label in annotations.labels])
    present, weight = seen_labels(building, building.listed if privileged else None)
    of_class = (weight[..., coarse[present] == name] for name in _coarse_classes(annotations))
    parts = [_words(weight, vectors[present])]
    parts += [weights.max(axis=-1, initial=0.0)[..., None] for weights in of_class]
    parts += [space(building)]
    if privileged:
        kinds = len(annotations.rooms)
        parts += [ways(building), rooms_ahead(building, kinds), room_here(building, kinds)]
        parts += [rooms_next(building, kinds), doors(building)]
    else:
        parts += [ways(building)[..., WAYS.index("near") :]]
    return np.concatenate(parts, axis=-1)


def _rows(
    annotations: Annotations, vectors: FloatArray, privileged: bool, progress: Progress
) -> Iterator[FloatArray]:
    """The rows of the store (36, D), building by building."""
    for done, building in enumerate(annotations.buildings, start=1):
        yield from object_features(annotations, building, vectors, privileged)
        progress(done, len(annotations.buildings))


def _words(weight: FloatArray, vectors: FloatArray) -> FloatArray:
    """Sum of label vectors by weight, shortened where much is in view.  (n, 36, l), (l, W)  ->  (n, 36, W)"""
    total = np.sqrt(np.maximum((weight * weight).sum(axis=-1, keepdims=True), 1.0))
    return np.asarray((weight @ vectors) / total)


def _presence(offset: FloatArray) -> FloatArray:
    """offset: (P, 3) metres  ->  how much of a thing there each view shows (P, 36) in [0, 1]"""
    return on_grid(centredness(offset) * nearness(offset)[:, None])


def _pairs(building: Building, flags: BoolArray) -> tuple[IntArray, IntArray, FloatArray]:
    """flags: (n, n)  ->  row (P,), column (P,) and offset (P, 3) in metres of every true one"""
    here, there = np.nonzero(flags)
    return here, there, building.position[there] - building.position[here]


def _slopes(offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.clip(offset[:, 2] / STEEP, 0.0, 1.0), np.clip(-offset[:, 2] / STEEP, 0.0, 1.0)


def _spread(
    here: IntArray, share: FloatArray, amounts: Sequence[FloatArray | BoolArray], building: Building
) -> list[FloatArray]:
    """The largest product of share (P, 36) and amount (P,) in every view  ->  (n, 36) per amount"""
    return [_best(here, on_grid(share * amount[:, None]), len(building.keys)) for amount in amounts]


def _by_room(
    building: Building, kinds: int, here: IntArray, there: IntArray, values: FloatArray
) -> FloatArray:
    """The largest values (P, 36) of every kind of room  ->  (n, 36, kinds)"""
    best = _best(here * kinds + building.room[there], values, len(building.keys) * kinds)
    return best.reshape(-1, kinds, VIEWS).transpose(0, 2, 1)


def _best(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    """The largest values of each index, 0 where there are none.  (P,), (P, C)  ->  (size, C)"""
    best = np.zeros((size, values.shape[1]))
    if len(index):
        order = np.argsort(index, kind="stable")
        rows, starts = np.unique(index[order], return_index=True)
        best[rows] = np.maximum.reduceat(values[order], starts, axis=0)
    return best


def _coarse_classes(annotations: Annotations) -> list[str]:
    return sorted({label.coarse for label in annotations.labels if label.coarse})


def label_vectors(data: DataFolder, annotations: Annotations) -> tuple[FloatArray, str]:
    """One vector per label (L, 128) and a word on where they come from."""
    spellings = [(label.category, label.coarse) for label in annotations.labels]
    file = data.word_vectors
    if not file.is_file():
        return hashed_label_vectors(spellings, WORD_COLUMNS), "annotations, hashed words (no glove/)"
    words, vectors = read_word_vectors(file)
    table = dict(zip(words, vectors, strict=True))
    reduced = reduced_label_vectors(spellings, table, WORD_COLUMNS)
    return reduced, f"annotations, glove/{file.name} reduced to {WORD_COLUMNS}"


def _columns(annotations: Annotations, privileged: bool) -> tuple[Column, ...]:
    classes = _coarse_classes(annotations)
    kinds = [kind.room for kind in annotations.rooms]
    told = WAYS if privileged else WAYS[WAYS.index("near") :]
    groups = [
        ("words", WORD_COLUMNS, "label vectors of the objects in sight, summed by weight"),
        ("classes", len(classes), f"largest weight of an object of each coarse class: {', '.join(classes)}"),
        SPACE_GROUP,
        ("ways", len(told), f"what the way in the middle of the view leads to: {', '.join(told)}"),
    ]
    if privileged:
        groups += [
            ("room ahead", len(kinds), f"rooms of the viewpoints in sight: {', '.join(kinds)}"),
            ("room here", len(kinds), f"room of the viewpoint itself: {', '.join(kinds)}"),
            ("room next", len(kinds), f"room of the place one step along the view: {', '.join(kinds)}"),
            ("doors", len(DOORS), f"the step along the view, as to rooms: {', '.join(DOORS)}"),
        ]
    return column_groups(groups)
