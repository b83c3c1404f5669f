"""One house from its seed: plan, furniture, viewpoints, panoramas, features, routes and instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scenemem.formats.connectivity import Scan
from scenemem.houses.config import HousesConfig
from scenemem.houses.features import view_features
from scenemem.houses.furnish import furnish
from scenemem.houses.plan import draw_plan
from scenemem.houses.raycast import Panorama, cast_panorama
from scenemem.houses.records import House
from scenemem.houses.routes import Route, sample_routes
from scenemem.houses.scene import Scene, build_scene
from scenemem.houses.speech import instruct
from scenemem.houses.surroundings import gather, in_the_open
from scenemem.houses.viewpoints import Layout, place_viewpoints, scan_of

_ATTEMPTS = 200  # plans drawn before giving up; about two in three are good


@dataclass(frozen=True)
class BuiltHouse:
    """Everything that is written about a house; V viewpoints."""

    house: House
    scan: Scan
    features: npt.NDArray[np.float16]  # (V, 36, D)
    routes: tuple[Route, ...]
    instructions: tuple[tuple[str, ...], ...]  # per route


def build_house(config: HousesConfig, number: int) -> BuiltHouse:
    """House ``number``; the same config and number always give the same house."""
    layout, scene = lay_out(config.seed, number)
    panoramas = look_around(layout, scene)
    around = gather(layout.house, scene, layout.position, panoramas)
    routes = sample_routes(layout, _route_count(config, number), _rng(config.seed, number, 1))
    rng = _rng(config.seed, number, 2)
    return BuiltHouse(
        house=layout.house,
        scan=scan_of(layout),
        features=np.stack([view_features(scene, panorama) for panorama in panoramas]),
        routes=tuple(routes),
        instructions=tuple(tuple(spoken.text for spoken in instruct(around, route, rng)) for route in routes),
    )


def lay_out(seed: int, number: int) -> tuple[Layout, Scene]:
    """The first furnished plan of a house in which every place can be reached."""
    rng = _rng(seed, number, 0)
    for _ in range(_ATTEMPTS):
        house = furnish(draw_plan(rng, f"house_{number:03d}"), rng)
        scene = build_scene(house)
        layout = place_viewpoints(house, scene, rng)
        if layout is not None:
            return layout, scene
    raise RuntimeError(f"no plan in which every place can be reached for house {number}, seed {seed}")


def look_around(layout: Layout, scene: Scene) -> list[Panorama]:
    """The panoramas of all viewpoints."""
    house = layout.house
    return [
        cast_panorama(scene, eye, house.rooms[stand.room].floor, in_the_open=in_the_open(house, stand))
        for eye, stand in zip(layout.position, house.stands, strict=True)
    ]


def is_unseen(config: HousesConfig, number: int) -> bool:
    """Whether a house is kept for val_unseen."""
    return number >= config.houses - config.kept_unseen


def _route_count(config: HousesConfig, number: int) -> int:
    if is_unseen(config, number):
        return config.val_unseen_routes
    return config.train_routes + config.val_seen_routes


def _rng(seed: int, number: int, stage: int) -> np.random.Generator:
    """Stages have streams of their own, so that one does not change with the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number, stage))))
