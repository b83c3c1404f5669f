"""Rays, view features, pictures and maps: what is seen from a viewpoint, and nothing else."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from scenemem.houses.build import cast_panoramas
from scenemem.houses.features import WIDTH, columns, view_features
from scenemem.houses.house import SEEN_KINDS
from scenemem.houses.pictures import draw_map, draw_panorama, draw_view
from scenemem.houses.scene import (
    ELEVATION,
    FAR,
    HEADING,
    NOTHING,
    RenderScene,
    build_scene,
    cast_panorama,
    cast_rays,
    clear_lines,
)
from scenemem.houses.viewpoints import Layout, sample_routes
from tests.houses.conftest import Surveyed

Values = np.ndarray[tuple[int, ...], np.dtype[np.float16]]
SVG = "{http://www.w3.org/2000/svg}"


def boxes(*corners: tuple[float, ...]) -> RenderScene:
    """A scene of plain boxes that shut nothing off."""
    table = np.array(corners, dtype=np.float64)
    zeros = np.zeros(len(table), dtype=np.int64)
    no = np.zeros(len(table), dtype=bool)
    return RenderScene(table[:, :3], table[:, 3:], zeros, zeros, zeros, zeros - 1, zeros, no, no)


def test_a_box_to_the_east_is_seen_to_the_east() -> None:
    assert np.degrees(HEADING[[0, -1]]) == pytest.approx([1.5, 358.5])
    assert np.degrees(ELEVATION[[0, -1]]) == pytest.approx([-58.5, 58.5])
    scene = boxes((4.0, -1.0, 0.0, 5.0, 1.0, 1.0))
    panorama = cast_panorama(scene, np.array([0.0, 0.0, 0.5]), (0,))
    row, column = np.nonzero(panorama.box == 0)
    headings = np.degrees(HEADING[column])
    assert headings.min() > 90 - math.degrees(math.atan(1 / 4)) - 1e-9
    assert headings.max() < 90 + math.degrees(math.atan(1 / 4)) + 1e-9
    assert np.abs(np.degrees(ELEVATION[row])).max() < math.degrees(math.atan(0.5 / 4))
    middle = int(np.argmin(np.abs(ELEVATION))), int(np.argmin(np.abs(HEADING - math.pi / 2)))
    slant = math.sin(HEADING[middle[1]]) * math.cos(ELEVATION[middle[0]])
    assert panorama.depth[middle] == pytest.approx(4.0 / slant)
    assert (panorama.depth[panorama.box == NOTHING] == FAR).all()


def test_rays_end_at_the_nearer_box_or_nowhere() -> None:
    scene = boxes((4, -1, 0, 5, 1, 1), (2, -1, 0, 3, 1, 1))
    rays = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    box, metres, axis = cast_rays(scene, np.array([0.0, 0.0, 0.5]), rays)
    assert (box.tolist(), metres.tolist(), axis[0]) == ([1, NOTHING], [2.0, math.inf], 0)
    box, metres, axis = cast_rays(scene, np.array([2.2, 0.3, 3.0]), -rays[1:])
    assert (box[0], metres[0], axis[0]) == (1, 2.0, 2), "entered through its top"


def test_panoramas_agree_with_every_ray_on_its_own(surveyed: list[Surveyed]) -> None:
    """Pruning by storey and by shut walls never changes what is seen."""
    elevation, heading = (angles.ravel() for angles in np.meshgrid(ELEVATION, HEADING, indexing="ij"))
    flat = np.cos(elevation)
    directions = np.stack([flat * np.sin(heading), flat * np.cos(heading), np.sin(elevation)], axis=-1)
    for layout, scene, _ in surveyed:
        for number, stand in enumerate(layout.house.stands):
            if stand.stairs or number % 12 == 0:
                eye = layout.position[number]
                seen = cast_panorama(scene, eye, layout.house.storeys_seen(stand))
                box, metres, _ = cast_rays(scene, eye, directions)
                assert np.allclose(seen.depth.ravel(), np.where(np.isinf(metres), FAR, metres))
                # where two boxes begin at the same point either may be named
                assert (seen.box.ravel() != box).mean() < 0.02


def test_clear_lines() -> None:
    low, high = np.array([[1.0, -1.0]]), np.array([[2.0, 1.0]])
    source = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [1.5, 0.0]])
    target = np.array([[3.0, 0.0], [0.5, 0.0], [3.0, 2.0], [5.0, 0.0], [5.0, 0.0]])
    assert clear_lines(low, high, source, target).tolist() == [False, True, True, True, False]


def column(name: str) -> int:
    return next(entry.start for entry in columns() if entry.name == name)


def features(layout: Layout, scene: RenderScene) -> Values:
    return np.stack([view_features(scene, panorama) for panorama in cast_panoramas(layout, scene)])


@pytest.fixture(scope="module")
def values(two_floors: Surveyed) -> Values:
    return features(*two_floors[:2])


def test_values_are_finite_shares_in_columns_described_once(two_floors: Surveyed, values: Values) -> None:
    described = columns()
    assert [entry.start for entry in described] == list(range(WIDTH))
    assert all(entry.stop == entry.start + 1 and entry.description for entry in described)
    assert len({entry.name for entry in described}) == WIDTH
    assert values.shape == (len(two_floors[0].position), 36, WIDTH)
    assert values.dtype == np.float16
    assert ((values >= 0) & (values <= 1)).all()
    kinds = values[:, :, : len(SEEN_KINDS)].astype(np.float64) ** 2
    assert np.allclose(kinds.sum(axis=2), 1.0, atol=0.02)  # something is seen in every direction


@pytest.mark.parametrize("view", [0, 3, 14, 19, 25, 35])
def test_shares_agree_with_rays_cast_through_the_picture(
    two_floors: Surveyed, values: Values, view: int
) -> None:
    """An independent camera: index = 12 * row + step, 640 x 480, vertical field of view 60 degrees."""
    layout, scene, _ = two_floors
    heading, elevation = math.radians(30 * (view % 12)), math.radians(30 * (view // 12 - 1))
    level = math.cos(elevation)
    forward = np.array([math.sin(heading) * level, math.cos(heading) * level, math.sin(elevation)])
    right = np.array([math.cos(heading), -math.sin(heading), 0.0])
    up = np.cross(right, forward)
    half = math.tan(math.radians(30))
    across = (np.arange(80) + 0.5) / 40 - 1
    down = (np.arange(60) + 0.5) / 30 - 1
    aside, below = across[None, :, None] * half * (4 / 3), down[:, None, None] * half
    rays = (forward + aside * right - below * up).reshape(-1, 3)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    for number in range(0, len(layout.position), 11):
        box, _, _ = cast_rays(scene, layout.position[number], rays)
        kind = np.where(box == NOTHING, SEEN_KINDS.index("sky"), scene.kind[box])
        share = np.bincount(kind, minlength=len(SEEN_KINDS)) / len(kind)
        told = values[number, view, : len(SEEN_KINDS)].astype(np.float64) ** 2
        assert np.abs(told - share).max() < 0.06


def test_room_names_and_what_cannot_be_seen_leave_no_trace(two_floors: Surveyed, values: Values) -> None:
    layout, _, around = two_floors
    house, before = layout.house, values
    disguised = replace(
        house, rooms=tuple(replace(r, kind="office") if r.kind == "bedroom" else r for r in house.rooms)
    )
    after = features(replace(layout, house=disguised), build_scene(disguised))
    assert np.array_equal(before, after)
    # paint one thing: only viewpoints that have it in sight may notice
    number = next(n for n, thing in enumerate(house.things) if thing.kind == "bed")
    colour = "red" if house.things[number].colour != "red" else "green"
    things = list(house.things)
    things[number] = replace(things[number], colour=colour)
    painted = replace(house, things=tuple(things))
    after = features(replace(layout, house=painted), build_scene(painted))
    blind = around.rays[:, number] == 0
    assert np.array_equal(before[blind], after[blind])
    assert not np.array_equal(before[~blind], after[~blind])


def test_a_thing_ahead_is_reported_ahead_and_near(two_floors: Surveyed, values: Values) -> None:
    layout, _, around = two_floors
    number = next(n for n, thing in enumerate(layout.house.things) if thing.kind == "bed")
    thing = layout.house.things[number]
    stand = int(around.rays[:, number].argmax())
    step = round(math.degrees(around.bearing(stand, number)) / 30) % 12
    seen = values[stand, [step, 12 + step]]
    assert seen[:, column("share of bed")].max() > 0.1
    assert seen[:, column("bed ahead")].max() > 0.1
    assert seen[:, column(f"{thing.colour} bed")].max() > 0.1
    nearness = seen[:, column("near bed")].max()
    assert 1 / (1 + around.gap(stand, number) + 3) < nearness <= 1


def test_a_view_shows_what_stands_in_its_middle_and_a_panorama_the_sky(two_floors: Surveyed) -> None:
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
    house = layout.house
    porch = next(n for n, s in enumerate(house.stands) if house.rooms[s.room].kind == "porch")
    strip = draw_panorama(house, porch, width=96)
    assert strip.size == (96, 32)
    colours = np.asarray(strip).astype(int)
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 100
    assert ((colours[0, :, 2] > colours[0, :, 0] + 40) & (colours[0, :, 2] > 200)).any(), "from the porch"


def count(root: ElementTree.Element, tag: str) -> int:
    return len(list(root.iter(SVG + tag)))


def test_maps_name_every_room_and_draw_routes_with_their_ends(surveyed: list[Surveyed]) -> None:
    for layout, _, _ in surveyed:
        house = layout.house
        plain = ElementTree.fromstring(draw_map(house))
        names = [text.text or "" for text in plain.iter(f"{SVG}text")]
        assert {room.kind for room in house.rooms} <= set(names)
        assert sum("floor" in name for name in names) >= house.floors
        landings = sum(stand.stairs == "landing" for stand in house.stands)  # on both floors
        assert count(plain, "circle") == len(house.stands) + landings
        routes = (route.stands for route in sample_routes(layout, 50, np.random.default_rng(0)))
        flat = next(stands for stands in routes if not any(house.stands[n].stairs for n in stands))
        drawn = ElementTree.fromstring(draw_map(house, route=flat))
        assert count(drawn, "line") == count(plain, "line") + len(flat) - 1
        assert count(drawn, "circle") == count(plain, "circle") + 2
