"""``scenemem compare RUN RUN ...``: mean and standard deviation over seeds, one row per preset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.commands.console import (
    check_processes,
    console,
    open_data,
    output,
    print_json,
    progress_bar,
    use_threads,
)
from scenemem.errors import UserError
from scenemem.runs.comparison import compare_runs, row_names
from scenemem.runs.folder import RunFolder, Which


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Which = "last",
    against: str | None = None,
    out: Path | None = None,
    threads: int = 1,
    processes: int = 1,
    json: bool = False,
) -> None:
    """Evaluate runs on a split and print mean +- standard deviation per preset.

    Args:
        runs: run folders; runs of the same preset and settings are one row.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        against: name of a row; how far the others are from it is printed too, paired by episode, with
            95 % bootstrap intervals over seeds and paths (rough with two or three seeds, see the docs).
        out: also write the table to this file, as Markdown (.md) or HTML (.html).
        threads: torch threads; more than one only pays on an otherwise idle machine.
        processes: how many walk at once, each with one thread; pays on large splits and idle processors.
        json: print one JSON object instead of a table.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem compare RUN RUN ...")
    if out is not None and out.suffix not in (".md", ".html"):
        raise UserError(
            f"{out}: unknown kind of table '{out.suffix}'; expected a name ending in .md or .html"
        )
    check_processes(processes)
    folders = [RunFolder(path) for path in runs]
    row_names(folders, against)  # before the data is opened, which may take a while
    use_threads(threads)
    comparison = compare_runs(
        folders,
        split,
        open_data(data),
        checkpoint=checkpoint,
        against=against,
        processes=processes,
        progress=progress_bar,
    )
    if out is not None:
        comparison.write(out)
        console.print(f"written to {out}", markup=False, highlight=False)
    if json:
        distances = {"against": {against: comparison.distances}} if against else {}
        print_json({"split": split, "rows": comparison.rows, **distances})
        return
    for shown in comparison.tables():
        table = Table(*shown.header, title=shown.title)
        for cells in shown.cells:
            table.add_row(*cells)
        output.print(table)
