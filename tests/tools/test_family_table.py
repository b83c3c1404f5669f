"""The tables of the family are made of what compare printed, and of nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tools.family_table import LONGER, PUBLISHED, agreement, difference, matched, ranks, table

METRICS = ("sr", "spl", "osr", "cls", "ndtw", "sdtw", "tl")


def _compared(task: str, **sr: float) -> dict[str, Any]:
    base, rows = sr["basic"], {f"{name}-{task}": value for name, value in sr.items()}
    apart = {
        name: {key: {"value": value - base, "low": 0.01, "high": 0.2} for key in METRICS}
        for name, value in rows.items()
        if not name.startswith("basic")
    }
    return {
        "rows": {n: {key: {"mean": v, "sd": 0.01, "n": 3} for key in METRICS} for n, v in rows.items()},
        "cpu_seconds": {name: 60.0 if name.startswith("basic") else 120.0 for name in rows},
        "against_by_building": {f"basic-{task}": apart},
    }


def test_what_stands_three_ranks_away_is_named() -> None:
    assert ranks([0.5, 0.7, 0.5, 0.1]) == [2.5, 1.0, 2.5, 4.0], "equal values share their ranks"
    published = {name: float(text.split()[0]) for name, text in PUBLISHED.items()}
    assert agreement(published).splitlines() == [
        "rank correlation over 13 rows 1.00",
        "without the low-level systems 1.00",
    ]
    said = agreement(published | {"rcm": 0.9})
    assert "rcm: rank 1 here, 10 published" in said
    assert "fast" not in said  # it fell by one only


@pytest.mark.parametrize(
    ("times", "told"),
    [(1.0, "0.300"), (1.5, "0.350"), (2.0, "0.400"), (3.0, "0.450"), (9, "0.500 (1,200 steps)")],
)
def test_basic_with_more_steps_is_read_between_its_rows(times: float, told: str) -> None:
    assert matched(0.3, times, {600: 0.4, 1200: 0.5}) == told
    assert matched(0.3, times, {}) == "-", "without longer rows nothing is said"


def test_an_interval_is_bold_where_it_leaves_out_0() -> None:
    assert difference({"value": 0.02, "low": 0.001, "high": 0.04}) == "**+0.020 [+0.001, +0.040]**"
    assert difference({"value": -0.02, "low": -0.04, "high": -0.001}) == "**-0.020 [-0.040, -0.001]**"
    assert difference({"value": 0.0, "low": -0.01, "high": 0.01}) == "+0.000 [-0.010, +0.010]"


def test_rows_of_r2r_stand_by_success_with_basic_at_equal_cpu_time() -> None:
    task = "r2r-captions"
    unseen, seen = _compared(task, basic=0.37, fast=0.39), _compared(task, basic=0.5, fast=0.6)
    head, _, first, second = table(task, unseen, seen, {}).splitlines()
    assert "release" not in head
    assert head.count("|") == first.count("|") == second.count("|")
    assert first == (
        "| `fast` | 3 | 0.390 ± 0.010 | 0.390 ± 0.010 | 0.390 ± 0.010 | 0.4 | 0.600 ± 0.010 | "
        "**+0.020 [+0.010, +0.200]** | **+0.020 [+0.010, +0.200]** | 2.0 | "
        f"{LONGER[task][600]:.3f} | .56 aug |"
    )
    assert second.endswith("|  |  | 1.0 |  | .47 |")


def test_rows_of_r4r_have_fidelity_and_its_published_numbers() -> None:
    task = "r4r-captions"
    compared = _compared(task, **{"basic": 0.3, "rcm": 0.2, "rcm-fidelity": 0.4})
    lines = table(task, compared, compared, {}).splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == ["rcm-fidelity", "basic", "rcm"]
    assert lines[2].endswith("| 2.0 | .26 / .35 / .30 / .13 |")


def test_what_a_release_counts_stands_beside_what_was_walked() -> None:
    task = "r2r-captions"
    compared = _compared(task, **{"basic": 0.3, "active-perception": 0.4})
    less = {"tl": {"mean": 29.96, "sd": 1.0, "n": 3}, "spl": {"mean": 0.14, "sd": 0.004, "n": 3}}
    released = {f"active-perception-{task}": less}
    head, _, first, second = table(task, compared, compared, released).splitlines()
    assert head.count("|") == first.count("|") == second.count("|")
    column = head.split(" | ").index("TL / SPL as its release counts")
    assert first.split(" | ")[column] == "30.0 / 0.140 ± 0.004"
    assert second.split(" | ")[column] == ""
