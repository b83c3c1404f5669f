from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.models.navigator import Packing
from tests.models.helpers import one_per_episode

EPISODES, STEPS, WIDTH = 4, 5, 3

quick = settings(max_examples=40, deadline=None)


def _packing(positions: list[tuple[int, int]]) -> Packing:
    episode, step = torch.tensor(positions).unbind(1)
    return Packing(episode, step, EPISODES, STEPS)


packings = st.lists(
    st.tuples(st.integers(0, EPISODES - 1), st.integers(0, STEPS - 1)), min_size=1, max_size=12, unique=True
).map(_packing)
"""Any set of observations, in any order."""


def _rows(packing: Packing) -> Tensor:
    return torch.randn(len(packing.episode), WIDTH, dtype=torch.float64, requires_grad=True)


@quick
@given(packing=packings)
def test_every_row_stands_at_its_episode_and_step_and_zeros_elsewhere(packing: Packing) -> None:
    rows = _rows(packing)
    expected = torch.zeros(EPISODES, STEPS, WIDTH, dtype=torch.float64)
    for row, episode, step in zip(rows.detach(), packing.episode, packing.step, strict=True):
        expected[episode, step] = row
    assert torch.equal(packing.table(rows), expected)


@quick
@given(packing=packings)
def test_rows_go_into_the_table_and_come_back(packing: Packing) -> None:
    rows = _rows(packing)
    back = packing.rows(packing.table(rows))
    assert torch.equal(back, rows)
    upstream = torch.randn_like(rows)
    (gradient,) = torch.autograd.grad((back * upstream).sum(), rows)
    torch.testing.assert_close(gradient, upstream)


@quick
@given(packing=packings)
def test_rows_of_a_table_are_read_where_there_is_an_observation(packing: Packing) -> None:
    table = torch.randn(EPISODES, STEPS, WIDTH, dtype=torch.float64, requires_grad=True)
    rows = packing.rows(table)
    assert torch.equal(rows, table[packing.episode, packing.step])
    (gradient,) = torch.autograd.grad(rows.sum(), table)
    observed = torch.zeros(EPISODES, STEPS, 1, dtype=torch.float64)
    observed[packing.episode, packing.step] = 1.0
    torch.testing.assert_close(gradient, observed.expand(-1, -1, WIDTH))


@quick
@given(packing=packings)
def test_every_row_knows_its_line_of_the_flattened_table(packing: Packing) -> None:
    rows = _rows(packing)
    assert torch.equal(packing.table(rows).flatten(0, 1)[packing.position], rows)
    expected = [STEPS * episode + step for episode, step in zip(packing.episode, packing.step, strict=True)]
    assert packing.position.tolist() == expected


def test_rows_that_have_nothing_to_do_with_each_other_are_episodes_of_one_step() -> None:
    packing, rows = one_per_episode(3, torch.device("cpu")), torch.randn(3, WIDTH)
    assert (packing.episodes, packing.steps) == (3, 1)
    assert torch.equal(packing.table(rows), rows.unsqueeze(1))
    assert torch.equal(packing.rows(rows.unsqueeze(1)), rows)
    assert packing.position.tolist() == [0, 1, 2]
