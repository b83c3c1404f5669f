"""``scenemem bench eval RUN``: how long it takes to walk an agent over a whole split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.benchmarks.evaluating import EvaluationReport, measure_evaluation
from scenemem.benchmarks.parts import PARTS
from scenemem.commands.bench_output import machine_line, start_bench, write_report
from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS
from scenemem.runs.experiment import Experiment, new_experiment, stored_experiment
from scenemem.runs.folder import RunFolder


def bench_eval(
    agent: Annotated[str, tyro.conf.Positional] = "ssm",
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    batch: int = 256,
    features: str | None = None,
    repeats: int = 3,
    threads: int = 1,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Walk an agent greedily over a split and measure the time.

    Args:
        agent: a run folder, or a preset for a fresh network, which walks oddly.
        split: which episodes.
        data: data folder; the embedded houses without it.
        batch: episodes walked at once.
        features: name of the feature store of a preset, when the folder has several; a run knows its own.
        repeats: repetitions; their median counts.
        threads: processor threads torch may use.
        json: print one JSON object instead of a table.
        out: also write the JSON object to this file.
    """
    if batch < 1 or repeats < 1:
        raise UserError(f"--batch and --repeats must be 1 or more, got {batch} and {repeats}")
    start_bench(threads)
    experiment, trained = _opened(agent, open_data(data), features)
    with progress_bar(f"walking {split}") as progress:
        report = measure_evaluation(
            experiment.agent,
            experiment.episodes(split),
            name=Path(agent).name,
            trained=trained,
            batch=batch,
            repeats=repeats,
            progress=progress,
        )
    write_report(report, out)
    if json:
        print_json(report)
    else:
        output.print(_table(report))


def _opened(agent: str, folder: DataFolder, features: str | None) -> tuple[Experiment, bool]:
    if agent in PRESETS:
        preset = PRESETS[agent]
        return new_experiment(replace(preset, data=replace(preset.data, features=features)), folder, 0), False
    run = RunFolder(Path(agent))
    if not run.last.exists():
        raise UserError(
            f"'{agent}' is neither a run folder with a checkpoint nor a preset ({', '.join(PRESETS)})"
        )
    return stored_experiment(run.last, folder)[0], True


def _table(report: EvaluationReport) -> Table:
    speed = report.speed
    rows = {
        f"{report.episodes} episodes of {report.split}, batch {report.batch}": f"{report.seconds:.1f} s",
        "on the wall clock": f"{report.wall_seconds:.1f} s",
        "speed": f"{speed.episodes_per_second:.0f} episodes/s",
        "observations per episode": f"{speed.observations_per_episode:.1f}",
        "arithmetic per episode": f"{speed.gigaflops_per_episode:.3f} GFLOP",
        "utilisation of the square product": f"{speed.utilisation_of_square:.0%}",
        **{f"share of {part}": f"{speed.parts[part].share:.1%}" for part in PARTS if speed.parts[part].share},
    }
    kind = "trained" if report.trained else "fresh"
    table = Table("what", "measured", title=f"{report.agent} ({kind}); {machine_line(report.machine)}")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
