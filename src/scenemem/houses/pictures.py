"""Houses drawn for people: colour pictures of views and panoramas, and top-down maps as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from scenemem.houses.catalogue import COLOURS, KINDS, MATERIALS, SEEN_KINDS
from scenemem.houses.house import STOREY, Door, House, Rect, Stand
from scenemem.houses.raycast import NOTHING, cast_rays, in_sight
from scenemem.houses.scene import FloatArray, IntArray, Scene, build_scene, treads

_WIDTH, _HEIGHT = 640, 480  # of a view, pixels
_FIELD = math.pi / 3  # vertical field of view, radians
_FINER = 2  # rays per pixel and direction; averaged to smooth edges
_TILE = 32  # side of the squares of rays that are cast together
_PALETTE = np.array(list(COLOURS.values()), dtype=np.float64)
_SKY_LOW, _SKY_HIGH = np.array([214.0, 230.0, 244.0]), np.array([120.0, 170.0, 226.0])
_WALL_TINT = 0.4  # wall paint is this far from the full colour
_OUTLINE = 0.55  # brightness of the lines between surfaces
_SCALE = 56  # pixels per metre of a map
_MARGIN = 0.6  # metres round a floor
_TITLE = 0.7  # metres above a floor for its name
_FLOOR_NAMES = ("ground floor", "upper floor")
_UNNAMED = ("chair", "nightstand", "office chair")  # drawn without their name, for lack of space
_LIGHT = 0.72  # how far floor colours are moved towards white


class _Hits(NamedTuple):
    """Where the rays of a picture end."""

    box: IntArray  # (H, W)
    point: FloatArray  # (H, W, 3)
    axis: IntArray  # (H, W) of the surface normal
    depth: FloatArray  # (H, W) metres
    up: FloatArray  # (H, W) sine of the ray's elevation


def draw_view(house: House, stand: int, heading: float, elevation: float = 0.0) -> Image.Image:
    """The picture a camera takes at a viewpoint: 640 x 480, vertical field of view 60 degrees.

    Args:
        house: the house.
        stand: number of the viewpoint.
        heading: radians, clockwise from +y.
        elevation: radians, positive upwards.
    """
    rows, columns = _HEIGHT * _FINER, _WIDTH * _FINER
    focal = rows / 2 / math.tan(_FIELD / 2)
    right = (np.arange(columns) + 0.5 - columns / 2) / focal
    down = (np.arange(rows) + 0.5 - rows / 2) / focal
    level = math.cos(elevation) + down[:, None] * math.sin(elevation)
    up = math.sin(elevation) - down[:, None] * math.cos(elevation)
    east = level * math.sin(heading) + right * math.cos(heading)
    north = level * math.cos(heading) - right * math.sin(heading)
    direction = np.stack([east, north, np.broadcast_to(up, east.shape)], axis=-1)
    return draw_rays(house, stand, direction)


def draw_panorama(house: House, stand: int, width: int = 1440) -> Image.Image:
    """The whole panorama of a viewpoint as one strip, north in the middle, 120 degrees high.

    Args:
        house: the house.
        stand: number of the viewpoint.
        width: of the picture, pixels, a multiple of 48; it is a third as high.
    """
    columns, rows = width * _FINER, width * _FINER // 3
    heading = ((np.arange(columns) + 0.5) / columns - 0.5) * 2 * math.pi
    elevation = (0.5 - (np.arange(rows) + 0.5) / rows)[:, None] * 2 * math.pi / 3
    east, north = np.cos(elevation) * np.sin(heading), np.cos(elevation) * np.cos(heading)
    direction = np.stack([east, north, np.broadcast_to(np.sin(elevation), east.shape)], axis=-1)
    return draw_rays(house, stand, direction)


def draw_rays(house: House, stand: int, direction: FloatArray) -> Image.Image:
    """The picture whose rays leave a viewpoint in these directions: east, north, up.

    direction: (H, W, 3) of any length, H and W multiples of 32  ->  a picture of half that size, smoothed
    """
    scene, camera = build_scene(house), house.stands[stand]
    eye, floor = np.array([camera.x, camera.y, camera.z]), house.rooms[camera.room].floor
    scene = scene.only(in_sight(scene, eye, floor, both_storeys=house.sees_both_storeys(camera)))
    direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    box, depth, axis = _cast_tiles(scene, eye, direction)
    reached = np.where(box == NOTHING, 0.0, depth)
    hits = _Hits(box, eye + direction * reached[..., None], axis, depth, direction[..., 2])
    shaded = _outlined(_shaded(scene, hits), scene, hits)
    rows, columns = shaded.shape[0] // _FINER, shaded.shape[1] // _FINER
    smooth = shaded.reshape(rows, _FINER, columns, _FINER, 3).mean(axis=(1, 3))
    return Image.fromarray(smooth.clip(0, 255).astype(np.uint8))


def _cast_tiles(
    scene: Scene, eye: FloatArray, direction: FloatArray
) -> tuple[IntArray, FloatArray, IntArray]:
    """``cast_rays`` tile by tile, so that rays cast together point nearly the same way.

    direction: (H, W, 3)  ->  (H, W) three times
    """
    rows, columns = direction.shape[:2]
    tiles = direction.reshape(rows // _TILE, _TILE, columns // _TILE, _TILE, 3).swapaxes(1, 2)
    box, depth, axis = cast_rays(scene, eye, tiles.reshape(-1, 3))

    def untiled(values: Any) -> Any:
        return values.reshape(tiles.shape[:4]).swapaxes(1, 2).reshape(rows, columns)

    return untiled(box), untiled(depth), untiled(axis)


def _shaded(scene: Scene, hits: _Hits) -> FloatArray:
    """Colour of every ray: paint, texture, the side that is seen, distance.  ->  (H, W, 3)"""
    paint = _PALETTE[scene.colour[hits.box]]
    wall = scene.kind[hits.box] == SEEN_KINDS.index("wall")
    paint = np.where(wall[..., None], paint + (255 - paint) * _WALL_TINT, paint)
    paint = paint * _texture(scene, hits)[..., None]
    paint = _window_panes(paint, scene, hits)
    facing = np.array([0.86, 0.97, 1.06])[hits.axis]  # walls east-west, walls north-south, floors
    ceiling = (hits.axis == 2) & (hits.up > 0)
    light = np.where(ceiling, 0.92, facing) * (0.62 + 0.38 * np.exp(-hits.depth / 9.0))
    return np.where((hits.box == NOTHING)[..., None], _sky(hits.up), paint * light[..., None])


def _sky(up: FloatArray) -> FloatArray:
    """Paler towards the horizon.  (H, W)  ->  (H, W, 3)"""
    return np.asarray(_SKY_LOW + (_SKY_HIGH - _SKY_LOW) * up.clip(0, 1)[..., None])


def _texture(scene: Scene, hits: _Hits) -> FloatArray:
    """Brightness pattern of floors and walls: boards, tiles, skirting.  ->  (H, W)"""
    x, y, z = np.moveaxis(hits.point, -1, 0)
    kind, material = scene.kind[hits.box], scene.material[hits.box]
    floor = (kind == SEEN_KINDS.index("floor")) & (hits.axis == 2)
    board = np.floor(x / 0.16)
    tone = 0.93 + 0.07 * np.cos(board * 2.4) + 0.02 * np.sin(y * 9 + board)
    boards = np.where(x / 0.16 - board < 0.06, 0.8, tone)
    tiles = np.where((np.mod(x, 0.4) < 0.015) | (np.mod(y, 0.4) < 0.015), 0.78, 1.0)
    pile = 0.96 + 0.04 * np.sin(x * 97) * np.sin(y * 89)
    pattern = np.ones_like(x)
    for name, surface in (("wood", boards), ("tile", tiles), ("stone", tiles), ("carpet", pile)):
        pattern = np.where(floor & (material == MATERIALS.index(name)), surface, pattern)
    above = np.mod(z, STOREY)
    skirting = (kind == SEEN_KINDS.index("wall")) & (hits.axis != 2) & (above < 0.09)
    return np.where(skirting, 0.7, pattern)


def _window_panes(paint: FloatArray, scene: Scene, hits: _Hits) -> FloatArray:
    """Windows show the sky and a little grass behind a white cross."""
    window = (scene.kind[hits.box] == SEEN_KINDS.index("window")) & (hits.box != NOTHING)
    low, high = scene.low[hits.box], scene.high[hits.box]
    share = (hits.point - low) / (high - low)
    along = np.where(hits.axis == 0, share[..., 1], share[..., 0])
    up = share[..., 2]
    frame = (np.minimum(along, 1 - along) < 0.05) | (np.minimum(up, 1 - up) < 0.05)
    cross = (np.abs(along - 0.5) < 0.02) | (np.abs(up - 0.5) < 0.02)
    grass = _PALETTE[list(COLOURS).index("green")] * 1.25
    view = np.where((up < 0.25)[..., None], grass, _sky(up))
    view = np.where((frame | cross)[..., None], 245.0, view)
    return np.where(window[..., None], view, paint)


def _outlined(colour: FloatArray, scene: Scene, hits: _Hits) -> FloatArray:
    """Darken rays whose right or lower neighbour ends on another surface."""
    surface = np.where(hits.box == NOTHING, -1, hits.box * 3 + hits.axis)
    # wall pieces of one colour and plane are one surface to the eye
    wall = np.isin(scene.kind[hits.box], [SEEN_KINDS.index("wall"), SEEN_KINDS.index("grass")])
    plane = np.round(np.take_along_axis(hits.point, hits.axis[..., None], axis=-1)[..., 0], 2)
    surface = np.where(
        wall & (hits.box != NOTHING), -10 - hits.axis - 3 * np.round(plane * 100).astype(np.int64), surface
    )
    edge = np.zeros(surface.shape, dtype=bool)
    edge[:, :-1] |= surface[:, :-1] != surface[:, 1:]
    edge[:-1] |= surface[:-1] != surface[1:]
    return np.where(edge[..., None], colour * _OUTLINE, colour)


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
        self.rooms = [room for room in house.rooms if room.floor == floor]
        x0, y0, x1, y1 = zip(*(room.rect for room in self.rooms), strict=True)
        self.extent = Rect(min(x0), min(y0), max(x1), max(y1))

    def draw(self, links: Sequence[tuple[int, int]], route: Sequence[int], *, numbers: bool) -> str:
        x, _ = self._pixel(self.extent.x0, 0)
        name = f"{self.house.name}, {_FLOOR_NAMES[self.floor]}"
        rows = [self._label(x, round(0.75 * _SCALE), name, 'font-size="18" fill="#333"')]
        rows += self._rooms()
        rows += self._things()
        rows += [self._door(door) for door in self.house.doors if self._here(door.rooms[0])]
        panes = (window for window in self.house.windows if self._here(window.room))
        rows += [self._line(pane.area(0.0), 'stroke="#8cc4ee" stroke-width="5"') for pane in panes]
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

    def _links(self, pairs: Iterable[tuple[Stand, Stand]], style: str) -> list[str]:
        """Lines between viewpoints that are both drawn on this floor."""
        shown = ((a, b) for a, b in pairs if self._shows(a) and self._shows(b))
        return [self._line((a.x, a.y, b.x, b.y), style) for a, b in shown]

    def _label(
        self, x: float, y: float, text: str, style: str, *, drop: int = 0, upright: bool = False
    ) -> str:
        turn = f' transform="rotate(-90 {x} {y})"' if upright else ""
        return f'<text x="{x}" y="{y + drop}" {style}{turn}>{escape(text)}</text>'

    def _rooms(self) -> list[str]:
        rows = []
        for room in self.rooms:
            edge = 'stroke="#444" stroke-width="5"'
            if room.kind == "porch":
                edge = 'stroke="#999" stroke-width="3" stroke-dasharray="9 5"'
            rows.append(self._rect(room.rect, f'fill="{_light(room.ground_colour)}" {edge}', room.kind))
        if self.house.stairs is not None:
            stairs, style = self.house.stairs, 'fill="none" stroke="#8a6a4a" stroke-width="1.5"'
            for flight in (stairs.lower, stairs.upper):
                rows += [self._rect(tread, style) for tread in treads(flight, stairs.inward)]
        return rows

    def _room_names(self) -> list[str]:
        style = 'font-size="15" font-weight="bold" text-anchor="middle" fill="#222"'
        halo = 'stroke="#fff" stroke-width="4" paint-order="stroke"'
        rows = []
        for room in self.rooms:
            upright = room.rect.depth > 2 * room.rect.width
            x, y = self._pixel(*room.rect.centre)
            rows.append(self._label(x, y, room.kind, f"{style} {halo}", upright=upright))
        return rows

    def _things(self) -> list[str]:
        rows = []
        for thing in sorted(self.house.things, key=lambda thing: thing.box.z1):
            if not self._here(thing.room):
                continue
            rect, colour = thing.box.footprint, COLOURS[thing.colour]
            faint = ' fill-opacity="0.5"' if thing.kind == "rug" else ""
            style = f'fill="{_hex(colour)}"{faint} stroke="#333" stroke-width="1"'
            rows.append(self._rect(rect, style, f"{thing.colour} {thing.kind}"))
            if KINDS[thing.kind].placement != "hung" and thing.kind not in _UNNAMED:
                x, y = self._pixel(*rect.centre)
                ink = "#fff" if sum(colour) < 380 else "#222"
                style, upright = (
                    f'font-size="9" text-anchor="middle" fill="{ink}"',
                    rect.depth > 1.5 * rect.width,
                )
                rows.append(self._label(x, y, thing.kind, style, drop=3, upright=upright))
        return rows

    def _door(self, door: Door) -> str:
        colour = _hex(COLOURS[door.colour])
        if door.style == "front door":
            return self._line(door.area(0.0), f'stroke="{colour}" stroke-width="9"')
        row = self._line(door.area(0.0), 'stroke="#fdfcf9" stroke-width="7"')
        if door.leaf:
            leaf = self.house.leaf_box(door).footprint
            row += self._rect(leaf, f'fill="{colour}" stroke="#333"', "door")
        return row

    def _stands(self, links: Sequence[tuple[int, int]], *, numbers: bool) -> list[str]:
        stands = self.house.stands
        pairs = ((stands[a], stands[b]) for a, b in links)
        rows = self._links(pairs, 'stroke="#2a6fb0" stroke-opacity="0.35"')
        for number, stand in enumerate(stands):
            if self._shows(stand):
                x, y = self._pixel(stand.x, stand.y)
                rows.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#2a6fb0"/>')
                if numbers:
                    rows.append(self._label(x + 5, y - 4, str(number), 'font-size="11" fill="#2a6fb0"'))
        return rows

    def _shows(self, stand: Stand) -> bool:
        """Whether a stand is drawn on this floor; the landing belongs to both."""
        return stand.stairs == "landing" or self._here(stand.room)

    def _route(self, route: Sequence[int]) -> list[str]:
        if not route:
            return []
        stands = [self.house.stands[number] for number in route]
        rows = self._links(
            itertools.pairwise(stands), 'stroke="#d12f2f" stroke-width="4" stroke-linecap="round"'
        )
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
