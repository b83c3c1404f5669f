"""What all commands share: where text goes, progress bars, JSON output and opening the data folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

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

from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder

console = Console(stderr=True)
"""Progress, tables for people and messages go to standard error or here; results go to standard output."""

output = Console()
"""Tables that are the command's result."""

Precision = Literal["full", "fast"]
"""How matrix products are computed."""


def print_json(value: Any) -> None:
    """Print one JSON object on standard output and nothing else."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


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


def training_bar(*, shown: bool = True) -> Progress:
    """A progress bar whose tasks also show a line of facts."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not shown,
    )


def use_threads(threads: int) -> None:
    """Let torch use this many threads.

    Raises:
        UserError: there is no such number of threads.
    """
    if threads < 1:
        raise UserError(f"--threads must be 1 or more, got {threads}")
    import torch  # not at the top: listing the commands must not take a second

    torch.set_num_threads(threads)


def use_precision(precision: Precision) -> None:
    """Let torch compute matrix products this way; weights, states and gradients stay in single precision."""
    import torch

    torch.set_float32_matmul_precision("highest" if precision == "full" else "medium")


def open_data(data: Path | None) -> DataFolder:
    """The data folder a command works on: the one named with ``--data``, else the embedded houses."""
    if data is not None:
        return DataFolder(data)
    from scenemem.houses.build import default_houses  # only needed without --data

    with progress_bar("building houses") as progress:
        return DataFolder(default_houses(progress=progress))
