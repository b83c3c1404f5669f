"""Ray casting: a room computed by hand, the fast panorama against every ray on its own, lines of sight."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scenemem.houses.house import look_around
from scenemem.houses.raycast import (
    FAR,
    NOTHING,
    azimuths,
    cast_panorama,
    cast_rays,
    clear_lines,
    elevations,
    in_sight,
)
from scenemem.houses.scene import FloatArray, Scene
from scenemem.houses.surroundings import Surroundings, in_the_open
from scenemem.houses.viewpoints import Layout

Surveyed = tuple[Layout, Scene, Surroundings]


def boxes(*corners: tuple[float, ...]) -> Scene:
    """A scene of plain boxes that shut nothing off."""
    table = np.array(corners, dtype=np.float64)
    zeros = np.zeros(len(table), dtype=np.int64)
    no = np.zeros(len(table), dtype=bool)
    return Scene(table[:, :3], table[:, 3:], zeros, zeros, zeros, zeros - 1, zeros, no, no)


def panorama_rays() -> FloatArray:
    east = np.cos(elevations())[:, None] * np.sin(azimuths())
    north = np.cos(elevations())[:, None] * np.cos(azimuths())
    up = np.broadcast_to(np.sin(elevations())[:, None], east.shape)
    return np.stack([east, north, up], axis=-1)


def test_directions_go_clockwise_from_north_and_from_below_to_above() -> None:
    assert azimuths()[0] == pytest.approx(math.radians(1.5))
    assert azimuths()[-1] == pytest.approx(math.radians(358.5))
    assert elevations()[0] == pytest.approx(math.radians(-58.5))
    assert elevations()[-1] == pytest.approx(math.radians(58.5))


def test_a_box_to_the_east_is_seen_to_the_east() -> None:
    scene = boxes((4.0, -1.0, 0.0, 5.0, 1.0, 1.0))
    panorama = cast_panorama(scene, np.array([0.0, 0.0, 0.5]), 0, in_the_open=True)
    row, column = np.nonzero(panorama.box == 0)
    headings = np.degrees(azimuths()[column])
    assert headings.min() > 90 - math.degrees(math.atan(1 / 4)) - 1e-9
    assert headings.max() < 90 + math.degrees(math.atan(1 / 4)) + 1e-9
    assert np.abs(np.degrees(elevations()[row])).max() < math.degrees(math.atan(0.5 / 4))
    middle = int(np.argmin(np.abs(elevations()))), int(np.argmin(np.abs(azimuths() - math.pi / 2)))
    slant = math.sin(azimuths()[middle[1]]) * math.cos(elevations()[middle[0]])
    assert panorama.depth[middle] == pytest.approx(4.0 / slant)
    assert (panorama.depth[panorama.box == NOTHING] == FAR).all()


def test_the_nearer_box_hides_the_farther_one() -> None:
    scene = boxes((4, -1, 0, 5, 1, 1), (2, -1, 0, 3, 1, 1))
    box, metres, axis = cast_rays(
        scene, np.array([0.0, 0.0, 0.5]), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    )
    assert box.tolist() == [1, NOTHING]
    assert metres[0] == pytest.approx(2.0)
    assert np.isinf(metres[1])
    assert axis[0] == 0


def test_rays_from_above_enter_through_the_top() -> None:
    scene = boxes((-1, -1, 0, 1, 1, 1))
    down = np.array([[0.0, 0.0, -1.0]])
    box, metres, axis = cast_rays(scene, np.array([0.2, 0.3, 3.0]), down)
    assert (box[0], axis[0]) == (0, 2)
    assert metres[0] == pytest.approx(2.0)


def test_panoramas_agree_with_every_ray_on_its_own(surveyed: list[Surveyed]) -> None:
    """Pruning by storey and by shut walls never changes what is seen."""
    directions = panorama_rays()
    for layout, scene, _ in surveyed:
        house = layout.house
        chosen = [n for n, stand in enumerate(house.stands) if stand.stairs or n % 12 == 0]
        for number in chosen:
            stand, eye = house.stands[number], layout.position[number]
            seen = cast_panorama(
                scene, eye, house.rooms[stand.room].floor, in_the_open=in_the_open(house, stand)
            )
            box, metres, _ = cast_rays(scene, eye, directions.reshape(-1, 3))
            metres = np.where(np.isinf(metres), FAR, metres)
            assert np.allclose(seen.depth.ravel(), metres)
            # where two boxes begin at the same point either may be named
            differs = seen.box.ravel() != box
            assert differs.mean() < 0.02


def test_what_a_panorama_shows_is_in_sight(two_floors: Surveyed) -> None:
    layout, scene, _ = two_floors
    panoramas = look_around(layout, scene)
    for number in range(0, len(panoramas), 6):
        stand = layout.house.stands[number]
        floor, free = layout.house.rooms[stand.room].floor, in_the_open(layout.house, stand)
        candidates = in_sight(scene, layout.position[number], floor, in_the_open=free)
        assert set(np.unique(panoramas[number].box)) - {NOTHING} <= set(candidates.tolist())
        assert len(candidates) < len(scene.kind)


def test_clear_lines() -> None:
    low, high = np.array([[1.0, -1.0]]), np.array([[2.0, 1.0]])
    source = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [1.5, 0.0]])
    target = np.array([[3.0, 0.0], [0.5, 0.0], [3.0, 2.0], [5.0, 0.0], [5.0, 0.0]])
    assert clear_lines(low, high, source, target).tolist() == [False, True, True, True, False]
