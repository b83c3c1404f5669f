from __future__ import annotations

import math

import pytest

from scenemem.evaluation.tables import spreads

RUNS = [("ssm", {"sr": 0.5, "ne": 4.0}), ("basic", {"sr": 0.4, "ne": 5.0}), ("ssm", {"sr": 0.6, "ne": 3.0})]


def test_runs_of_a_group_give_mean_and_sample_deviation() -> None:
    rows = spreads(RUNS)
    assert list(rows) == ["ssm", "basic"]
    assert rows["ssm"]["sr"].mean == pytest.approx(0.55)
    assert rows["ssm"]["sr"].sd == pytest.approx(0.1 / math.sqrt(2))
    assert rows["ssm"]["sr"].n == 2
    assert rows["basic"]["ne"].sd is None
