"""Learning curves as SVG, readable in light and dark and without colour vision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Curve = Sequence[tuple[float, float]]
"""(iteration, value) points in order"""

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 120, 30, 40  # margins; the right one holds the names of the curves
_COLOURS = ("#1b6ca8", "#c4511d", "#2e8b57", "#7a4fa3", "#a0760a", "#5b5b5b")
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2", "1 2")  # so that curves differ without colour, too


def draw_curves(curves: Mapping[str, Curve], *, title: str, value: str) -> str:
    """Lines over iterations, one per name, from 0 to the next tenth above the highest value.

    Args:
        curves: points of every line.
        title: what the picture shows, read out by screen readers.
        value: what the vertical axis measures.
    """
    points = [point for curve in curves.values() for point in curve]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = max(0.1, -(-max((y for _, y in points), default=0.1) * 10 // 1) / 10)
    scale = _Scale(right, top)
    rows = [_grid(scale, value)]
    for number, (name, curve) in enumerate(curves.items()):
        rows.append(_line(scale, name, curve, number))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(rows) + "\n</svg>"
    )


class _Scale:
    """Data to pixels."""

    def __init__(self, right: float, top: float) -> None:
        self.right = right
        self.top = top

    def x(self, iteration: float) -> float:
        return round(_LEFT + iteration / self.right * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(scale: _Scale, value: str) -> str:
    lines = []
    for tick in range(round(scale.top * 10) + 1):
        y = scale.y(tick / 10)
        end = _WIDTH - _RIGHT
        lines.append(f'<path d="M{_LEFT} {y}H{end}" stroke="currentColor" stroke-opacity=".15"/>')
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" fill="currentColor">{tick / 10:.1f}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle" fill="currentColor">iterations '
        f"(0 to {scale.right:,.0f})</text>"
    )
    lines.append(f'<text x="8" y="14" fill="currentColor" font-weight="600">{escape(value)}</text>')
    return "\n".join(lines)


def _line(scale: _Scale, name: str, curve: Curve, number: int) -> str:
    if not curve:
        return ""
    colour = _COLOURS[number % len(_COLOURS)]
    path = "L".join(f"{scale.x(x)} {scale.y(y)}" for x, y in curve)
    dots = "".join(f'<circle cx="{scale.x(x)}" cy="{scale.y(y)}" r="3" fill="{colour}"/>' for x, y in curve)
    end_x, end_y = scale.x(curve[-1][0]) + 8, scale.y(curve[-1][1]) + 4 + 14 * number
    return (
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/>{dots}'
        f'<text x="{end_x}" y="{end_y}" fill="{colour}" font-weight="600">{escape(name)}</text>'
    )
