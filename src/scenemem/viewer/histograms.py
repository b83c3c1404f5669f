"""Distributions: histograms as outlines over each other, and bars cut into shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Literal

from scenemem.viewer.axes import Axis, Frame, picture, round_axis, round_step
from scenemem.viewer.curves import SERIES

_MOST_TICKS = 8
_LEAST_PRINTED = 0.08  # a narrower part of a bar has no room for its number


@dataclass(frozen=True)
class Bins:
    """Stretches of equal width; the last one also holds everything above it."""

    edges: tuple[float, ...]  # one more than there are bins, rising
    open_ended: bool  # something lies above the last edge
    whole: bool = False  # values count something

    def __len__(self) -> int:
        return len(self.edges) - 1

    def number(self, value: float) -> int:
        """Which bin a value falls into; an edge belongs to the bin it begins."""
        step = self.edges[1] - self.edges[0]
        return max(0, min(len(self) - 1, int((value - self.edges[0]) / step + 1e-9)))

    def shares(self, values: Sequence[float]) -> list[float]:
        """Which part of the values falls into each bin."""
        counts = [0] * len(self)
        for value in values:
            counts[self.number(value)] += 1
        return [count / max(1, len(values)) for count in counts]

    def names(self) -> list[str]:
        """What each bin holds, in words."""
        names = [self._name(low, high - 1 if self.whole else high) for low, high in pairwise(self.edges)]
        return [*names[:-1], f"{_number(self.edges[-2])} or more"] if self.open_ended else names

    def axis(self, label: str) -> Axis:
        """All bins, with ticks where they begin, or in the middle of bins that hold one whole number."""
        step = self.edges[1] - self.edges[0]
        places = [edge + 0.5 for edge in self.edges[:-1]] if self.whole and step == 1 else list(self.edges)
        names = [_number(edge) for edge in self.edges]
        every = -(-len(places) // _MOST_TICKS)
        shown = dict(zip(places[::every], names[::every], strict=False))
        return Axis(label, self.edges[0], self.edges[-1], tuple(shown), tuple(shown.values()))

    @staticmethod
    def _name(low: float, high: float) -> str:
        return _number(low) if low == high else f"{_number(low)} to {_number(high)}"


def round_bins(values: Sequence[float], *, about: int = 12, whole: bool = False) -> Bins:
    """Bins over nearly all values; the highest hundredth may share the last one.

    Args:
        values: what is to be sorted into the bins.
        about: how many bins.
        whole: values count something, so a bin is at least 1 wide.
    """
    ordered = sorted(values) or [0.0]
    low, most = ordered[0], ordered[-(-99 * (len(ordered) - 1) // 100)]
    step = max(round_step(most - low, about), 1.0 if whole else 0.0)
    first = int(low // step)
    count = max(1, int((most - first * step) / step + 1e-9) + 1)
    edges = tuple((first + number) * step for number in range(count + 1))
    return Bins(edges, open_ended=ordered[-1] >= edges[-1], whole=whole)


def draw_histogram(
    series: Mapping[str, Sequence[float]],
    bins: Bins,
    *,
    title: str,
    across: str,
    line: tuple[float, str] | None = None,
) -> str:
    """The share of the values of each series in each bin.

    Args:
        series: the values by name.
        bins: how to sort them.
        title: what the values are, for screen readers.
        across: what they are measured in.
        line: a value worth a vertical line, and its name.
    """
    shares = {name: bins.shares(values) for name, values in series.items()}
    tallest = max((share for heights in shares.values() for share in heights), default=1.0)
    up = round_axis("", [0.0, 100 * tallest])
    frame = Frame(bins.axis(across), replace(up, names=tuple(f"{tick:g}%" for tick in up.ticks)))
    drawing = [] if line is None else [_upright(frame, *line)]
    for number, heights in enumerate(shares.values()):
        drawing.append(_outline(frame, bins, heights, number % SERIES))
    told = "; ".join(
        f"{name} most often {bins.names()[heights.index(max(heights))]}" for name, heights in shares.items()
    )
    return picture(frame, drawing, f"{title} in {across}: {told}")


def draw_shares(rows: Mapping[str, Mapping[str, float]], *, tones: Literal["ends", "counts"]) -> str:
    """A bar of full width for each row, cut into its shares in order; parts of one name look alike.

    Args:
        rows: the shares by name, for each row.
        tones: which colours: good to bad, or few to many.
    """
    parts = list(dict.fromkeys(part for shares in rows.values() for part in shares))
    keys = "".join(
        f'<li><span class="chip p{number}"></span>{escape(part)}</li>' for number, part in enumerate(parts)
    )
    bars = "\n".join(
        f'<div class="bar"><span class="who">{escape(name)}</span><span class="parts">'
        + "".join(_part(parts.index(part), part, share) for part, share in shares.items() if share > 0)
        + "</span></div>"
        for name, shares in rows.items()
    )
    told = "; ".join(
        f"{name}: " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items())
        for name, shares in rows.items()
    )
    return (
        f'<ul class="keys {tones}" aria-hidden="true">{keys}</ul>\n'
        f'<div class="bars {tones}" role="img" aria-label="{escape(told)}">\n{bars}\n</div>'
    )


def _part(number: int, name: str, share: float) -> str:
    text = f"{share:.0%}" if share >= _LEAST_PRINTED else ""
    return (
        f'<span class="p{number}" style="flex-basis:{100 * share:.3f}%" '
        f'title="{escape(name)}: {share:.1%}">{text}</span>'
    )


def _outline(frame: Frame, bins: Bins, heights: Sequence[float], number: int) -> str:
    base = frame.y(0.0)
    steps = []
    for low, high, height in zip(bins.edges[:-1], bins.edges[1:], heights, strict=True):
        y = frame.y(100 * height)
        steps += [f"{frame.x(low)} {y}", f"{frame.x(high)} {y}"]
    path = "L".join([f"{frame.x(bins.edges[0])} {base}", *steps, f"{frame.x(bins.edges[-1])} {base}"])
    return f'<g class="s{number}"><path class="band" d="M{path}Z"/><path class="line" d="M{path}"/></g>'


def _upright(frame: Frame, value: float, name: str) -> str:
    x, top, bottom = frame.x(value), frame.y(frame.up.high), frame.y(frame.up.low)
    return (
        f'<path class="upright" d="M{x} {top}V{bottom}"/>'
        f'<text class="tick" x="{x + 4}" y="{top + 10}">{escape(name)}</text>'
    )


def _number(value: float) -> str:
    return f"{round(value, 10):,.10g}"
