"""What all commands share: flags, where text goes, progress bars, tables, JSON and the data folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import Positional, arg

from scenemem.errors import UserError

if TYPE_CHECKING:  # listing the commands must not take the second that torch takes
    from scenemem.formats.folder import DataFolder
    from scenemem.runs.loop import TrainingStatus

console = Console(stderr=True)
"""Progress, tables for people and messages go to standard error or here; results go to standard output."""

output = Console()
"""Tables that are the command's result."""

# Flags that several commands have
Run = Annotated[Path, Positional, arg(help="a run folder.")]
Runs = Annotated[
    tuple[Path, ...], Positional, arg(help="run folders; runs of the same preset and settings are one row.")
]
Rival = Annotated[Path | None, Positional, arg(help="another run folder, to be shown beside it.")]
Speaker = Annotated[Path, Positional, arg(help="the run folder of a speaker.")]
Split = Annotated[str, arg(help="which episodes.")]
Data = Annotated[Path | None, arg(help="the data folder; the embedded houses when left out.")]
Checkpoint = Annotated[
    Literal["best", "last"],
    arg(help="the last weights of a run, or those that did best on its selection split."),
]
Threads = Annotated[int, arg(help="torch threads; more than one only pays on an otherwise idle machine.")]
Device = Annotated[str, arg(help="where to compute: cpu or cuda.")]
Processes = Annotated[
    int, arg(help="how many walk at once, each with one thread; pays on large splits and idle processors.")
]
Beam = Annotated[int, arg(help="texts kept at once in beam search; 1 takes the most likely word each time.")]
Json = Annotated[bool, arg(help="print one JSON object instead of text.")]

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


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table for people."""
    made = Table(*header, title=title)
    for row in rows:
        made.add_row(*row)
    return made


def metric_table(title: str, means: Mapping[str, float]) -> Table:
    """All metrics of one agent, each explained."""
    rows = [(label, form.format(means[name]), text) for name, (label, form, text) in METRICS.items()]
    return table(title, ("metric", "mean", ""), rows)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Draw a progress bar on standard error; yields the function to call with (done, total)."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
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
    columns = ("[bold]{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[facts]}")
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown) as bars:
        tasks = {name: bars.add_task(name, total=None, facts="") for name in names}

        def watch(name: str, status: TrainingStatus) -> None:
            facts = [f"{status.episodes_per_second:.0f} {unit}/s"]
            facts += [f"{loss} {value:.2f}" for loss, value in status.step.losses.items()]
            if status.validation is not None:
                facts.append(f"[green]{metric} {status.validation[metric]:.3f}")
            done, total = status.iteration, status.iterations
            bars.update(tasks[name], completed=done, total=total, facts="  ".join(facts))

        yield watch


def at_least_one(**flags: int) -> None:
    """Refuse flags below 1 before anything is opened."""
    for name, value in flags.items():
        if value < 1:
            raise UserError(f"--{name} must be 1 or more, got {value}")


def use_threads(threads: int) -> None:
    """Let torch use this many threads."""
    at_least_one(threads=threads)
    import torch

    torch.set_num_threads(threads)


def open_data(data: Path | None) -> DataFolder:
    """The data folder a command works on: the one named with ``--data``, else the embedded houses."""
    from scenemem.runs.experiment import open_data as opened

    return opened(data, progress_bar)
