"""What a building looks like to people: rooms on the map; pictures, or labels and captions, around places."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import fmean

import numpy as np
import torch

from scenemem.evaluation.bootstrap import connected
from scenemem.features.objects import (
    UNKNOWN,
    VIEW_DIRECTIONS,
    Annotations,
    Building,
    load_annotations,
    seen_labels,
)
from scenemem.features.words import FloatArray
from scenemem.formats.annotations import find_captions, find_view_objects, read_captions
from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import Place, Scene
from scenemem.houses.house import EYE, STOREY, House, read_plan
from scenemem.houses.pictures import draw_panorama
from scenemem.world.graph import direction, nearest_view

WIDTH = 576
"""Pixels of a picture all around a place."""

SMALL_WIDTH = 240
"""Pixels of a picture that is drawn five times as fast."""

_BUILDINGS = 4  # whose captions are kept in memory, some 0.3 MB each
_QUALITY = 60  # WebP's scale of 0 to 100
_MOST_LABELS = 14  # around one place
_FAINTEST = 0.15  # weight below which an object is not worth a word
_NAMELESS = ("no label", "junk", "other room")


@dataclass(frozen=True)
class RoomOutline:
    """A room on the map; only a name where the walls are not known."""

    name: str
    floor: int
    x: float  # of the name, metres
    y: float
    rect: tuple[float, float, float, float] | None = None  # west, south, east, north


@dataclass(frozen=True)
class Doorway:
    """A gap in the walls, as a line."""

    floor: int
    ends: tuple[float, float, float, float]  # x, y, x, y


@dataclass(frozen=True)
class SceneLabel:
    """Something in sight; radians, heading clockwise from north."""

    text: str
    heading: float
    elevation: float
    room: bool = False  # the name of a room in sight, not of a thing


@dataclass(frozen=True)
class Look:
    """What one sees all around a place."""

    picture: str | None = None  # a data URI; north in the middle, 120 degrees high
    labels: tuple[SceneLabel, ...] = ()
    captions: dict[int, str] = field(default_factory=dict)  # neighbouring place -> of the view that faces it


@dataclass(frozen=True)
class Scenery:
    """Everything about a building that is not needed to walk in it; keys are numbers of places."""

    rooms: tuple[RoomOutline, ...] = ()
    doorways: tuple[Doorway, ...] = ()
    room_of: dict[int, str] = field(default_factory=dict)
    looks: dict[int, Look] = field(default_factory=dict)


class Sceneries:
    """Looks up scenery in a data folder: plans of the embedded houses, else annotations and captions."""

    def __init__(self, folder: DataFolder, width: int = WIDTH) -> None:
        self._folder, self._width = folder, width  # of pictures
        self._looks: dict[tuple[str, str], Look] = {}  # drawing takes about a second, so each is kept
        self._captions_of = lru_cache(_BUILDINGS)(self._read_captions)

    def rooms(self, scene: Scene) -> Mapping[int, str]:
        """The names of the rooms of a scan, by place."""
        return self.of(scene, ()).room_of

    def of(self, scene: Scene, visited: Collection[int]) -> Scenery:
        """The scenery of a scan, with looks from the places in ``visited``."""
        if (self._folder.root / "plans" / f"{scene.scan}.json").is_file():
            return self._of_house(read_plan(self._folder.root, scene.scan), scene, visited)
        annotated = find_view_objects(self._folder.objects) is not None
        scenery = self._of_annotations(scene, visited) if annotated else Scenery()
        return self._with_captions(scenery, scene, visited)

    def _of_house(self, house: House, scene: Scene, visited: Collection[int]) -> Scenery:
        stands = {stand.viewpoint: number for number, stand in enumerate(house.stands)}
        looks = {}
        for number in sorted(visited):
            key = (house.name, scene.places[number].id)
            if key not in self._looks:
                self._looks[key] = Look(picture=_picture(house, stands[key[1]], self._width))
            looks[number] = self._looks[key]
        storeys = [_storey(scene, room.floor) for room in house.rooms]
        outlines = [
            RoomOutline(room.kind, floor, *room.rect.centre, room.rect)
            for room, floor in zip(house.rooms, storeys, strict=True)
        ]
        doorways = [Doorway(storeys[door.rooms[0]], door.area(0.0)) for door in house.doors]
        rooms = [house.rooms[house.stands[stands[place.id]].room].kind for place in scene.places]
        return Scenery(tuple(outlines), tuple(doorways), dict(enumerate(rooms)), looks)

    def _of_annotations(self, scene: Scene, visited: Collection[int]) -> Scenery:
        known, prefix = self._annotations, f"{scene.scan}_"
        first = f"{prefix}{scene.places[0].id}"
        building = next(item for item in known.buildings if first in item.keys)
        row = {key.removeprefix(prefix): number for number, key in enumerate(building.keys)}
        names = [_room_name(known, building, row[place.id]) for place in scene.places]
        present, weight = seen_labels(building)
        texts = [known.labels[label].category for label in present]
        looks = {}
        for number in visited:
            spot = row[scene.places[number].id]
            looks[number] = Look(labels=_rooms_ahead(known, building, spot) + _labels(texts, weight[spot]))
        room_of = {number: name for number, name in enumerate(names) if name}
        return Scenery(_named_regions(scene, names), room_of=room_of, looks=looks)

    def _with_captions(self, scenery: Scenery, scene: Scene, visited: Collection[int]) -> Scenery:
        """The same scenery with captions of the ways that lead on from ``visited``."""
        found = self._captions_of(scene.scan) if visited else {}
        looks = dict(scenery.looks)
        for number in visited:
            captions = found.get(scene.places[number].id)
            if captions is not None:
                ahead = {place: captions[view] for place, view in _views_along_edges(scene, number).items()}
                looks[number] = replace(looks.get(number, Look()), captions=ahead)
        return replace(scenery, looks=looks)

    @cached_property
    def _annotations(self) -> Annotations:
        return load_annotations(self._folder)

    def _read_captions(self, scan: str) -> Mapping[str, tuple[str, ...]]:
        """Viewpoint -> captions of its 36 views; empty when there are none. No other building is read."""
        files = find_captions(self._folder.captions, "langnav")
        records = () if files is None else read_captions(files, scan)
        return {record.viewpoint: record.captions for record in records}


def _views_along_edges(scene: Scene, number: int) -> dict[int, int]:
    """Every neighbour of a place -> the view that faces it."""
    ends = [a + b - number for a, b in scene.edges if number in (a, b)]
    places = [scene.places[end] for end in (number, *ends)]
    position = torch.tensor([(place.x, place.y, place.z) for place in places])
    views = nearest_view(*direction(position[:1], position[1:]))
    return dict(zip(ends, views.tolist(), strict=True))


def _picture(house: House, stand: int, width: int) -> str:
    content = io.BytesIO()
    draw_panorama(house, stand, width).save(content, format="WEBP", quality=_QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"


def _storey(scene: Scene, floor: int) -> int:
    """The floor of the trace that a storey of a plan is."""
    eye = floor * STOREY + EYE
    return min(range(len(scene.floors)), key=lambda number: abs(scene.floors[number] - eye))


def _room_name(known: Annotations, building: Building, row: int) -> str:
    """Empty for an unknown or meaningless room."""
    room = int(building.room[row])
    name = "" if room == UNKNOWN else known.rooms[room].room
    return "" if name in _NAMELESS else name


def _named_regions(scene: Scene, names: list[str]) -> tuple[RoomOutline, ...]:
    """One name for every group of neighbouring places in rooms of the same kind and on the same floor."""
    parts: list[list[Hashable]] = [[number] for number in range(len(names))]
    for a, b in scene.edges:
        if names[a] == names[b] and scene.places[a].floor == scene.places[b].floor:
            parts[a].append((a, b))
            parts[b].append((a, b))
    members: dict[tuple[int, str], list[Place]] = {}
    for place, group, name in zip(scene.places, connected(parts), names, strict=True):
        if name:
            members.setdefault((group, name), []).append(place)

    outlines = []
    for (_, name), places in members.items():
        x, y = fmean(place.x for place in places), fmean(place.y for place in places)
        outlines.append(RoomOutline(name, places[0].floor, round(x, 2), round(y, 2)))
    return tuple(outlines)


def _rooms_ahead(known: Annotations, building: Building, row: int) -> tuple[SceneLabel, ...]:
    """The other rooms that can be seen from a viewpoint, each where it is nearest."""
    offset = building.position - building.position[row]
    distance = np.linalg.norm(offset, axis=1)
    nearest: dict[str, int] = {}
    for other in sorted(np.flatnonzero(building.visible[row]), key=lambda number: float(distance[number])):
        nearest.setdefault(_room_name(known, building, int(other)), int(other))
    for name in ("", _room_name(known, building, row)):
        nearest.pop(name, None)
    return tuple(
        SceneLabel(name, round(float(np.arctan2(*offset[other, :2])), 3), 0.0, room=True)
        for name, other in nearest.items()
    )


def _labels(texts: list[str], weight: FloatArray) -> tuple[SceneLabel, ...]:
    """The plainest objects around one place, plainest first.  weight: (36, l)"""
    best = weight.max(axis=0)
    chosen = [int(number) for number in np.argsort(-best, kind="stable")[:_MOST_LABELS]]
    labels = []
    for number in chosen:
        if best[number] > _FAINTEST:  # placed between the views around the one that shows it best
            near = VIEW_DIRECTIONS @ VIEW_DIRECTIONS[int(weight[:, number].argmax())] > np.cos(np.pi / 4)
            east, north, up = (weight[:, number] * near) @ VIEW_DIRECTIONS
            heading, elevation = np.arctan2(east, north), np.arctan2(up, np.hypot(east, north))
            labels.append(SceneLabel(texts[number], round(float(heading), 3), round(float(elevation), 3)))
    return tuple(labels)
