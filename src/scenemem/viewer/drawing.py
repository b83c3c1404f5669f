"""Maps of walks, floor by floor: small ones on cards, and figures for papers as SVG, PNG or PDF."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.traces import Move, Place, Scene, Task, Trace
from scenemem.viewer.pages import render_macro
from scenemem.viewer.scenery import Scenery

FIGURES = (".svg", ".png", ".pdf")
"""Kinds of files a figure can be written as."""

Spot = tuple[float, float]
Step = tuple[int, int]

_THUMBNAIL = (300, 190)  # pixels
_BLOCK = (420, 320)  # pixels of a walk in a figure
_GAP, _LINE = 16, 22  # pixels between walks, of a line of text
_FINER = 4  # pixels of a picture per unit of a drawing: 4 x 96 dots per inch
_MARGIN, _LEAST = 1.2, 6.0  # metres around everything that is shown, and shown at least
_ASIDE = 6.0  # pixels between going back and having come
_FONT, _LETTERS = 13, 58  # pixels; letters that fit above a walk


class _Style(NamedTuple):
    stroke: str | None = None
    width: float = 0.0
    dash: tuple[float, ...] = ()
    fill: str | None = None


_STYLES = {  # of figures; cards have those of cards.css, which know dark screens
    "wall": _Style("#b9b7ae", 2, fill="#ffffff"),
    "gap": _Style("#ffffff", 3),
    "path": _Style("#d4d2cb", 1),
    "reference": _Style("#007a59", 3.5, (0.1, 7)),
    "walked": _Style("#0072b2", 4),
    "jumped": _Style("#c24a00", 3, (7, 6)),
    "head": _Style(fill="#00476f"),
    "begin": _Style("#0072b2", 3, fill="#ffffff"),
    "finish": _Style("#ffffff", 1.5, fill="#0072b2"),
    "goal": _Style("#ffffff", 1.5, fill="#007a59"),
    "name": _Style(fill="#1b1e22"),
}
_LEGEND = {
    "reference": "described path",
    "walked": "path walked",
    "begin": "start",
    "finish": "end",
    "goal": "goal",
}


@dataclass(frozen=True)
class Shape:
    """Something drawn; y points down."""

    form: Literal["rect", "line", "circle", "polygon", "text"]
    kind: str  # a key of the styles
    points: tuple[Spot, ...]  # two corners, two ends, a centre, corners, or where a text begins
    text: str = ""

    @property
    def style(self) -> _Style:
        """How it looks in a figure."""
        return _STYLES[self.kind]


@dataclass(frozen=True)
class Drawing:
    """Shapes on a ground of so many pixels."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    label: str  # what it shows, for screen readers


@dataclass(frozen=True)
class DrawnWalk:
    """What a map shows of a walk."""

    name: str
    scene: Scene
    task: Task
    path: Sequence[int]  # places
    dashed: frozenset[Step] = frozenset()  # steps that are drawn so
    meaning: str = "going back"  # of dashes
    outcome: str = ""  # in a few words

    @classmethod
    def of(cls, trace: Trace, outcome: str = "") -> DrawnWalk:
        """The walk of a trace; the steps that lead back are dashed."""
        returns = frozenset(step for move in trace.moves for step in _returning(move))
        return cls(trace.agent, trace.scene, trace.task, trace.path, returns, outcome=outcome)

    @property
    def shown(self) -> list[int]:
        """All places that must be on the map."""
        goal = [] if self.task.goal is None else [self.task.goal]
        return [*self.task.reference, *self.path, *goal]


def _returning(move: Move) -> Iterable[Step]:
    """The steps of a move that lead back to a remembered place."""
    if move.back_to is None:
        return ()
    # a walk that was cut off on its way back is all return
    end = move.walk.index(move.back_to) + 1 if move.back_to in move.walk else len(move.walk)
    return pairwise(move.walk[:end])


def draw_thumbnail(walk: DrawnWalk, scenery: Scenery) -> Markup:
    """A small map (SVG) for a card, which gives it its style."""
    width, height = _THUMBNAIL
    shapes = tuple(_floors(walk, scenery, _Frame.around([walk], (0, 0), width, height)))
    turned = f", {walk.meaning} on the way" if walk.dashed else ""
    label = f"Map: the path {walk.name} walked{turned}"
    return render_macro("cards.html", "map", Drawing(width, height, shapes, label))


def draw_figure(walks: Sequence[DrawnWalk], scenery: Scenery) -> Drawing:
    """Walks of one episode side by side, to the same scale, with a legend."""
    block, height = _BLOCK
    shapes: list[Shape] = []
    for number, walk in enumerate(walks):
        left = number * (block + _GAP)
        title = f"{walk.name}: {walk.outcome[:1].lower()}{walk.outcome[1:]}" if walk.outcome else walk.name
        shown = title if len(title) <= _LETTERS else f"{title[: _LETTERS - 1]}…"
        shapes.append(Shape("text", "name", ((left + 4, _LINE - 6),), shown))
        shapes += _floors(walk, scenery, _Frame.around(walks, (left, _LINE), block, height), heads=True)
    width = len(walks) * (block + _GAP) - _GAP
    kinds = {shape.kind for shape in shapes}
    signs = {**_LEGEND, "jumped": walks[0].meaning}
    known = {kind: text for kind, text in signs.items() if kind in kinds}
    shapes += _legend(known, _LINE + height, width)
    bottom = max(y for shape in shapes for _, y in shape.points)
    label = f"Maps of instruction {walks[0].task.instruction_id}: " + "; ".join(one.name for one in walks)
    return Drawing(width, math.ceil(bottom) + 8, tuple(shapes), label)


def write_figure(file: Path, drawing: Drawing) -> int:
    """Write a figure, vectors as .svg, 384 dots per inch as .png or .pdf, and return its size in bytes."""
    if file.suffix not in FIGURES:
        raise UserError(f"{file}: unknown kind of figure; expected a name ending in {', '.join(FIGURES)}")
    if file.suffix == ".svg":
        content = render_macro("cards.html", "map", drawing, alone=True).encode()
    else:
        stream = io.BytesIO()
        dots = 96 * _FINER
        _painted(drawing).save(stream, file.suffix[1:].upper(), dpi=(dots, dots), resolution=dots)
        content = stream.getvalue()
    with atomic_file(file) as partial:
        partial.write_bytes(content)
    return len(content)


@dataclass(frozen=True)
class _Frame:
    """Where the floors of walks are drawn, beside each other and to one scale."""

    floors: tuple[int, ...]
    west: float  # metres, of every floor
    north: float
    scale: float  # pixels per metre
    corner: Spot  # of the first floor
    panel: Spot  # pixels of a floor

    @classmethod
    def around(cls, walks: Sequence[DrawnWalk], corner: Spot, width: float, height: float) -> _Frame:
        """A frame that holds everything that is shown of some walks."""
        places = [walk.scene.places[number] for walk in walks for number in walk.shown]
        floors = tuple(sorted({place.floor for place in places}))
        west, east = _span(place.x for place in places)
        south, north = _span(place.y for place in places)
        panel = width / len(floors), height
        scale = min(panel[0] / (east - west), panel[1] / (north - south))
        spare = panel[0] / scale - (east - west), panel[1] / scale - (north - south)  # metres
        return cls(floors, west - spare[0] / 2, north + spare[1] / 2, scale, corner, panel)

    def box(self, floor: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of a floor; pixels."""
        left = self.corner[0] + self.floors.index(floor) * self.panel[0]
        return left, self.corner[1], left + self.panel[0], self.corner[1] + self.panel[1]

    def spot(self, floor: int, x: float, y: float) -> Spot:
        """Metres to pixels; north is up."""
        left, top, _, _ = self.box(floor)
        return round(left + (x - self.west) * self.scale, 1), round(top + (self.north - y) * self.scale, 1)

    def inside(self, floor: int, a: Spot, b: Spot) -> tuple[Spot, Spot] | None:
        """The part of a line, given in metres, that can be seen; pixels."""
        begin, end = self.spot(floor, *a), self.spot(floor, *b)
        left, top, right, bottom = self.box(floor)
        across, down = end[0] - begin[0], end[1] - begin[1]
        first, last = 0.0, 1.0
        for step, room in (
            (-across, begin[0] - left),
            (across, right - begin[0]),
            (-down, begin[1] - top),
            (down, bottom - begin[1]),
        ):
            if step == 0 and room < 0:
                return None
            if step < 0:
                first = max(first, room / step)
            elif step > 0:
                last = min(last, room / step)
        if first >= last:
            return None
        ends = ((round(begin[0] + t * across, 1), round(begin[1] + t * down, 1)) for t in (first, last))
        return next(ends), next(ends)


def _floors(walk: DrawnWalk, scenery: Scenery, frame: _Frame, *, heads: bool = False) -> Iterable[Shape]:
    """The building, the described path and the walk on every floor; ``heads`` show which way it goes."""
    places = walk.scene.places

    def spot(number: int, floor: int | None = None) -> Spot:
        place = places[number]
        return frame.spot(place.floor if floor is None else floor, place.x, place.y)

    def lines(kind: str, steps: Iterable[Step], aside: float = 0.0) -> Iterable[Shape]:
        for a, b in dict.fromkeys(steps):  # a step between floors is drawn on both
            for floor in sorted({places[a].floor, places[b].floor} & {*frame.floors}):
                yield Shape("line", kind, _beside(spot(a, floor), spot(b, floor), aside))

    yield from _building(walk.scene, scenery, frame)
    steps = list(pairwise(walk.path))
    yield from lines("reference", pairwise(walk.task.reference))
    yield from lines("walked", (step for step in steps if step not in walk.dashed))
    yield from lines("jumped", walk.dashed, aside=_ASIDE)  # beside the edge, so that having come is seen
    if heads:
        for a, b in dict.fromkeys(steps):
            if _on_one_floor(places, (a, b)) and spot(a) != spot(b):
                yield Shape(
                    "polygon", "head", _head(*_beside(spot(a), spot(b), _ASIDE * ((a, b) in walk.dashed)))
                )
    yield Shape("circle", "begin", (spot(walk.path[0]),))
    if walk.task.goal is not None:
        yield Shape("polygon", "goal", _star(spot(walk.task.goal)))
    yield Shape("circle", "finish", (spot(walk.path[-1]),))
    if len(frame.floors) > 1:
        for floor in frame.floors:
            x, y, _, _ = frame.box(floor)
            yield Shape("text", "name", ((x + 4, y + 14),), f"Floor {floor + 1}")


def _building(scene: Scene, scenery: Scenery, frame: _Frame) -> Iterable[Shape]:
    """Rooms, doors and the navigation graph, as far as they are in the frame."""
    for room in scenery.rooms:
        if room.rect and room.floor in frame.floors:
            left, top, right, bottom = frame.box(room.floor)
            west, south, east, north = room.rect
            corners = frame.spot(room.floor, west, north), frame.spot(room.floor, east, south)
            (x, y), (to_x, to_y) = ((min(max(x, left), right), min(max(y, top), bottom)) for x, y in corners)
            if x < to_x and y < to_y:
                yield Shape("rect", "wall", ((x, y), (to_x, to_y)))
    gaps = [("gap", door.floor, door.ends[:2], door.ends[2:]) for door in scenery.doorways]
    places = [(scene.places[a], scene.places[b]) for a, b in scene.edges]
    edges = [("path", a.floor, (a.x, a.y), (b.x, b.y)) for a, b in places if a.floor == b.floor]
    for kind, floor, begin, end in (*gaps, *edges):
        ends = frame.inside(floor, begin, end) if floor in frame.floors else None
        if ends is not None:
            yield Shape("line", kind, ends)


def _legend(signs: Mapping[str, str], top: float, width: float) -> Iterable[Shape]:
    """A line of signs and what they mean, or several."""
    x, y = 8.0, top + _LINE / 2 + 4
    for kind, text in signs.items():
        wide = 44 + 7.2 * len(text)
        if x + wide > width:
            x, y = 8.0, y + _LINE
        if kind in ("begin", "finish"):
            yield Shape("circle", kind, ((x + 14, y),))
        elif kind == "goal":
            yield Shape("polygon", kind, _star((x + 14, y), 9))
        else:
            yield Shape("line", kind, ((x, y), (x + 28, y)))
        yield Shape("text", "name", ((x + 36, y + 4),), text)
        x += wide


def _on_one_floor(places: Sequence[Place], step: Step) -> bool:
    return places[step[0]].floor == places[step[1]].floor


def _span(values: Iterable[float]) -> tuple[float, float]:
    """From the lowest to the highest value with a margin, metres."""
    known = list(values)
    low, high = min(known) - _MARGIN, max(known) + _MARGIN
    more = max(0.0, _LEAST - (high - low)) / 2
    return low - more, high + more


def _beside(begin: Spot, end: Spot, aside: float) -> tuple[Spot, Spot]:
    """A line moved so many pixels to its right."""
    across, down = end[0] - begin[0], end[1] - begin[1]
    length = math.hypot(across, down) or 1.0
    dx, dy = -aside * down / length, aside * across / length
    first, second = ((round(x + dx, 1), round(y + dy, 1)) for x, y in (begin, end))
    return first, second


def _head(begin: Spot, end: Spot) -> tuple[Spot, ...]:
    """An arrow in the middle of a line."""
    angle = math.atan2(end[1] - begin[1], end[0] - begin[0])
    x, y = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
    corners = ((6.0, 0.0), (-4.0, 4.5), (-4.0, -4.5))
    turned = [
        (a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle))
        for a, b in corners
    ]
    return tuple((round(x + a, 1), round(y + b, 1)) for a, b in turned)


def _star(spot: Spot, radius: float = 15.0) -> tuple[Spot, ...]:
    reach = [(number * math.pi / 5, radius * (0.43 if number % 2 else 1.0)) for number in range(10)]
    return tuple((round(spot[0] + r * math.sin(a), 1), round(spot[1] - r * math.cos(a), 1)) for a, r in reach)


def _painted(drawing: Drawing) -> Image.Image:
    """The drawing as pixels."""
    picture = Image.new("RGB", (drawing.width * _FINER, drawing.height * _FINER), "#ffffff")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(_FONT * _FINER)
    for shape in drawing.shapes:
        style, width = shape.style, round(shape.style.width * _FINER)
        spots = [(x * _FINER, y * _FINER) for x, y in shape.points]
        if shape.form == "text":
            pen.text(spots[0], shape.text, fill=style.fill, font=font, anchor="ls")
        elif shape.form == "rect":
            pen.rectangle([*spots[0], *spots[1]], style.fill, style.stroke, width)
        elif shape.form == "circle":
            pen.circle(spots[0], 5 * _FINER + width / 2, style.fill, style.stroke, width)
        elif shape.form == "polygon":
            pen.polygon(spots, style.fill, style.stroke)
        else:
            for begin, end in _dashes(spots[0], spots[1], [part * _FINER for part in style.dash]):
                pen.line([begin, end], style.stroke, width)
                if style.dash[:1] < (1,):  # round ends; dots are nothing else
                    for x, y in (begin, end):
                        pen.circle((x, y), width / 2, style.stroke)
    return picture


def _dashes(begin: Spot, end: Spot, dash: Sequence[float]) -> Iterable[tuple[Spot, Spot]]:
    """The parts of a line that are drawn."""
    length, at = math.dist(begin, end), 0.0
    if not dash:
        yield begin, end
        return
    on, off = dash
    while at < length:
        ends = (at / length, min(length, at + on) / length)
        first, second = (
            (begin[0] + t * (end[0] - begin[0]), begin[1] + t * (end[1] - begin[1])) for t in ends
        )
        yield first, second
        at += on + off
