"""What all commands share: flags, where text goes, progress bars, tables, JSON and the data folder."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from scenemem.registry import suggestion

if TYPE_CHECKING:  # listing the commands must not take the second that torch takes
    from scenemem.api import LoadedAgent
    from scenemem.formats.folder import DataFolder
    from scenemem.runs.folder import RunFolder, Which
    from scenemem.runs.loop import TrainingStatus

console = Console(stderr=True)
"""Progress, tables for people and messages go to standard error or here; results go to standard output."""

output = Console()
"""Tables that are the command's result."""

# Flags that several commands have
Run = Annotated[Path, Positional, arg(metavar="RUN", help="a run folder, or weights:NAME.")]
Runs = Annotated[
    tuple[Path, ...],
    Positional,
    arg(
        metavar="RUN ...",
        help="run folders, or weights:NAME; runs of the same preset and settings are one row.",
    ),
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
Data = Annotated[Path | None, arg(metavar="DIR", help="the data folder; the embedded houses when left out.")]
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
    "sr": ("SR", "{:.3f}", "stopped nearer than 3 m to the goal"),
    "osr": ("OSR", "{:.3f}", "came nearer than 3 m to the goal"),
    "spl": ("SPL", "{:.3f}", "success, weighted by shortest distance / length walked"),
    "spl_ref": ("SPL (reference)", "{:.3f}", "the same with the length of the reference path"),
    "cls": ("CLS", "{:.3f}", "coverage of the reference path, weighted by length"),
    "ndtw": ("nDTW", "{:.3f}", "fidelity to the reference path"),
    "sdtw": ("SDTW", "{:.3f}", "fidelity where successful, else 0"),
}


def print_json(value: Any) -> None:
    """Print one JSON object on standard output and nothing else."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for people on standard error."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def hush(text: str) -> None:
    """Print nothing, in a process that is not the main one."""


def say_next(command: str, *words: object, note: str = "") -> None:
    """Print a command that could be typed next, its words quoted for the shell where needed."""
    said = f"next: {shlex.quote(program())} {command} {shlex.join(map(str, words))}".rstrip()
    say(f"{said}   # {note}" if note else said)


def program() -> str:
    """``scenemem``, or where it lies when the shell would not find it, as in an environment not activated."""
    started = Path(sys.argv[0])
    if started.name != "scenemem" or shutil.which("scenemem") is not None:
        return "scenemem"
    here = Path.cwd()
    return str(started.relative_to(here) if started.is_relative_to(here) else started)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table for people."""
    made = Table(*header, title=title)
    for row in rows:
        made.add_row(*row)
    return made


def print_whole(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], kept: int = 1) -> None:
    """Print a table without cutting a cell: turned on its side, or in parts, when it is too wide.

    Args:
        title: above the first part.
        header: of the columns.
        rows: the cells.
        kept: columns at the left that every part has.
    """
    turned = [list(column) for column in zip(header, *rows, strict=True)]
    if sum(_widths(header, rows)) >= output.width > sum(_widths(turned[0], turned[1:])):
        header, rows, kept = turned[0], turned[1:], 1
    widths = _widths(header, rows)
    fixed, parts = sum(widths[:kept]) + 1, list[list[int]]()
    for column in range(kept, len(header)):
        if not parts or fixed + sum(widths[one] for one in (*parts[-1], column)) > output.width:
            parts.append([])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        columns = [*range(kept), *part]
        shown = table(
            title if not number else "",
            [header[column] for column in columns],
            [[row[column] for column in columns] for row in rows],
        )
        for shown_column in shown.columns:
            shown_column.no_wrap = True
        output.print(shown, crop=False, width=max(output.width, fixed + sum(widths[one] for one in part)))


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """What every column takes, with its lines."""
    return [max(map(cell_len, cells)) + 3 for cells in zip(header, *rows, strict=True)]


def metric_table(title: str, means: Mapping[str, float]) -> Table:
    """All metrics of one agent, each explained."""
    rows = [(label, form.format(means[name]), text) for name, (label, form, text) in METRICS.items()]
    return table(title, ("metric", "mean", ""), rows)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Draw a progress bar on standard error; yields the function to call with (done, total).

    Off a terminal a plain line comes every half minute instead.
    """
    if not console.is_terminal:
        yield _told_now_and_then(title, lambda done, total: f"{done:,} of {total:,}")
        return
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
def bytes_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """The same for a download: (bytes there, bytes in all)."""
    if not console.is_terminal:
        yield _told_now_and_then(title, lambda done, total: f"{done / 1e6:.1f} of {total / 1e6:.1f} MB")
        return
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


LINE_EVERY = 30.0
"""Seconds between two lines about work whose output is no terminal."""


def _told_now_and_then(title: str, amount: Callable[[int, int], str]) -> Callable[[int, int], None]:
    """Says how far something is, every half minute; work that takes less says nothing."""
    began = told = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if 0 < done < total and now - told >= LINE_EVERY:
            told = now
            from scenemem.runs.loop import duration

            say(f"{title}: {amount(done, total)}, {duration((now - began) / done * (total - done))} left")

    return advance


_WIDE, _MIDDLE = 120, 72  # characters; narrower terminals show no bar, then only count and remaining time


@contextmanager
def training_bars(
    names: Iterable[str], metric: str, *, unit: str = "episodes", shown: bool = True
) -> Iterator[Callable[[str, TrainingStatus], None]]:
    """Tell about trainings: a bar each on a terminal, else a plain line now and then.

    Both have count, remaining time, speed, losses and the last validation; yields what is told name and
    status of a run.
    """
    if not shown:
        yield lambda _name, _status: None
    elif console.is_terminal:
        with _bars(names, metric, unit) as watch:
            yield watch
    else:
        yield _Lines(metric, unit)


@contextmanager
def _bars(names: Iterable[str], metric: str, unit: str) -> Iterator[Callable[[str, TrainingStatus], None]]:
    columns: list[str | ProgressColumn] = ["[bold]{task.description}"]
    columns += [MofNCompleteColumn(table_column=Column(no_wrap=True))]
    columns += [TimeRemainingColumn(table_column=Column(no_wrap=True))]
    columns += [BarColumn()] if console.width >= _WIDE else []
    columns += ["{task.fields[facts]}"] if console.width >= _MIDDLE else []
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(name, total=None, facts="") for name in names}

        def watch(name: str, status: TrainingStatus) -> None:
            told = "  ".join(_facts(status, metric, unit))
            bars.update(tasks[name], completed=status.iteration, total=status.iterations, facts=told)

        yield watch


class _Lines:
    """A line per run: at its first step, every half minute, after a validation and at its end."""

    def __init__(self, metric: str, unit: str) -> None:
        self._metric, self._unit = metric, unit
        self._begun: dict[str, tuple[float, int]] = {}  # when and at which step a run was first heard of
        self._told: dict[str, float] = {}
        self._validation: dict[str, Any] = {}

    def __call__(self, name: str, status: TrainingStatus) -> None:
        now, ends = time.monotonic(), status.iteration == status.iterations
        began, first = self._begun.setdefault(name, (now, status.iteration))
        validated = status.validation != self._validation.get(name)
        if name in self._told and not ends and not validated and now - self._told[name] < LINE_EVERY:
            return
        self._told[name], self._validation[name] = now, status.validation
        facts = [f"{name}: step {status.iteration:,} of {status.iterations:,}"]
        facts += _facts(status, self._metric, self._unit)
        done, left = status.iteration - first, status.iterations - status.iteration
        if done and left:
            from scenemem.runs.loop import duration

            facts.append(f"{duration((now - began) / done * left)} left")
        say(", ".join(facts))


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


def open_data(data: Path | None, *, quiet: bool = False) -> DataFolder:
    """The data folder a command works on: the one named with ``--data``, else the embedded houses."""
    from scenemem.runs.experiment import open_data as opened

    if data is None and not quiet:
        say("no --data: the embedded houses are used; name --data DIR for other data")
    return opened(data, progress_bar)


def existing_run(path: Path, data: Path | None, checkpoint: Which = "last") -> RunFolder:
    """The run in a folder, checked before anything slow begins.

    Raises:
        UserError: there is no run or no checkpoint, or it was trained on a data folder and none is named.
    """
    from scenemem.runs.folder import RunFolder

    run = RunFolder(path)
    described = run.describe()
    if not run.checkpoint(checkpoint).is_file():
        raise UserError(f"{path} has no {checkpoint} checkpoint yet; let it train on with --resume")
    learned_from = described.get("data", {})
    if data is None and learned_from.get("features", _HOUSES) != _HOUSES:
        folder = f" in '{learned_from['folder']}'" if "folder" in learned_from else ""
        raise UserError(
            f"{path} was trained on '{learned_from['features']}'{folder}, not on the embedded houses; "
            "name that data folder with --data DIR"
        )
    return run


def load_agent(run: Path, split: str, data: Path | None, checkpoint: Which, device: str) -> LoadedAgent:
    """The agent of a run; that there are a run, the device and the split is checked before it is loaded."""
    from scenemem import api
    from scenemem.learning.distributed import check_device

    described = existing_run(run, data, checkpoint).describe()
    check_device(device)
    folder = open_data(data)
    check_split(folder, described["preset"]["data"]["task"], split)
    return api.load(run, data=folder.root, checkpoint=checkpoint, device=device, progress=progress_bar)


def check_split(folder: DataFolder, task: str, split: str, *, run: bool = True) -> None:
    """Refuse a split that a data folder does not have; the message lists those it has."""
    from scenemem.formats.folder import SPLITS

    there = [one for one in SPLITS if folder.episodes(task, one).is_file()]
    if run and "train" in there:
        there.append("dev_unseen")
    if split not in there and not folder.episodes(task, split).is_file():
        raise UserError(
            f"{folder.root} has no split '{split}' of {task}; {suggestion(split, dict.fromkeys(there))}"
        )


_HOUSES = "scenemem.houses.features"  # what runs on the embedded houses see
