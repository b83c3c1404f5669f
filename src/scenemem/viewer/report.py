"""The report on runs: scores, curves, outcomes, distributions, and the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean

import msgspec
from markupsafe import Markup

from scenemem.evaluation.bootstrap import Spread
from scenemem.features.store import TRACKS
from scenemem.formats.atomic import StrPath
from scenemem.formats.results import EpisodeResult
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.viewer.charts import (
    FRACTIONS,
    Bins,
    Point,
    draw_curves,
    draw_histogram,
    draw_shares,
    round_bins,
)
from scenemem.viewer.pages import Section, Table, note_section, section, static_text, write_report
from scenemem.viewer.runs import (
    METRICS,
    Groups,
    ReportRun,
    curves,
    grouped,
    logged_names,
    metric_cell,
    metric_spreads,
    pooled,
    splits_of,
)

Scores = Mapping[str, Mapping[str, float]]
"""agent -> metric -> mean, of agents that are no runs"""

Spreads = Mapping[str, Mapping[str, Mapping[str, Spread]]]
"""split -> preset -> metric -> mean and standard deviation over runs"""

_LOST = ((6.0, "stopped 3 to 6 m away"), (12.0, "stopped 6 to 12 m away"))
_FAR = "stopped 12 m or more away"
_ENDS = {
    "reached": "stopped at the goal",
    "passed": "passed the goal",
    "early": "stopped too early",
    "cut": "cut off",
}
_DIGITS = 16  # of a checksum, enough to tell files apart
_JUMPS = ("no jump", "1 jump", "2 jumps", "3 or more")


def write_run_report(
    file: StrPath,
    title: str,
    runs: Sequence[ReportRun],
    *,
    world: str,
    task: str | None,
    references: Mapping[str, Scores] | None = None,
    more: Iterable[Section] = (),
    replays: Section | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Write the report on some runs, all trained on the same features.

    ``world`` says in words what they were trained and measured on, ``task`` (r2r or r4r) whose published
    numbers are shown; None shows none, as for the embedded houses, for which there are none.
    ``references`` are agents that are no runs, by split; ``more`` are sections before the published numbers,
    ``remarks`` what the reader should know, for example what is missing.
    """
    groups = grouped(runs)
    splits = splits_of(groups)
    sections = [_scores_section(groups, splits, references or {}, remarks)]
    sections += [] if replays is None else [replays]
    sections.append(_curves_section(groups, runs))
    if splits:
        sections.append(_outcomes_section(groups, splits))
        sections.append(_distributions_section(groups, splits[0]))
        sections.append(_lengths_section(groups, splits[0]))
        walked = pooled(groups, splits[0])
        jumping = {
            name: groups[name] for name, results in walked.items() if any(one.jumps for one in results)
        }
        if jumping:
            sections.append(_jumps_section(jumping, splits[0]))
    sections += more
    ours = {split: metric_spreads(groups, split) for split in splits}
    if task is not None:
        sections += [_ablation_section(ours, world), _published_section(task)]
        sections += [_recent_section()] if task == "r2r" else []
    sections.append(_runs_section(groups))
    sections += _origin_sections(groups)
    write_report(file, title, sections, lead=world)


def _scores_section(
    groups: Groups, splits: Sequence[str], references: Mapping[str, Scores], remarks: Sequence[str]
) -> Section:
    tables = []
    for split in splits:
        rows = [
            [name, "-", *(metric_cell(metric, Spread(means[metric], None, 1)) for metric in METRICS), "-"]
            for name, means in references.get(split, {}).items()
        ]
        quiet = range(len(rows))
        for name, cells in metric_spreads(groups, split).items():
            shown = [metric_cell(metric, cells[metric]) for metric in (*METRICS, "jumps")]
            rows.append([name, str(cells["sr"].n), *shown])
        episodes = max(len(run.results.get(split, ())) for runs in groups.values() for run in runs)
        caption = f"{split}: {episodes:,} instructions; mean ± standard deviation over runs"
        tables.append(Table(caption, ["agent", "runs", *METRICS.values(), "jumps"], rows, quiet=quiet))
    first = splits[0] if splits else ""
    cards = [
        (name, metric_cell("sr", cells["sr"]), metric_cell("spl", cells["spl"]))
        for name, cells in metric_spreads(groups, first).items()
    ]
    return section("Scores", "scores", [*remarks, *_unequal(groups)], cards, first, tables)


def _unequal(groups: Groups) -> list[str]:
    """What is to be said when agents were not trained for the same number of iterations."""
    lengths = {name: {run.iterations for run in runs} for name, runs in groups.items()}
    if len(set.union(*lengths.values())) == 1:
        return []
    told = [f"{name} {' and '.join(f'{n:,}' for n in sorted(some))}" for name, some in lengths.items()]
    return [f"Not trained for the same number of iterations: {', '.join(told)}."]


def _curves_section(groups: Groups, runs: Sequence[ReportRun]) -> Section:
    selection = ", ".join(dict.fromkeys(str(run.settings["selection"]["split"]) for run in runs))
    validated = logged_names(groups, "validation")
    metrics = [metric for metric in ("sr", "spl") if metric in validated]
    charts = [("validation", metric, f"{METRICS[metric]} on {selection}", FRACTIONS) for metric in metrics]
    losses = [("losses", loss, f"{loss} loss", None) for loss in logged_names(groups, "losses")]
    drawings, tables = list[tuple[Markup, str]](), list[Table]()
    for kind, name, caption, limits in [*charts, *losses]:
        lines = curves(groups, kind, name)
        ordered = {group: lines.get(group, []) for group in groups}  # so that styles agree with the legend
        drawings.append((draw_curves(ordered, across="iterations", up=caption, limits=limits), caption))
        tables.append(_curve_table(caption, lines))
    if not drawings and any(run.card for run in runs):
        return _card_section(runs)
    if not drawings:
        return note_section("Learning curves", "Nothing has been logged yet.")
    told = "Lines are means over runs, bands one standard deviation to each side."
    if all(len(members) == 1 for members in groups.values()):
        told = "One run each."
    return section("Learning curves", "figures", list(groups), drawings, told, tables)


def _card_section(runs: Sequence[ReportRun]) -> Section:
    """What the cards of packed weights say; their training left no log."""
    metrics = ("sr", "spl", "osr", "ne")
    rows = [
        [f"{run.name}, seed {run.seed}", split, *(f"{means[metric]:.3f}" for metric in metrics)]
        for run in runs
        for split, means in run.card.items()
    ]
    shown = Table(
        "What these weights reached when they were packed", ["weights", "split", *_headed(metrics)], rows
    )
    text = "Packed weights come without a training log, so there are no learning curves. "
    text += "Scores above that differ from these by more than rounding were reached on other features."
    return section("Model card", "published", shown, text)


def _curve_table(caption: str, lines: Mapping[str, Sequence[Point]]) -> Table:
    def at(point: Point | None) -> str:
        if point is None:
            return "-"
        return f"{point.y:.3f} ± {point.spread:.3f}" if point.spread else f"{point.y:.3f}"

    iterations = sorted({point.x for points in lines.values() for point in points})
    columns = [{point.x: point for point in points} for points in lines.values()]
    rows = [[f"{x:,g}", *(at(column.get(x)) for column in columns)] for x in iterations]
    return Table(caption, ["iterations", *lines], rows)


def _outcomes_section(groups: Groups, splits: Sequence[str]) -> Section:
    """How the episodes of every split end."""
    parts = []
    for split in splits:
        rows = {name: _ends(results) for name, results in pooled(groups, split).items()}
        cells = [[name, *_percent(ends.values())] for name, ends in rows.items()]
        head = ["agent", *next(iter(rows.values()))]
        drawing = draw_shares(rows, tones="ends")
        parts.append((drawing, Table(f"How the episodes of {split} end", head, cells)))
    return section("Where it fails", "outcomes", parts)


def _ends(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """The share of every way to end, all of them, in order."""
    names = [*_ENDS.values(), *(name for _, name in _LOST), _FAR]
    found = [
        _ENDS.get(result.outcome) or next((name for limit, name in _LOST if result.ne < limit), _FAR)
        for result in results
    ]
    return {name: found.count(name) / len(found) for name in names}


def _distributions_section(groups: Groups, split: str) -> Section:
    """Histograms of length, hops and distance to the goal."""
    episodes = pooled(groups, split)
    drawings, tables = [], []
    for name, title, unit, line in (
        ("tl", "Length walked", "metres", None),
        ("hops", "Hops", "hops", None),
        ("ne", "Distance to the goal at the end", "metres", (SUCCESS_METRES, "3 m")),
    ):
        values = {agent: [float(getattr(r, name)) for r in results] for agent, results in episodes.items()}
        bins = round_bins([v for column in values.values() for v in column], whole=unit == "hops")
        drawings.append((draw_histogram(values, bins, title=title, across=unit, line=line), title))
        columns = [_percent(bins.shares(column)) for column in values.values()]
        rows = list(zip(bins.names(), *columns, strict=True))
        tables.append(Table(f"{title}, share of the episodes of {split}", [unit, *values], rows))
    told = f"Episodes of {split}, all runs together. The last step also holds everything beyond it."
    return section("Distributions", "figures", list(episodes), drawings, told, tables)


def _lengths_section(groups: Groups, split: str) -> Section:
    """SR by the length of the path and of the instruction."""
    episodes = pooled(groups, split)
    drawings, tables = [], []
    for name, title, unit in (
        ("reference", "SR by length of the reference path", "metres"),
        ("words", "SR by length of the instruction", "words"),
    ):
        bins = round_bins([float(getattr(r, name)) for rs in episodes.values() for r in rs], about=6)
        rates = {agent: _success_by(results, name, bins) for agent, results in episodes.items()}
        middles = [(low + high) / 2 for low, high in pairwise(bins.edges)]
        lines = {
            agent: [Point(x, rate) for x, (rate, n) in zip(middles, column, strict=True) if n]
            for agent, column in rates.items()
        }
        drawings.append((draw_curves(lines, across=unit, up=title, limits=FRACTIONS), title))
        rows = [
            [stretch, *(f"{rate:.3f} ({n:,})" for rate, n in (column[number] for column in rates.values()))]
            for number, stretch in enumerate(bins.names())
        ]
        tables.append(Table(f"{title} (episodes)", [unit, *rates], rows))
    told = f"Episodes of {split}, all runs together."
    return section("Success by length", "figures", list(episodes), drawings, told, tables)


def _success_by(results: Sequence[EpisodeResult], name: str, bins: Bins) -> list[tuple[float, int]]:
    """SR and number of episodes in each bin."""
    sorted_in: list[list[float]] = [[] for _ in range(len(bins))]
    for result in results:
        sorted_in[bins.number(getattr(result, name))].append(result.sr)
    return [(fmean(values) if values else 0.0, len(values)) for values in sorted_in]


def _jumps_section(groups: Groups, split: str) -> Section:
    """How often agents go back to another frontier, and how often they succeed then."""
    shares, rows = {}, []
    for name, results in pooled(groups, split).items():
        jumps = [min(result.jumps, len(_JUMPS) - 1) for result in results]
        shares[name] = {part: jumps.count(number) / len(jumps) for number, part in enumerate(_JUMPS)}
        rates = [[result.sr for result in results if bool(result.jumps) == some] for some in (False, True)]
        success = [f"{fmean(rate):.3f} ({len(rate):,})" if rate else "-" for rate in rates]
        rows.append([name, *_percent(shares[name].values()), *success])
    head = ["agent", *_JUMPS, "SR without a jump (episodes)", "SR with a jump (episodes)"]
    drawing, caption = draw_shares(shares, tones="counts"), f"Jumps per episode on {split}"
    return section("Jumps", "jumps", drawing, caption, Table("Jumps and success", head, rows))


_PAPER = 'Wang et al., "Structured Scene Memory for Vision-Language Navigation", CVPR 2021'
_SPLITS = ("val_seen", "val_unseen")
_COLUMNS = ("sr", "ne", "tl", "osr", "spl")
_ARROWS = {"ne": "↓", "tl": "↓"}

# of presets that stand in one row of the paper
_ENDINGS = ("", *(f"-r2r-{track}{more}" for track in TRACKS for more in ("", "-augmented")))


class _MainTable(msgspec.Struct, frozen=True):
    caption: str
    splits: tuple[str, ...]
    columns: tuple[str, ...]  # metrics of each split
    rows: dict[str, str]  # model -> its numbers


class _Recent(msgspec.Struct, frozen=True):
    name: str
    year: int  # of the venue
    sees: str  # a key of ``_Published.sees``
    numbers: (
        str  # NE OSR SR SPL on val_unseen, SR SPL on test; a question mark where not checked in the paper
    )
    title: str  # of the paper
    venue: str
    arxiv: str  # its number there


class _Published(msgspec.Struct, frozen=True):
    ablation: dict[str, tuple[str, str]]  # preset -> what the paper calls it, its numbers
    main: dict[str, _MainTable]  # by task
    sees: dict[str, str]  # kind of input -> what it is
    recent: tuple[_Recent, ...]  # later results on R2R


@cache
def _published() -> _Published:
    return msgspec.toml.decode(static_text("published.toml"), type=_Published)


def _ablation_section(ours: Spreads, world: str) -> Section:
    """Table 3 of the paper with our numbers below each of its rows; what was not trained is a dash."""
    rows, published_rows = list[list[str]](), []
    for preset, (title, published) in _published().ablation.items():
        published_rows.append(len(rows))
        rows.append([f"{title} (paper)", *published.split()])
        for name in _variants(ours, preset):
            cells = [_ours(ours, split, name, metric) for split in _SPLITS for metric in _COLUMNS]
            rows.append([f"{name} (ours)", *cells])
    head = ["model", *_headed(_COLUMNS) * 2]
    spans = [("", 1), *((split, len(_COLUMNS)) for split in _SPLITS)]
    text = (
        f"Rows marked (paper) are table 3 of {_PAPER}: R2R, ResNet-152 features, back-translation. "
        f"Ours: {world}. Only differences within one of the two can be compared."
    )
    shown = Table("Ablations in the layout of the paper's table 3", head, rows, spans, published_rows)
    return section("Ablations, beside the paper's", "published", shown, text)


def _published_section(task: str) -> Section:
    """Rows of the paper's main table for a task, for reference."""
    table = _published().main[task]
    rows = [[name, *cells.split()] for name, cells in table.rows.items()]
    head = ["model", *_headed(table.columns) * len(table.splits)]
    spans = [("", 1), *((split, len(table.columns)) for split in table.splits)]
    text = f"{_PAPER}. An asterisk marks data augmentation by back-translation, a dash a missing number."
    shown = Table(f"{table.caption} of the paper (a selection)", head, rows, spans)
    return section("Published results", "published", shown, text)


def _recent_section() -> Section:
    """Later results on R2R, filterable by what the agents see."""
    published = _published()
    head = ["model", "sees", *_headed(("ne", "osr", "sr", "spl")), "SR, test", "SPL, test", "source"]
    rows = [
        (one.sees, [one.name, published.sees[one.sees], *one.numbers.split()], one)
        for one in sorted(published.recent, key=lambda one: (one.year, one.name))
    ]
    kinds = {kind: text for kind, text in published.sees.items() if any(row[0] == kind for row in rows)}
    return section("Later results on R2R", "recent", head, rows, kinds)


def _headed(columns: Sequence[str]) -> list[str]:
    return [f"{METRICS[metric]} {_ARROWS.get(metric, '↑')}" for metric in columns]


def _variants(ours: Spreads, preset: str) -> list[str]:
    """What there is of a preset, on its own and as rows of the scoreboard; the preset itself if nothing."""
    known = [preset + ending for ending in _ENDINGS if any(preset + ending in rows for rows in ours.values())]
    return known or [preset]


def _ours(ours: Spreads, split: str, preset: str, metric: str) -> str:
    cells = ours.get(split, {}).get(preset)
    return "-" if cells is None else metric_cell(metric, cells[metric])


def _runs_section(groups: Groups) -> Section:
    rows = [
        [
            run.folder,
            name,
            str(run.seed),
            run.progress,
            run.checkpoints,
            run.features,
            ", ".join(f"{tool} {version}" for tool, version in run.versions.items()),
        ]
        for name, runs in groups.items()
        for run in runs
    ]
    head = ["folder", "agent", "seed", "iterations", "weights measured", "features", "versions"]
    return section("Runs", "table", Table("The runs in this report", head, rows))


def _origin_sections(groups: Groups) -> list[Section]:
    """What the numbers come from: versions, and the sha256 of every file behind them."""
    rows = [
        [
            run.folder,
            split,
            ", ".join(f"{tool} {version}" for tool, version in origin.versions.items()),
            *(value[:_DIGITS] for value in (origin.weights, origin.episodes, origin.graphs, origin.features)),
        ]
        for runs in groups.values()
        for run in runs
        for split, origin in run.origins.items()
    ]
    if not rows:
        return []
    head = ["folder", "split", "walked with", "weights", "episodes", "graphs", "features"]
    caption = f"Versions, and the first {_DIGITS} digits of the sha256 of the files the scores come from"
    return [section("Where the numbers come from", "table", Table(caption, head, rows))]


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]
