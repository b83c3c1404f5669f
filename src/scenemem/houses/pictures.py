"""Houses drawn for people: colour pictures of views and panoramas, and top-down maps as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Template
from PIL import Image

from scenemem.houses.house import COLOURS, KINDS, MATERIALS, SEEN_KINDS, STOREY, House, Rect, Stand
from scenemem.houses.scene import NOTHING, FloatArray, IntArray, RenderScene, build_scene, cast_rays, treads

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


class _Hits(NamedTuple):
    """Where the rays of a picture end."""

    box: IntArray  # (H, W)
    point: FloatArray  # (H, W, 3)
    axis: IntArray  # (H, W) of the surface normal
    depth: FloatArray  # (H, W) metres
    up: FloatArray  # (H, W) sine of the ray's elevation


def draw_view(house: House, stand: int, heading: float, elevation: float = 0.0) -> Image.Image:
    """The picture a camera takes at a viewpoint: 640 x 480, vertical field of view 60 degrees.

    heading: radians, clockwise from +y  elevation: radians, positive upwards
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

    ``width`` is in pixels and a multiple of 48; the picture is a third as high.
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
    eye = np.array([camera.x, camera.y, camera.z])
    direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    box, depth, axis = _cast_tiles(scene, eye, direction)
    reached = np.where(box == NOTHING, 0.0, depth)
    hits = _Hits(box, eye + direction * reached[..., None], axis, depth, direction[..., 2])
    shaded = _outlined(_shaded(scene, hits), scene, hits)
    rows, columns = shaded.shape[0] // _FINER, shaded.shape[1] // _FINER
    smooth = shaded.reshape(rows, _FINER, columns, _FINER, 3).mean(axis=(1, 3))
    return Image.fromarray(smooth.clip(0, 255).astype(np.uint8))


def _cast_tiles(
    scene: RenderScene, eye: FloatArray, direction: FloatArray
) -> tuple[IntArray, FloatArray, IntArray]:
    """``cast_rays`` tile by tile, so that rays cast together point nearly the same way.

    direction: (H, W, 3)  ->  (H, W) three times
    """
    rows, columns = direction.shape[:2]
    tiles = direction.reshape(rows // _TILE, _TILE, columns // _TILE, _TILE, 3).swapaxes(1, 2)
    cast: tuple[Any, ...] = cast_rays(scene, eye, tiles.reshape(-1, 3))
    box, depth, axis = (v.reshape(tiles.shape[:4]).swapaxes(1, 2).reshape(rows, columns) for v in cast)
    return box, depth, axis


def _shaded(scene: RenderScene, hits: _Hits) -> FloatArray:
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


def _texture(scene: RenderScene, hits: _Hits) -> FloatArray:
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


def _window_panes(paint: FloatArray, scene: RenderScene, hits: _Hits) -> FloatArray:
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


def _outlined(colour: FloatArray, scene: RenderScene, hits: _Hits) -> FloatArray:
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


def draw_map(house: House, *, route: Sequence[int] = ()) -> str:
    """The floors of a house side by side, north up, with a red line over the stands of ``route``."""
    panels, left = [], 0.0
    for floor in range(house.floors):
        panels.append(_Panel(house, floor, left))
        left += panels[-1].extent.width + 2 * _MARGIN
    height = max(panel.extent.depth + 2 * _MARGIN + _TITLE for panel in panels)
    source = Path(__file__).with_name("map.svg").read_text(encoding="utf-8")
    template: Template = Template(source, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return template.render(
        house=house,
        panels=panels,
        treads=treads,
        route=[house.stands[number] for number in route],
        width=round(left * _SCALE),
        height=round(height * _SCALE),
        scale=_SCALE,
        colours=COLOURS,
        kinds=KINDS,
    )


class _Panel:
    """One floor; ``left`` is where it starts on the page, metres."""

    def __init__(self, house: House, floor: int, left: float) -> None:
        self.house, self.floor, self.left, self.name = house, floor, left, _FLOOR_NAMES[floor]
        self.rooms = [room for room in house.rooms if room.floor == floor]
        x0, y0, x1, y1 = zip(*(room.rect for room in self.rooms), strict=True)
        self.extent = Rect(min(x0), min(y0), max(x1), max(y1))

    def holds(self, room: int) -> bool:
        return self.house.rooms[room].floor == self.floor

    def shows(self, stand: Stand) -> bool:
        """Whether a stand is drawn on this floor; the landing belongs to both."""
        return stand.stairs == "landing" or self.holds(stand.room)

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        px = (x - self.extent.x0 + self.left + _MARGIN) * _SCALE
        py = (self.extent.y1 - y + _MARGIN + _TITLE) * _SCALE
        return round(px, 1), round(py, 1)
