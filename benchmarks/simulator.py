"""How fast tables are built, agents step and features are gathered; README.md beside this has the method.

python -m benchmarks.simulator --data DIR --json > benchmarks/results/simulator-<date>.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import torch
import tyro
from benchmarks.machine import Machine, this_machine, torch_threads
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scenemem.errors import UserError
from scenemem.features.store import FeatureStore, open_store
from scenemem.formats.features import StoreInfo
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import default_houses
from scenemem.simulator.panorama import Pose, Simulator
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS, World

MEGABYTE = 1e6
SYNTHETIC_ROWS, SYNTHETIC_WIDTH = 4096, 512  # 151 MB in float16: more than the caches of a processor hold
_REPEATS = 7  # every rate is the median of so many


@dataclass(frozen=True)
class TableBuild:
    """Connectivity files -> tables."""

    scans: int
    viewpoints: int
    cold_seconds: float  # reading, checking and computing everything, without the cache
    cached_seconds: float  # the same tables from the cache
    tables_megabytes: float  # the tensors themselves
    peak_growth_megabytes: float | None  # of the process's peak memory while building; None where unknown


@dataclass(frozen=True)
class Stepping:
    """Random legal walks without features; agent-steps per second."""

    batch: int
    steps: int
    step: float  # actions taken on trust, as a training loop does
    step_checked: float  # every action checked
    step_and_candidates: float  # on trust, and the candidates of the new place looked up


@dataclass(frozen=True)
class Gathering:
    """Features by viewpoint index against copying the same number of bytes in one piece, in float16."""

    source: str  # name of the store, or "synthetic"
    rows: int
    width: int
    batch: int  # viewpoints gathered at once
    copy_megabytes_per_second: float
    gather_megabytes_per_second: float  # all 36 views of a viewpoint
    gather_of_copy: float  # gather rate / copy rate, median over the repeats
    views_megabytes_per_second: float  # single views, as for candidates
    views_of_copy: float


@dataclass(frozen=True)
class Report:
    """Everything that is printed."""

    machine: Machine
    tables: TableBuild
    stepping: Stepping
    gathering: Gathering


def measure_tables(connectivity: Path) -> tuple[World, TableBuild]:
    """Build all tables without the cache, then load them through it."""
    before = _peak_megabytes()
    begun = time.perf_counter()
    world = load_world(connectivity, cache=False)
    cold = time.perf_counter() - begun
    after = _peak_megabytes()
    load_world(connectivity)  # fills the cache if need be
    begun = time.perf_counter()
    load_world(connectivity)
    cached = time.perf_counter() - begun
    tensors = (getattr(world, field.name) for field in fields(world))
    return world, TableBuild(
        scans=len(world.scans),
        viewpoints=len(world.viewpoints),
        cold_seconds=cold,
        cached_seconds=cached,
        tables_megabytes=sum(t.nbytes for t in tensors if isinstance(t, Tensor)) / MEGABYTE,
        peak_growth_megabytes=None if before is None or after is None else after - before,
    )


def measure_stepping(world: World, *, batch: int, steps: int) -> Stepping:
    """Replay one random legal walk of ``batch`` agents again and again."""
    trusting, checking = Simulator(world, check=False), Simulator(world)
    start, actions = _random_walk(trusting, batch, steps)

    def walk(simulator: Simulator, *, candidates: bool) -> None:
        pose = start
        for action in actions:
            pose = simulator.step(pose, action)
            if candidates:
                simulator.candidates(pose)

    seconds = _repeated(
        lambda: walk(trusting, candidates=False),
        lambda: walk(checking, candidates=False),
        lambda: walk(trusting, candidates=True),
    )
    step, step_checked, step_and_candidates = (batch * steps / seconds).median(0).values.tolist()
    return Stepping(batch, steps, step, step_checked, step_and_candidates)


def measure_gathering(store: FeatureStore, *, name: str, batch: int = 256) -> Gathering:
    """Gather every row once, in random order, against copying every row once, in order."""
    random = torch.Generator().manual_seed(0)
    order = _pieces(torch.randperm(len(store.row), generator=random), batch)
    views = _pieces(torch.randint(VIEWS, (len(store.row), VIEWS), generator=random), batch)
    values = _pieces(store.values[: len(store.row)], batch)

    def copy() -> None:
        for piece in values:
            piece.clone()

    def gather() -> None:
        for rows in order:
            store.gather(rows)

    def gather_views() -> None:
        for rows, chosen in zip(order, views, strict=True):
            store.gather_views(rows.unsqueeze(1), chosen)

    volume = len(store.row) * VIEWS * store.width * store.values.element_size() / MEGABYTE
    rates = volume / _repeated(copy, gather, gather_views)
    copied, gathered, viewed = rates.median(0).values.tolist()
    # compared repeat by repeat: whatever slows the machine down for a while slows all three
    _, gather_of_copy, views_of_copy = (rates / rates[:, :1]).median(0).values.tolist()
    return Gathering(
        source=name,
        rows=len(store.row),
        width=store.width,
        batch=batch,
        copy_megabytes_per_second=copied,
        gather_megabytes_per_second=gathered,
        gather_of_copy=gather_of_copy,
        views_megabytes_per_second=viewed,
        views_of_copy=views_of_copy,
    )


def synthetic_store(rows: int = SYNTHETIC_ROWS, width: int = SYNTHETIC_WIDTH) -> FeatureStore:
    """Made-up features in memory, gathered as float16."""
    info = StoreInfo(keys=(), width=width, source="synthetic", encoder="none", sha256="")
    values = torch.arange(rows, dtype=torch.float16).view(-1, 1, 1).repeat(1, VIEWS, width)
    return FeatureStore(info, values, torch.arange(rows), half=True)


def _random_walk(simulator: Simulator, batch: int, steps: int) -> tuple[Pose, list[Tensor]]:
    random = torch.Generator().manual_seed(0)
    degree = simulator.world.degree
    connected = torch.where(degree > 0)[0]
    start = connected[torch.randint(len(connected), (batch,), generator=random)]
    pose = begun = simulator.reset(start, torch.zeros(batch))
    actions = []
    for _ in range(steps):
        actions.append((torch.rand(batch, generator=random) * degree[pose.viewpoint]).long())
        pose = simulator.step(pose, actions[-1])
    return begun, actions


def _pieces(values: Tensor, size: int) -> list[Tensor]:
    return [values[first : first + size] for first in range(0, len(values), size)]


def _repeated(*works: Callable[[], None]) -> Tensor:
    """Seconds (repeats, works), the works taking turns, after one repeat that warms the caches."""
    taken = [[_seconds(work) for work in works] for _ in range(_REPEATS + 1)]
    return torch.tensor(taken[1:], dtype=torch.float64)


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _peak_megabytes() -> float | None:
    """The largest memory this process ever held; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE


def _table(report: Report) -> Table:
    machine, tables, stepping, gathering = report.machine, report.tables, report.stepping, report.gathering
    growth = tables.peak_growth_megabytes
    rows = {
        f"tables of {tables.scans} scans, built": f"{tables.cold_seconds:.2f} s",
        "tables, from the cache": f"{tables.cached_seconds:.3f} s",
        "tables, size": f"{tables.tables_megabytes:.0f} MB",
        "peak memory growth while building": "unknown" if growth is None else f"{growth:.0f} MB",
        f"steps, batch {stepping.batch}": f"{stepping.step / 1e6:.1f} million/s",
        "steps, checked": f"{stepping.step_checked / 1e6:.1f} million/s",
        "steps with candidates": f"{stepping.step_and_candidates / 1e6:.1f} million/s",
        f"gather of 36 views ({gathering.source})": f"{gathering.gather_of_copy:.0%} of a memory copy",
        "gather of single views": f"{gathering.views_of_copy:.0%} of a memory copy",
    }
    table = Table(
        title=f"{machine.processor}, {machine.threads} of {machine.cpus} cpus, torch {machine.torch}"
    )
    table.add_column("what")
    table.add_column("measured", justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def main(
    data: Path | None = None,
    batch: int = 4096,
    steps: int = 200,
    threads: int = 1,
    features: str | None = None,
    json: bool = False,
) -> None:
    """Measure table building, stepping and feature gathering.

    Args:
        data: data folder; the embedded houses without it.
        batch: agents that step at once.
        steps: steps per measured repeat.
        threads: processor threads torch may use.
        features: name of the feature store to gather from; made-up features in memory without it.
        json: print one JSON object instead of a table.
    """
    for name, value in (("batch", batch), ("steps", steps), ("threads", threads)):
        if value < 1:
            raise UserError(f"--{name} must be 1 or more, got {value}")
    folder = DataFolder(default_houses() if data is None else data)
    with torch_threads(threads):
        machine = this_machine()
        world, tables = measure_tables(folder.connectivity)
        store = open_store(folder.feature_file(features), world, half=True) if features else synthetic_store()
        report = Report(
            machine=machine,
            tables=tables,
            stepping=measure_stepping(world, batch=batch, steps=steps),
            gathering=measure_gathering(store, name=features or "synthetic"),
        )
    if json:
        print(msgspec.json.encode(report).decode())
    else:
        Console().print(_table(report))


if __name__ == "__main__":
    try:
        tyro.cli(main, prog="python -m benchmarks.simulator")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
