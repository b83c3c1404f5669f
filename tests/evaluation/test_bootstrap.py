from __future__ import annotations

import math

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scenemem.evaluation.bootstrap import Clusters, connected, difference, spreads


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


def test_the_interval_is_that_of_the_mean_of_independent_rows() -> None:
    torch.manual_seed(0)
    values = torch.randn(400, dtype=torch.float64) + 3
    estimate = Clusters(torch.arange(400), draws=4000, seed=1).ratio(values, torch.ones(400))
    error = 1.96 * float(values.std()) / 20
    expected = estimate.value - error, estimate.value + error
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=0.02)


def test_rows_that_belong_together_count_once() -> None:
    torch.manual_seed(0)
    values = torch.randn(50, dtype=torch.float64)
    alone = Clusters(torch.arange(50), draws=500, seed=0).ratio(values, torch.ones(50))
    copied = Clusters(torch.arange(50).repeat(9), draws=500, seed=0).ratio(values.repeat(9), torch.ones(450))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    one = Clusters(torch.zeros(50, dtype=torch.int64), draws=20, seed=0).ratio(values, torch.ones(50))
    assert (one.low, one.high) == pytest.approx((one.value, one.value))


def test_the_same_seed_gives_the_same_interval() -> None:
    values = torch.arange(20.0)
    first, again, other = (
        Clusters(torch.arange(20), draws=50, seed=seed).ratio(values, torch.ones(20)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def _episodes(runs: int, episodes: int, seed: int) -> Tensor:
    return torch.randn(runs, episodes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_both_find_hard_cancels_out() -> None:
    hard = 10 * _episodes(1, 300, 0)
    estimate = difference(hard + 0.5, hard.repeat(3, 1), torch.arange(300))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_interval_is_that_of_the_mean_of_the_differences() -> None:
    ours, theirs = _episodes(1, 400, 1), _episodes(1, 400, 2)
    estimate = difference(ours, theirs, torch.arange(400))
    error = 1.96 * float((ours - theirs).std()) / math.sqrt(400)
    expected = estimate.value - error, estimate.value + error
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=0.02)


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = torch.zeros(3, 200)
    apart = alike + torch.tensor([[-0.1], [0.0], [0.1]])
    sure = difference(alike, alike, torch.arange(200))
    unsure = difference(apart, alike, torch.arange(200))
    assert (sure.low, sure.high) == (0.0, 0.0)
    error = 1.96 * float(apart[:, 0].double().std()) / math.sqrt(3)
    assert (unsure.low, unsure.high) == pytest.approx((-error, error), abs=0.02)


def test_instructions_of_one_path_count_together() -> None:
    values = _episodes(1, 40, 3)
    alone = difference(values, torch.zeros(1, 40), torch.arange(40))
    copied = difference(values.repeat(1, 3), torch.zeros(1, 120), torch.arange(40).repeat(3))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))


def test_turning_the_comparison_round_turns_its_sign() -> None:
    ours, theirs = _episodes(2, 100, 4), _episodes(3, 100, 5)
    there, back = (difference(a, b, torch.arange(100)) for a, b in ((ours, theirs), (theirs, ours)))
    assert there.value == pytest.approx(-back.value)


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


def test_clusters_of_joined_paths_widen_the_interval() -> None:
    half = _episodes(1, 20, 6).squeeze(0)
    pairs = [(first, first + 1) for first in range(0, 19, 2) for _ in range(8)]  # eight paths share halves
    values = torch.stack([(half[a] + half[b]) / 2 for a, b in pairs]).unsqueeze(0)
    alone = difference(values, torch.zeros_like(values), torch.arange(len(pairs)))
    joined = difference(values, torch.zeros_like(values), torch.tensor(connected(pairs)))
    assert joined.high - joined.low > 2 * (alone.high - alone.low)
