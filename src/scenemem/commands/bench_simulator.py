"""``scenemem bench simulator``: speed of the world tables and the simulator, as ratios where possible."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.errors import UserError
from scenemem.features.store import open_store
from scenemem.simulator.benchmark import (
    Report,
    measure_gathering,
    measure_stepping,
    measure_tables,
    synthetic_store,
    this_machine,
    torch_threads,
)


def bench_simulator(
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
        steps: steps per measured round.
        threads: processor threads torch may use.
        features: name of the feature store to gather from; made-up features in memory without it.
        json: print one JSON object instead of a table.
    """
    for name, value in (("batch", batch), ("steps", steps), ("threads", threads)):
        if value < 1:
            raise UserError(f"--{name} must be 1 or more, got {value}")
    folder = open_data(data)
    with torch_threads(threads), progress_bar("building tables") as progress:
        machine = this_machine()
        world, tables = measure_tables(folder.connectivity, progress=progress)
        store = open_store(folder.feature_file(features), world, half=True) if features else synthetic_store()
        report = Report(
            machine=machine,
            tables=tables,
            stepping=measure_stepping(world, batch=batch, steps=steps),
            gathering=measure_gathering(store, name=features or "synthetic"),
        )
    if json:
        print_json(report)
    else:
        output.print(_table(report))


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
