"""``scenemem bench train``: training and walking speed, where the time goes, and how close to the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.benchmarks.growth import Growth
from scenemem.benchmarks.parts import PARTS
from scenemem.benchmarks.training import CaseSpeed, Request, TrainingReport, measure_training
from scenemem.benchmarks.workload import MODES, Mode, Width
from scenemem.commands.bench_output import machine_line, start_bench, write_report
from scenemem.commands.console import open_data, output, print_json, progress_bar


def bench_train(
    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ("ssm", "basic"),
    data: Path | None = None,
    *,
    widths: tuple[Width, ...] = ("everyday", "paper"),
    batches: tuple[int, ...] = (16, 64),
    modes: tuple[Mode, ...] = MODES,
    features: str | None = None,
    feature_columns: int | None = None,
    seconds: float = 2.0,
    repeats: int = 3,
    growth: bool = False,
    threads: int = 1,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Measure training and greedy walking of presets, with counted arithmetic.

    Args:
        presets: which agents.
        data: data folder; the embedded houses without it.
        widths: everyday takes the presets as they are, paper gives them the sizes of the paper.
        batches: episodes per step.
        modes: teacher-forced, sampled and mixed training, greedy walking.
        features: name of the feature store at everyday width, when the folder has several.
        feature_columns: use made-up features so many columns wide; at the paper's width 2048 unless given.
        seconds: about how long one repetition of a mode lasts; it is one step at least.
        repeats: repetitions; their median counts.
        growth: also measure how the cost of a step grows (takes minutes).
        threads: processor threads torch may use.
        json: print one JSON object instead of tables.
        out: also write the JSON object to this file.
    """
    request = Request(presets, widths, batches, feature_columns, features, seconds, repeats, growth, modes)
    start_bench(threads)
    folder = open_data(data)
    with progress_bar("measuring") as progress:
        report = measure_training(request, folder, progress)
    write_report(report, out)
    if json:
        print_json(report)
    else:
        _show(report)


def _show(report: TrainingReport) -> None:
    output.print(machine_line(report.machine))
    for case in report.cases:
        output.print(_speed_table(case))
        output.print(_part_table(case))
        if case.growth:
            output.print(_growth_table(case.growth))


def _title(case: CaseSpeed) -> str:
    return f"{case.preset}, {case.width} width, {case.feature_columns} columns, batch {case.batch}"


def _speed_table(case: CaseSpeed) -> Table:
    table = Table("", *case.modes, title=_title(case))
    speeds = [mode.speed for mode in case.modes.values()]
    rows = {
        "episodes/s": [f"{s.episodes_per_second:.1f}" for s in speeds],
        "episodes/s at 68 GFLOP/s": [f"{s.normalised_episodes_per_second:.1f}" for s in speeds],
        "times the reference": [
            "" if mode.times_reference is None else f"{mode.times_reference:.1f}"
            for mode in case.modes.values()
        ],
        "observations per episode": [f"{s.observations_per_episode:.1f}" for s in speeds],
        "GFLOP per episode": [f"{s.gigaflops_per_episode:.3f}" for s in speeds],
        "GFLOP/s": [f"{s.gigaflops_per_second:.1f}" for s in speeds],
        "GFLOP/s, square product": [f"{s.square_gigaflops_per_second:.1f}" for s in speeds],
        "GFLOP/s, shapes used": [
            "" if s.shapes is None else f"{s.shapes.gigaflops_per_second:.1f}" for s in speeds
        ],
        "utilisation of square": [f"{s.utilisation_of_square:.0%}" for s in speeds],
        "utilisation of shapes used": [
            "" if s.utilisation_of_shapes is None else f"{s.utilisation_of_shapes:.0%}" for s in speeds
        ],
        "processors in use": [f"{s.cpus:.2f}" for s in speeds],
        "peak memory": [
            "unknown" if s.peak_megabytes is None else f"{s.peak_megabytes:.0f} MB" for s in speeds
        ],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    return table


def _part_table(case: CaseSpeed) -> Table:
    """Share of the time, and the speed of the arithmetic in it."""
    table = Table("share of time (GFLOP/s)", *case.modes)
    for part in PARTS:
        cells = [mode.speed.parts[part] for mode in case.modes.values()]
        table.add_row(part, *(f"{cell.share:.1%} ({cell.gigaflops_per_second:.0f})" for cell in cells))
    return table


def _growth_table(growths: list[Growth]) -> Table:
    table = Table("what grows", "sizes", "ms per step", "time", "FLOPs", "memory", title="log-log slopes")
    for growth in growths:
        table.add_row(
            growth.size,
            " ".join(map(str, growth.values)),
            " ".join(f"{1000 * seconds:.0f}" for seconds in growth.seconds),
            f"{growth.seconds_slope:.2f}",
            f"{growth.gigaflops_slope:.2f}",
            "" if growth.megabytes_slope is None else f"{growth.megabytes_slope:.2f}",
        )
    return table
