"""Pictures and maps: the right size, the right things in the right place, well-formed."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from scenemem.houses.maps import draw_map
from scenemem.houses.pictures import draw_panorama, draw_view
from scenemem.houses.routes import sample_routes
from scenemem.houses.scene import Scene
from scenemem.houses.surroundings import Surroundings
from scenemem.houses.viewpoints import Layout

Surveyed = tuple[Layout, Scene, Surroundings]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_view_shows_what_stands_in_its_middle(two_floors: Surveyed) -> None:
    layout, _, around = two_floors
    blue = [n for n, thing in enumerate(layout.house.things) if thing.colour in ("blue", "purple", "red")]
    rays = around.rays[:, blue]
    stand, place = np.unravel_index(int(rays.argmax()), rays.shape)
    number = blue[int(place)]
    thing = around.landmarks[number]
    rise = (thing.box.z0 + thing.box.z1) / 2 - layout.position[stand, 2]
    x, y = thing.box.footprint.centre
    flat = math.hypot(x - layout.position[stand, 0], y - layout.position[stand, 1])
    picture = draw_view(layout.house, int(stand), around.bearing(int(stand), number), math.atan2(rise, flat))
    assert picture.size == (640, 480)
    middle = np.asarray(picture)[200:280, 280:360].reshape(-1, 3).mean(axis=0)
    strongest = {"blue": 2, "red": 0, "purple": 2}[thing.colour]
    assert middle.argmax() == strongest


def test_a_panorama_is_a_strip_with_many_colours(two_floors: Surveyed) -> None:
    layout, _, _ = two_floors
    picture = draw_panorama(layout.house, 5, width=192)
    assert picture.size == (192, 64)
    assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 100


def test_from_the_porch_one_sees_the_sky(two_floors: Surveyed) -> None:
    layout, _, _ = two_floors
    house = layout.house
    stand = next(n for n, s in enumerate(house.stands) if house.rooms[s.room].kind == "porch")
    picture = np.asarray(draw_panorama(house, stand, width=96)).astype(int)
    top = picture[0]
    assert ((top[:, 2] > top[:, 0] + 40) & (top[:, 2] > 200)).any()


def test_maps_are_well_formed_and_name_every_room(surveyed: list[Surveyed]) -> None:
    for layout, _, _ in surveyed:
        root = ElementTree.fromstring(draw_map(layout.house))
        names = [text.text for text in root.iter(f"{SVG}text")]
        for room in layout.house.rooms:
            assert room.kind in names
        assert sum("floor" in (name or "") for name in names) >= layout.house.floors
        circles = list(root.iter(f"{SVG}circle"))
        landings = sum(stand.stairs == "landing" for stand in layout.house.stands)  # on both floors
        assert len(circles) == len(layout.house.stands) + landings


@pytest.mark.parametrize("numbers", [False, True])
def test_a_route_is_drawn_with_its_two_ends(two_floors: Surveyed, numbers: bool) -> None:
    layout, _, _ = two_floors
    links = [(int(a), int(b)) for a, b in zip(*np.nonzero(np.triu(layout.linked)), strict=True)]
    plain = ElementTree.fromstring(draw_map(layout.house, numbers=numbers))
    linked = ElementTree.fromstring(draw_map(layout.house, links=links, numbers=numbers))
    flat = next(
        route
        for route in sample_routes(layout, 50, np.random.default_rng(0))
        if not any(layout.house.stands[n].stairs for n in route.stands)
    )
    drawn = ElementTree.fromstring(draw_map(layout.house, route=flat.stands, numbers=numbers))

    def count(root: ElementTree.Element, tag: str) -> int:
        return len(list(root.iter(SVG + tag)))

    assert count(linked, "line") == count(plain, "line") + len(links)
    assert count(drawn, "line") == count(plain, "line") + len(flat.stands) - 1
    assert count(drawn, "circle") == count(plain, "circle") + 2
