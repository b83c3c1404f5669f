from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenemem.models.seating import Seating, alone
from torch import Tensor

LANES, TICKS, WIDTH = 4, 5, 3

quick = settings(max_examples=40, deadline=None)
seats = st.lists(
    st.tuples(st.integers(0, LANES - 1), st.integers(0, TICKS - 1)), min_size=1, max_size=12, unique=True
)


def _seated(seats: list[tuple[int, int]]) -> Seating:
    lane, tick = torch.tensor(seats).unbind(1)
    return Seating(lane, tick, LANES, TICKS)


observations = seats.map(_seated)
"""Any set of observations, in any order."""


def _rows(seating: Seating) -> Tensor:
    return torch.randn(len(seating.lane), WIDTH, dtype=torch.float64, requires_grad=True)


@quick
@given(seating=observations)
def test_every_row_stands_at_its_lane_and_tick_and_nothing_elsewhere(seating: Seating) -> None:
    rows = _rows(seating)
    table = seating.table(rows)
    expected = torch.zeros(LANES, TICKS, WIDTH, dtype=torch.float64)
    for row, lane, tick in zip(rows.detach(), seating.lane, seating.tick, strict=True):
        expected[lane, tick] = row
    assert torch.equal(table, expected)


@quick
@given(seating=observations)
def test_rows_go_into_the_table_and_come_back(seating: Seating) -> None:
    rows = _rows(seating)
    back = seating.rows(seating.table(rows))
    assert torch.equal(back, rows)
    weight = torch.randn_like(rows)
    (gradient,) = torch.autograd.grad((back * weight).sum(), rows)
    torch.testing.assert_close(gradient, weight)


@quick
@given(seating=observations)
def test_rows_of_a_table_are_read_where_somebody_observes(seating: Seating) -> None:
    table = torch.randn(LANES, TICKS, WIDTH, dtype=torch.float64, requires_grad=True)
    rows = seating.rows(table)
    assert torch.equal(rows, table[seating.lane, seating.tick])
    (gradient,) = torch.autograd.grad(rows.sum(), table)
    observed = torch.zeros(LANES, TICKS, 1, dtype=torch.float64)
    observed[seating.lane, seating.tick] = 1.0
    torch.testing.assert_close(gradient, observed.expand(-1, -1, WIDTH))


@quick
@given(seating=observations)
def test_the_row_of_an_observation_is_found_by_its_lane_and_tick(seating: Seating) -> None:
    number = torch.arange(len(seating.lane))
    assert torch.equal(seating.row[seating.lane, seating.tick], number)
    nobody = torch.ones(LANES, TICKS, dtype=torch.bool)
    nobody[seating.lane, seating.tick] = False
    assert not seating.row[nobody].any()
    rows = _rows(seating)
    assert torch.equal(seating.at(rows, seating.lane, seating.tick), rows)


def test_some_lanes_can_be_asked_for_at_many_ticks() -> None:
    seating = Seating(torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2]), 2, 3)
    rows = torch.randn(5, WIDTH, requires_grad=True)
    ticks = torch.tensor([[2, 0, 0], [1, 1, 2]])
    picked = seating.at(rows, torch.tensor([[1], [1]]), ticks)
    torch.testing.assert_close(picked, rows[torch.tensor([[4, 1, 1], [3, 3, 4]])])
    (gradient,) = torch.autograd.grad(picked.sum(), rows)
    assert gradient[:, 0].tolist() == [0.0, 2.0, 0.0, 2.0, 2.0]  # as often as each was asked for


def test_rows_that_stand_alone_are_lanes_with_one_observation() -> None:
    seating, rows = alone(3, torch.device("cpu")), torch.randn(3, WIDTH)
    assert (seating.lanes, seating.ticks) == (3, 1)
    assert torch.equal(seating.table(rows), rows.unsqueeze(1))
    assert torch.equal(seating.at(rows, torch.tensor([2, 0]), torch.tensor(0)), rows[[2, 0]])
