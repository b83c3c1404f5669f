"""Charts as SVG: curves with bands, intervals, bars cut into shares; round axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from markupsafe import Markup

from scenemem.evaluation.bootstrap import Estimate
from scenemem.viewer.pages import render_macro, styles

SERIES = 8
"""Colours, dashes and marks there are; more series begin again."""

_LEAST_SPAN = 1e-6  # below it all values count as the same
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TOP = 14  # pixels above a chart
_ROW_HEIGHT = 24  # pixels of an interval
_LEAST_PRINTED = 0.08  # a narrower part of a bar has no room for its number


@dataclass(frozen=True)
class Axis:
    """One direction of a chart."""

    label: str
    low: float
    high: float
    ticks: Mapping[float, str]  # values and their names

    def share(self, value: float) -> float:
        """How far along the axis a value lies, 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def round_axis(label: str, values: Sequence[float], about: int = 5) -> Axis:
    """An axis from 0, or below, over ``values``, with round steps, about ``about`` of them."""
    low, high = min(*values, 0.0, 0.0), max(values, default=1.0)
    step = round_step(high - low, about)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    ticks = [round(number * step, 10) for number in range(first, last + 1)]
    return Axis(label, ticks[0], ticks[-1], {tick: f"{tick:,g}" for tick in ticks})


def round_step(span: float, about: int) -> float:
    """A round number that goes into ``span`` about ``about`` times."""
    if span < _LEAST_SPAN:
        return 1.0
    size = 10.0 ** math.floor(math.log10(span / about))
    return next(step * size for step in _STEPS if step * size * about >= span * (1 - 1e-9))


FRACTIONS = round_axis("", [0.0, 1.0])
"""The axis of everything that is a fraction."""


@dataclass(frozen=True)
class Frame:
    """The area data is drawn in; pixels."""

    across: Axis
    up: Axis
    width: int = 380
    height: int = 250
    left: int = 46
    right: int = 358

    @property
    def bottom(self) -> int:
        """Where the axis is; its ticks and its name stand below it."""
        return self.height - 40

    def x(self, value: float) -> float:
        """Data to pixels."""
        return round(self.left + self.across.share(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Data to pixels; more is higher up."""
        return round(self.bottom - self.up.share(value) * (self.bottom - _TOP), 1)

    def path(self, corners: Iterable[tuple[float, float]]) -> str:
        """Corners in data, joined by lines."""
        return "L".join(f"{self.x(x)} {self.y(y)}" for x, y in corners)


class _Line(NamedTuple):
    series: int
    path: str
    band: str = ""
    marks: Sequence[tuple[float, float]] = ()


class ChartPoint(NamedTuple):
    """A point of a curve."""

    x: float
    y: float
    spread: float = 0.0  # the band reaches this far above and below


def draw_curves(
    curves: Mapping[str, Sequence[ChartPoint]], *, across: str, up: str, limits: Axis | None = None
) -> Markup:
    """A line per name; ``up`` names what is shown, for screen readers.

    ``limits`` is the vertical axis; round numbers around the data when left out.
    """
    points = [point for curve in curves.values() for point in curve]
    heights = [point.y + side * point.spread for point in points for side in (1, -1)]
    frame = Frame(round_axis(across, [point.x for point in points]), limits or round_axis("", heights))
    lines = [_line(frame, curve, number % SERIES) for number, curve in enumerate(curves.values()) if curve]
    told = [
        f"{name} from {curve[0].y:.3g} at {curve[0].x:,g} to {curve[-1].y:.3g} at {curve[-1].x:,g}"
        for name, curve in curves.items()
        if curve
    ]
    description = f"{up} over {across}: " + ("; ".join(told) or "nothing yet")
    return render_macro("charts.html", "chart", frame, lines, description)


def _line(frame: Frame, curve: Sequence[ChartPoint], series: int) -> _Line:
    band = ""
    if any(point.spread for point in curve):
        above = [(point.x, point.y + point.spread) for point in curve]
        below = [(point.x, max(frame.up.low, point.y - point.spread)) for point in curve]
        band = frame.path(above + below[::-1])
    marks = [(frame.x(point.x), frame.y(point.y)) for point in curve]
    return _Line(series, frame.path((point.x, point.y) for point in curve), band, marks)


def draw_intervals(differences: Mapping[str, Estimate], *, across: str, alone: bool = False) -> Markup:
    """A line from end to end of each interval and a mark at its value, beside a line at zero.

    The mark points up or down where the whole interval lies on one side of zero. ``alone``: a file of its
    own, with the style that a page would give it.
    """
    ends = [end for one in differences.values() for end in (one.low, one.high)]
    axis = round_axis(across, [0.0, *ends], about=8)
    signed = {tick: f"{tick:+g}" if tick else "0" for tick in axis.ticks}
    left = min(330, 24 + 7 * max(map(len, differences), default=0))  # names of about 7 pixels a letter
    bottom = 8 + _ROW_HEIGHT * len(differences)
    frame = Frame(replace(axis, ticks=signed), axis, width=760, height=bottom + 40, left=left, right=600)
    rows = [
        (name, one, 8 + _ROW_HEIGHT * (number + 0.5), *_side(one))
        for number, (name, one) in enumerate(differences.items())
    ]
    told = "; ".join(f"{name} {one.signed}" for name, one in differences.items())
    style = styles("charts") if alone else ""
    return render_macro("charts.html", "intervals", frame, rows, f"{across}: {told}", style)


def _side(one: Estimate) -> tuple[str, int]:
    """The side of zero an interval lies on, and the number of its mark."""
    return ("above", 2) if one.low > 0 else ("below", 4) if one.high < 0 else ("unsure", 0)


def draw_shares(rows: Mapping[str, Mapping[str, float]], *, tones: Literal["ends", "counts"]) -> Markup:
    """A bar for each row, cut into its shares; colours go from good to bad (ends) or few to many (counts)."""
    parts = list(dict.fromkeys(part for shares in rows.values() for part in shares))
    told = [
        f"{name}: " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items())
        for name, shares in rows.items()
    ]
    return render_macro("charts.html", "shares", rows, parts, tones, "; ".join(told), _LEAST_PRINTED)
