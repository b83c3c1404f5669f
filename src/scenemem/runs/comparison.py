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
from scenemem.presets import Preset
from scenemem.runs.experiment import begun
from scenemem.runs.folder import RunFolder
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
    tracks: dict[str, str]  # row -> track of the features its runs see; empty when unknown
    against: str | None = None  # the row that differences are measured from
    distances: dict[str, dict[str, Estimate]] = field(default_factory=dict)  # row -> metric -> difference

    @classmethod
    def of(
        cls,
        split: str,
        measured: Sequence[tuple[str, Metrics]],
        tracks: Mapping[str, str],
        path: Tensor,
        against: str | None = None,
    ) -> Comparison:
        """Compare the metrics of runs, each with its row; ``tracks`` are those of the rows.

        path: (N,) which path each episode belongs to
        """
        rows = spreads([(name, metrics.means()) for name, metrics in measured])

        def values(row: str, metric: str) -> Tensor:
            return torch.stack([getattr(metrics, metric) for name, metrics in measured if name == row])

        distances = {
            row: {
                metric: difference(values(row, metric), values(against, metric), path) for metric in METRICS
            }
            for row in rows
            if against is not None and row != against
        }
        return cls(split, rows, dict(tracks), against, distances)

    def tables(self) -> list[ComparisonTable]:
        """The metrics of all rows and, when asked for, how far they are from one of them."""
        cells = [
            [
                name,
                self.tracks[name] or "unknown",
                str(next(iter(row.values())).n),
                *(str(row[metric]) for metric in METRICS),
            ]
            for name, row in self.rows.items()
        ]
        tables = [ComparisonTable(self.split, ("agent", "track", "n", *METRICS), cells)]
        if self.distances:
            cells = [
                [name, *(_signed(of[metric]) for metric in METRICS)] for name, of in self.distances.items()
            ]
            title = f"distance from {self.against}, with 95 % intervals over seeds and paths"
            tables.append(ComparisonTable(title, ("agent", *METRICS), cells))
        return tables

    def to_markdown(self) -> str:
        """The tables in Markdown."""

        def lines(table: ComparisonTable) -> str:
            rows = [table.header, ["---"] * len(table.header), *table.cells]
            return "".join("| " + " | ".join(row) + " |\n" for row in rows)

        return "\n".join(map(lines, self.tables()))

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

    There has to be a row ``against``, and another one.
    """
    described = [begun(run, Preset) for run in runs]
    names = group_names([(one.name, asdict(one.preset)) for one in described])
    if against is not None and against not in names:
        raise UserError(f"--against {against}: no such row; there are: {', '.join(dict.fromkeys(names))}")
    if against is not None and len(set(names)) == 1:
        raise UserError(f"--against {against}: all runs belong to that row; name runs of another one, too")
    return names


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"
