"""Furniture: in its room, not in other furniture, out of the way of doors, recognisable shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scenemem.houses.catalogue import COLOURS, KINDS, MATERIALS
from scenemem.houses.furnish import furnish
from scenemem.houses.plan import draw_plan
from scenemem.houses.records import STOREY, Box, House, Rect, Thing
from scenemem.houses.room_kinds import ROOM_KINDS
from scenemem.houses.shapes import SHAPES, Part, placed


def furnished(seed: int) -> House:
    rng = np.random.default_rng(seed)
    return furnish(draw_plan(rng, f"house_{seed:03d}"), rng)


HOUSES = [furnished(seed) for seed in range(12)]


def standing(house: House) -> list[Thing]:
    return [t for t in house.things if KINDS[t.kind].place != "hung" and t.kind != "rug"]


def test_the_tables_agree_with_each_other() -> None:
    for name, kind in KINDS.items():
        assert kind.shape in SHAPES, name
        assert set(kind.colours) <= set(COLOURS), name
        assert set(kind.materials) <= set(MATERIALS), name
    wanted = {furnishing.kind for room in ROOM_KINDS.values() for furnishing in room.furnishings}
    attached = {name for name, kind in KINDS.items() if kind.place == "attached"}
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
    for a, b in itertools.combinations(standing(house), 2):
        together = {a.kind, b.kind}
        if a.room == b.room and together not in ({"chair", "dining table"}, {"desk", "office chair"}):
            assert not a.box.footprint.grown(-0.01).overlaps(b.box.footprint), (a, b)
    for door in house.doors:
        way = Rect(door.x, door.y, door.x, door.y).grown(0.4)
        for thing in standing(house):
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


def test_houses_differ_in_colour() -> None:
    beds = {thing.colour for house in HOUSES for thing in house.things if thing.kind == "bed"}
    assert len(beds) >= 5


@pytest.mark.parametrize(
    ("facing", "expected"),
    [
        ((0, 1), (2.0, 1.0, 3.0, 2.0)),  # front to the north: its right is east
        ((0, -1), (0.0, 2.0, 1.0, 3.0)),
        ((1, 0), (1.5, 0.0, 3.0, 2.0)),
        ((-1, 0), (0.0, 2.0, 1.5, 4.0)),
    ],
)
def test_parts_turn_with_the_thing(facing: tuple[int, int], expected: tuple[float, ...]) -> None:
    box = Box(0, 1, 0, 3, 3, 2) if facing[0] == 0 else Box(0, 0, 0, 3, 4, 2)
    thing = Thing("sofa", "red", "fabric", 0, box, facing)
    # the right third (or half) of the thing, from its middle to its front
    share = 2 / 3 if facing[0] == 0 else 0.5
    spot = placed(thing, Part(share, 1, 0.0 if facing[0] == 0 else 0.5, 0.5 if facing[0] == 0 else 1, 0, 0.5))
    assert (spot.x0, spot.y0, spot.x1, spot.y1) == pytest.approx(expected)
    assert (spot.z0, spot.z1) == (0, 1)
