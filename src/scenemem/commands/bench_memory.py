"""``scenemem bench memory``: speed of the scene memory, alone and within a training step."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from scenemem.benchmarks.scene_memory import MemoryReport, measure_memory
from scenemem.commands.bench_output import machine_line, start_bench, write_report
from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.errors import UserError


def bench_memory(
    data: Path | None = None,
    *,
    batch: int = 64,
    places: tuple[int, ...] = (8, 16, 32, 64),
    preset: str = "ssm",
    features: str | None = None,
    repeats: int = 7,
    threads: int = 1,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Measure writing to the scene memory, and its share of a training step.

    Args:
        data: data folder; the embedded houses without it.
        batch: memories written at once, and episodes per training step.
        places: how many places a memory can hold; each size is measured.
        preset: whose training step the share is taken of.
        features: name of the feature store, when the folder has several.
        repeats: repetitions; their median counts.
        threads: processor threads torch may use.
        json: print one JSON object instead of a table.
        out: also write the JSON object to this file.
    """
    if batch < 1 or repeats < 1:
        raise UserError(f"--batch and --repeats must be 1 or more, got {batch} and {repeats}")
    if len(set(places)) < 2 or min(places) < 1:
        raise UserError(f"--places needs two different sizes of 1 or more, got {places}")
    start_bench(threads)
    folder = open_data(data)
    with progress_bar("visiting") as progress:
        report = measure_memory(
            folder,
            lanes=batch,
            places=places,
            repeats=repeats,
            preset=preset,
            features=features,
            progress=progress,
        )
    write_report(report, out)
    if json:
        print_json(report)
    else:
        output.print(_table(report))


def _table(report: MemoryReport) -> Table:
    table = Table("what", "measured", title=machine_line(report.machine))
    for row in report.visiting:
        speed = f"{row.visits_per_second / 1000:.0f} thousand visits/s"
        table.add_row(f"{row.lanes} memories of {row.places} places", speed)
    table.add_row("growth of a visit with the places", f"slope {report.seconds_per_visit_slope:.2f}")
    step = f"training step of '{report.training}', batch {report.batch}"
    table.add_row(f"{step}: memory", f"{report.memory_share:.1%}")
    table.add_row(f"{step}: world", f"{report.world_share:.1%}")
    return table
