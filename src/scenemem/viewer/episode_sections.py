"""Sections about single episodes: where they fail, how they are distributed, what makes them hard."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from scenemem.formats.results import EpisodeResult
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.viewer.axes import round_axis
from scenemem.viewer.curves import Point, draw_curves
from scenemem.viewer.histograms import Bins, draw_histogram, draw_shares, round_bins
from scenemem.viewer.report import Section, figure, figures, note, numbers, table
from scenemem.viewer.runs import Groups, pooled

FRACTIONS = round_axis("", [0.0, 1.0])
"""The axis of everything that is a fraction."""

_LOST = ((6.0, "lost, less than 6 m away"), (12.0, "lost, 6 to 12 m away"))
_FAR = "lost, 12 m or more away"
_ENDS = {
    "reached": "stopped at the goal",
    "passed": "passed the goal",
    "early": "stopped too early",
    "cut": "cut off",
}
_MANY_JUMPS = 3


def failures_section(groups: Groups, splits: Sequence[str]) -> Section:
    """How the episodes of every split end."""
    parts = []
    for split in splits:
        rows = {name: _ends(results) for name, results in pooled(groups, split).items()}
        head = ["agent", *next(iter(rows.values()))]
        cells = [[name, *(f"{share:.1%}" for share in ends.values())] for name, ends in rows.items()]
        caption = f"How the episodes of {split} end"
        parts.append(figure(draw_shares(rows, tones="ends"), caption) + numbers(table(caption, head, cells)))
    parts.append(
        note(
            "Passed the goal: it was nearer than 3 m and went on. Stopped too early: on a way to the goal "
            "that is less than 3 m longer than the shortest. Cut off: it never decided to stop. Lost: it "
            "stopped elsewhere."
        )
    )
    return Section("Where it fails", "\n".join(parts))


def _ends(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """The share of every way to end, all of them, in order."""
    names = [*_ENDS.values(), *(name for _, name in _LOST), _FAR]
    found = [_end(result) for result in results]
    return {name: found.count(name) / len(found) for name in names}


def _end(result: EpisodeResult) -> str:
    if result.outcome in _ENDS:
        return _ENDS[result.outcome]
    return next((name for limit, name in _LOST if result.ne < limit), _FAR)


def distributions_section(groups: Groups, split: str) -> Section:
    """Histograms of length, hops and distance to the goal."""
    episodes = pooled(groups, split)
    goal = (SUCCESS_METRES, "3 m")
    drawings, tables = [], []
    for field, title, unit, line in (
        ("tl", "Length walked", "metres", None),
        ("hops", "Hops", "hops", None),
        ("ne", "Distance to the goal at the end", "metres", goal),
    ):
        values = {name: [float(getattr(r, field)) for r in results] for name, results in episodes.items()}
        bins = round_bins([v for column in values.values() for v in column], whole=unit == "hops")
        drawings.append(figure(draw_histogram(values, bins, title=title, across=unit, line=line), title))
        rows = zip(bins.names(), *(_percent(bins.shares(column)) for column in values.values()), strict=True)
        tables.append(table(f"{title}, share of the episodes of {split}", [unit, *values], rows))
    told = note(f"Episodes of {split}, all runs together. The last step also holds everything beyond it.")
    return Section("Distributions", figures(list(episodes), drawings) + told + numbers("\n".join(tables)))


def lengths_section(groups: Groups, split: str) -> Section:
    """SR by the length of the path and of the instruction."""
    episodes = pooled(groups, split)
    drawings, tables = [], []
    for field, title, unit in (
        ("reference", "SR by length of the reference path", "metres"),
        ("words", "SR by length of the instruction", "words"),
    ):
        bins = round_bins([float(getattr(r, field)) for rs in episodes.values() for r in rs], about=6)
        rates = {name: _success_by(results, field, bins) for name, results in episodes.items()}
        middles = [(low + high) / 2 for low, high in pairwise(bins.edges)]
        lines = {
            name: [Point(x, rate) for x, (rate, n) in zip(middles, column, strict=True) if n]
            for name, column in rates.items()
        }
        drawings.append(figure(draw_curves(lines, across=unit, up=title, limits=FRACTIONS), title))
        rows = [
            [name, *(f"{column[number][0]:.3f} ({column[number][1]:,})" for column in rates.values())]
            for number, name in enumerate(bins.names())
        ]
        tables.append(table(f"{title} (episodes)", [unit, *rates], rows))
    told = note(f"Episodes of {split}, all runs together.")
    return Section("Success by length", figures(list(episodes), drawings) + told + numbers("\n".join(tables)))


def _success_by(results: Sequence[EpisodeResult], field: str, bins: Bins) -> list[tuple[float, int]]:
    """SR and number of episodes in each bin."""
    sorted_in: list[list[float]] = [[] for _ in range(len(bins))]
    for result in results:
        sorted_in[bins.number(getattr(result, field))].append(result.sr)
    return [(fmean(values) if values else 0.0, len(values)) for values in sorted_in]


def jumps_section(groups: Groups, split: str) -> Section:
    """How often agents go back to another frontier, and what comes of it."""
    several = [f"{number} jumps" for number in range(2, _MANY_JUMPS)]
    names = ["no jump", "1 jump", *several, f"{_MANY_JUMPS} or more"]
    shares, rows = {}, []
    for name, results in pooled(groups, split).items():
        jumps = [min(result.jumps, _MANY_JUMPS) for result in results]
        shares[name] = {part: jumps.count(number) / len(jumps) for number, part in enumerate(names)}
        without = [result.sr for result in results if not result.jumps]
        after = [result.sr for result in results if result.jumps]
        rows.append([name, *_percent(list(shares[name].values())), _rate(without), _rate(after)])
    caption = f"Jumps per episode on {split}"
    head = ["agent", *names, "SR without a jump (episodes)", "SR with a jump (episodes)"]
    drawing = draw_shares(shares, tones="counts")
    return Section("Jumps", figure(drawing, caption) + table("Jumps, and what comes of them", head, rows))


def _rate(successes: Sequence[float]) -> str:
    return f"{fmean(successes):.3f} ({len(successes):,})" if successes else "-"


def _percent(shares: Sequence[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]
