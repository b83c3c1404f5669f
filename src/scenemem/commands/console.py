"""What all commands share: where text goes, progress bars, tables, JSON and opening the data folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from scenemem.errors import UserError

if TYPE_CHECKING:  # listing the commands must not take the second that torch takes
    from scenemem.formats.folder import DataFolder
    from scenemem.runs.loop import TrainingStatus

console = Console(stderr=True)
"""Progress, tables for people and messages go to standard error or here; results go to standard output."""

output = Console()
"""Tables that are the command's result."""

Precision = Literal["full", "fast"]
"""How matrix products are computed."""

# metric -> what it is called in tables, how it is shown, what it means
METRICS = {
    "tl": ("TL", "{:.2f} m", "length of the trajectory"),
    "ne": ("NE", "{:.2f} m", "distance from the last viewpoint to the goal"),
    "sr": ("SR", "{:.2%}", "stopped nearer than 3 m to the goal"),
    "osr": ("OSR", "{:.2%}", "came nearer than 3 m to the goal"),
    "spl": ("SPL", "{:.2%}", "success, weighted by shortest distance / length walked"),
    "spl_ref": ("SPL (reference)", "{:.2%}", "the same with the length of the reference path"),
    "cls": ("CLS", "{:.2%}", "coverage of the reference path, weighted by length"),
    "ndtw": ("nDTW", "{:.2%}", "fidelity to the reference path"),
    "sdtw": ("SDTW", "{:.2%}", "fidelity where successful, else 0"),
}


def print_json(value: Any) -> None:
    """Print one JSON object on standard output and nothing else."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for people on standard error."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def metric_table(title: str, means: Mapping[str, float]) -> Table:
    """All metrics of one agent, each explained."""
    table = Table("metric", "mean", "", title=title)
    for name, (label, form, meaning) in METRICS.items():
        table.add_row(label, form.format(means[name]), meaning)
    return table


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Draw a progress bar on standard error; yields the function to call with (done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title, total=None)

    def advance(done: int, total: int) -> None:
        bar.start()  # only now, so that work that turns out to be done already shows no bar
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def training_bars(
    names: Iterable[str], metric: str, *, unit: str = "episodes", shown: bool = True
) -> Iterator[Callable[[str, TrainingStatus], None]]:
    """A line per run with speed, losses and the last validation; yields what is told name and status."""
    bars = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not shown,
    )
    with bars:
        tasks = {name: bars.add_task(name, total=None, facts="") for name in names}

        def watch(name: str, status: TrainingStatus) -> None:
            facts = [f"{status.episodes_per_second:.0f} {unit}/s"]
            facts += [f"{loss} {value:.2f}" for loss, value in status.step.losses.items()]
            if status.validation is not None:
                facts.append(f"[green]{metric} {status.validation[metric]:.3f}")
            done, total = status.iteration, status.iterations
            bars.update(tasks[name], completed=done, total=total, facts="  ".join(facts))

        yield watch


def use_threads(threads: int) -> None:
    """Let torch use this many threads.

    Raises:
        UserError: there is no such number of threads.
    """
    if threads < 1:
        raise UserError(f"--threads must be 1 or more, got {threads}")
    import torch

    torch.set_num_threads(threads)


def use_precision(precision: Precision) -> None:
    """Let torch compute matrix products this way; weights, states and gradients stay in single precision."""
    import torch

    torch.set_float32_matmul_precision("highest" if precision == "full" else "medium")


def check_processes(processes: int) -> None:
    """Refuse impossible numbers before anything is opened.

    Raises:
        UserError: there is no such number of processes.
    """
    if processes < 1:
        raise UserError(f"--processes must be 1 or more, got {processes}")


def open_data(data: Path | None) -> DataFolder:
    """The data folder a command works on: the one named with ``--data``, else the embedded houses."""
    from scenemem.runs.experiment import open_data as opened

    return opened(data, progress_bar)
