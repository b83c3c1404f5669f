"""Lines over a number, with bands where they stand for several runs; readable without colour vision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scenemem.viewer.axes import Axis, Frame, picture, round_axis

SERIES = 8
"""Colours, dashes and marks there are; more series begin again."""


@dataclass(frozen=True)
class Point:
    """One place of a curve."""

    x: float
    y: float
    spread: float = 0.0  # the band reaches this far above and below


Curve = Sequence[Point]


def draw_curves(
    curves: Mapping[str, Curve], *, across: str, up: str, limits: Axis | None = None, about: int = 5
) -> str:
    """Lines from the lowest to the highest number, from 0 upwards, one per name, in the order of the names.

    Args:
        curves: points of every line.
        across: what the horizontal axis counts.
        up: what is shown, for screen readers.
        limits: the vertical axis; round numbers around the data when left out.
        about: how many steps the horizontal axis has.
    """
    points = [point for curve in curves.values() for point in curve]
    heights = [point.y + point.spread for point in points] + [point.y - point.spread for point in points]
    frame = Frame(
        round_axis(across, [point.x for point in points], about=about),
        limits or round_axis("", heights),
    )
    drawing = [_line(frame, curve, number % SERIES) for number, curve in enumerate(curves.values()) if curve]
    return picture(frame, drawing, _description(curves, across, up))


def legend(names: Sequence[str]) -> list[str]:
    """A line and a mark for each name, as SVG, in the order of the names."""
    return [
        f'<svg class="key s{number % SERIES}" viewBox="0 0 34 14" aria-hidden="true">'
        f'<path class="line" d="M1 7H33"/>{_mark(17, 7, number % SERIES)}</svg>'
        for number in range(len(names))
    ]


def _line(frame: Frame, curve: Curve, number: int) -> str:
    path = "L".join(f"{frame.x(point.x)} {frame.y(point.y)}" for point in curve)
    marks = "".join(_mark(frame.x(point.x), frame.y(point.y), number) for point in curve)
    return f'<g class="s{number}">{_band(frame, curve)}<path class="line" d="M{path}"/>{marks}</g>'


def _band(frame: Frame, curve: Curve) -> str:
    if not any(point.spread for point in curve):
        return ""
    above = [f"{frame.x(point.x)} {frame.y(point.y + point.spread)}" for point in curve]
    below = [f"{frame.x(point.x)} {frame.y(max(frame.up.low, point.y - point.spread))}" for point in curve]
    return f'<path class="band" d="M{"L".join(above + below[::-1])}Z"/>'


def _mark(x: float, y: float, number: int) -> str:
    """A shape of its own for every series."""
    shapes = (
        "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",  # circle
        "m-3-3h6v6h-6z",  # square
        "m0-4l4 7h-8z",  # triangle
        "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",  # diamond
        "m0 4l4-7h-8z",  # triangle upside down
        "m-1.2-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",  # cross
        "m-4-2h8v4h-8z",  # bar
        "m-2-4h4v8h-4z",  # post
    )
    return f'<path class="mark" d="M{x} {y}{shapes[number]}"/>'


def _description(curves: Mapping[str, Curve], across: str, up: str) -> str:
    told = [
        f"{name} from {curve[0].y:.3g} at {curve[0].x:,g} to {curve[-1].y:.3g} at {curve[-1].x:,g}"
        for name, curve in curves.items()
        if curve
    ]
    return f"{up} over {across}: " + ("; ".join(told) or "nothing yet")
