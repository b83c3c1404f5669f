"""Runs compared: mean and deviation over seeds, one row per preset, and paired differences between rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from markupsafe import Markup
from torch import Tensor

from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate, Spread, connected, difference, spreads
from scenemem.evaluation.metrics import Metrics
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import file_digest
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.presets import Preset
from scenemem.runs.experiment import DEV_UNSEEN, begun
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import LoadedAgent
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.charts import draw_intervals
from scenemem.viewer.pages import Section, Table, note_section, section, write_page, write_report
from scenemem.viewer.report import group_names

METRICS = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw")
"""The columns of a comparison."""

_PICTURED = {"SR": "sr", "SPL": "spl", "OSR": "osr"}
"""The pictures of a page."""


@dataclass(frozen=True)
class Comparison:
    """Runs on one split; runs of the same preset and settings share a row."""

    split: str
    rows: dict[str, dict[str, Spread]]  # row -> metric -> over its runs
    tracks: dict[str, str]  # row -> track of the features its runs see; empty when unknown
    against: str | None = None  # the row that differences are measured from
    distances: dict[str, dict[str, Estimate]] = field(default_factory=dict)  # row -> metric -> difference
    by_building: dict[str, dict[str, Estimate]] = field(default_factory=dict)  # the same, drawing buildings
    remarks: tuple[str, ...] = ()  # why rows may not be comparable
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # row -> mean cost of a run, where noted
    walked: int = 0  # runs that walked for it; of the others, results were kept

    @classmethod
    def of(
        cls,
        split: str,
        measured: Sequence[tuple[str, Metrics]],
        facts: Sequence[RowFacts],
        path: Tensor,
        building: Tensor,
        against: str | None = None,
    ) -> Comparison:
        """Compare the metrics of runs, each with its row; ``facts`` are those of the same runs.

        path: (N,) which group of paths each episode belongs to  building: (N,) which building
        """
        rows = spreads([(name, metrics.means()) for name, metrics in measured])

        def values(row: str, metric: str) -> Tensor:
            return torch.stack([getattr(metrics, metric) for name, metrics in measured if name == row])

        def distances(cluster: Tensor) -> dict[str, dict[str, Estimate]]:
            return {
                row: {
                    metric: difference(values(row, metric), values(against, metric), cluster)
                    for metric in METRICS
                }
                for row in rows
                if against is not None and row != against
            }

        return cls(
            split,
            rows,
            {one.row: one.track for one in facts},
            against,
            distances(path),
            distances(building),
            tuple(comparability(facts)),
            {row: cost for row in rows if (cost := _mean_cost(row, facts)) is not None},
        )

    def tables(self) -> list[Table]:
        """The metrics of all rows and, with ``against``, how far they are from one of them."""
        cells = [
            [
                name,
                self.tracks[name] or "unknown",
                str(next(iter(row.values())).n),
                f"{self.cpu_seconds[name]:.0f}" if name in self.cpu_seconds else "-",
                *(str(row[metric]) for metric in METRICS),
            ]
            for name, row in self.rows.items()
        ]
        tables = [Table(self.split, ("agent", "track", "n", "cpu s", *METRICS), cells)]
        for drawn, distances in (("paths", self.distances), ("buildings", self.by_building)):
            if distances:
                cells = [[name, *(of[metric].signed for metric in METRICS)] for name, of in distances.items()]
                title = f"difference from {self.against}, with 95 % intervals over seeds and {drawn}"
                tables.append(Table(title, ("agent", *METRICS), cells))
        return tables

    def to_markdown(self) -> str:
        """The tables in Markdown."""

        def lines(table: Table) -> str:
            rows = [table.head, ["---"] * len(table.head), *table.rows]
            return "".join("| " + " | ".join(row) + " |\n" for row in rows)

        return "\n".join([*(f"Note: {remark}.\n" for remark in self.remarks), *map(lines, self.tables())])

    def picture(self, metric: str = "sr", *, alone: bool = False) -> Markup:
        """How far all rows are from the one they are measured from, largest first; seeds and buildings."""
        rows = sorted(self.by_building.items(), key=lambda row: -row[1][metric].value)
        across = (
            f"{metric.upper()} on {self.split}, difference from {self.against}; 95 %, seeds and buildings"
        )
        return draw_intervals({name: of[metric] for name, of in rows}, across=across, alone=alone)

    def write(self, file: StrPath) -> None:
        """Write the tables as Markdown (.md) or HTML (.html), or a picture (.svg) of differences."""
        out = Path(file)
        if out.suffix == ".svg":
            if not self.by_building:
                raise UserError(f"{out}: a picture shows differences from a row; name it with `against`")
            write_page(out, self.picture(alone=True))
            return
        if out.suffix == ".html":
            sections = []
            if self.remarks:
                sections.append(note_section("Not the same for all rows", "; ".join(self.remarks) + "."))
            if self.by_building:
                sections += [Section(name, self.picture(metric)) for name, metric in _PICTURED.items()]
            sections += [section(table.caption, "table", table) for table in self.tables()]
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
        raise UserError(f"`against={against!r}`: no such row; there are: {', '.join(dict.fromkeys(names))}")
    if against is not None and len(set(names)) == 1:
        raise UserError(f"`against={against!r}`: all runs belong to that row; name runs of another one, too")
    return names


def path_groups(folder: DataFolder, task: str, split: str, episodes: EpisodeSet) -> Tensor:
    """Which episodes are not independent  ->  (N,)

    The instructions of one path; in R4R also all paths joined from R2R paths that they share, directly or
    over others, because an agent that fails on a half fails on every path it is part of.
    """
    if task != "r4r":
        return episodes.record
    records = read_episodes(folder.episodes(task, "train" if split == DEV_UNSEEN else split))
    if any(record.first_path_id is None or record.second_path_id is None for record in records):
        return episodes.record  # a file that does not say what its paths were joined from
    joined = connected([((one.scan, one.first_path_id), (one.scan, one.second_path_id)) for one in records])
    return torch.tensor(joined, device=episodes.record.device)[episodes.record]


@dataclass(frozen=True)
class RowFacts:
    """What has to be the same for two rows to be compared, and what one run of a row has cost."""

    row: str
    track: str  # of the features
    features: str  # sha256
    data: str  # sha256 of graphs and training episodes; empty when not noted
    steps: int
    cpu_seconds: float | None = None  # of the training; None when not noted

    @classmethod
    def of(cls, row: str, opened: LoadedAgent) -> RowFacts:
        """The facts of a run."""
        info, inputs = opened.experiment.environment.store.info, opened.stored.metadata.get("inputs")
        data = ""
        if isinstance(inputs, dict):
            data = "/".join(str(inputs.get(name))[:8] for name in ("graphs", "train"))
        noted = [
            float(line["cpu_seconds"])
            for line in opened.run.logged()
            if "cpu_seconds" in line and line["iteration"] <= opened.iteration
        ]
        return cls(row, info.track, info.sha256, data, opened.iteration, noted[-1] if noted else None)


def counted_once(
    agents: Sequence[tuple[str, LoadedAgent]],
) -> tuple[list[tuple[str, LoadedAgent]], list[str]]:
    """Agents with their rows, each counted once  ->  those that count, and remarks about the others

    A run does not count when it stands there already, is a copy of another one, or has its seed.
    """
    counted, remarks = list[tuple[str, LoadedAgent]](), list[str]()
    weights, seeds = dict[str, Path](), dict[tuple[str, int], Path]()
    for row, agent in agents:
        root, seed, digest = agent.path, agent.seed, file_digest(agent.file)
        told = agent.run.describe().get("seed")
        if told != seed:
            remarks.append(f"{root} says seed {told}, but its checkpoint was trained with seed {seed}")
        if (other := weights.get(digest)) is not None:
            copied = f"has the weights of {other}, which count once"
            remarks.append(f"{root} {'is named twice, and counts once' if root == other else copied}")
        elif (row, seed) in seeds:
            remarks.append(f"{root} has the seed {seed} of {seeds[row, seed]}, which counts once")
        else:
            weights[digest] = seeds[row, seed] = root
            counted.append((row, agent))
    return counted, remarks


def _mean_cost(row: str, facts: Sequence[RowFacts]) -> float | None:
    """Of the runs of a row; None when one of them does not say."""
    costs = [one.cpu_seconds for one in facts if one.row == row]
    return None if None in costs else fmean(cost for cost in costs if cost is not None)


def comparability(facts: Sequence[RowFacts]) -> list[str]:
    """Why some rows may not be comparable: other tracks, features, training data or numbers of steps."""
    told = {
        "tracks": "track",
        "features": "features",
        "training data": "data",
        "numbers of steps": "steps",
    }
    remarks = list[str]()
    for what, name in told.items():
        seen: dict[str, list[str]] = {}
        for one in facts:
            value = str(getattr(one, name))
            if value and one.row not in seen.setdefault(value, []):
                seen[value].append(one.row)
        if len(seen) > 1 and not (name == "features" and any("tracks" in text for text in remarks)):
            shown = "; ".join(f"{value[:12]}: {', '.join(rows)}" for value, rows in seen.items())
            remarks.append(f"the rows have different {what} ({shown}); differences may not be the agents'")
    return remarks
