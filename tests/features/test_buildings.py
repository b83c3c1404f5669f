from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.features.buildings import VIEW_DIRECTIONS, centredness, nearness, on_grid
from scenemem.world.graph import direction, nearest_view


def test_view_axes_agree_with_the_grid_of_the_world() -> None:
    heading, elevation = direction(torch.zeros(36, 3, dtype=torch.float64), torch.tensor(VIEW_DIRECTIONS))
    assert torch.equal(nearest_view(heading, elevation), torch.arange(36))
    np.testing.assert_allclose(np.linalg.norm(VIEW_DIRECTIONS, axis=1), 1)


def test_a_thing_counts_fully_in_the_middle_and_not_at_all_beside_the_picture() -> None:
    ahead = centredness(np.array([0.0, 5.0, 0.0]))
    assert ahead[12] == pytest.approx(1)
    np.testing.assert_allclose(ahead[[13, 23, 0, 24]], 0.5)
    assert ahead[14] == 0
    assert ahead[18] == 0, "what lies behind is not in view"
    assert centredness(np.array([0.0, 0.0, 0.0])).max() == 0


@settings(max_examples=30)
@given(st.tuples(*[st.floats(-20, 20)] * 3))
def test_the_angle_decides_not_the_distance(offset: tuple[float, float, float]) -> None:
    way = np.array(offset)
    length = np.linalg.norm(way)
    if length < 1e-3:
        return
    weight = centredness(way)
    np.testing.assert_allclose(weight, centredness(3 * way), atol=1e-9)
    angle = np.arccos(np.clip(VIEW_DIRECTIONS @ way / length, -1, 1))
    expected = np.where(angle < math.pi / 4, np.cos(2 * angle), 0)
    np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_nearness_fades_over_four_metres() -> None:
    offsets = np.array([[0, 0, 0], [0, 4, 0], [0, 0, -8.0]])
    np.testing.assert_allclose(nearness(offsets), [1, math.exp(-1), math.exp(-2)])


def test_grid_numbers_add_up_exactly_in_any_order() -> None:
    values = on_grid(np.random.default_rng(0).normal(size=(500, 2)))
    products = values[:, 0] * values[:, 1]
    assert products.sum() == products[::-1].cumsum()[-1] == math.fsum(products)
