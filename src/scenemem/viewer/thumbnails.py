"""A walk as one small drawing: where it was to go, where it went, where it turned back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from html import escape
from itertools import pairwise

from scenemem.formats.traces import Trace
from scenemem.viewer.scenery import Scenery

_WIDTH, _HEIGHT = 300, 190  # pixels
_MARGIN = 1.2  # metres round the walk
_BESIDE = 6.0  # pixels between going and coming back
_LEAST = 6.0  # metres shown at least


def draw_thumbnail(trace: Trace, scenery: Scenery) -> str:
    """An SVG of the floor on which most of the walk happens; it is styled by the page it stands in."""
    return _Thumbnail(trace, scenery).draw()


class _Thumbnail:
    def __init__(self, trace: Trace, scenery: Scenery) -> None:
        self._trace, self._scenery = trace, scenery
        self._places = trace.scene.places
        shown = [*trace.task.reference, *trace.path]
        self._floor = Counter(self._places[number].floor for number in shown).most_common(1)[0][0]
        west, east = self._span(self._places[number].x for number in shown if self._here(number))
        south, north = self._span(self._places[number].y for number in shown if self._here(number))
        self._scale = min(_WIDTH / (east - west), _HEIGHT / (north - south))
        self._left = (west + east) / 2 - _WIDTH / self._scale / 2
        self._top = (south + north) / 2 + _HEIGHT / self._scale / 2

    def draw(self) -> str:
        trace = self._trace
        back = dict.fromkeys(step for turn in trace.moves for step in _returning(turn.walk, turn.back_to))
        parts = [self._rooms(), self._graph()]
        parts.append(self._lines("reference", pairwise(trace.task.reference)))
        parts.append(self._lines("walked", (step for step in pairwise(trace.path) if step not in back)))
        parts += [self._line("jumped", *self._aside(*step)) for step in back if all(map(self._here, step))]
        parts.append(self._mark("begin", trace.task.start))
        if trace.task.goal is not None:
            parts.append(self._star(trace.task.goal))
        parts.append(self._mark("finish", trace.path[-1]))
        turned = ", turning back on the way" if back else ""
        label = escape(f"Map: the way {trace.agent} went{turned}")
        return (
            f'<svg class="thumb" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
            + "".join(parts)
            + "</svg>"
        )

    def _span(self, values: Iterable[float]) -> tuple[float, float]:
        known = list(values)
        low, high = min(known) - _MARGIN, max(known) + _MARGIN
        more = max(0.0, _LEAST - (high - low)) / 2
        return low - more, high + more

    def _here(self, place: int) -> bool:
        return self._places[place].floor == self._floor

    def _spot(self, x: float, y: float) -> tuple[float, float]:
        return round((x - self._left) * self._scale, 1), round((self._top - y) * self._scale, 1)

    def _of(self, place: int) -> tuple[float, float]:
        return self._spot(self._places[place].x, self._places[place].y)

    def _rooms(self) -> str:
        walls = [room.rect for room in self._scenery.rooms if room.rect and room.floor == self._floor]
        gaps = [door.ends for door in self._scenery.doorways if door.floor == self._floor]
        return "".join(self._room(*rect) for rect in walls) + "".join(
            self._line("gap", self._spot(*ends[:2]), self._spot(*ends[2:])) for ends in gaps
        )

    def _room(self, west: float, south: float, east: float, north: float) -> str:
        x, y = self._spot(west, north)
        size = round((east - west) * self._scale, 1), round((north - south) * self._scale, 1)
        return f'<rect class="wall" x="{x}" y="{y}" width="{size[0]}" height="{size[1]}"/>'

    def _graph(self) -> str:
        return self._lines("path", self._trace.scene.edges)

    def _lines(self, kind: str, steps: Iterable[tuple[int, int]]) -> str:
        """Steps on this floor, each once."""
        here = dict.fromkeys(step for step in steps if self._here(step[0]) and self._here(step[1]))
        return "".join(self._line(kind, self._of(a), self._of(b)) for a, b in here)

    def _aside(self, a: int, b: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ends of a line beside an edge, so that going back does not hide having come."""
        (ax, ay), (bx, by) = self._of(a), self._of(b)
        length = math.hypot(bx - ax, by - ay) or 1.0
        east, south = _BESIDE * (ay - by) / length, _BESIDE * (bx - ax) / length
        return (round(ax + east, 1), round(ay + south, 1)), (round(bx + east, 1), round(by + south, 1))

    def _line(self, kind: str, begin: tuple[float, float], end: tuple[float, float]) -> str:
        return f'<line class="{kind}" x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}"/>'

    def _mark(self, kind: str, place: int) -> str:
        if not self._here(place):
            return ""
        x, y = self._of(place)
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>'

    def _star(self, place: int) -> str:
        if not self._here(place):
            return ""
        x, y = self._of(place)
        corners = [(number * math.pi / 5, 6.5 if number % 2 else 15.0) for number in range(10)]
        points = " ".join(f"{x + r * math.sin(a):.1f},{y - r * math.cos(a):.1f}" for a, r in corners)
        return f'<polygon class="goal" points="{points}"/>'


def _returning(walk: tuple[int, ...], back: int | None) -> Iterable[tuple[int, int]]:
    """The steps of a round that lead back to a remembered place."""
    return () if back is None else pairwise(walk[: walk.index(back) + 1])
