"""Axes of a chart: round ticks, data to pixels, grid and labels as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 14, 40
_LEAST_SPAN = 1e-6  # below it all values count as the same
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """One direction of a chart."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    names: tuple[str, ...]  # of the ticks

    def share(self, value: float) -> float:
        """How far along the axis a value lies, 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def round_axis(label: str, values: Sequence[float], *, from_zero: bool = True, about: int = 5) -> Axis:
    """An axis over ``values`` with about ``about`` round steps."""
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    low = min(low, 0.0) if from_zero else low
    step = round_step(high - low, about)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    ticks = tuple(round(number * step, 10) for number in range(first, last + 1))
    return Axis(label, ticks[0], ticks[-1], ticks, tuple(f"{tick:,g}" for tick in ticks))


def round_step(span: float, about: int) -> float:
    """A round number that goes into ``span`` about ``about`` times."""
    if span < _LEAST_SPAN:
        return 1.0
    size = 10.0 ** math.floor(math.log10(span / about))
    return next(step * size for step in _STEPS if step * size * about >= span * (1 - 1e-9))


@dataclass(frozen=True)
class Frame:
    """The area data is drawn in."""

    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """Data to pixels."""
        return round(_LEFT + self.across.share(value) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        """Data to pixels; more is higher up."""
        return round(HEIGHT - _BOTTOM - self.up.share(value) * (HEIGHT - _TOP - _BOTTOM), 1)

    def grid(self) -> str:
        """Lines, ticks and labels."""
        end, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        lines = []
        for value, name in zip(self.up.ticks, self.up.names, strict=True):
            y = self.y(value)
            lines.append(f'<path class="grid" d="M{_LEFT} {y}H{end}"/>')
            lines.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            )
        for value, name in zip(self.across.ticks, self.across.names, strict=True):
            x = self.x(value)
            lines.append(f'<path class="grid" d="M{x} {bottom}v4"/>')
            lines.append(
                f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{escape(name)}</text>'
            )
        middle = (_LEFT + end) / 2
        lines.append(
            f'<text class="axis" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">'
            f"{escape(self.across.label)}</text>"
        )
        return "\n".join(lines)


def picture(frame: Frame, drawing: Sequence[str], description: str) -> str:
    """A chart as SVG; ``description`` is what a screen reader says instead."""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">\n'
        + "\n".join([frame.grid(), *drawing])
        + "\n</svg>"
    )
