"""Plans, furniture, viewpoints: rooms fit and can be reached, things stand clear, graphs can be walked."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from scenemem.formats.connectivity import read_scan, write_scan
from scenemem.houses.furniture import furnish
from scenemem.houses.house import (
    COLOURS,
    EYE,
    KINDS,
    MATERIALS,
    ROOM_KINDS,
    SHAPES,
    STOREY,
    Box,
    House,
    Part,
    Rect,
    RectSide,
    Thing,
)
from scenemem.houses.plan import Draft, draw_plan, shared_wall
from scenemem.houses.scene import part_box
from scenemem.houses.viewpoints import sample_routes, scan_of
from tests.houses.conftest import Surveyed

PLANS = [draw_plan(np.random.default_rng(seed), f"house_{seed:03d}") for seed in range(40)]


@pytest.mark.parametrize("house", PLANS, ids=lambda house: house.name)
def test_rooms_fit_together_and_doors_and_windows_lie_in_their_walls(house: House) -> None:
    for number, room in enumerate(house.rooms):
        assert room.kind in ROOM_KINDS
        assert min(room.rect.width, room.rect.depth) >= 1.5
        for other in house.rooms[:number]:
            assert room.floor != other.floor or not room.rect.overlaps(other.rect)
    graph = nx.Graph(door.rooms for door in house.doors if -1 not in door.rooms)
    graph.add_edges_from([house.stairs.rooms] if house.stairs else [])
    assert nx.is_connected(graph)
    assert len(graph) == len(house.rooms)

    for door in house.doors:
        first = house.rooms[door.rooms[0]]
        assert first.rect.grown(1e-6).holds(door.x, door.y)
        if door.style == "front door":
            assert door.rooms[1] == -1
            continue
        second = house.rooms[door.rooms[1]]
        assert first.floor == second.floor
        wall = shared_wall(first.rect, second.rect)
        assert wall is not None
        assert (door.across, door.line) == (wall.across, wall.line)
        assert wall.start <= door.ends[0] < door.ends[1] <= wall.stop
    for window in house.windows:
        floor = house.rooms[window.room].floor
        dx, dy = (0.1, 0.0) if window.across == "x" else (0.0, 0.1)
        inside = [
            any(room.floor == floor and room.rect.holds(*spot) for room in house.rooms)
            for spot in ((window.x + dx, window.y + dy), (window.x - dx, window.y - dy))
        ]
        assert inside.count(False) == 1
    if house.stairs is not None:
        below, above = (house.rooms[number] for number in house.stairs.rooms)
        assert (below.floor, above.floor) == (0, 1)
        assert below.rect == above.rect
        for part in (house.stairs.lower, house.stairs.landing, house.stairs.upper):
            assert below.rect.grown(1e-9).holds(part.x0, part.y0)
            assert below.rect.grown(1e-9).holds(part.x1, part.y1)


def test_plans_vary() -> None:
    assert {house.floors for house in PLANS} == {1, 2}
    assert len({tuple(room.kind for room in house.rooms) for house in PLANS}) > 30
    kinds = {room.kind for house in PLANS for room in house.rooms}
    assert kinds == set(ROOM_KINDS)
    # no compass direction is special: hallways run both ways
    hallways = [room.rect for house in PLANS for room in house.rooms if room.kind == "hallway"]
    assert {rect.width > rect.depth for rect in hallways} == {True, False}


def test_only_rooms_that_share_a_wall_are_joined() -> None:
    for one, other, expected in (
        (Rect(0, 0, 2, 3), Rect(2, 1, 5, 9), RectSide("x", 2, -1, 1, 3)),
        (Rect(0, 3, 2, 5), Rect(1, 0, 5, 3), RectSide("y", 3, 1, 1, 2)),
        (Rect(0, 0, 1, 1), Rect(1, 1, 2, 2), None),  # a corner is no wall
        (Rect(0, 0, 1, 1), Rect(3, 0, 4, 1), None),
    ):
        assert shared_wall(one, other) == expected
    draft = Draft(np.random.default_rng(0))
    a = draft.add_room("kitchen", 0, Rect(0, 0, 3, 3))
    b = draft.add_room("office", 0, Rect(5, 0, 8, 3))
    c = draft.add_room("bedroom", 1, Rect(3, 0, 5, 3))
    for at in (None, 1.0):
        with pytest.raises(ValueError, match="rooms 0 and 1 share no wall"):
            draft.join(a, b, at=at)
    assert draft.share(a, c) == 0.0  # on another floor


HOUSES = [furnish(house, np.random.default_rng(seed)) for seed, house in enumerate(PLANS[:12])]


def test_the_tables_agree_with_each_other() -> None:
    for name, kind in KINDS.items():
        assert kind.shape in SHAPES, name
        assert set(kind.colours) <= set(COLOURS), name
        assert set(kind.materials) <= set(MATERIALS), name
    wanted = {furnishing.kind for room in ROOM_KINDS.values() for furnishing in room.furnishings}
    attached = {name for name, kind in KINDS.items() if kind.placement == "attached"}
    assert wanted | attached == set(KINDS)
    for room in ROOM_KINDS.values():
        assert set(room.walls) <= set(COLOURS)
        assert all(material in MATERIALS and colour in COLOURS for material, colour in room.grounds)


@pytest.mark.parametrize("house", HOUSES, ids=lambda house: house.name)
def test_things_stand_in_their_rooms_clear_of_each_other_and_of_doors(house: House) -> None:
    for thing in house.things:
        room = house.rooms[thing.room]
        inside = room.rect.grown(-0.05)
        assert inside.holds(thing.box.x0, thing.box.y0)
        assert inside.holds(thing.box.x1, thing.box.y1)
        assert room.floor * STOREY <= thing.box.z0 < thing.box.z1 < room.floor * STOREY + 2.6
        assert thing.colour in KINDS[thing.kind].colours
        assert thing.material in KINDS[thing.kind].materials
    standing = [t for t in house.things if KINDS[t.kind].placement != "hung" and t.kind != "rug"]
    for a, b in itertools.combinations(standing, 2):
        together = {a.kind, b.kind}
        if a.room == b.room and together not in ({"chair", "dining table"}, {"desk", "office chair"}):
            assert not a.box.footprint.grown(-0.01).overlaps(b.box.footprint), (a, b)
    for door in house.doors:
        way = Rect(door.x, door.y, door.x, door.y).grown(0.4)
        for thing in standing:
            if house.rooms[thing.room].floor == house.rooms[door.rooms[0]].floor:
                assert not thing.box.footprint.overlaps(way), (door, thing)


def test_rooms_hold_what_is_typical_of_them() -> None:
    found: dict[str, list[set[str]]] = {}
    for house in HOUSES:
        for number, room in enumerate(house.rooms):
            kinds = {thing.kind for thing in house.things if thing.room == number}
            found.setdefault(room.kind, []).append(kinds)
    assert all("refrigerator" in kinds for kinds in found["kitchen"])
    assert np.mean([bool(kinds & {"bed", "bunk bed"}) for kinds in found["bedroom"]]) > 0.9
    assert np.mean(["toilet" in kinds for kinds in found["bathroom"]]) > 0.9
    assert not any("toilet" in kinds for kinds in found["kitchen"])
    assert len({thing.colour for house in HOUSES for thing in house.things if thing.kind == "bed"}) >= 5


def test_parts_turn_with_the_thing() -> None:
    for facing, (x0, y0, x1, y1) in {
        (0, 1): (2.0, 1.5, 3.0, 2.0),  # front to the north: its right is east
        (0, -1): (0.0, 1.0, 1.0, 1.5),
        (1, 0): (1.5, 1.0, 3.0, 1 + 1 / 3),
        (-1, 0): (0.0, 1 + 2 / 3, 1.5, 2.0),
    }.items():
        thing = Thing("sofa", "red", "fabric", 0, Box(0, 1, 0, 3, 2, 2), facing)
        spot = part_box(thing, Part(2 / 3, 1, 0.5, 1, 0, 0.5))  # its right third, the middle to the front
        assert spot == pytest.approx((x0, y0, 0, x1, y1, 1))


def test_linked_viewpoints_see_each_other_and_are_a_step_apart(surveyed: list[Surveyed]) -> None:
    for layout, scene, _ in surveyed:
        assert 30 <= len(layout.position) <= 70
        assert (layout.linked == layout.linked.T).all()
        assert (layout.visible == layout.visible.T).all()
        assert not layout.linked.diagonal().any()
        assert nx.is_connected(nx.from_numpy_array(layout.linked))
        one, two = np.nonzero(np.triu(layout.linked))
        lengths = np.linalg.norm(layout.position[one] - layout.position[two], axis=1)
        assert lengths.min() > 0.5
        assert lengths.max() < 4.0
        assert 1.4 < lengths.mean() < 2.6
        share = np.linspace(0, 1, 60)[:, None, None]  # nothing stands in the way at eye height
        points = layout.position[one] * (1 - share) + layout.position[two] * share  # (60, E, 3)
        inside = (points[:, :, None] > scene.low).all(axis=3) & (points[:, :, None] < scene.high).all(axis=3)
        assert not inside.any()
        assert layout.visible[one, two].all()


def test_stands_are_on_free_floor_and_doorways_lead_into_both_rooms(surveyed: list[Surveyed]) -> None:
    for layout, scene, _ in surveyed:
        house = layout.house
        for stand in house.stands:
            room = house.rooms[stand.room]
            assert room.rect.grown(1e-6).holds(stand.x, stand.y)
            if stand.stairs != "landing":
                assert stand.z == room.floor * STOREY + EYE
            body = np.array([stand.x, stand.y, stand.z - 0.5])
            assert not ((scene.low < body) & (body < scene.high)).all(axis=1).any()
        doors = [number for number, door in enumerate(house.doors) if door.style != "front door"]
        stands = {stand.door: number for number, stand in enumerate(house.stands) if stand.door >= 0}
        assert sorted(stands) == doors
        assert all(layout.linked[number].sum() >= 2 for number in stands.values())


def test_stairs_are_a_chain_and_the_scan_is_a_valid_connectivity_file(
    two_floors: Surveyed, tmp_path: Path
) -> None:
    layout, _, _ = two_floors
    chain = {stand.stairs: number for number, stand in enumerate(layout.house.stands) if stand.stairs}
    bottom, landing, top = (chain[part] for part in ("bottom", "landing", "top"))
    assert layout.position[[bottom, landing, top], 2].tolist() == [1.5, 3.0, 4.5]
    assert np.flatnonzero(layout.linked[landing]).tolist() == sorted((bottom, top))
    scan = scan_of(layout)
    assert read_scan(write_scan(tmp_path, scan)) == scan
    assert len({viewpoint.image_id for viewpoint in scan.viewpoints}) == len(scan.viewpoints)
    assert all(re.fullmatch("[0-9a-f]{32}", viewpoint.image_id) for viewpoint in scan.viewpoints)
    assert [list(viewpoint.position) for viewpoint in scan.viewpoints] == layout.position.tolist()


def test_routes_are_shortest_paths_of_the_right_size_to_goals_mostly_out_of_sight(
    surveyed: list[Surveyed],
) -> None:
    rng = np.random.default_rng(7)
    for layout, _, _ in surveyed:
        graph = nx.Graph()
        for a, b in zip(*np.nonzero(layout.linked), strict=True):
            graph.add_edge(int(a), int(b), metres=math.dist(layout.position[a], layout.position[b]))
        routes = sample_routes(layout, 80, rng)
        ends = [(route.stands[0], route.stands[-1]) for route in routes]
        assert len(set(ends)) == len(routes) == 80
        assert np.mean([layout.visible[pair] for pair in ends]) < 0.2
        for route, (start, goal) in zip(routes, ends, strict=True):
            assert 4 <= len(route.stands) - 1 <= 6
            assert route.distance >= 5.0
            assert nx.path_weight(graph, route.stands, "metres") == pytest.approx(route.distance)
            shortest = nx.shortest_path_length(graph, start, goal, "metres")
            assert route.distance == pytest.approx(shortest)
            assert 0 <= route.heading <= 2 * math.pi
            assert layout.house.stands[start].room != layout.house.stands[goal].room
    layout, _, _ = surveyed[0]
    routes, again = (sample_routes(layout, 10**6, np.random.default_rng(0)) for _ in range(2))
    assert 300 < len(routes) < len(layout.position) ** 2, "all there are"
    assert routes == again
