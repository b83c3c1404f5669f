"""Top-down maps of a house as SVG: rooms, doors, furniture, viewpoints and a route."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from html import escape

from scenemem.houses.catalogue import COLOURS, KINDS
from scenemem.houses.records import Door, House, Rect, Stand, Window
from scenemem.houses.staircase import treads
from scenemem.houses.walls import leaf_box

_SCALE = 56  # pixels per metre
_MARGIN = 0.6  # metres round a floor
_TITLE = 0.7  # metres above a floor for its name
_FLOOR_NAMES = ("ground floor", "upper floor")
_UNNAMED = ("chair", "nightstand", "office chair")  # drawn without their name, for lack of space
_LIGHT = 0.72  # how far floor colours are moved towards white


def draw_map(
    house: House, *, links: Iterable[tuple[int, int]] = (), route: Sequence[int] = (), numbers: bool = False
) -> str:
    """The floors of a house side by side, north up.

    Args:
        house: the house.
        links: pairs of stands to join by a thin line.
        route: stands walked through, start first; drawn as a red line with a green start and a red flag.
        numbers: write the number of every stand beside it.
    """
    links = tuple(links)
    panels, left, height = [], 0.0, 0.0
    for floor in range(house.floors):
        panel = _Panel(house, floor, left)
        panels.append(panel.draw(links, route, numbers=numbers))
        left += panel.extent.width + 2 * _MARGIN
        height = max(height, panel.extent.depth + 2 * _MARGIN + _TITLE)
    width_px, height_px = round(left * _SCALE), round(height * _SCALE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width_px} {height_px}" '
        f'width="{width_px}" height="{height_px}" font-family="sans-serif">\n'
        f"<title>{escape(house.name)}</title>\n"
        f'<rect width="{width_px}" height="{height_px}" fill="#fdfcf9"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


class _Panel:
    """One floor; ``left`` is where it starts on the page, metres."""

    def __init__(self, house: House, floor: int, left: float) -> None:
        self.house = house
        self.floor = floor
        self.left = left
        rects = [room.rect for room in house.rooms if room.floor == floor]
        self.extent = Rect(
            min(r.x0 for r in rects),
            min(r.y0 for r in rects),
            max(r.x1 for r in rects),
            max(r.y1 for r in rects),
        )

    def draw(self, links: Sequence[tuple[int, int]], route: Sequence[int], *, numbers: bool) -> str:
        x, _ = self._pixel(self.extent.x0, 0)
        name = f"{self.house.name}, {_FLOOR_NAMES[self.floor]}"
        rows = [f'<text x="{x}" y="{round(0.75 * _SCALE)}" font-size="18" fill="#333">{escape(name)}</text>']
        rows += self._rooms()
        rows += self._things()
        rows += [self._door(door) for door in self.house.doors if self._here(door.rooms[0])]
        rows += [self._window(pane) for pane in self.house.windows if self._here(pane.room)]
        rows += self._room_names()
        rows += self._stands(links, numbers=numbers)
        rows += self._route(route)
        return "\n".join(rows)

    def _here(self, room: int) -> bool:
        return self.house.rooms[room].floor == self.floor

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        px = (x - self.extent.x0 + self.left + _MARGIN) * _SCALE
        py = (self.extent.y1 - y + _MARGIN + _TITLE) * _SCALE
        return round(px, 1), round(py, 1)

    def _rect(self, rect: Rect, style: str, title: str = "") -> str:
        x, y = self._pixel(rect.x0, rect.y1)
        size = f'width="{round(rect.width * _SCALE, 1)}" height="{round(rect.depth * _SCALE, 1)}"'
        tip = f"<title>{escape(title)}</title>" if title else ""
        return f'<rect x="{x}" y="{y}" {size} {style}>{tip}</rect>'

    def _line(self, ends: tuple[float, float, float, float], style: str) -> str:
        (xa, ya), (xb, yb) = self._pixel(*ends[:2]), self._pixel(*ends[2:])
        return f'<line x1="{xa}" y1="{ya}" x2="{xb}" y2="{yb}" {style}/>'

    def _rooms(self) -> list[str]:
        rows = []
        for room in self.house.rooms:
            if room.floor == self.floor:
                edge = 'stroke="#444" stroke-width="5"'
                if room.kind == "porch":
                    edge = 'stroke="#999" stroke-width="3" stroke-dasharray="9 5"'
                rows.append(self._rect(room.rect, f'fill="{_light(room.ground_colour)}" {edge}', room.kind))
        if self.house.stairs is not None:
            stairs = self.house.stairs
            for flight in (stairs.lower, stairs.upper):
                style = 'fill="none" stroke="#8a6a4a" stroke-width="1.5"'
                rows += [self._rect(tread, style) for tread in treads(flight, stairs.inward)]
        return rows

    def _room_names(self) -> list[str]:
        rows = []
        for room in self.house.rooms:
            if room.floor == self.floor:
                x, y = self._pixel(*room.rect.centre)
                upright = room.rect.depth > 2 * room.rect.width
                turn = f' transform="rotate(-90 {x} {y})"' if upright else ""
                style = 'font-size="15" font-weight="bold" text-anchor="middle" fill="#222"'
                halo = 'stroke="#fff" stroke-width="4" paint-order="stroke"'
                rows.append(f'<text x="{x}" y="{y}" {style} {halo}{turn}>{escape(room.kind)}</text>')
        return rows

    def _things(self) -> list[str]:
        rows = []
        for thing in sorted(self.house.things, key=lambda thing: thing.box.z1):
            if not self._here(thing.room):
                continue
            name = f"{thing.colour} {thing.kind}"
            faint = ' fill-opacity="0.5"' if thing.kind == "rug" else ""
            style = f'fill="{_hex(COLOURS[thing.colour])}"{faint} stroke="#333" stroke-width="1"'
            rect = thing.box.footprint
            rows.append(self._rect(rect, style, name))
            if KINDS[thing.kind].place != "hung" and thing.kind not in (
                "chair",
                "nightstand",
                "office chair",
            ):
                x, y = self._pixel(*rect.centre)
                dark = sum(COLOURS[thing.colour]) < 380
                ink = "#fff" if dark else "#222"
                turn = f' transform="rotate(-90 {x} {y})"' if rect.depth > 1.5 * rect.width else ""
                rows.append(
                    f'<text x="{x}" y="{y + 3}" font-size="9" text-anchor="middle" fill="{ink}"{turn}>'
                    f"{escape(thing.kind)}</text>"
                )
        return rows

    def _door(self, door: Door) -> str:
        half = door.width / 2
        ends = (
            (door.x, door.y - half, door.x, door.y + half)
            if door.across == "x"
            else (door.x - half, door.y, door.x + half, door.y)
        )
        if door.style == "front door":
            return self._line(ends, f'stroke="{_hex(COLOURS[door.colour])}" stroke-width="9"')
        row = self._line(ends, 'stroke="#fdfcf9" stroke-width="7"')
        if door.leaf:
            row += self._rect(
                leaf_box(self.house, door).footprint,
                f'fill="{_hex(COLOURS[door.colour])}" stroke="#333"',
                "door",
            )
        return row

    def _window(self, pane: Window) -> str:
        half = pane.width / 2
        ends = (
            (pane.x, pane.y - half, pane.x, pane.y + half)
            if pane.across == "x"
            else (pane.x - half, pane.y, pane.x + half, pane.y)
        )
        return self._line(ends, 'stroke="#8cc4ee" stroke-width="5"')

    def _stands(self, links: Sequence[tuple[int, int]], *, numbers: bool) -> list[str]:
        stands = self.house.stands
        rows = [
            self._line(
                (stands[a].x, stands[a].y, stands[b].x, stands[b].y), 'stroke="#2a6fb0" stroke-opacity="0.35"'
            )
            for a, b in links
            if self._shows(stands[a]) and self._shows(stands[b])
        ]
        for number, stand in enumerate(stands):
            if self._shows(stand):
                x, y = self._pixel(stand.x, stand.y)
                rows.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#2a6fb0"/>')
                if numbers:
                    rows.append(
                        f'<text x="{x + 5}" y="{y - 4}" font-size="11" fill="#2a6fb0">{number}</text>'
                    )
        return rows

    def _shows(self, stand: Stand) -> bool:
        """Whether a stand is drawn on this floor; the landing belongs to both."""
        return stand.stairs == "landing" or self._here(stand.room)

    def _route(self, route: Sequence[int]) -> list[str]:
        if not route:
            return []
        stands = [self.house.stands[number] for number in route]
        rows = [
            self._line((a.x, a.y, b.x, b.y), 'stroke="#d12f2f" stroke-width="4" stroke-linecap="round"')
            for a, b in itertools.pairwise(stands)
            if self._shows(a) and self._shows(b)
        ]
        for stand, colour in ((stands[0], "#2e9e4f"), (stands[-1], "#d12f2f")):
            if self._shows(stand):
                x, y = self._pixel(stand.x, stand.y)
                rows.append(
                    f'<circle cx="{x}" cy="{y}" r="8" fill="{colour}" stroke="#fff" stroke-width="2"/>'
                )
        return rows


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _light(colour: str) -> str:
    red, green, blue = (round(part + (255 - part) * _LIGHT) for part in COLOURS[colour])
    return _hex((red, green, blue))
