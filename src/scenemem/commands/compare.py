"""``scenemem compare RUN RUN ...``: mean and standard deviation over seeds, one row per preset.

With ``--against PRESET`` also how far the other presets are from it, paired by episode, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
import tyro
from rich.table import Table
from torch import Tensor

from scenemem.commands.console import console, open_data, output, print_json, use_threads
from scenemem.commands.eval import check_processes, walk_run
from scenemem.commands.tables import SIDE_BY_SIDE
from scenemem.errors import DataError, UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.evaluate import Walked
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.paired import difference
from scenemem.evaluation.tables import Rows, as_markdown, cell_rows, spreads
from scenemem.formats.atomic import atomic_file
from scenemem.learning.run_folder import RunFolder
from scenemem.presets import Preset
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.pages import table_section, write_report
from scenemem.viewer.runs import group_names

Differences = Mapping[str, Mapping[str, Estimate]]
"""preset -> metric -> its distance from the preset compared with"""


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Literal["best", "last"] = "last",
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
    names = _row_names([RunFolder(path) for path in runs], against)
    use_threads(threads)
    folder = open_data(data)
    measured: dict[str, list[Metrics]] = {}
    episodes = None
    for name, path in zip(names, runs, strict=True):
        run = RunFolder(path)
        world, walked = walk_run(run, split, folder, checkpoint, processes)
        episodes = _same_episodes(episodes, walked, run)
        measured.setdefault(name, []).append(walked.measured(world))
    rows = spreads([(name, metrics.means()) for name, members in measured.items() for metrics in members])
    distances = {} if against is None or episodes is None else _distances(measured, against, episodes.record)
    if out is not None:
        _write(out, split, _tables(rows, distances, against))
        console.print(f"written to {out}", markup=False, highlight=False)
    if json:
        print_json({"split": split, "rows": rows, **({"against": {against: distances}} if against else {})})
        return
    for number, shown in enumerate(_tables(rows, distances, against)):
        table = Table(*shown.header, title=shown.title if number else split)
        for cells in shown.cells:
            table.add_row(*cells)
        output.print(table)


def _row_names(runs: Sequence[RunFolder], against: str | None) -> list[str]:
    """The row of every run.

    Raises:
        UserError: there is no row ``against``, or no other one.
        DataError: a run does not say what it is.
    """
    names = group_names([_settings(run) for run in runs])
    if against is not None and against not in names:
        raise UserError(f"--against {against}: no such row; there are: {', '.join(dict.fromkeys(names))}")
    if against is not None and len(set(names)) == 1:
        raise UserError(f"--against {against}: all runs belong to that row; name runs of another one, too")
    return names


def _settings(run: RunFolder) -> tuple[str, Mapping[str, Any]]:
    """The preset's name and all its settings; those a run does not know yet have their defaults."""
    described = run.describe()
    try:
        return str(described["name"]), asdict(msgspec.convert(described["preset"], Preset))
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise DataError(run.description, f"does not describe a run ({error})") from error


def _same_episodes(known: EpisodeSet | None, walked: Walked, run: RunFolder) -> EpisodeSet:
    """The episodes all runs walk.

    Raises:
        UserError: this run walked other ones.
    """
    if known is not None and known.instruction_ids != walked.episodes.instruction_ids:
        raise UserError(
            f"{run.root} walks other episodes than the runs before it; compare runs of one task at a time"
        )
    return walked.episodes


def _distances(
    measured: Mapping[str, Sequence[Metrics]], against: str, path: Tensor
) -> dict[str, dict[str, Estimate]]:
    """Every preset but ``against`` minus it.  path: (N,) which path each episode belongs to"""
    return {
        name: {
            metric: difference(_column(members, metric), _column(measured[against], metric), path)
            for metric in SIDE_BY_SIDE
        }
        for name, members in measured.items()
        if name != against
    }


def _column(members: Sequence[Metrics], metric: str) -> Tensor:
    """One metric of all runs on all episodes  ->  (n, N)"""
    return torch.stack([getattr(metrics, metric) for metrics in members])


@dataclass(frozen=True)
class _Shown:
    """A table for people."""

    title: str
    header: tuple[str, ...]
    cells: list[list[str]]


def _tables(rows: Rows, distances: Differences, against: str | None) -> list[_Shown]:
    """The metrics of all presets and, when asked for, their distances from one of them."""
    tables = [_Shown("", ("agent", "n", *SIDE_BY_SIDE), cell_rows(rows, SIDE_BY_SIDE))]
    if distances:
        cells = [[name, *(_signed(of[metric]) for metric in SIDE_BY_SIDE)] for name, of in distances.items()]
        title = f"distance from {against}, with 95 % intervals over seeds and paths"
        tables.append(_Shown(title, ("agent", *SIDE_BY_SIDE), cells))
    return tables


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _write(out: Path, split: str, tables: Sequence[_Shown]) -> None:
    if out.suffix == ".html":
        sections = [table_section(shown.title or split, shown.header, shown.cells) for shown in tables]
        write_report(out, "Comparison", sections)
        return
    with atomic_file(out) as partial:
        text = "\n".join(as_markdown(shown.header, shown.cells) for shown in tables)
        partial.write_text(text, encoding="utf-8")
