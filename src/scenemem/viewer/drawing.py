"""Maps of walks, floor by floor: small ones on cards, and figures for papers as SVG, PNG or PDF."""

from __future__ import annotations

import cmath
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
from scenemem.formats.traces import Move, Scene, Task, Trace
from scenemem.viewer.pages import render_macro
from scenemem.viewer.scenery import Scenery

FIGURES = (".svg", ".png", ".pdf")
"""Kinds of files a figure can be written as."""

Spot = complex
"""Pixels from the left, and downwards as the imaginary part: turning and moving is arithmetic."""

Step = tuple[int, int]

_THUMBNAIL = (300, 190)  # pixels
_BLOCK = (420, 320)  # pixels of a walk in a figure
_GAP, _LINE = 16, 22  # pixels between walks, of a line of text
_FINER = 4  # pixels of a picture per unit of a drawing: 4 x 96 dots per inch
_MARGIN, _LEAST = 1.2, 6.0  # metres around everything that is shown, and shown at least
_ASIDE = 6.0  # pixels between going back and having come
_FONT, _LETTERS = 13, 58  # pixels; letters that fit above a walk
_HEAD = (6 + 0j, -4 + 4.5j, -4 - 4.5j)  # an arrow that points right


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
    shapes = tuple(_floors(walk, scenery, _Frame.around([walk], 0j, width, height)))
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
        shapes.append(Shape("text", "name", (complex(left + 4, _LINE - 6),), shown))
        shapes += _floors(
            walk, scenery, _Frame.around(walks, complex(left, _LINE), block, height), heads=True
        )
    width = len(walks) * (block + _GAP) - _GAP
    kinds = {shape.kind for shape in shapes}
    signs = {**_LEGEND, "jumped": walks[0].meaning}
    known = {kind: text for kind, text in signs.items() if kind in kinds}
    shapes += _legend(known, _LINE + height, width)
    bottom = max(spot.imag for shape in shapes for spot in shape.points)
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
    panel: Spot  # the size of a floor

    @classmethod
    def around(cls, walks: Sequence[DrawnWalk], corner: Spot, width: float, height: float) -> _Frame:
        """A frame that holds everything that is shown of some walks."""
        places = [walk.scene.places[number] for walk in walks for number in walk.shown]
        floors = tuple(sorted({place.floor for place in places}))
        west, east = _span(place.x for place in places)
        south, north = _span(place.y for place in places)
        wide = width / len(floors)
        scale = min(wide / (east - west), height / (north - south))
        west, north = (west + east - wide / scale) / 2, (south + north + height / scale) / 2
        return cls(floors, west, north, scale, corner, complex(wide, height))

    def spot(self, floor: int, x: float, y: float) -> Spot:
        """Metres to pixels; north is up."""
        moved = self.floors.index(floor) * self.panel.real
        return self.corner + moved + self.scale * complex(x - self.west, self.north - y)

    def inside(self, floor: int, spot: Spot) -> Spot:
        """The nearest spot that is on the panel of a floor."""
        offset = spot - self.spot(floor, self.west, self.north)
        kept = complex(
            min(max(offset.real, 0.0), self.panel.real), min(max(offset.imag, 0.0), self.panel.imag)
        )
        return spot - offset + kept


def _floors(walk: DrawnWalk, scenery: Scenery, frame: _Frame, *, heads: bool = False) -> Iterable[Shape]:
    """The building, the described path and the walk on every floor; ``heads`` show which way it goes."""
    places, steps = walk.scene.places, list(pairwise(walk.path))

    def spot(number: int, floor: int | None = None) -> Spot:
        place = places[number]
        return frame.spot(place.floor if floor is None else floor, place.x, place.y)

    def lines(kind: str, steps: Iterable[Step], aside: float = 0.0) -> Iterable[Shape]:
        for a, b in dict.fromkeys(steps):  # a step between floors is drawn on both
            for floor in sorted({places[a].floor, places[b].floor}):
                yield Shape("line", kind, _beside(spot(a, floor), spot(b, floor), aside))

    yield from _building(walk.scene, scenery, frame)
    yield from lines("reference", pairwise(walk.task.reference))
    yield from lines("walked", (step for step in steps if step not in walk.dashed))
    yield from lines("jumped", walk.dashed, aside=_ASIDE)  # beside the edge, so that having come is seen
    for a, b in dict.fromkeys(steps) if heads else ():
        if places[a].floor == places[b].floor and spot(a) != spot(b):
            begin, end = _beside(spot(a), spot(b), _ASIDE * ((a, b) in walk.dashed))
            turn = (end - begin) / abs(end - begin)
            yield Shape("polygon", "head", tuple((begin + end) / 2 + corner * turn for corner in _HEAD))
    yield Shape("circle", "begin", (spot(walk.path[0]),))
    if walk.task.goal is not None:
        yield Shape("polygon", "goal", _star(spot(walk.task.goal)))
    yield Shape("circle", "finish", (spot(walk.path[-1]),))
    for floor in frame.floors if len(frame.floors) > 1 else ():
        yield Shape(
            "text", "name", (frame.spot(floor, frame.west, frame.north) + 4 + 14j,), f"Floor {floor + 1}"
        )


def _building(scene: Scene, scenery: Scenery, frame: _Frame) -> Iterable[Shape]:
    """Rooms, doors and the navigation graph, as far as they are in the frame."""
    lines = [("gap", door.floor, door.ends) for door in scenery.doorways]
    ends = [(scene.places[a], scene.places[b]) for a, b in scene.edges]
    lines += [("path", a.floor, (a.x, a.y, b.x, b.y)) for a, b in ends if a.floor == b.floor]
    rects = [("wall", room.floor, room.rect) for room in scenery.rooms if room.rect]
    for kind, floor, (x, y, to_x, to_y) in (*rects, *lines):
        if floor not in frame.floors:
            continue
        if kind == "wall":  # west, south, east, north
            corners = frame.spot(floor, x, to_y), frame.spot(floor, to_x, y)
            first, last = (frame.inside(floor, corner) for corner in corners)
            if first.real < last.real and first.imag < last.imag:
                yield Shape("rect", kind, (first, last))
        else:
            spots = frame.spot(floor, x, y), frame.spot(floor, to_x, to_y)
            if all(abs(frame.inside(floor, spot) - spot) < 0.1 for spot in spots):
                yield Shape("line", kind, spots)


def _legend(signs: Mapping[str, str], top: float, width: float) -> Iterable[Shape]:
    """A line of signs and what they mean, or several."""
    spot = complex(8, top + _LINE / 2 + 4)
    for kind, text in signs.items():
        wide = 44 + 7.2 * len(text)
        if spot.real + wide > width:
            spot = complex(8, spot.imag + _LINE)
        if kind in ("begin", "finish"):
            yield Shape("circle", kind, (spot + 14,))
        elif kind == "goal":
            yield Shape("polygon", kind, _star(spot + 14, 9))
        else:
            yield Shape("line", kind, (spot, spot + 28))
        yield Shape("text", "name", (spot + 36 + 4j,), text)
        spot += wide


def _span(values: Iterable[float]) -> tuple[float, float]:
    """From the lowest to the highest value with a margin, metres."""
    known = list(values)
    low, high = min(known) - _MARGIN, max(known) + _MARGIN
    more = max(0.0, _LEAST - (high - low)) / 2
    return low - more, high + more


def _beside(begin: Spot, end: Spot, aside: float) -> tuple[Spot, Spot]:
    """A line moved so many pixels to its right."""
    shift = 1j * aside * (end - begin) / (abs(end - begin) or 1.0)
    return begin + shift, end + shift


def _star(spot: Spot, radius: float = 15.0) -> tuple[Spot, ...]:
    reach = [radius * (0.43 if number % 2 else 1.0) for number in range(10)]
    return tuple(spot + cmath.rect(r, (number / 5 - 0.5) * math.pi) for number, r in enumerate(reach))


def _painted(drawing: Drawing) -> Image.Image:
    """The drawing as pixels."""
    picture = Image.new("RGB", (drawing.width * _FINER, drawing.height * _FINER), "#ffffff")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(_FONT * _FINER)
    for shape in drawing.shapes:
        style, width = shape.style, round(shape.style.width * _FINER)
        spots = [(spot.real * _FINER, spot.imag * _FINER) for spot in shape.points]
        if shape.form == "text":
            pen.text(spots[0], shape.text, fill=style.fill, font=font, anchor="ls")
        elif shape.form == "rect":
            (x, y), (to_x, to_y) = spots
            pen.rectangle([x, y, to_x, to_y], style.fill)
            pen.line([(x, y), (to_x, y), (to_x, to_y), (x, to_y), (x, y)], style.stroke, width)
        elif shape.form == "circle":
            pen.circle(spots[0], 5 * _FINER + width / 2, style.fill, style.stroke, width)
        elif shape.form == "polygon":
            pen.polygon(spots, style.fill, style.stroke)
        else:
            for part in _dashes(shape.points[0], shape.points[1], style.dash):
                ends = [(spot.real * _FINER, spot.imag * _FINER) for spot in part]
                pen.line(ends, style.stroke, width)
                for end in ends if style.dash[:1] < (1,) else ():  # round; dots are nothing else
                    pen.circle(end, width / 2, style.stroke)
    return picture


def _dashes(begin: Spot, end: Spot, dash: Sequence[float]) -> Iterable[tuple[Spot, Spot]]:
    """The parts of a line that are drawn."""
    length = abs(end - begin)
    on, off = dash or (length, 1.0)
    unit = (end - begin) / (length or 1.0)
    for number in range(math.ceil(length / (on + off))):
        at = number * (on + off)
        yield begin + at * unit, begin + min(length, at + on) * unit
