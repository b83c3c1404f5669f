from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.operations import OperationOptions, WaitCounter, count_operations
from tests.benchmarks.conftest import Run


def test_operations_and_waits_are_counted() -> None:
    """A product, a sum; then everything that needs a look at the result."""
    mask, values = torch.tensor([True, False, True]), torch.arange(3.0)
    counter = WaitCounter()
    with counter.counting(nn.Identity()):
        values.sum()
    assert sum(counter.operations.values()) == 1
    assert sum(counter.waits.values()) == 0
    waiting = (
        lambda: mask.nonzero(),
        lambda: values[mask],
        lambda: values.masked_select(mask),
        lambda: torch.equal(values, values),
        lambda: int(mask.sum()),
        lambda: values.cpu(),
        lambda: values.tolist(),
    )
    for wait in waiting:
        counter = WaitCounter()
        with counter.counting(nn.Identity()):
            wait()
        assert sum(counter.waits.values()) == 1


def test_nothing_is_patched_afterwards() -> None:
    before = Tensor.cpu
    with pytest.raises(RuntimeError), WaitCounter().counting(nn.Identity()):
        raise RuntimeError
    assert Tensor.cpu is before


def test_a_step_is_counted_by_part(run: Run) -> None:
    (case,) = run(OperationOptions, count_operations, preset="ssm", batch=2)
    step = case["modes"].pop("step")
    assert step["operations"] == sum(part["operations"] for part in case["modes"].values())
    assert step["synchronisations"] == sum(part["synchronisations"] for part in case["modes"].values())
    assert step["operations"] > 20 * step["steps_of_the_walk"] > 0
    assert case["modes"]["memory"]["operations"] > 0
    assert 0 < step["operations_per_step_of_the_walk"] * step["steps_of_the_walk"] < step["operations"]


def test_lines_are_those_of_the_package(tiny_trainable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count_operations(OperationOptions(data=tiny_trainable, preset="ssm", batch=2, lines=3))
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    pattern = r" +\d+ operations, +\d+ synchronisations  \w+/\w+\.py:\d+"
    assert all(re.fullmatch(pattern, line) for line in shown)
