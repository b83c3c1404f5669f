"""Where one can stand: doorways, stairs, free floor a few steps apart; linked where one can walk straight."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scenemem.formats.connectivity import Scan, Viewpoint
from scenemem.houses.raycast import clear_lines
from scenemem.houses.records import EYE, STOREY, WALL, Door, House, Rect, Room, Stairs, Stand
from scenemem.houses.scene import BoolArray, FloatArray, Scene

_SPACING = 1.65  # least distance between two viewpoints of a room, metres
_NEAREST = 0.8  # the same where a doorway could not be reached otherwise
_FROM_DOOR = 1.2  # least distance between a viewpoint of a room and one in its doorways
_BODY = 0.18  # room a walker needs beside the line walked
_ELBOW = 0.3  # room a stander needs
_FARTHEST = 3.8  # longest link
_DETOUR = 1.03  # a link is dropped when going over a third viewpoint is at most this many times as long


@dataclass(frozen=True)
class Layout:
    """The viewpoints of a house and how they hang together; V viewpoints."""

    house: House  # with its stands
    position: FloatArray  # (V, 3) of the cameras, metres
    linked: BoolArray  # (V, V) one can walk straight from one to the other
    visible: BoolArray  # (V, V) one camera sees the other


def place_viewpoints(house: House, scene: Scene, rng: np.random.Generator) -> Layout | None:
    """Viewpoints of a furnished house; None when some of them cannot be reached."""
    stands = _door_stands(house)
    if house.stairs is not None:
        stands.append(_landing_stand(house.stairs))
    for number, room in enumerate(house.rooms):
        if room.kind != "stairs":
            stands += _room_stands(house, scene, number, stands, rng)
    named = tuple(replace(stand, viewpoint=_viewpoint_id(house.name, n)) for n, stand in enumerate(stands))
    house = replace(house, stands=named)
    position = np.array([(stand.x, stand.y, stand.z) for stand in named])
    linked = _thinned(_walkable(house, scene, position), position)
    if not (_connected(linked) and _doors_lead_on(house, linked)):
        return None
    return Layout(house, position, linked, _visible(scene, position))


def scan_of(layout: Layout) -> Scan:
    """The navigation graph in the form of a connectivity file."""
    viewpoints = tuple(
        Viewpoint(
            image_id=stand.viewpoint,
            pose=(1.0, 0.0, 0.0, stand.x, 0.0, 1.0, 0.0, stand.y, 0.0, 0.0, 1.0, stand.z, 0.0, 0.0, 0.0, 1.0),
            included=True,
            visible=tuple(layout.visible[number].tolist()),
            unobstructed=tuple(layout.linked[number].tolist()),
            height=EYE,
        )
        for number, stand in enumerate(layout.house.stands)
    )
    return Scan(layout.house.name, viewpoints)


def _viewpoint_id(scan: str, number: int) -> str:
    return hashlib.sha256(f"{scan} {number}".encode()).hexdigest()[:32]


def _stand(
    x: float,
    y: float,
    z: float,
    room: int,
    door: int = -1,
    stairs: Literal["", "bottom", "landing", "top"] = "",
) -> Stand:
    return Stand("", round(x, 3), round(y, 3), round(z, 3), room, door, stairs)


def _door_stands(house: House) -> list[Stand]:
    """One viewpoint in every doorway; those of the stairs stand on the first and the last step."""
    stands = []
    for number, door in enumerate(house.doors):
        if door.style == "front door":
            continue
        inner = _inner_room(house, door)
        room = house.rooms[inner]
        on_stairs = room.kind == "stairs"
        middle = room.rect.centre[0] if door.across == "x" else room.rect.centre[1]
        into = (1 if middle > door.line else -1) * (0.17 if on_stairs else 0.0)
        x, y = (door.x + into, door.y) if door.across == "x" else (door.x, door.y + into)
        part: Literal["", "bottom", "top"] = ("bottom", "top")[room.floor] if on_stairs else ""
        stands.append(_stand(x, y, room.floor * STOREY + EYE, inner, number, part))
    return stands


def _inner_room(house: House, door: Door) -> int:
    """The room a doorway viewpoint stands in: never the hallway."""
    first, second = door.rooms
    return second if house.rooms[first].kind == "hallway" else first


def _landing_stand(stairs: Stairs) -> Stand:
    x, y = stairs.landing.centre
    dx, dy = stairs.inward
    return _stand(x + 0.15 * dx, y + 0.15 * dy, STOREY / 2 + EYE, stairs.rooms[0], stairs="landing")


def _room_stands(
    house: House, scene: Scene, number: int, taken: list[Stand], rng: np.random.Generator
) -> list[Stand]:
    """Spots of a room that can be walked to from its doors: first those that serve a door, then the rest."""
    room = house.rooms[number]
    spots = _free_spots(house, scene, number, rng)
    doors = np.array([(stand.x, stand.y) for stand in taken if _leads_to(house, stand, number)]).reshape(
        -1, 2
    )
    low, high = _obstacles(scene, room.floor, _BODY, room.rect.grown(0.3))
    serves = np.stack([_within_reach(low, high, door, spots) for door in doors], axis=1)  # (S, doors)
    from_door = np.linalg.norm(spots[:, None] - doors[None], axis=2).min(axis=1)
    central = np.minimum(_clearance(scene, room, spots), 0.9)
    gap, reachable = np.full(len(spots), 9.0), np.zeros(len(spots), dtype=bool)
    stands: list[Stand] = []
    while True:
        fresh = serves.sum(axis=1)
        wanted = (gap >= _SPACING) & (from_door >= _FROM_DOOR)
        wanted |= (fresh > 0) & (from_door >= _NEAREST) & (gap >= _NEAREST)
        wanted &= reachable if stands else fresh > 0
        if not wanted.any():
            return stands
        worth = (
            3.0 * fresh + np.minimum(gap, 1.3 * _SPACING) + np.minimum(from_door, _SPACING) + 2.0 * central
        )
        x, y = spots[int(np.where(wanted, worth, -np.inf).argmax())]
        stands.append(_stand(float(x), float(y), room.floor * STOREY + EYE, number))
        spot = np.array([x, y])
        serves &= ~_within_reach(low, high, spot, doors)[None]
        reachable |= _within_reach(low, high, spot, spots)
        gap = np.minimum(gap, np.linalg.norm(spots - spot, axis=1))


def _leads_to(house: House, stand: Stand, room: int) -> bool:
    return stand.door >= 0 and room in house.doors[stand.door].rooms


def _within_reach(low: FloatArray, high: FloatArray, spot: FloatArray, others: FloatArray) -> BoolArray:
    """Which of the other points can be walked to from a spot.  (2,), (S, 2)  ->  (S,)"""
    near = np.linalg.norm(others - spot, axis=1) <= _FARTHEST
    return np.asarray(near & clear_lines(low, high, np.broadcast_to(spot, others.shape), others))


def _clearance(scene: Scene, room: Room, spots: FloatArray) -> FloatArray:
    """Distance of spots to the nearest obstacle of their room.  (S, 2)  ->  (S,)"""
    low, high = _obstacles(scene, room.floor, 0.0, room.rect)
    outside = np.maximum(low[None] - spots[:, None], spots[:, None] - high[None]).clip(0)
    return np.asarray(np.linalg.norm(outside, axis=2).min(axis=1))


def _free_spots(house: House, scene: Scene, number: int, rng: np.random.Generator) -> FloatArray:
    """Places of a room with elbow room, on a slightly shaken grid.  ->  (S, 2)"""
    room = house.rooms[number]
    inside = room.rect.grown(-WALL - _ELBOW)
    xs = np.linspace(inside.x0, inside.x1, max(2, int(inside.width / 0.2)))
    ys = np.linspace(inside.y0, inside.y1, max(2, int(inside.depth / 0.2)))
    spots = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2)
    spots = spots + rng.uniform(-0.05, 0.05, size=spots.shape)
    return np.asarray(spots[_clearance(scene, room, spots) >= _ELBOW])


def _obstacles(
    scene: Scene, storey: int, margin: float, around: Rect | None = None
) -> tuple[FloatArray, FloatArray]:
    """Footprints of what hinders a walker on one storey (or in one part of it), grown by ``margin``."""
    base = storey * STOREY
    stops = scene.hinders & (scene.low[:, 2] < base + 1.8) & (scene.high[:, 2] > base + 0.2)
    if around is not None:
        stops &= (scene.low[:, :2] <= around[2:]).all(axis=1) & (scene.high[:, :2] >= around[:2]).all(axis=1)
    return scene.low[stops, :2] - margin, scene.high[stops, :2] + margin


def _walkable(house: House, scene: Scene, position: FloatArray) -> BoolArray:
    """Pairs on one storey with nothing in the way, and the chain over the stairs.  ->  (V, V)"""
    count = len(position)
    linked = np.zeros((count, count), dtype=bool)
    one, two = np.nonzero(np.triu(np.linalg.norm(position[:, None] - position[None], axis=2) <= _FARTHEST, 1))
    landing = np.array([stand.stairs == "landing" for stand in house.stands])
    for storey in range(house.floors):
        level = (np.abs(position[:, 2] - (storey * STOREY + EYE)) < 0.01) & ~landing
        keep = level[one] & level[two]
        low, high = _obstacles(scene, storey, _BODY)
        free = clear_lines(low, high, position[one[keep], :2], position[two[keep], :2])
        linked[one[keep][free], two[keep][free]] = True
    chain = {stand.stairs: number for number, stand in enumerate(house.stands) if stand.stairs}
    if chain:
        linked[chain["bottom"], chain["landing"]] = linked[chain["landing"], chain["top"]] = True
    return np.asarray(linked | linked.T)


def _thinned(linked: BoolArray, position: FloatArray) -> BoolArray:
    """Drop links with another viewpoint right on the way."""
    length = np.where(linked, np.linalg.norm(position[:, None] - position[None], axis=2), np.inf)
    over_third = length[:, None, :] + length[None, :, :]  # (V, V, V)
    return np.asarray(linked & ~(over_third < _DETOUR * length[:, :, None]).any(axis=2))


def _doors_lead_on(house: House, linked: BoolArray) -> bool:
    """Whether from every doorway one can walk on into both rooms."""
    rooms = [_rooms_of(house, stand) for stand in house.stands]
    return all(
        any(room in rooms[other] for other in np.flatnonzero(linked[number]))
        for number, stand in enumerate(house.stands)
        if stand.door >= 0
        for room in house.doors[stand.door].rooms
    )


def _rooms_of(house: House, stand: Stand) -> tuple[int, ...]:
    """The rooms a stand belongs to: two in a doorway and on the landing."""
    if stand.door >= 0:
        return house.doors[stand.door].rooms
    return house.stairs.rooms if house.stairs is not None and stand.stairs else (stand.room,)


def _connected(linked: BoolArray) -> bool:
    reached = np.zeros(len(linked), dtype=bool)
    reached[0] = True
    for _ in range(len(linked)):
        reached = reached | linked[reached].any(axis=0)
    return bool(reached.all())


def _visible(scene: Scene, position: FloatArray) -> BoolArray:
    """Pairs of cameras with nothing between them.  ->  (V, V)"""
    one, two = np.triu_indices(len(position), 1)
    free = clear_lines(scene.low, scene.high, position[one], position[two])
    visible = np.zeros((len(position), len(position)), dtype=bool)
    visible[one[free], two[free]] = True
    return np.asarray(visible | visible.T)
