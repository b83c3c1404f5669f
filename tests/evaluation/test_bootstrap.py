from __future__ import annotations

import pytest
import torch

from scenemem.evaluation.bootstrap import Clusters


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
    assert estimate.low == pytest.approx(estimate.value - error, abs=0.02)
    assert estimate.high == pytest.approx(estimate.value + error, abs=0.02)


def test_rows_that_belong_together_count_once() -> None:
    torch.manual_seed(0)
    values = torch.randn(50, dtype=torch.float64)
    alone = Clusters(torch.arange(50), draws=500, seed=0).ratio(values, torch.ones(50))
    copied = Clusters(torch.arange(50).repeat(9), draws=500, seed=0).ratio(values.repeat(9), torch.ones(450))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    one = Clusters(torch.zeros(50, dtype=torch.int64), draws=20, seed=0).ratio(values, torch.ones(50))
    assert one.low == pytest.approx(one.value)
    assert one.high == pytest.approx(one.value)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = torch.arange(20.0)
    first, again, other = (
        Clusters(torch.arange(20), draws=50, seed=seed).ratio(values, torch.ones(20)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other
