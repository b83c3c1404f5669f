"""The simulator benchmark reports sensible quantities; how large they are is not tested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import simulator
from benchmarks.simulator import (
    SimulatorOptions,
    measure_gathering,
    measure_simulator,
    measure_tables,
    random_walk,
)
from benchmarks.workload import made_up_store
from scenemem.errors import DataError, UserError
from scenemem.world.build import load_world

Run = Callable[..., Any]


def test_every_quantity_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MADE_UP", {"viewpoints": 40, "width": 8})
    tables, stepping, gathering = run(SimulatorOptions, measure_simulator, batch=16, steps=3)
    assert (tables["scans"], tables["viewpoints"]) == (3, 32)
    assert (stepping["batch"], stepping["steps"]) == (16, 3)
    assert (gathering["source"], gathering["width"]) == ("made up", 8)
    for case in (tables, stepping, gathering):
        for numbers in case["modes"].values():
            for name, value in numbers.items():
                assert name == "peak_growth_megabytes" or value > 0, name


def test_features_of_the_data_folder_are_gathered_when_named(run: Run) -> None:
    *_, gathering = run(SimulatorOptions, measure_simulator, steps=2, features="tiny")
    assert (gathering["source"], gathering["width"]) == ("random numbers", 8)


def test_mistakes_are_named(tiny_data: Path) -> None:
    with pytest.raises(UserError, match=r"^--steps must be 1 or more, got 0$"):
        SimulatorOptions(steps=0)
    with pytest.raises(DataError, match="no feature store 'resnet'"):
        measure_simulator(SimulatorOptions(data=tiny_data, features="resnet"))


def test_tables_are_counted_to_the_byte(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "peak_megabytes", lambda: None)
    world, build = measure_tables(tiny_data / "connectivity")
    viewpoints, slots = world.neighbour.shape
    pairs = len(world.pair_distance)
    # three int64 columns, a position, two int64 / two float32 / one float64 per slot, 10 bytes per pair
    expected = viewpoints * (3 * 8 + 3 * 8 + slots * (2 * 8 + 2 * 4 + 8)) + pairs * 10
    assert build["tables_megabytes"] * 1e6 == pytest.approx(expected)
    assert build["peak_growth_megabytes"] is None


def test_random_walks_are_legal(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    start, viewpoints, actions = random_walk(world, 6, 5)
    assert len(viewpoints) == len(actions) == 5
    assert torch.equal(viewpoints[0], start.viewpoint)
    for here, action, there in zip(viewpoints, actions, viewpoints[1:], strict=False):
        assert torch.equal(world.neighbour[here, action], there)


def test_a_last_smaller_batch_is_gathered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    store = made_up_store(10, 4, half=True)
    gathered: list[int] = []
    gather = type(store).gather

    def counted(self: Any, viewpoints: torch.Tensor) -> torch.Tensor:
        gathered.append(len(viewpoints))
        return gather(self, viewpoints)

    monkeypatch.setattr(type(store), "gather", counted)
    assert measure_gathering(store, repeats=1, batch=3)["gather_of_copy"] > 0
    assert gathered == [3, 3, 3, 1] * 2
