"""``scenemem report RUN ...``: one page about some runs - scores, curves, failures, the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from scenemem.commands.console import progress_bar, say, use_threads
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.pages import report_on


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    data: Path | None = None,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    checkpoint: Which = "last",
    replays: bool = True,
    threads: int = 1,
) -> None:
    """Write a page about runs; runs of the same preset and settings are one line with mean and deviation.

    Splits that a run has not walked yet are walked first, and kept in its folder as 'scenemem eval' does.
    Replays of telling episodes go into the folder 'replays' beside the page; of several agents the best and
    the worst are shown side by side.

    Args:
        runs: run folders.
        data: the data folder of runs that were not trained on the embedded houses.
        out: the page; report.html in the run folder, or here when there are several runs.
        splits: what to evaluate.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        replays: write and link replays of telling episodes.
        threads: torch threads; more than one only pays on an otherwise idle machine.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem report RUN ...")
    use_threads(threads)
    folders = [RunFolder(path) for path in runs]
    if out is None:
        out = folders[0].root / "report.html" if len(folders) == 1 else Path("report.html")
    page = report_on(
        folders,
        None if data is None else DataFolder(data),
        out,
        splits=splits,
        checkpoint=checkpoint,
        replays=replays,
        remark=say,
        progress=progress_bar,
    )
    say(f"The report: {page}")
