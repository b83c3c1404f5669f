"""Speed of world tables, steps and feature lookups: python -m benchmarks.simulator --data DIR"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from benchmarks.machine import MEGABYTE, Case, Options, command, peak_megabytes
from benchmarks.workload import made_up_store
from scenemem.errors import UserError
from scenemem.features.store import FeatureStore, open_store
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS, Pose, Simulator, World

MADE_UP = {"viewpoints": 4096, "width": 512, "rows": 4096}
"""151 MB of made-up features in float16, more than the caches of a processor hold."""


@dataclass(frozen=True)
class SimulatorOptions(Options):
    """Measure table building, stepping and feature gathering."""

    features: str | None = None
    """name of the feature store to gather from; made-up features in memory without it"""
    batch: int = 4096
    """agents that step at once"""
    steps: int = 200
    """steps per repetition"""
    repeats: int = 7
    """repetitions after one that warms the caches; their median counts"""
    seconds: tyro.conf.Suppress[float] = 0.0
    device: tyro.conf.Suppress[str] = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise UserError(f"--steps must be 1 or more, got {self.steps}")


def measure_simulator(options: SimulatorOptions) -> list[Case]:
    """A case each for the tables, for steps and for features."""
    folder = options.folder
    world, tables = measure_tables(folder.connectivity)
    if options.features is None:
        store = made_up_store(**MADE_UP, half=True)
    else:
        store = open_store(folder.feature_file(options.features), world, half=True)
    stepping = measure_stepping(world, options)
    gathering = measure_gathering(store, options.repeats)
    return [
        {"scans": len(world.scans), "viewpoints": len(world.viewpoints), "modes": {"tables": tables}},
        {"batch": options.batch, "steps": options.steps, "modes": {"stepping": stepping}},
        {"source": store.info.encoder, "width": store.width, "modes": {"gathering": gathering}},
    ]


def measure_tables(connectivity: Path) -> tuple[World, dict[str, Any]]:
    """Build all tables without the cache, then load them through it."""
    before, begun = peak_megabytes(), time.perf_counter()
    world = load_world(connectivity, cache=False)
    cold, after = time.perf_counter() - begun, peak_megabytes()
    load_world(connectivity)  # fills the cache if need be
    cached = _seconds(lambda: load_world(connectivity))
    tensors = (getattr(world, field.name) for field in fields(world))
    return world, {
        "cold_seconds": cold,
        "cached_seconds": cached,
        "tables_megabytes": sum(t.nbytes for t in tensors if isinstance(t, Tensor)) / MEGABYTE,
        "peak_growth_megabytes": None if before is None or after is None else after - before,
    }


def measure_stepping(world: World, options: SimulatorOptions) -> dict[str, float]:
    """Agent-steps per second of one random legal walk, replayed again and again."""
    trusting, checking = Simulator(world, check=False), Simulator(world)
    start, _, actions = random_walk(world, options.batch, options.steps)

    def walk(simulator: Simulator, *, candidates: bool = False) -> None:
        pose = start
        for action in actions:
            pose = simulator.step(pose, action)
            if candidates:
                simulator.candidates(pose)

    works = {
        "step": lambda: walk(trusting),
        "step_checked": lambda: walk(checking),
        "step_and_candidates": lambda: walk(trusting, candidates=True),
    }
    rates = options.batch * options.steps / _repeated(list(works.values()), options.repeats)
    return dict(zip(works, rates.median(0).values.tolist(), strict=True))


def measure_gathering(store: FeatureStore, repeats: int, batch: int = 256) -> dict[str, float]:
    """Gather every viewpoint once, in random order, against copying the same table once, in order."""
    random, rows = torch.Generator().manual_seed(0), len(store.row)
    order = torch.randperm(rows, generator=random).split(batch)  # type: ignore[no-untyped-call]
    views = torch.randint(VIEWS, (rows, VIEWS), generator=random).split(batch)  # type: ignore[no-untyped-call]
    values = store.values[:rows].split(batch)  # type: ignore[no-untyped-call]

    def copy() -> None:
        for piece in values:
            piece.clone()

    def gather() -> None:
        for viewpoint in order:
            store.gather(viewpoint)

    def gather_views() -> None:
        for viewpoint, view in zip(order, views, strict=True):
            store.gather_views(viewpoint.unsqueeze(1), view)

    volume = rows * VIEWS * store.width * store.values.element_size() / MEGABYTE
    rates = volume / _repeated([copy, gather, gather_views], repeats)
    copied, gathered, viewed = rates.median(0).values.tolist()
    # compared repeat by repeat: whatever slows the machine down for a while slows all three
    _, gather_of_copy, views_of_copy = (rates / rates[:, :1]).median(0).values.tolist()
    return {
        "copy_megabytes_per_second": copied,
        "gather_megabytes_per_second": gathered,
        "gather_of_copy": gather_of_copy,
        "views_megabytes_per_second": viewed,
        "views_of_copy": views_of_copy,
    }


def random_walk(world: World, batch: int, steps: int) -> tuple[Pose, list[Tensor], list[Tensor]]:
    """A legal walk: where it starts, ``steps`` viewpoints (batch,) it stands at, the actions taken there."""
    random, simulator = torch.Generator().manual_seed(0), Simulator(world, check=False)
    connected = (world.degree > 0).nonzero().squeeze(1).cpu()
    start = connected[torch.randint(len(connected), (batch,), generator=random)].to(world.device)
    pose = begun = simulator.reset(start, torch.zeros(batch, device=world.device))
    viewpoints, actions = [], []
    for _ in range(steps):
        viewpoints.append(pose.viewpoint)
        drawn = torch.rand(batch, generator=random).to(world.device)
        actions.append((drawn * world.degree[pose.viewpoint]).long())
        pose = simulator.step(pose, actions[-1])
    return begun, viewpoints, actions


def _repeated(works: list[Callable[[], None]], repeats: int) -> Tensor:
    """Seconds (repeats, works), the works taking turns, after one repeat that warms the caches."""
    taken = [[_seconds(work) for work in works] for _ in range(repeats + 1)]
    return torch.tensor(taken[1:], dtype=torch.float64)


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    command(SimulatorOptions, measure_simulator)
