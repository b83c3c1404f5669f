"""The report on runs: scores, curves, outcomes, and the paper's numbers beside ours.

Seeds of the same settings stand together, their curves and metrics averaged.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import fmean, quantiles, stdev
from typing import Any

from markupsafe import Markup

from scenemem.evaluation.bootstrap import Spread, spreads
from scenemem.features.store import TRACKS
from scenemem.formats.atomic import StrPath
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Origin
from scenemem.viewer.charts import (
    FRACTIONS,
    ChartPoint,
    draw_curves,
    draw_shares,
)
from scenemem.viewer.pages import (
    Section,
    Table,
    note_section,
    section,
    write_report,
)

METRICS = {name.lower(): name for name in ("SR", "SPL", "OSR", "NE", "TL", "CLS", "nDTW", "SDTW")}
"""The metrics a report shows, and what they are called."""

Scores = Mapping[str, Mapping[str, float]]
"""agent -> metric -> mean, of agents that are no runs"""

Spreads = Mapping[str, Mapping[str, Mapping[str, Spread]]]
"""split -> preset -> metric -> mean and standard deviation over runs"""

_ROUGH = ("ne", "tl", "jumps", "hops")  # metres and counts; the others are fractions
_LOST = {6.0: "stopped 3 to 6 m away", 12.0: "stopped 6 to 12 m away"}  # by the metres it stays below
_FAR = "stopped 12 m or more away"
_ENDS = {
    "reached": "stopped at the goal",
    "passed": "passed the goal",
    "early": "stopped too early",
    "cut": "cut off",
}
_DIGITS = 16  # of a checksum, enough to tell files apart
_GROUPS = 6  # of episodes by length
_Rated = tuple[float, float]  # length, success
_JUMPS = ("no jump", "1 jump", "2 jumps", "3 or more")


@dataclass(frozen=True)
class ReportRun:
    """A run as a report shows it."""

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

Episodes = Mapping[str, Sequence[EpisodeResult]]
"""what a group is called -> the episodes of all its runs"""


def grouped(runs: Sequence[ReportRun]) -> dict[str, list[ReportRun]]:
    """Runs of the same preset and the same settings together, in the order in which they first come.

    Groups are called as their preset; where a preset was trained with different settings, the settings that
    differ are added to its name.
    """
    names = group_names([(run.name, run.settings) for run in runs])
    pairs = list(zip(names, runs, strict=True))
    return {name: [run for group, run in pairs if group == name] for name in dict.fromkeys(names)}


def group_names(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What the group of every run is called: its preset, and the settings in which namesakes differ.

    runs: (name of the preset, its settings)
    """
    flat, names = [(name, dotted(settings)) for name, settings in runs], []
    for name, own in flat:
        namesakes = [other for namesake, other in flat if namesake == name]
        differing = [
            f"{setting} {value}"
            for setting, value in own.items()
            if any(other.get(setting) != value for other in namesakes)
        ]
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return names


def _metric_spreads(groups: Groups, split: str) -> dict[str, dict[str, Spread]]:
    """Mean and standard deviation over the runs of every group that walked a split."""
    members = ((name, run.results) for name, runs in groups.items() for run in runs)
    walked = [(name, results[split]) for name, results in members if split in results]
    shown = (*METRICS, "jumps")
    means = [[fmean(getattr(one, metric) for one in results) for metric in shown] for _, results in walked]
    names = [name for name, _ in walked]
    return spreads(
        [(name, dict(zip(shown, row, strict=True))) for name, row in zip(names, means, strict=True)]
    )


def _pooled(groups: Groups, split: str) -> dict[str, list[EpisodeResult]]:
    """The episodes of all runs of every group that walked a split."""
    walked = {name: [run.results.get(split, ()) for run in runs] for name, runs in groups.items()}
    return {name: [*chain(*results)] for name, results in walked.items() if any(results)}


def curves(groups: Groups, kind: str, name: str) -> dict[str, list[ChartPoint]]:
    """Mean and deviation over the runs of every group of a number logged in ``losses`` or ``validation``.

    Only iterations that all runs of the group have logged: a mean over fewer would jump.
    """
    found: dict[str, list[ChartPoint]] = {}
    for group, runs in groups.items():
        lines = [[line for line in run.log if name in line.get(kind, {})] for run in runs]
        logs = [{line["iteration"]: line[kind][name] for line in log} for log in lines]
        common = sorted(set.intersection(*map(set, logs)))
        values = [[log[iteration] for log in logs] for iteration in common]
        deviations = [stdev(ys) if len(ys) > 1 else 0.0 for ys in values]
        found[group] = [*map(ChartPoint, common, map(fmean, values), deviations)]
    return found


def _logged_names(groups: Groups, kind: str) -> list[str]:
    """The losses or validation metrics that were logged, in the order in which they first come."""
    lines = (line for runs in groups.values() for run in runs for line in run.log)
    return list(dict.fromkeys(name for line in lines for name in line.get(kind, {})))


def splits_of(groups: Groups) -> list[str]:
    """The splits that were walked: unseen buildings first, then in the order in which they first come."""
    seen = dict.fromkeys(split for runs in groups.values() for run in runs for split in run.results)
    return sorted(seen, key=lambda split: split != "val_unseen")


def contenders(groups: Groups, split: str) -> list[ReportRun]:
    """The first run of the best agent on a split and, when there are several, that of the worst."""
    rates = {name: fmean(one.sr for one in results) for name, results in _pooled(groups, split).items()}
    ranked = sorted(rates, key=lambda name: rates[name], reverse=True)
    best_and_worst = dict.fromkeys((ranked[0], ranked[-1]))
    return [next(run for run in groups[name] if split in run.results) for name in best_and_worst]


def _metric_cell(metric: str, spread: Spread) -> str:
    """A metric as tables show it: metres and counts with two digits, fractions with three."""
    digits = 2 if metric in _ROUGH else 3
    text = f"{spread.mean:.{digits}f}"
    return text if spread.sd is None else f"{text} ± {spread.sd:.{digits}f}"


def dotted(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if isinstance(settings, (list, tuple)):
        settings = dict(enumerate(settings))
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= dotted(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def write_run_report(
    file: StrPath,
    title: str,
    runs: Sequence[ReportRun],
    *,
    world: str,
    task: str | None,
    references: Mapping[str, Scores] | None = None,
    replays: Section | None = None,
) -> None:
    """Write the report on some runs, all trained on the same features.

    ``world`` is what they were trained and measured on, in words, ``task`` (r2r or r4r) whose published
    numbers are shown; None shows none, as for the embedded houses, for which there are none.
    ``references`` are agents that are no runs, by split.
    """
    groups = grouped(runs)
    splits = splits_of(groups)
    sections = [_scores_section(groups, splits, references or {})]
    sections += [] if replays is None else [replays]
    sections.append(_curves_section(groups, runs))
    if splits:
        episodes = _pooled(groups, splits[0])
        sections.append(_outcomes_section(groups, splits))
        sections.append(_lengths_section(episodes, splits[0]))
        jumping = {name: results for name, results in episodes.items() if any(one.jumps for one in results)}
        sections += [_jumps_section(jumping, splits[0])] if jumping else []
    if task is not None:
        ours = {split: _metric_spreads(groups, split) for split in splits}
        sections.append(_ablation_section(ours, world))
    sections.append(_runs_section(groups))
    sections += _origin_sections(groups)
    write_report(file, title, sections, lead=world)


def _scores_section(groups: Groups, splits: Sequence[str], references: Mapping[str, Scores]) -> Section:
    tables = []
    for split in splits:
        rows = [
            [name, "-", *(_metric_cell(metric, Spread(means[metric], None, 1)) for metric in METRICS), "-"]
            for name, means in references.get(split, {}).items()
        ]
        quiet = range(len(rows))
        for name, cells in _metric_spreads(groups, split).items():
            shown = [_metric_cell(metric, cells[metric]) for metric in (*METRICS, "jumps")]
            rows.append([name, str(cells["sr"].n), *shown])
        episodes = max(len(run.results.get(split, ())) for runs in groups.values() for run in runs)
        caption = f"{split}: {episodes:,} instructions; mean ± standard deviation over runs"
        tables.append(Table(caption, ["agent", "runs", *METRICS.values(), "jumps"], rows, quiet=quiet))
    first = splits[0] if splits else ""
    cards = [
        (name, _metric_cell("sr", cells["sr"]), _metric_cell("spl", cells["spl"]))
        for name, cells in _metric_spreads(groups, first).items()
    ]
    return section("Scores", "scores", _unequal(groups), cards, first, tables)


def _unequal(groups: Groups) -> list[str]:
    """What is to be said when agents were not trained for the same number of iterations."""
    lengths = {name: {run.iterations for run in runs} for name, runs in groups.items()}
    if len(set.union(*lengths.values())) == 1:
        return []
    told = [f"{name} {' and '.join(f'{n:,}' for n in sorted(some))}" for name, some in lengths.items()]
    return [f"Not trained for the same number of iterations: {', '.join(told)}."]


def _curves_section(groups: Groups, runs: Sequence[ReportRun]) -> Section:
    selection = ", ".join(dict.fromkeys(str(run.settings["selection"]["split"]) for run in runs))
    validated = _logged_names(groups, "validation")
    metrics = [metric for metric in ("sr", "spl") if metric in validated]
    charts = [("validation", metric, f"{METRICS[metric]} on {selection}", FRACTIONS) for metric in metrics]
    losses = [("losses", loss, f"{loss} loss", None) for loss in _logged_names(groups, "losses")]
    figures = list[tuple[Markup, str, Table]]()
    for kind, name, caption, limits in [*charts, *losses]:
        lines = curves(groups, kind, name)
        drawing = draw_curves(lines, across="iterations", up=caption, limits=limits)
        figures.append((drawing, caption, _curve_table(caption, lines)))
    if not figures:
        packed = any(run.packed is not None for run in runs)
        why = "Packed weights come without a training log." if packed else "Nothing has been logged yet."
        return note_section("Learning curves", why)
    told = "Lines are means over runs, bands one standard deviation to each side."
    if all(len(members) == 1 for members in groups.values()):
        told = "One run each."
    return section("Learning curves", "figures", list(groups), figures, told)


def _curve_table(caption: str, lines: Mapping[str, Sequence[ChartPoint]]) -> Table:
    shown = {group: line for group, line in lines.items() if line}
    cells = [{x: str(Spread(y, spread or None, 1)) for x, y, spread in line} for line in shown.values()]
    rows = [[f"{x:,g}", *(column.get(x, "-") for column in cells)] for x in sorted({*chain(*cells)})]
    return Table(caption, ["iterations", *shown], rows)


def _outcomes_section(groups: Groups, splits: Sequence[str]) -> Section:
    """How the episodes of every split end."""
    parts = []
    for split in splits:
        rows = {name: _ends(results) for name, results in _pooled(groups, split).items()}
        cells = [[name, *_percent(ends.values())] for name, ends in rows.items()]
        table = Table(f"How the episodes of {split} end", ["agent", *next(iter(rows.values()))], cells)
        parts.append((draw_shares(rows, tones="ends"), table))
    return section("Where it fails", "outcomes", parts)


def _ends(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """The share of every way to end, all of them, in order."""
    found = [
        _ENDS.get(one.outcome) or next((name for limit, name in _LOST.items() if one.ne < limit), _FAR)
        for one in results
    ]
    return {name: found.count(name) / len(found) for name in (*_ENDS.values(), *_LOST.values(), _FAR)}


def _lengths_section(episodes: Episodes, split: str) -> Section:
    """SR by the length of the path and of the instruction, in groups of about as many episodes."""
    figures = []
    for name, title, unit, digits in (
        ("reference", "SR by length of the reference path", "metres", 1),
        ("words", "SR by length of the instruction", "words", 0),
    ):
        lengths = [float(getattr(one, name)) for one in chain(*episodes.values())]
        twice = lengths * 2  # quantiles need two values
        cuts = sorted({round(cut, digits) for cut in quantiles(twice, n=_GROUPS)})
        groups = {agent: _by_length(results, name, cuts) for agent, results in episodes.items()}
        lines = {
            agent: [ChartPoint(*map(fmean, zip(*some, strict=True))) for some in found if some]
            for agent, found in groups.items()
        }
        ends = [f"{low:g} to {high:g}" for low, high in pairwise(cuts)]
        columns = [[_rate([sr for _, sr in some]) for some in found] for found in groups.values()]
        rows = list(zip([f"below {cuts[0]:g}", *ends, f"{cuts[-1]:g} or more"], *columns, strict=True))
        drawing = draw_curves(lines, across=unit, up=title, limits=FRACTIONS)
        figures.append((drawing, title, Table(f"{title} (episodes)", [unit, *lines], rows)))
    told = f"Episodes of {split}, all runs together, in {_GROUPS} groups of about as many."
    return section("Success by length", "figures", list(episodes), figures, told)


def _by_length(results: Sequence[EpisodeResult], name: str, cuts: Sequence[float]) -> list[list[_Rated]]:
    """Length and success of every episode, in the groups between cuts."""
    found: list[list[_Rated]] = [[] for _ in range(len(cuts) + 1)]
    for one in results:
        length = float(getattr(one, name))
        found[bisect(cuts, length)].append((length, one.sr))
    return found


def _rate(successes: Sequence[float]) -> str:
    return f"{fmean(successes):.3f} ({len(successes):,})" if successes else "-"


def _jumps_section(episodes: Episodes, split: str) -> Section:
    """How often agents go back to another frontier, and how often they succeed then."""
    shares, rows = {}, []
    for name, results in episodes.items():
        jumps = [min(result.jumps, len(_JUMPS) - 1) for result in results]
        shares[name] = {part: jumps.count(number) / len(jumps) for number, part in enumerate(_JUMPS)}
        rates = [[result.sr for result in results if bool(result.jumps) == some] for some in (False, True)]
        rows.append([name, *_percent(shares[name].values()), *map(_rate, rates)])
    head = ["agent", *_JUMPS, "SR without a jump (episodes)", "SR with a jump (episodes)"]
    drawing, caption = draw_shares(shares, tones="counts"), f"Jumps per episode on {split}"
    return section("Jumps", "jumps", drawing, caption, Table("Jumps and success", head, rows))


_PAPER = 'Wang et al., "Structured Scene Memory for Vision-Language Navigation", CVPR 2021'
_SPLITS = ("val_seen", "val_unseen")
_COLUMNS = ("sr", "ne", "tl", "osr", "spl")
_ARROWS = {"ne": "↓", "tl": "↓"}

# of presets that stand in one row of the paper
_ENDINGS = ("", *(f"-r2r-{track}{more}" for track in TRACKS for more in ("", "-augmented")))


_ABLATIONS = {  # table 3: preset -> its name there, and SR NE TL OSR SPL on val_seen, then on val_unseen
    "basic": ("Basic agent (E-Dropout)", "0.62 3.99 11.0 0.71 0.59 0.52 5.22 10.7 0.58 0.48"),
    "ssm": ("Full model", "0.71 3.10 14.7 0.80 0.62 0.62 4.32 20.7 0.73 0.45"),
    "ssm-no-grounding": (
        "without fine-grained instruction grounding",
        "0.70 3.44 13.5 0.80 0.62 0.59 4.57 20.3 0.72 0.43",
    ),
    "ssm-no-reasoning": ("without iterative reasoning", "0.69 3.51 12.9 0.78 0.61 0.57 4.60 19.8 0.70 0.42"),
    "ssm-local": ("with local action space", "0.67 3.62 11.9 0.75 0.63 0.54 5.21 12.6 0.64 0.49"),
    "ssm-global": ("with global action space, one step", "0.68 3.25 13.2 0.74 0.60 0.56 4.76 19.8 0.68 0.41"),
}


def _ablation_section(ours: Spreads, world: str) -> Section:
    """Table 3 of the paper with our numbers below each of its rows; what was not trained is a dash."""
    rows, published_rows = list[list[str]](), []
    for preset, (title, published) in _ABLATIONS.items():
        published_rows.append(len(rows))
        rows += [[f"{title} (paper)", *published.split()], *_ours(ours, preset)]
    head = ["model", *_headed(_COLUMNS) * 2]
    text = (
        f"Rows marked (paper) are table 3 of {_PAPER}: R2R, ResNet-152 features, back-translation. "
        f"Ours: {world}. Only differences within one of the two can be compared."
    )
    caption = "Ablations in the layout of the paper's table 3"
    shown = Table(caption, head, rows, _spans(_SPLITS, _COLUMNS), published_rows)
    return section("Ablations, beside the paper's", "published", shown, text)


def _spans(splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    return [("", 1), *((split, len(columns)) for split in splits)]


def _headed(columns: Sequence[str]) -> list[str]:
    return [f"{METRICS[metric]} {_ARROWS.get(metric, '↑')}" for metric in columns]


def _ours(ours: Spreads, preset: str) -> list[list[str]]:
    """Rows of a preset, on its own and as rows of the scoreboard; dashes for the preset itself if nothing."""
    names = [preset + ending for ending in _ENDINGS]
    known = [name for name in names if any(name in of_split for of_split in ours.values())]
    rows = []
    for name in known or [preset]:
        means = [(ours.get(split, {}).get(name, {}).get(one), one) for split in _SPLITS for one in _COLUMNS]
        cells = ["-" if mean is None else _metric_cell(metric, mean) for mean, metric in means]
        rows.append([f"{name} (ours)", *cells])
    return rows


def _runs_section(groups: Groups) -> Section:
    rows = []
    for name, runs in groups.items():
        for run in runs:
            measured = run.progress, run.checkpoints, run.features, _listed(run.versions)
            rows.append([run.folder, name, str(run.seed), *measured])
    head = ["folder", "agent", "seed", "iterations", "weights measured", "features", "versions"]
    return section("Runs", "table", Table("The runs in this report", head, rows))


def _origin_sections(groups: Groups) -> list[Section]:
    """What the numbers come from: versions, and the sha256 of every file behind them."""
    files = ("weights", "episodes", "graphs", "features")
    rows = []
    for run in chain(*groups.values()):
        for split, origin in run.origins.items():
            sums = (getattr(origin, name)[:_DIGITS] for name in files)
            rows.append([run.folder, split, _listed(origin.versions), *sums])
    if not rows:
        return []
    head = ["folder", "split", "walked with", *files]
    caption = f"Versions, and the first {_DIGITS} digits of the sha256 of the files the scores come from"
    return [section("Where the numbers come from", "table", Table(caption, head, rows))]


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{tool} {version}" for tool, version in versions.items())


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]
