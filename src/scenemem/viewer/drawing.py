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
from scenemem.formats.traces import Scene
from scenemem.viewer.narration import DrawnWalk
from scenemem.viewer.pages import render_macro, write_page
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
    form: Literal["rect", "line", "circle", "polygon", "text"]
    stroke: str | None = None
    width: float = 0.0
    dash: tuple[float, ...] = ()
    fill: str | None = None


_STYLES = {  # of figures; cards have those of cards.css, for light and dark screens
    "wall": _Style("rect", "#b9b7ae", 2, fill="#ffffff"),
    "gap": _Style("line", "#ffffff", 3),
    "path": _Style("line", "#d4d2cb", 1),
    "reference": _Style("line", "#007a59", 3.5, (0.1, 7)),
    "walked": _Style("line", "#0072b2", 4),
    "jumped": _Style("line", "#c24a00", 3, (7, 6)),
    "head": _Style("polygon", fill="#00476f"),
    "begin": _Style("circle", "#0072b2", 3, fill="#ffffff"),
    "finish": _Style("circle", "#ffffff", 1.5, fill="#0072b2"),
    "goal": _Style("polygon", "#ffffff", 1.5, fill="#007a59"),
    "name": _Style("text", fill="#1b1e22"),
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

    kind: str  # a key of the styles
    points: tuple[Spot, ...]  # two corners, two ends, a centre, corners, or where a text begins
    text: str = ""

    @property
    def style(self) -> _Style:
        """Its form, and how it looks in a figure."""
        return _STYLES[self.kind]


@dataclass(frozen=True)
class Drawing:
    """Shapes on a ground of so many pixels."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    label: str  # what it shows, for screen readers


def draw_thumbnails(walks: Sequence[DrawnWalk], scenery: Scenery) -> list[Markup]:
    """A small map (SVG) of each walk of one episode, to one scale; the card gives them their style."""
    frame, maps = _Frame.around(walks, 0j, *_THUMBNAIL), []
    for walk in walks:
        turned = f", {walk.meaning} on the way" if walk.dashed else ""
        label = f"Map: the path {walk.name} walked{turned}"
        drawing = Drawing(*_THUMBNAIL, tuple(_floors(walk, scenery, frame)), label)
        maps.append(render_macro("cards.html", "map", drawing))
    return maps


def draw_figure(walks: Sequence[DrawnWalk], scenery: Scenery) -> Drawing:
    """Walks of one episode side by side, to the same scale, with a legend."""
    block, height = _BLOCK
    shapes: list[Shape] = []
    for number, walk in enumerate(walks):
        left = number * (block + _GAP)
        title = f"{walk.name}: {walk.headline[:1].lower()}{walk.headline[1:]}"
        shown = title if len(title) <= _LETTERS else f"{title[: _LETTERS - 1]}…"
        shapes.append(Shape("name", (complex(left + 4, _LINE - 6),), shown))
        frame = _Frame.around(walks, complex(left, _LINE), block, height)
        shapes += _floors(walk, scenery, frame, heads=True)
    width = len(walks) * (block + _GAP) - _GAP
    kinds = {shape.kind for shape in shapes}
    signs = {**_LEGEND, "jumped": next((walk.meaning for walk in walks if walk.dashed), "")}
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
        return write_page(file, render_macro("cards.html", "map", drawing, alone=True))
    stream, dots = io.BytesIO(), 96 * _FINER
    _painted(drawing).save(stream, file.suffix[1:].upper(), dpi=(dots, dots), resolution=dots)
    return write_page(file, stream.getvalue())


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
        scene, task = walks[0].scene, walks[0].task
        goal = () if task.goal is None else (task.goal,)
        shown = {*task.reference, *goal, *(number for walk in walks for number in walk.path)}
        places = [scene.places[number] for number in shown]
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
        first = self.spot(floor, self.west, self.north)
        last = first + self.panel
        across = min(max(spot.real, first.real), last.real)
        return complex(across, min(max(spot.imag, first.imag), last.imag))


def _floors(walk: DrawnWalk, scenery: Scenery, frame: _Frame, *, heads: bool = False) -> Iterable[Shape]:
    """The building, the described path and the walk on every floor; ``heads`` show which way it goes."""
    places, steps = walk.scene.places, list(pairwise(walk.path))

    def spot(number: int, floor: int | None = None) -> Spot:
        place = places[number]
        return frame.spot(place.floor if floor is None else floor, place.x, place.y)

    def lines(kind: str, steps: Iterable[Step], aside: float = 0.0) -> Iterable[Shape]:
        for a, b in dict.fromkeys(steps):  # a step between floors is drawn on both
            for floor in sorted({places[a].floor, places[b].floor}):
                yield Shape(kind, _beside(spot(a, floor), spot(b, floor), aside))

    yield from _building(walk.scene, scenery, frame)
    yield from lines("reference", pairwise(walk.task.reference))
    yield from lines("walked", (step for step in steps if step not in walk.dashed))
    yield from lines("jumped", walk.dashed, aside=_ASIDE)  # beside the edge, so that having come is seen
    for a, b in dict.fromkeys(steps) if heads else ():
        if places[a].floor == places[b].floor and spot(a) != spot(b):
            begin, end = _beside(spot(a), spot(b), _ASIDE * ((a, b) in walk.dashed))
            turn = (end - begin) / abs(end - begin)
            yield Shape("head", tuple((begin + end) / 2 + corner * turn for corner in _HEAD))
    yield Shape("begin", (spot(walk.path[0]),))
    if walk.task.goal is not None:
        yield Shape("goal", _star(spot(walk.task.goal)))
    yield Shape("finish", (spot(walk.path[-1]),))
    for floor in frame.floors if len(frame.floors) > 1 else ():
        corner = frame.spot(floor, frame.west, frame.north)
        yield Shape("name", (corner + 4 + 14j,), f"Floor {floor + 1}")


def _building(scene: Scene, scenery: Scenery, frame: _Frame) -> Iterable[Shape]:
    """Rooms, doors and the navigation graph, as far as they are in the frame."""
    for room in scenery.rooms:
        if room.rect and room.floor in frame.floors:
            west, south, east, north = room.rect
            corners = frame.spot(room.floor, west, north), frame.spot(room.floor, east, south)
            first, last = (frame.inside(room.floor, corner) for corner in corners)
            if first.real < last.real and first.imag < last.imag:
                yield Shape("wall", (first, last))
    ends = [(scene.places[a], scene.places[b]) for a, b in scene.edges]
    lines = [("gap", door.floor, door.ends) for door in scenery.doorways]
    lines += [("path", a.floor, (a.x, a.y, b.x, b.y)) for a, b in ends if a.floor == b.floor]
    for kind, floor, (x, y, to_x, to_y) in lines:
        if floor in frame.floors:
            spots = frame.spot(floor, x, y), frame.spot(floor, to_x, to_y)
            if all(abs(frame.inside(floor, spot) - spot) < 0.1 for spot in spots):
                yield Shape(kind, spots)


def _legend(signs: Mapping[str, str], top: float, width: float) -> Iterable[Shape]:
    """A line of signs and what they mean, or several."""
    spot = complex(8, top + _LINE / 2 + 4)
    for kind, text in signs.items():
        wide = 44 + 7.2 * len(text)
        if spot.real + wide > width:
            spot = complex(8, spot.imag + _LINE)
        signs_of = {"circle": (spot + 14,), "polygon": _star(spot + 14, 9), "line": (spot, spot + 28)}
        yield Shape(kind, signs_of[_STYLES[kind].form])
        yield Shape("name", (spot + 36 + 4j,), text)
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
        if style.form == "text":
            pen.text(spots[0], shape.text, fill=style.fill, font=font, anchor="ls")
        elif style.form == "rect":
            pen.rectangle(spots, style.fill, style.stroke, width)
        elif style.form == "circle":
            pen.circle(spots[0], 5 * _FINER + width / 2, style.fill, style.stroke, width)
        elif style.form == "polygon":
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
