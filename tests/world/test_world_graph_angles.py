"""Angles and the 36-view grid, against brute force and hand-computed values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.world.graph import (
    ANGLE_WIDTH,
    FULL_TURN,
    STEP,
    VIEWS,
    angle_feature,
    direction,
    nearest_heading_step,
    nearest_view,
    view_elevation,
    view_heading,
    wrap,
)

headings = st.floats(-20.0, 20.0)
elevations = st.floats(-math.pi / 2, math.pi / 2)
coordinates = st.floats(-50.0, 50.0)
places = st.tuples(coordinates, coordinates, coordinates)
quick = settings(max_examples=60, deadline=None)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def turned(angle: float) -> float:
    """The smallest size of a turn by ``angle``, in plain Python."""
    return abs(math.remainder(angle, 2 * math.pi))


def test_the_36_views_run_clockwise_from_north_row_by_row() -> None:
    views = torch.arange(VIEWS)
    expected = [((view % 12) * 30, (view // 12 - 1) * 30) for view in range(36)]
    seen = torch.stack([view_heading(views), view_elevation(views)], dim=1).rad2deg()
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=seen.dtype), atol=1e-4, rtol=0)


@given(headings, elevations)
@quick
def test_nearest_view_is_the_brute_force_minimum(heading: float, elevation: float) -> None:
    off = [
        math.hypot(turned(heading - (view % 12) * STEP), elevation - (view // 12 - 1) * STEP)
        for view in range(VIEWS)
    ]
    chosen = int(nearest_view(double(heading), double(elevation)))
    assert off[chosen] == pytest.approx(min(off), abs=1e-9)  # equal off: either view may be chosen


@given(headings)
@quick
def test_nearest_heading_step_does_not_change_with_full_turns(heading: float) -> None:
    away_from_ties = min(turned(heading - STEP / 2 - step * STEP) for step in range(12)) > 1e-6
    turns = nearest_heading_step(double(heading, heading + FULL_TURN, heading - 3 * FULL_TURN))
    assert not away_from_ties or len(set(turns.tolist())) == 1


@pytest.mark.parametrize(
    ("target", "heading", "elevation"),
    [
        ((0.0, 1.0, 0.0), 0, 0),  # north
        ((1.0, 0.0, 0.0), 90, 0),  # east: headings grow clockwise
        ((0.0, -1.0, 0.0), 180, 0),
        ((-1.0, 0.0, 0.0), 270, 0),
        ((1.0, 1.0, math.sqrt(2.0)), 45, 45),  # up a slope
        ((0.0, 2.0, -2.0), 0, -45),
    ],
)
def test_direction_in_degrees(target: tuple[float, ...], heading: float, elevation: float) -> None:
    seen = direction(double(0.0, 0.0, 0.0), double(*target))
    assert [math.degrees(float(angle)) for angle in seen] == pytest.approx([heading, elevation], abs=1e-9)


@given(places, places)
@quick
def test_the_way_back_is_the_reverse_direction(source: tuple[float, ...], target: tuple[float, ...]) -> None:
    if math.dist(source[:2], target[:2]) < 1e-6:  # straight up: no heading to speak of
        return
    forth = direction(double(*source), double(*target))
    back = direction(double(*target), double(*source))
    assert turned(float(forth[0] + math.pi - back[0])) < 1e-9
    assert float(forth[1] + back[1]) == pytest.approx(0.0, abs=1e-9)
    assert 0 <= float(forth[0]) <= FULL_TURN
    assert abs(float(forth[1])) <= math.pi / 2


@given(headings)
@quick
def test_wrap_keeps_the_direction_and_lies_within_half_a_turn(angle: float) -> None:
    for dtype in (torch.float32, torch.float64):
        value = torch.tensor(angle, dtype=dtype)
        wrapped = wrap(value)
        assert abs(float(wrapped)) <= float(torch.tensor(math.pi, dtype=dtype))
        assert turned(float(wrapped) - float(value)) < 1e-5
        if abs(angle) < math.pi / 2:
            assert float(wrapped) == float(value)


@given(headings, elevations)
@quick
def test_angle_feature_tiles_four_numbers_and_repeats_every_turn(heading: float, elevation: float) -> None:
    feature = angle_feature(double(heading), double(elevation))
    once = [math.cos(heading), math.sin(heading), math.cos(elevation), math.sin(elevation)]
    torch.testing.assert_close(feature, double(*once).repeat(ANGLE_WIDTH // 4).unsqueeze(0))
    torch.testing.assert_close(angle_feature(double(heading + FULL_TURN), double(elevation)), feature)


def test_angle_feature_refuses_a_width_it_cannot_tile() -> None:
    with pytest.raises(ValueError, match="must be a multiple of 4, got 130"):
        angle_feature(torch.zeros(1), torch.zeros(1), width=130)
