"""Plans and furniture: rooms fit together and can be reached, things stand clear of doors and each other."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest

from scenemem.houses.furniture import furnish
from scenemem.houses.house import (
    COLOURS,
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
