"""Floor plans: rooms fit together, doors lead somewhere, every room can be reached."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from scenemem.houses.draft import Draft, shared_wall
from scenemem.houses.plan import draw_plan
from scenemem.houses.records import House, Rect
from scenemem.houses.room_kinds import ROOM_KINDS

PLANS = [draw_plan(np.random.default_rng(seed), f"house_{seed:03d}") for seed in range(40)]


def room_graph(house: House) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(house.rooms)))
    graph.add_edges_from(door.rooms for door in house.doors if -1 not in door.rooms)
    if house.stairs is not None:
        graph.add_edge(*house.stairs.rooms)
    return graph


@pytest.mark.parametrize("house", PLANS, ids=lambda house: house.name)
def test_rooms_of_a_floor_do_not_overlap_and_all_can_be_reached(house: House) -> None:
    for number, room in enumerate(house.rooms):
        assert room.kind in ROOM_KINDS
        assert min(room.rect.width, room.rect.depth) >= 1.5
        for other in house.rooms[:number]:
            assert room.floor != other.floor or not room.rect.overlaps(other.rect)
    assert nx.is_connected(room_graph(house))


@pytest.mark.parametrize("house", PLANS, ids=lambda house: house.name)
def test_doors_lie_in_the_wall_between_their_rooms(house: House) -> None:
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
        assert wall.start <= door.at - door.width / 2
        assert door.at + door.width / 2 <= wall.stop


@pytest.mark.parametrize("house", PLANS, ids=lambda house: house.name)
def test_windows_look_outside(house: House) -> None:
    for window in house.windows:
        room = house.rooms[window.room]
        dx, dy = (0.1, 0.0) if window.across == "x" else (0.0, 0.1)
        rooms_here = [other.rect for other in house.rooms if other.floor == room.floor]
        sides = [(window.x + dx, window.y + dy), (window.x - dx, window.y - dy)]
        assert [any(rect.holds(*spot) for rect in rooms_here) for spot in sides].count(False) == 1


def test_plans_vary() -> None:
    assert {house.floors for house in PLANS} == {1, 2}
    assert len({tuple(room.kind for room in house.rooms) for house in PLANS}) > 30
    kinds = {room.kind for house in PLANS for room in house.rooms}
    assert kinds == set(ROOM_KINDS)
    # no compass direction is special: hallways run both ways
    hallways = [room.rect for house in PLANS for room in house.rooms if room.kind == "hallway"]
    assert {rect.width > rect.depth for rect in hallways} == {True, False}


def test_the_two_stair_rooms_lie_above_each_other() -> None:
    for house in PLANS:
        if house.stairs is None:
            continue
        below, above = (house.rooms[number] for number in house.stairs.rooms)
        assert (below.floor, above.floor) == (0, 1)
        assert below.rect == above.rect
        for part in (house.stairs.lower, house.stairs.landing, house.stairs.upper):
            assert below.rect.grown(1e-9).holds(part.x0, part.y0)
            assert below.rect.grown(1e-9).holds(part.x1, part.y1)


def test_shared_wall_of_rectangles() -> None:
    wall = shared_wall(Rect(0, 0, 2, 3), Rect(2, 1, 5, 9))
    assert wall is not None
    assert tuple(wall) == ("x", 2, 1, 3)
    wall = shared_wall(Rect(0, 3, 2, 5), Rect(1, 0, 5, 3))
    assert wall is not None
    assert tuple(wall) == ("y", 3, 1, 2)
    assert shared_wall(Rect(0, 0, 1, 1), Rect(1, 1, 2, 2)) is None  # a corner is no wall
    assert shared_wall(Rect(0, 0, 1, 1), Rect(3, 0, 4, 1)) is None


def test_rooms_that_share_no_wall_cannot_be_joined() -> None:
    draft = Draft(np.random.default_rng(0))
    a = draft.add_room("kitchen", 0, Rect(0, 0, 3, 3))
    b = draft.add_room("office", 0, Rect(5, 0, 8, 3))
    c = draft.add_room("bedroom", 1, Rect(3, 0, 5, 3))
    with pytest.raises(ValueError, match="rooms 0 and 1 share no wall"):
        draft.join(a, b)
    with pytest.raises(ValueError, match="rooms 0 and 1 share no wall"):
        draft.join_at(a, b, 1.0, 0.9)
    assert draft.share(a, c) == 0.0  # on another floor
