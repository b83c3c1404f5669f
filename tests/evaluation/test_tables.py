from __future__ import annotations

import math

import pytest

from scenemem.evaluation.tables import as_html, as_markdown, spreads

RUNS = [("ssm", {"sr": 0.5, "ne": 4.0}), ("basic", {"sr": 0.4, "ne": 5.0}), ("ssm", {"sr": 0.6, "ne": 3.0})]


def test_runs_of_a_group_give_mean_and_sample_deviation() -> None:
    rows = spreads(RUNS)
    assert list(rows) == ["ssm", "basic"]
    assert rows["ssm"]["sr"].mean == pytest.approx(0.55)
    assert rows["ssm"]["sr"].sd == pytest.approx(0.1 / math.sqrt(2))
    assert rows["ssm"]["sr"].n == 2
    assert rows["basic"]["ne"].sd is None


def test_markdown_and_html_hold_the_same_cells() -> None:
    rows = spreads([*RUNS, ("<b>", {"sr": 0.1, "ne": 1.0})])
    text = as_markdown(rows, ("sr", "ne"))
    assert text.splitlines()[0] == "| agent | n | sr | ne |"
    assert "| ssm | 2 | 0.550 ± 0.071 | 3.500 ± 0.707 |" in text
    page = as_html(rows, ("sr", "ne"), "val_unseen")
    assert "<td>0.550 ± 0.071</td>" in page
    assert "&lt;b&gt;" in page, "names are escaped"
