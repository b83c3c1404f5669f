"""Runs as a report sees them: seeds of the same settings together, their curves and metrics averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from scenemem.evaluation.bootstrap import Spread, spreads
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Origin
from scenemem.viewer.charts import Point

METRICS = {name.lower(): name for name in ("SR", "SPL", "OSR", "NE", "TL", "CLS", "nDTW", "SDTW")}
"""The metrics a report shows, and what they are called."""

_ROUGH = ("ne", "tl", "jumps", "hops")  # metres and counts; the others are fractions


@dataclass(frozen=True)
class ReportRun:
    """What a report needs to know about a run."""

    name: str  # of its preset
    seed: int
    folder: str
    settings: Mapping[str, Any]  # the whole preset, nested
    features: str  # what it sees
    versions: Mapping[str, str]  # what it was made with
    log: Sequence[Mapping[str, Any]]  # one line per logged iteration
    results: Mapping[str, Sequence[EpisodeResult]]  # by split
    origins: Mapping[str, Origin] = field(default_factory=dict)  # split -> what its results come from
    packed: int | None = None  # iterations behind packed weights, which have no log
    card: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # split -> what their card says

    @property
    def iterations(self) -> int:
        """How far the training has come."""
        if self.packed is not None:
            return self.packed
        return int(self.log[-1]["iteration"]) if self.log else 0

    @property
    def progress(self) -> str:
        """The iterations, and how many were planned when the training is not over."""
        if self.packed is not None:
            return f"{self.packed:,}, packed weights"
        planned = self.settings["learning"]["iterations"]
        return f"{self.iterations:,}" + ("" if self.iterations >= planned else f" of {planned:,}")

    @property
    def checkpoints(self) -> str:
        """Which weights were measured; all episodes of a split were walked by the same."""
        firsts = [results[0] for results in self.results.values()]
        names = dict.fromkeys(f"{first.checkpoint} at {first.iteration:,}" for first in firsts)
        return ", ".join(names) or "-"


Groups = Mapping[str, Sequence[ReportRun]]
"""what a group is called -> its runs, which differ in their seed only"""


def grouped(runs: Sequence[ReportRun]) -> dict[str, list[ReportRun]]:
    """Runs of the same preset and the same settings together, in the order in which they first come.

    Groups are called as their preset; where a preset was trained with different settings, the settings that
    differ are added to its name.
    """
    groups: dict[str, list[ReportRun]] = {}
    for name, run in zip(group_names([(run.name, run.settings) for run in runs]), runs, strict=True):
        groups.setdefault(name, []).append(run)
    return groups


def group_names(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What the group of every run is called: its preset, and the settings in which namesakes differ.

    runs: (name of the preset, its settings)
    """
    flat, names = [(name, _flat(settings)) for name, settings in runs], []
    for name, own in flat:
        namesakes = [other for namesake, other in flat if namesake == name]
        differing = [
            f"{setting} {value}"
            for setting, value in own.items()
            if any(other.get(setting) != value for other in namesakes)
        ]
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return names


def metric_spreads(groups: Groups, split: str) -> dict[str, dict[str, Spread]]:
    """Mean and standard deviation over the runs of every group that walked a split."""

    def means(results: Sequence[EpisodeResult]) -> dict[str, float]:
        shown = (*METRICS, "jumps", "hops")
        return {metric: fmean(getattr(result, metric) for result in results) for metric in shown}

    members = ((name, run.results) for name, runs in groups.items() for run in runs)
    return spreads([(name, means(results[split])) for name, results in members if split in results])


def pooled(groups: Groups, split: str) -> dict[str, list[EpisodeResult]]:
    """The episodes of all runs of every group that walked a split."""
    episodes = {
        name: [result for run in runs for result in run.results.get(split, ())]
        for name, runs in groups.items()
    }
    return {name: results for name, results in episodes.items() if results}


def curves(groups: Groups, kind: str, name: str) -> dict[str, list[Point]]:
    """Mean and deviation over the runs of every group of a number logged in ``losses`` or ``validation``.

    Only iterations that all runs of the group have logged: a mean over fewer would jump.
    """
    found: dict[str, list[Point]] = {}
    for group, runs in groups.items():
        logs = [
            {line["iteration"]: line[kind][name] for line in run.log if name in line.get(kind, {})}
            for run in runs
        ]
        common = sorted(set.intersection(*(set(log) for log in logs)))
        values = {iteration: [log[iteration] for log in logs] for iteration in common}
        if values:
            found[group] = [
                Point(x, fmean(ys), stdev(ys) if len(ys) > 1 else 0.0) for x, ys in values.items()
            ]
    return found


def logged_names(groups: Groups, kind: str) -> list[str]:
    """The losses or validation metrics that were logged, in the order in which they first come."""
    lines = (line for runs in groups.values() for run in runs for line in run.log)
    return list(dict.fromkeys(name for line in lines for name in line.get(kind, {})))


def splits_of(groups: Groups) -> list[str]:
    """The splits that were walked: unseen buildings first, then in the order in which they first come."""
    seen = dict.fromkeys(split for runs in groups.values() for run in runs for split in run.results)
    return sorted(seen, key=lambda split: split != "val_unseen")


def contenders(groups: Groups, split: str) -> list[ReportRun]:
    """The first run of the best agent on a split and, when there are several, that of the worst."""
    walked = {name: [run for run in runs if split in run.results] for name, runs in groups.items()}
    rates = {
        name: fmean(result.sr for run in runs for result in run.results[split])
        for name, runs in walked.items()
        if runs
    }
    ranked = sorted(rates, key=lambda name: rates[name], reverse=True)
    return [walked[name][0] for name in dict.fromkeys((ranked[0], ranked[-1]))]


def metric_cell(metric: str, spread: Spread) -> str:
    """A metric as tables show it: metres and counts with two digits, fractions with three."""
    digits = 2 if metric in _ROUGH else 3
    text = f"{spread.mean:.{digits}f}"
    return text if spread.sd is None else f"{text} ± {spread.sd:.{digits}f}"


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if isinstance(settings, (list, tuple)):
        settings = dict(enumerate(settings))
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
