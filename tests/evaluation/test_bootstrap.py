"""Intervals: those of the textbook, whatever the rows, and clusters of rows that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scenemem.evaluation.bootstrap import Clusters, Estimate, connected, difference, spreads


def test_runs_of_a_group_give_mean_and_sample_deviation() -> None:
    runs = [("ssm", {"sr": 0.5}), ("basic", {"sr": 0.4, "ne": 5.0}), ("ssm", {"sr": 0.6})]
    rows = spreads(runs)
    assert list(rows) == ["ssm", "basic"]
    spread = rows["ssm"]["sr"]
    assert (spread.mean, spread.sd) == pytest.approx((0.55, 0.1 / math.sqrt(2)))
    assert (spread.n, rows["basic"]["ne"].sd) == (2, None)
    assert (str(spread), str(rows["basic"]["ne"])) == ("0.550 ± 0.071", "5.000")


def test_the_value_is_the_ratio_of_the_sums_whatever_is_drawn() -> None:
    clusters = Clusters(torch.tensor([5, 5, 0, 9]), draws=10, seed=0)
    assert clusters.count == 3
    above, below = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 2.0, 2.0, 4.0])
    assert clusters.ratio(above, below).value == 1.0


def _episodes(runs: int, episodes: int, seed: int) -> Tensor:
    return torch.randn(runs, episodes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mean(values: Tensor, cluster: Tensor, *, draws: int = 500, seed: int = 0) -> Estimate:
    """The mean of one run as a ratio of sums."""
    return Clusters(cluster, draws=draws, seed=seed).ratio(values[0], torch.ones(len(cluster)))


def _less_nothing(values: Tensor, cluster: Tensor) -> Estimate:
    """The same as a difference from runs that are 0 everywhere."""
    return difference(values, torch.zeros_like(values), cluster)


def test_intervals_are_those_of_the_mean_of_independent_rows() -> None:
    ours, theirs, rows = _episodes(1, 400, 1) + 3, _episodes(1, 400, 2), torch.arange(400)
    for estimate, values in (
        (_mean(ours, rows, draws=4000, seed=1), ours),
        (difference(ours, theirs, rows), ours - theirs),
    ):
        error = 1.96 * float(values.std()) / math.sqrt(400)
        expected = estimate.value - error, estimate.value + error
        assert estimate.value == pytest.approx(float(values.mean()))
        assert (estimate.low, estimate.high) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("estimate", [_mean, _less_nothing])
def test_rows_that_belong_together_count_once(estimate: Callable[[Tensor, Tensor], Estimate]) -> None:
    values, rows = _episodes(1, 50, 3), torch.arange(50)
    alone, copied = estimate(values, rows), estimate(values.repeat(1, 9), rows.repeat(9))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    one = estimate(values, torch.zeros_like(rows))
    assert (one.low, one.high) == pytest.approx((one.value, one.value))


def test_the_same_seed_gives_the_same_interval() -> None:
    values, rows = torch.arange(20.0).unsqueeze(0), torch.arange(20)
    first, again, other = (_mean(values, rows, draws=50, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_what_both_find_hard_cancels_out_and_turning_round_turns_the_sign() -> None:
    hard = 10 * _episodes(1, 300, 0)
    ours, theirs, rows = hard + 0.5, hard.repeat(3, 1), torch.arange(300)
    for estimate, sign in ((difference(ours, theirs, rows), 1), (difference(theirs, ours, rows), -1)):
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((sign * 0.5,) * 3)


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = torch.zeros(3, 200)
    apart = alike + torch.tensor([[-0.1], [0.0], [0.1]])
    sure, unsure = (_less_nothing(runs, torch.arange(200)) for runs in (alike, apart))
    assert (sure.low, sure.high) == (0.0, 0.0)
    error = 1.96 * float(apart[:, 0].double().std()) / math.sqrt(3)
    assert (unsure.low, unsure.high) == pytest.approx((-error, error), abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20))
def test_connected_rows_are_the_components_of_a_graph(pairs: list[tuple[int, int]]) -> None:
    graph = nx.Graph(pairs)
    components = enumerate(nx.connected_components(graph))
    component = {node: number for number, nodes in components for node in nodes}
    numbers = connected(pairs)
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers)))), "numbered as they come"
    for row, (first, _) in enumerate(pairs):
        for other, (there, _) in enumerate(pairs):
            assert (numbers[row] == numbers[other]) == (component[first] == component[there])
