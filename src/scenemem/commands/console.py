"""What all commands share: flags, where text goes, progress, tables, JSON, and checks."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table
from tyro.conf import Positional, arg

from scenemem.errors import UserError
from scenemem.registry import loaded_plugins

if TYPE_CHECKING:  # listing the commands must not take the second that torch takes
    from scenemem.formats.folder import DataFolder
    from scenemem.runs.loop import TrainingStatus
    from scenemem.runs.opened import LoadedAgent

console = Console(stderr=True)
"""Progress and messages for people go to standard error; results go to standard output."""

output = Console()
"""Tables that are the command's result."""

# Flags that several commands have
Run = Annotated[Path, Positional, arg(metavar="RUN", help="a run folder, or weights:NAME.")]
Runs = Annotated[
    tuple[Path, ...],
    Positional,
    arg(metavar="RUN ...", help="run folders, or weights:NAME; equal presets and settings are one row."),
]
Rival = Annotated[
    Path | None,
    Positional,
    arg(metavar="[RIVAL]", help="another run folder, or weights:NAME, to be shown beside it."),
]
Speaker = Annotated[
    Path, Positional, arg(metavar="SPEAKER", help="the run folder of a speaker, or weights:NAME.")
]
Split = Annotated[
    str,
    arg(metavar="SPLIT", help="which episodes: train, val_seen, val_unseen, test, or dev_unseen of a run."),
]
FileTask = Annotated[
    str, arg(help="the task that a result file belongs to: r2r, r4r, reverie; a run has its own.")
]
Data = Annotated[Path | None, arg(metavar="DIR", help="the data folder; the embedded houses when left out.")]
Threads = Annotated[int, arg(help="torch threads; more than one only pays on an otherwise idle machine.")]
Processes = Annotated[
    int, arg(help="number of processes, each with one thread; pays on large splits and idle processors.")
]
Beam = Annotated[int, arg(help="texts kept at once in beam search; 1 takes the most likely word each time.")]
Json = Annotated[bool, arg(help="print one JSON object instead of text.")]


@dataclass(frozen=True)
class OpenFlags:
    """How a run is opened."""

    data: Data = None
    checkpoint: Literal["best", "last"] = "last"
    """the last weights of a run, or those that did best on its selection split"""
    threads: Threads = 1

    def open(self, *runs: Path) -> DataFolder:
        """The data of some runs; what is impossible is refused before anything slow begins."""
        use_threads(self.threads)
        return open_data(self.data, *runs, checkpoint=self.checkpoint)


@dataclass(frozen=True)
class WalkFlags(OpenFlags):
    """How the agent of a run is opened."""

    device: str = "cpu"
    """where to compute: cpu or cuda"""

    def open(self, *runs: Path) -> DataFolder:
        """The same, on a device."""
        from scenemem.learning.distributed import check_device

        check_device(self.device)
        return super().open(*runs)

    def load(self, *runs: Path) -> dict[str, LoadedAgent]:
        """The agents of some runs, by name."""
        from scenemem.runs.opened import open_runs

        folder = self.open(*runs)
        return open_runs(runs, folder, self.checkpoint, progress_bar, self.device)


Opening = Annotated[OpenFlags, arg(name="")]
Walking = Annotated[WalkFlags, arg(name="")]
WALKING = WalkFlags()

# metric -> what it is called in tables, how it is shown, what it means
METRICS = {
    "tl": ("TL", "{:.2f} m", "length of the trajectory"),
    "ne": ("NE", "{:.2f} m", "distance from the last viewpoint to the goal"),
    "sr": ("SR", "{:.3f}", "stopped nearer than 3 m to the goal"),
    "osr": ("OSR", "{:.3f}", "came nearer than 3 m to the goal"),
    "spl": ("SPL", "{:.3f}", "success, weighted by shortest distance / length walked"),
    "spl_ref": ("SPL (reference)", "{:.3f}", "the same with the length of the reference path"),
    "cls": ("CLS", "{:.3f}", "coverage of the reference path, weighted by length"),
    "ndtw": ("nDTW", "{:.3f}", "fidelity to the reference path"),
    "sdtw": ("SDTW", "{:.3f}", "fidelity where successful, else 0"),
}


def say(text: str, to: Console | None = None) -> None:
    """Print a line as it is, for people on standard error."""
    (to or console).print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def write(text: str) -> None:
    """Print a line as it is, as a result on standard output."""
    say(text, output)


def print_json(value: Any) -> None:
    """Print one JSON object on standard output and nothing else."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def show(json: bool, value: Any, *shown: Table | str) -> None:
    """Print a result: as JSON, or as tables and lines for people."""
    if json:
        print_json(value)
        return
    for one in shown:
        write(one) if isinstance(one, str) else output.print(one)


def say_next(command: str, *words: object, note: str = "") -> None:
    """Print a command that could be typed next, its words quoted for the shell where needed."""
    plugins = (word for plugin in loaded_plugins() for word in ("--plugin", plugin))
    typed = f"next: {shlex.quote(program())} {command} {shlex.join([*map(str, words), *plugins])}".rstrip()
    say(f"{typed}   # {note}" if note else typed)


def program() -> str:
    """``scenemem``, or where it lies when the shell would not find it, as in an environment not activated."""
    found = Path(sys.argv[0]).name != "scenemem" or shutil.which("scenemem")
    return "scenemem" if found else sys.argv[0]


def table(title: str, header: Iterable[str | Column], rows: Iterable[Iterable[str]], **style: Any) -> Table:
    """A table for people."""
    made = Table(*header, title=title or None, **style)
    for row in rows:
        made.add_row(*row)
    return made


def print_whole(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], kept: int = 1) -> None:
    """Print a table without cutting a cell; one that is too wide is turned on its side, broken in parts, or
    both, whichever takes the fewest parts.

    Args:
        title: above the first part.
        header: of the columns.
        rows: the cells.
        kept: columns at the left that every part has.
    """
    lines = [tuple(header), *map(tuple, rows)]
    upright, turned = _parts(list(zip(*lines, strict=True)), kept), _parts(lines, 1)
    for number, part in enumerate(turned if len(turned) < len(upright) else upright):
        head, *cells = zip(*part, strict=True)
        shown = table("" if number else title, head, cells)
        for shown_column in shown.columns:
            shown_column.no_wrap = True
        output.print(shown, crop=False, width=max(output.width, _width(part)))


def _parts(columns: Sequence[Sequence[str]], kept: int) -> list[list[Sequence[str]]]:
    """The columns in as few groups as fit on a screen each, all with the first ``kept`` ones."""
    parts = [list(columns[:kept])]
    for column in columns[kept:]:
        if len(parts[-1]) > kept and _width([*parts[-1], column]) > output.width:
            parts.append(list(columns[:kept]))
        parts[-1].append(column)
    return parts


def _width(columns: Iterable[Iterable[str]]) -> int:
    """What columns take, with their lines."""
    return 1 + sum(max(map(cell_len, column)) + 3 for column in columns)


def metric_table(title: str, means: Mapping[str, float]) -> Table:
    """All metrics of one agent, each explained."""
    rows = [(label, form.format(means[name]), text) for name, (label, form, text) in METRICS.items()]
    return table(title, ("metric", "mean", ""), rows)


LINE_EVERY = 30.0
"""Seconds between two lines about work whose output is no terminal."""

_WIDE, _MIDDLE = 120, 72  # characters; narrower terminals show no bar, then only count and remaining time


@contextmanager
def progress_bar(title: str, *, of_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Draw a progress bar on standard error; yields the function to call with (done, total).

    Off a terminal a plain line comes every half minute instead.
    """
    if not console.is_terminal:
        yield _lines_now_and_then(title, of_bytes)
        return
    counts: list[ProgressColumn] = [MofNCompleteColumn(), TimeElapsedColumn()]
    if of_bytes:
        counts = [DownloadColumn(), TransferSpeedColumn()]
    columns: list[str | ProgressColumn] = ["{task.description}", BarColumn(), *counts, TimeRemainingColumn()]
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title, total=None)

    def advance(done: int, total: int) -> None:
        bar.start()  # only now, so that work that turns out to be done already shows no bar
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()


bytes_bar = partial(progress_bar, of_bytes=True)
"""The same for a download: (bytes there, bytes in all)."""


def _lines_now_and_then(title: str, of_bytes: bool) -> Callable[[int, int], None]:
    """Print how far something is, every half minute; work that takes less prints nothing."""
    began = printed = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if 0 < done < total and now - printed >= LINE_EVERY:
            printed = now
            amount = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if of_bytes else f"{done:,} of {total:,}"
            say(f"{title}: {amount}, {_time_left(now - began, done, total - done)}")

    return advance


def _time_left(seconds: float, done: int, left: int) -> str:
    from scenemem.runs.loop import duration

    return f"{duration(seconds / done * left)} left"


@contextmanager
def training_bar(
    name: str, metric: str, *, unit: str = "episodes", shown: bool = True
) -> Iterator[Callable[[TrainingStatus], None]]:
    """Report on a training: a bar on a terminal, else a plain line now and then.

    Both have count, remaining time, speed, losses and the last validation; yields the function to call with
    the status of every step.
    """
    if not shown or not console.is_terminal:
        yield _training_lines(name, metric, unit) if shown else lambda _: None
        return
    columns: list[str | ProgressColumn] = ["[bold]{task.description}"]
    columns += [MofNCompleteColumn(table_column=Column(no_wrap=True))]
    columns += [TimeRemainingColumn(table_column=Column(no_wrap=True))]
    columns += [BarColumn()] if console.width >= _WIDE else []
    columns += ["{task.fields[facts]}"] if console.width >= _MIDDLE else []
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=None, facts="")

        def watch(status: TrainingStatus) -> None:
            facts = "  ".join(_facts(status, metric, unit))
            bar.update(task, completed=status.iteration, total=status.iterations, facts=facts)

        yield watch


def _training_lines(name: str, metric: str, unit: str) -> Callable[[TrainingStatus], None]:
    """Print a line at the first step, every half minute, after a validation and at the end."""
    began, first, printed, validation = time.monotonic(), 0, -LINE_EVERY, None

    def watch(status: TrainingStatus) -> None:
        nonlocal began, first, printed, validation
        now, left = time.monotonic(), status.iterations - status.iteration
        if not first:
            began, first = now, status.iteration
        if left and now - printed < LINE_EVERY and status.validation == validation:
            return
        printed, validation = now, status.validation
        facts = [f"{name}: step {status.iteration:,} of {status.iterations:,}", *_facts(status, metric, unit)]
        if left and status.iteration > first:
            facts.append(_time_left(now - began, status.iteration - first, left))
        say(", ".join(facts))

    return watch


def _facts(status: TrainingStatus, metric: str, unit: str) -> list[str]:
    facts = [f"{status.episodes_per_second:.0f} {unit}/s"]
    facts += [f"{loss} {value:.3f}" for loss, value in status.step.losses.items()]
    if status.validation is not None:
        facts.append(f"validation {metric} {status.validation[metric]:.3f}")
    return facts


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


def open_data(
    data: Path | None, *runs: Path, checkpoint: Literal["best", "last"] = "last", quiet: bool = False
) -> DataFolder:
    """The data folder a command works on: the one named with ``--data``, else the embedded houses.

    Runs that are not there, or were trained on other data, are refused before anything slow begins.
    """
    from scenemem.runs.experiment import open_data as opened

    if runs:
        from scenemem.runs.folder import RunFolder
        from scenemem.runs.opened import check_run

        for run in runs:
            check_run(RunFolder(run), checkpoint, houses=data is None)
    if data is None and not quiet:
        say("no --data: the embedded houses are used; name --data DIR for other data")
    return opened(data, progress_bar)
