"""View features: counted from what is seen, and from nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scenemem.houses.catalogue import SEEN_KINDS
from scenemem.houses.features import WIDTH, columns, view_features
from scenemem.houses.house import look_around
from scenemem.houses.raycast import NOTHING, cast_rays
from scenemem.houses.scene import Scene, build_scene
from scenemem.houses.surroundings import Surroundings
from scenemem.houses.viewpoints import Layout

Surveyed = tuple[Layout, Scene, Surroundings]


def column(name: str) -> int:
    return next(entry.start for entry in columns() if entry.name == name)


def features(layout: Layout, scene: Scene) -> np.ndarray[tuple[int, ...], np.dtype[np.float16]]:
    return np.stack([view_features(scene, panorama) for panorama in look_around(layout, scene)])


def test_every_column_is_described_once() -> None:
    described = columns()
    assert [entry.start for entry in described] == list(range(WIDTH))
    assert all(entry.stop == entry.start + 1 and entry.description for entry in described)
    assert len({entry.name for entry in described}) == WIDTH
    assert 100 <= WIDTH <= 256


def test_values_are_finite_shares(two_floors: Surveyed) -> None:
    layout, scene, _ = two_floors
    values = features(layout, scene)
    assert values.shape == (len(layout.position), 36, WIDTH)
    assert values.dtype == np.float16
    assert np.isfinite(values).all()
    assert values.min() >= 0
    assert values.max() <= 1
    kinds = values[:, :, : len(SEEN_KINDS)].astype(np.float64) ** 2
    assert np.allclose(kinds.sum(axis=2), 1.0, atol=0.02)  # something is seen in every direction


@pytest.mark.parametrize("view", [0, 3, 14, 19, 25, 35])
def test_shares_agree_with_rays_cast_through_the_picture(two_floors: Surveyed, view: int) -> None:
    """An independent camera: index = 12 * row + step, 640 x 480, vertical field of view 60 degrees."""
    layout, scene, _ = two_floors
    values = features(layout, scene)
    heading, elevation = math.radians(30 * (view % 12)), math.radians(30 * (view // 12 - 1))
    forward = np.array(
        [
            math.sin(heading) * math.cos(elevation),
            math.cos(heading) * math.cos(elevation),
            math.sin(elevation),
        ]
    )
    right = np.array([math.cos(heading), -math.sin(heading), 0.0])
    up = np.cross(right, forward)
    half = math.tan(math.radians(30))
    across = (np.arange(80) + 0.5) / 40 - 1
    down = (np.arange(60) + 0.5) / 30 - 1
    rays = (
        forward + across[None, :, None] * half * (4 / 3) * right - down[:, None, None] * half * up
    ).reshape(-1, 3)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    for number in range(0, len(layout.position), 11):
        box, _, _ = cast_rays(scene, layout.position[number], rays)
        kind = np.where(box == NOTHING, SEEN_KINDS.index("sky"), scene.kind[box])
        share = np.bincount(kind, minlength=len(SEEN_KINDS)) / len(kind)
        told = values[number, view, : len(SEEN_KINDS)].astype(np.float64) ** 2
        assert np.abs(told - share).max() < 0.06


def test_room_names_and_what_cannot_be_seen_leave_no_trace(two_floors: Surveyed) -> None:
    layout, scene, around = two_floors
    house = layout.house
    before = features(layout, scene)
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


def test_a_thing_ahead_is_reported_ahead_and_near(two_floors: Surveyed) -> None:
    layout, scene, around = two_floors
    values = features(layout, scene)
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
