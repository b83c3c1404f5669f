"""Runs compared: mean and deviation over seeds, one row per preset, and paired differences between rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate, difference
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.tables import Spread, spreads
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.presets import Preset
from scenemem.runs.experiment import Progress, begun, silent
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import open_run
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.pages import table_section, write_report
from scenemem.viewer.runs import group_names

METRICS = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw")
"""The columns of a comparison."""


@dataclass(frozen=True)
class ComparisonTable:
    """A table for people."""

    title: str
    header: tuple[str, ...]
    cells: list[list[str]]


@dataclass(frozen=True)
class Comparison:
    """Runs on one split; runs of the same preset and settings share a row."""

    split: str
    rows: dict[str, dict[str, Spread]]  # row -> metric -> over its runs
    against: str | None = None  # the row that differences are measured from
    distances: dict[str, dict[str, Estimate]] = field(default_factory=dict)  # row -> metric -> difference

    def tables(self) -> list[ComparisonTable]:
        """The metrics of all rows and, when asked for, how far they are from one of them."""
        cells = [
            [name, str(next(iter(row.values())).n), *(str(row[metric]) for metric in METRICS)]
            for name, row in self.rows.items()
        ]
        tables = [ComparisonTable(self.split, ("agent", "n", *METRICS), cells)]
        if self.distances:
            cells = [
                [name, *(_signed(of[metric]) for metric in METRICS)] for name, of in self.distances.items()
            ]
            title = f"distance from {self.against}, with 95 % intervals over seeds and paths"
            tables.append(ComparisonTable(title, ("agent", *METRICS), cells))
        return tables

    def to_markdown(self) -> str:
        """The tables in Markdown."""
        return "\n".join(_markdown(table) for table in self.tables())

    def write(self, out: Path) -> None:
        """Write the tables as Markdown (.md) or HTML (.html)."""
        if out.suffix == ".html":
            sections = [table_section(table.title, table.header, table.cells) for table in self.tables()]
            write_report(out, "Comparison", sections)
            return
        with atomic_file(out) as partial:
            partial.write_text(self.to_markdown(), encoding="utf-8")


def row_names(runs: Sequence[RunFolder], against: str | None = None) -> list[str]:
    """The row of every run: its preset, and the settings in which runs of a preset differ.

    Raises:
        UserError: there is no row ``against``, or no other one.
        DataError: a run does not say what it is.
    """
    described = [begun(run, Preset) for run in runs]
    names = group_names([(one.name, asdict(one.preset)) for one in described])
    if against is not None and against not in names:
        raise UserError(f"--against {against}: no such row; there are: {', '.join(dict.fromkeys(names))}")
    if against is not None and len(set(names)) == 1:
        raise UserError(f"--against {against}: all runs belong to that row; name runs of another one, too")
    return names


def compare_runs(
    runs: Sequence[RunFolder],
    split: str,
    folder: DataFolder,
    *,
    checkpoint: Which = "last",
    against: str | None = None,
    processes: int = 1,
    progress: Progress = silent,
) -> Comparison:
    """Walk runs over a split and compare what comes out.

    Args:
        runs: at least one.
        split: which episodes.
        folder: their data.
        checkpoint: which weights.
        against: name of a row; how far the others are from it is measured too, paired by episode.
        processes: how many walk at once.
        progress: makes progress bars.

    Raises:
        UserError: the runs cannot be compared.
    """
    names = row_names(runs, against)
    measured: dict[str, list[Metrics]] = {}
    episodes: EpisodeSet | None = None
    for name, run in zip(names, runs, strict=True):
        opened = open_run(run, folder, checkpoint, progress)
        walks = opened.walk(split, processes)
        if episodes is not None and episodes.instruction_ids != walks.episodes.instruction_ids:
            raise UserError(
                f"{run.root} walks other episodes than the runs before it; compare runs of one task at a time"
            )
        episodes = walks.episodes
        measured.setdefault(name, []).append(walks.measured(opened.world))
    rows = spreads([(name, metrics.means()) for name, members in measured.items() for metrics in members])
    if against is None or episodes is None:
        return Comparison(split, rows)
    return Comparison(split, rows, against, _distances(measured, against, episodes.record))


def _distances(
    measured: Mapping[str, Sequence[Metrics]], against: str, path: Tensor
) -> dict[str, dict[str, Estimate]]:
    """Every row but ``against`` minus it.  path: (N,) which path each episode belongs to"""

    def column(members: Sequence[Metrics], metric: str) -> Tensor:
        return torch.stack([getattr(metrics, metric) for metrics in members])

    return {
        name: {
            metric: difference(column(members, metric), column(measured[against], metric), path)
            for metric in METRICS
        }
        for name, members in measured.items()
        if name != against
    }


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _markdown(table: ComparisonTable) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
