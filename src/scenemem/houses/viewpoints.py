"""Viewpoints, links where one can walk straight, routes over them and what a walker meets on the way.

Viewpoints are in doorways, on stairs and on free floor. A route is cut into legs, one for each clause.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from scenemem.formats.connectivity import Scan, Viewpoint
from scenemem.houses.house import EYE, STOREY, WALL, House, Rect, Room, StairsPart, Stand, Thing
from scenemem.houses.scene import NOTHING, BoolArray, FloatArray, IntArray, Panorama, RenderScene, clear_lines
from scenemem.tasks.paths import path_pool, shortest_paths
from scenemem.world.build import build_world

Side = Literal["", "left", "right"]

_SPACING = 1.65  # least distance between two viewpoints of a room, metres
_NEAREST = 0.8  # the same where a doorway could not be reached otherwise
_FROM_DOOR = 1.2  # least distance between a viewpoint of a room and one in its doorways
_WALKING_ROOM = 0.18  # free floor needed beside the line walked
_STANDING_ROOM = 0.3  # free floor needed around a viewpoint
_LONGEST = 3.8  # link
_DETOUR = 1.03  # a link is dropped when going over a third viewpoint is at most this many times as long
_IN_SIGHT = 0.25  # how much rarer routes are whose goal can be seen from the start
_LEAST_RAYS = 8  # a landmark counts as seen when at least this many of the 4800 panorama rays meet it
_BEND = math.radians(35)  # a larger turn starts a new leg
_TOO_COMMON = ("chair", "nightstand", "office chair", "towel rack")
_BESIDE = 1.4  # metres within which one passes or stands beside a thing
_AHEAD = math.radians(18)
_AT_DOOR = 1.3  # metres between a door and a thing beside it


@dataclass(frozen=True)
class Layout:
    """The viewpoints of a house and the links between them; V viewpoints."""

    house: House  # with its stands
    position: FloatArray  # (V, 3) of the cameras, metres
    linked: BoolArray  # (V, V) one can walk straight from one to the other
    visible: BoolArray  # (V, V) one camera sees the other


def place_viewpoints(house: House, scene: RenderScene, rng: np.random.Generator) -> Layout | None:
    """Viewpoints of a furnished house; None when some of them cannot be reached."""
    stands = _door_stands(house)
    if house.stairs is not None:
        (x, y), (dx, dy) = house.stairs.landing.centre, house.stairs.inward
        z = STOREY / 2 + EYE
        stands.append(_stand(x + 0.15 * dx, y + 0.15 * dy, z, house.stairs.rooms[0], stairs="landing"))
    for number, room in enumerate(house.rooms):
        if room.kind != "stairs":
            stands += _room_stands(house, scene, number, stands, rng)
    ids = (hashlib.sha256(f"{house.name} {n}".encode()).hexdigest()[:32] for n in range(len(stands)))
    named = (replace(stand, viewpoint=name) for stand, name in zip(stands, ids, strict=True))
    house = replace(house, stands=tuple(named))
    position = np.array([(stand.x, stand.y, stand.z) for stand in stands])
    linked = _thinned(_walkable(house, scene, position), position)
    steps = linked | np.eye(len(linked), dtype=bool)
    connected = np.linalg.matrix_power(steps, len(steps)).all()
    if not (connected and _doors_lead_on(house, linked)):
        return None
    visible = _clear_pairs(scene.low, scene.high, position, np.ones_like(linked))
    return Layout(house, position, linked, visible)


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


def _stand(x: float, y: float, z: float, room: int, door: int = -1, stairs: StairsPart = "") -> Stand:
    return Stand("", round(x, 3), round(y, 3), round(z, 3), room, door, stairs)


def _door_stands(house: House) -> list[Stand]:
    """One viewpoint in every doorway; those of the stairs stand on the first and the last step."""
    stands = []
    for number, door in enumerate(house.doors):
        if door.style == "front door":
            continue
        first, second = door.rooms
        inner = second if house.rooms[first].kind == "hallway" else first  # never in the hallway
        room = house.rooms[inner]
        on_stairs = room.kind == "stairs"
        into = door.towards(room.rect) * (0.17 if on_stairs else 0.0)
        x, y = (door.x + into, door.y) if door.across == "x" else (door.x, door.y + into)
        part: StairsPart = ("bottom", "top")[room.floor] if on_stairs else ""
        stands.append(_stand(x, y, room.floor * STOREY + EYE, inner, number, part))
    return stands


def _room_stands(
    house: House, scene: RenderScene, number: int, taken: list[Stand], rng: np.random.Generator
) -> list[Stand]:
    """Spots of a room that can be walked to from its doors: first those that serve a door, then the rest."""
    room = house.rooms[number]
    spots = _free_spots(scene, room, rng)
    leading_here = (s for s in taken if s.door >= 0 and number in house.doors[s.door].rooms)
    doors = np.array([(stand.x, stand.y) for stand in leading_here]).reshape(-1, 2)
    low, high = _obstacles(scene, room.floor, _WALKING_ROOM, room.rect.grown(0.3))
    serves = np.stack([_within_reach(low, high, door, spots) for door in doors], axis=1)  # (S, doors)
    from_door = np.linalg.norm(spots[:, None] - doors[None], axis=2).min(axis=1)
    central = np.minimum(_clearance(scene, room, spots), 0.9)
    gap, reachable = np.full(len(spots), 9.0), np.zeros(len(spots), dtype=bool)
    stands: list[Stand] = []
    while True:
        new_doors = serves.sum(axis=1)
        eligible = (gap >= _SPACING) & (from_door >= _FROM_DOOR)
        eligible |= (new_doors > 0) & (from_door >= _NEAREST) & (gap >= _NEAREST)
        eligible &= reachable if stands else new_doors > 0
        if not eligible.any():
            return stands
        score = 3.0 * new_doors + np.minimum(gap, 1.3 * _SPACING) + np.minimum(from_door, _SPACING)
        score = score + 2.0 * central
        spot = spots[int(np.where(eligible, score, -np.inf).argmax())]
        stands.append(_stand(float(spot[0]), float(spot[1]), room.floor * STOREY + EYE, number))
        serves &= ~_within_reach(low, high, spot, doors)[None]
        reachable |= _within_reach(low, high, spot, spots)
        gap = np.minimum(gap, np.linalg.norm(spots - spot, axis=1))


def _within_reach(low: FloatArray, high: FloatArray, spot: FloatArray, others: FloatArray) -> BoolArray:
    """Which of the other points can be walked to from a spot.  (2,), (S, 2)  ->  (S,)"""
    near = np.linalg.norm(others - spot, axis=1) <= _LONGEST
    return np.asarray(near & clear_lines(low, high, np.broadcast_to(spot, others.shape), others))


def _clearance(scene: RenderScene, room: Room, spots: FloatArray) -> FloatArray:
    """Distance of spots to the nearest obstacle of their room.  (S, 2)  ->  (S,)"""
    low, high = _obstacles(scene, room.floor, 0.0, room.rect)
    outside = np.maximum(low[None] - spots[:, None], spots[:, None] - high[None]).clip(0)
    return np.asarray(np.linalg.norm(outside, axis=2).min(axis=1))


def _free_spots(scene: RenderScene, room: Room, rng: np.random.Generator) -> FloatArray:
    """Spots of a room with free floor around them, on a slightly shaken grid.  ->  (S, 2)"""
    inside = room.rect.grown(-WALL - _STANDING_ROOM)
    xs = np.linspace(inside.x0, inside.x1, max(2, int(inside.width / 0.2)))
    ys = np.linspace(inside.y0, inside.y1, max(2, int(inside.depth / 0.2)))
    spots = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2)
    spots = spots + rng.uniform(-0.05, 0.05, size=spots.shape)
    return np.asarray(spots[_clearance(scene, room, spots) >= _STANDING_ROOM])


def _obstacles(
    scene: RenderScene, storey: int, margin: float, around: Rect | None = None
) -> tuple[FloatArray, FloatArray]:
    """Footprints of what one cannot walk through on a storey (or part of it), grown by ``margin``."""
    base = storey * STOREY
    stops = scene.blocks_walking & (scene.low[:, 2] < base + 1.8) & (scene.high[:, 2] > base + 0.2)
    if around is not None:
        stops &= (scene.low[:, :2] <= around[2:]).all(axis=1) & (scene.high[:, :2] >= around[:2]).all(axis=1)
    return scene.low[stops, :2] - margin, scene.high[stops, :2] + margin


def _walkable(house: House, scene: RenderScene, position: FloatArray) -> BoolArray:
    """Pairs on one storey with nothing in the way, and the chain over the stairs.  ->  (V, V)"""
    near = np.linalg.norm(position[:, None] - position[None], axis=2) <= _LONGEST
    landing = np.array([stand.stairs == "landing" for stand in house.stands])
    linked = np.zeros_like(near)
    for storey in range(house.floors):
        level = (np.abs(position[:, 2] - (storey * STOREY + EYE)) < 0.01) & ~landing
        low, high = _obstacles(scene, storey, _WALKING_ROOM)
        linked |= _clear_pairs(low, high, position[:, :2], near & level & level[:, None])
    chain = {stand.stairs: number for number, stand in enumerate(house.stands) if stand.stairs}
    if chain:
        linked[chain["bottom"], chain["landing"]] = linked[chain["landing"], chain["top"]] = True
    return np.asarray(linked | linked.T)


def _clear_pairs(low: FloatArray, high: FloatArray, points: FloatArray, pairs: BoolArray) -> BoolArray:
    """Those of the pairs with none of the boxes between them.  (B, D), (V, D), (V, V)  ->  (V, V)"""
    one, two = np.nonzero(np.triu(pairs, 1))
    clear = np.zeros_like(pairs)
    clear[one, two] = clear_lines(low, high, points[one], points[two])
    return np.asarray(clear | clear.T)


def _thinned(linked: BoolArray, position: FloatArray) -> BoolArray:
    """Drop links with another viewpoint right on the way."""
    length = np.where(linked, np.linalg.norm(position[:, None] - position[None], axis=2), np.inf)
    over_third = length[:, None, :] + length[None, :, :]  # (V, V, V)
    return np.asarray(linked & ~(over_third < _DETOUR * length[:, :, None]).any(axis=2))


def _doors_lead_on(house: House, linked: BoolArray) -> bool:
    """Whether from every doorway one can walk on into both rooms."""
    rooms = [house.rooms_of(stand) for stand in house.stands]
    return all(
        any(room in rooms[other] for other in np.flatnonzero(linked[number]))
        for number, stand in enumerate(house.stands)
        if stand.door >= 0
        for room in house.doors[stand.door].rooms
    )


class Route(NamedTuple):
    """A way through a house."""

    stands: tuple[int, ...]  # start first
    heading: float  # at the start, radians, clockwise from +y
    distance: float  # metres along the way


def sample_routes(layout: Layout, count: int, rng: np.random.Generator) -> list[Route]:
    """Up to ``count`` routes as in R2R: shortest paths of 4 to 6 edges and at least 5 m, any start heading.

    All are different and lead from one room to another; most goals are out of sight of the start.
    """
    world = build_world([scan_of(layout)])
    pool, room = path_pool(world, world.scans), np.array([stand.room for stand in layout.house.stands])
    start, goal = pool.start.numpy(), pool.goal.numpy()
    rows = np.flatnonzero(room[start] != room[goal])
    weight = np.where(layout.visible[start, goal], _IN_SIGHT, 1.0)[rows]
    order = rows[np.argsort(-(rng.random(len(rows)) ** (1 / weight)), kind="stable")[:count]]
    headings = rng.uniform(0, 2 * math.pi, size=len(order)).round(3)
    metres = world.geodesic(pool.start[order], pool.goal[order]).tolist()
    path, length = shortest_paths(world, pool.start[order], pool.goal[order])
    columns = zip(path.tolist(), length.tolist(), headings.tolist(), metres, strict=True)
    return [Route(tuple(stands[:size]), heading, distance) for stands, size, heading, distance in columns]


@dataclass(frozen=True)
class Surroundings:
    """A house with its landmarks and the viewpoints they are seen from; V viewpoints, M landmarks."""

    house: House
    position: FloatArray  # (V, 3)
    landmarks: tuple[Thing, ...]  # M
    rays: IntArray  # (V, M) panorama rays that meet the landmark

    @cached_property
    def seen(self) -> list[list[int]]:
        """The landmarks plainly visible from each viewpoint, the largest first."""
        order = np.argsort(-self.rays, axis=1, kind="stable")
        counts = (self.rays >= _LEAST_RAYS).sum(axis=1)
        return [row[:count].tolist() for row, count in zip(order, counts, strict=True)]

    def heading(self, source: int, target: int) -> float:
        """Of the way from one viewpoint to another, radians clockwise from +y."""
        east, north, _ = self.position[target] - self.position[source]
        return math.atan2(east, north)

    def bearing(self, stand: int, landmark: int) -> float:
        """Heading of the middle of a landmark from a viewpoint."""
        x, y = self.landmarks[landmark].box.footprint.centre
        return math.atan2(x - self.position[stand, 0], y - self.position[stand, 1])

    def gap(self, stand: int, landmark: int) -> float:
        """Metres between a viewpoint and the nearest edge of a landmark, on the floor."""
        x, y, _ = self.position[stand]
        return self.landmarks[landmark].box.footprint.distance(float(x), float(y))


def survey(layout: Layout, scene: RenderScene, panoramas: list[Panorama]) -> Surroundings:
    """Count what the panoramas of all viewpoints show."""
    landmarks = layout.house.landmarks()
    rows = []
    for panorama in panoramas:
        met = np.where(panorama.box == NOTHING, -1, scene.landmark[panorama.box]).ravel() + 1
        rows.append(np.bincount(met, minlength=len(landmarks) + 1)[1:])
    return Surroundings(layout.house, layout.position, landmarks, np.stack(rows))


def turn_between(before: float, after: float) -> float:
    """Signed turn from one heading to another, radians in [-pi, pi), positive to the right."""
    return (after - before + math.pi) % (2 * math.pi) - math.pi


@dataclass(frozen=True)
class Leg:
    """Part of a route described in one go; ``start`` and ``stop`` are indices into ``Route.stands``."""

    start: int
    stop: int
    room: int  # walked through
    before: float  # heading on arrival at ``start``, radians
    heading: float  # of its first edge
    climb: int  # -1 down the stairs, 1 up, 0 level
    door: int = -1  # passed at its end (or on its last edge), -1 for none
    into: int = -1  # the room behind that door

    @property
    def turn(self) -> float:
        """Radians at its start, positive to the right."""
        return turn_between(self.before, self.heading)

    def goes_on(self, edge: Leg) -> bool:
        """Whether the next edge belongs to this leg: still on the stairs, or straight on in the same room."""
        if self.door >= 0:
            return False
        if self.climb or edge.climb:
            return self.climb == edge.climb
        return self.room == edge.room and abs(edge.turn) < _BEND


class LandmarkWalk:
    """One route in its surroundings; a ``step`` is an index into ``Route.stands``."""

    def __init__(self, around: Surroundings, route: Route) -> None:
        self.around = around
        self.house = around.house
        self.stands = route.stands
        edges = list(itertools.pairwise(route.stands))
        self._headings = [route.heading, *itertools.starmap(around.heading, edges)]
        self._rooms = [self._rooms_of(source, target) for source, target in edges]
        self.legs: list[Leg] = []
        for number in range(len(edges)):
            edge = self._edge(number)
            if self.legs and self.legs[-1].goes_on(edge):
                self.legs[-1] = replace(self.legs[-1], stop=edge.stop, door=edge.door, into=edge.into)
            else:
                self.legs.append(edge)

    def _rooms_of(self, source: int, target: int) -> tuple[int, int]:
        """The rooms an edge starts and ends in."""
        a, b = self.around.position[source], self.around.position[target]
        leaves, enters = (self.house.room_at(*(a + share * (b - a)).tolist()) for share in (0.12, 0.88))
        return leaves, enters

    def _edge(self, number: int) -> Leg:
        """One edge as a leg of its own."""
        before, heading = self._headings[number : number + 2]
        rise = self.spot(number + 1)[2] - self.spot(number)[2]
        climb = (rise > 0.1) - (rise < -0.1)
        door, into = (-1, -1) if climb else self._door_passed(number)
        return Leg(number, number + 1, self._rooms[number][0], before, heading, climb, door, into)

    def _door_passed(self, number: int) -> tuple[int, int]:
        """The door one goes through on an edge or at its end, and the room behind it; (-1, -1) for none."""
        (leaves, enters), doors = self._rooms[number], self.house.doors
        source, target = self.stands[number : number + 2]
        if leaves != enters:  # the door between the two rooms that is closest to the middle of the edge
            x, y = ((self.around.position[source] + self.around.position[target]) / 2)[:2].tolist()
            fits = [n for n, door in enumerate(doors) if set(door.rooms) == {leaves, enters}]
            nearest = min(fits, key=lambda n: math.hypot(doors[n].x - x, doors[n].y - y), default=-1)
            return nearest, enters
        door = self.house.stands[target].door
        if door >= 0 and number + 1 < len(self._rooms) and self._rooms[number + 1][0] != enters:
            return door, self._rooms[number + 1][0]
        return -1, -1

    def spot(self, step: int) -> tuple[float, float, float]:
        """The position of the camera."""
        x, y, z = self.around.position[self.stands[step]].tolist()
        return x, y, z

    def length(self, leg: Leg) -> float:
        """Metres from the start of a leg straight to its end, on the floor."""
        east, north, _ = np.subtract(self.spot(leg.stop), self.spot(leg.start)).tolist()
        return math.hypot(east, north)

    def doors_ahead(self, leg: Leg, side: str) -> list[int]:
        """Doors on one side of the room one walks through, in the order they come.

        Only doors in walls that run along the way count, and no wide openings.
        """
        found: list[tuple[float, int]] = []
        x, y, _ = self.spot(leg.start)
        for number, door in enumerate(self.house.doors):
            along_wall = abs(math.cos(leg.heading)) if door.across == "x" else abs(math.sin(leg.heading))
            if leg.room in door.rooms and door.style == "door" and along_wall > math.cos(math.radians(25)):
                forward, right = _relative(door.x - x, door.y - y, leg.heading)
                if forward > 0.3 and (right > 0) == (side == "right"):
                    found.append((forward, number))
        return [number for _, number in sorted(found)]

    def passed(self, leg: Leg) -> list[tuple[int, Side]]:
        """Landmarks beside the way, in sight before one comes past them, with their side."""
        heading, length = self._heading(leg), self.length(leg)
        here_x, here_y, _ = self.spot(leg.start)
        found: list[tuple[int, Side]] = []
        for landmark, thing in self._mentionable(leg.start):
            x, y = thing.box.footprint.centre
            forward, right = _relative(x - here_x, y - here_y, heading)
            beside = thing.room == leg.room and 0.4 < forward < length - 0.1
            if beside and self._beside_way(leg, thing):
                sure = abs(right) > 0.35 and thing.kind != "rug"
                found.append((landmark, ("right" if right > 0 else "left") if sure else ""))
        return found

    def ahead(self, leg: Leg) -> list[int]:
        """Landmarks one walks towards."""
        start, heading, length = self.stands[leg.start], self._heading(leg), self.length(leg)
        return [
            landmark
            for landmark, _ in self._mentionable(leg.start)
            if abs(turn_between(heading, self.around.bearing(start, landmark))) < _AHEAD
            and length - 0.3 < self.around.gap(start, landmark) < length + 3.0
        ]

    def near(self, step: int, reach: float = _BESIDE) -> list[int]:
        """Landmarks beside a viewpoint of the route, the closest first."""
        stand = self.stands[step]
        gaps = [(self.around.gap(stand, landmark), landmark) for landmark, _ in self._mentionable(step)]
        return [landmark for gap, landmark in sorted(gaps) if gap < reach]

    def beside_door(self, leg: Leg) -> list[int]:
        """Landmarks beside the door of a leg in the room one comes from, in sight before its last edge."""
        door, step = self.house.doors[leg.door], leg.stop - 1
        room = self.house.stands[self.stands[step]].room
        return [
            landmark
            for landmark, thing in self._mentionable(step)
            if thing.room == room and thing.kind != "rug"
            if thing.box.footprint.distance(door.x, door.y) < _AT_DOOR
        ]

    def same_kind(self, landmark: int, step: int) -> list[Thing]:
        """Other landmarks of the same kind in sight from a viewpoint of the route."""
        thing, seen = self.around.landmarks[landmark], self.around.seen[self.stands[step]]
        others = (self.around.landmarks[other] for other in seen if other != landmark)
        return [other for other in others if other.kind == thing.kind]

    def _heading(self, leg: Leg) -> float:
        return self.around.heading(self.stands[leg.start], self.stands[leg.stop])

    def _mentionable(self, step: int) -> list[tuple[int, Thing]]:
        seen = ((number, self.around.landmarks[number]) for number in self.around.seen[self.stands[step]])
        return [(number, thing) for number, thing in seen if thing.kind not in _TOO_COMMON]

    def _beside_way(self, leg: Leg, thing: Thing) -> bool:
        a, b = np.array(self.spot(leg.start)), np.array(self.spot(leg.stop))
        points = (a + (b - a) * share / 8 for share in range(9))
        same_floor = abs(thing.box.z0 - float(a[2]) + 1.5) < 1.6
        return same_floor and min(thing.box.footprint.distance(*p[:2].tolist()) for p in points) < _BESIDE


def _relative(east: float, north: float, heading: float) -> tuple[float, float]:
    """An offset as metres ahead and to the right for a given heading."""
    sine, cosine = math.sin(heading), math.cos(heading)
    return east * sine + north * cosine, east * cosine - north * sine
