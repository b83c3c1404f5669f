"""The embedded houses: one house from its seed, all of them as a data folder, the copy in the cache."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_folder
from scenemem.formats.connectivity import Scan, write_scan
from scenemem.formats.decoding import read_json
from scenemem.formats.episodes import Episode, write_episodes
from scenemem.formats.features import FeatureRow, stream_store
from scenemem.formats.folder import cache_folder
from scenemem.houses.features import ENCODER, SENSOR, TRACK, WIDTH, columns, view_features
from scenemem.houses.furniture import furnish
from scenemem.houses.house import House
from scenemem.houses.instructions import write_instructions
from scenemem.houses.landmarks import survey
from scenemem.houses.plan import draw_plan
from scenemem.houses.raycast import Panorama, cast_panorama
from scenemem.houses.scene import Scene, build_scene
from scenemem.houses.viewpoints import Layout, Route, place_viewpoints, sample_routes, scan_of
from scenemem.processes import end_with_parent
from scenemem.world.build import Progress

_FEATURES = "houses"  # name of the feature store
_SPLITS = ("train", "val_seen", "val_unseen")
_MARKER = "houses.json"  # says that a folder was built here, so that only such a folder is ever replaced
_WRITTEN = (  # everything a finished folder holds
    _MARKER,
    "connectivity/house_*_connectivity.json",
    "connectivity/scans.txt",
    f"features/{_FEATURES}.npy",
    f"features/{_FEATURES}.json",
    "plans/house_*.json",
    *(f"r2r/R2R_{split}.json" for split in _SPLITS),
)
_IDS_PER_HOUSE = 1000  # path ids are house number * this + route number
_ATTEMPTS = 200  # plans drawn before giving up; about two in three are good


@dataclass(frozen=True)
class HousesConfig:
    """How many houses and routes are built, and from which seed."""

    houses: int = 72
    """Houses in all; the last ``kept_unseen`` of them are kept for val_unseen."""

    seed: int = 0
    """Every house, route and sentence follows from this number."""

    unseen_houses: int = 12
    """Houses that no training route visits; at most a sixth of them when fewer houses are built."""

    train_routes: int = 60
    """Training routes per training house; each gets three instructions."""

    val_seen_routes: int = 4
    """val_seen routes per training house, different from its training routes."""

    val_unseen_routes: int = 30
    """val_unseen routes per unseen house."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = {"houses": 2, "seed": 0}.get(name, 1)
            if value < least:
                raise UserError(f"{name} must be {least} or more, got {value}; choose a larger {name}")

    @property
    def kept_unseen(self) -> int:
        """Houses of val_unseen: ``unseen_houses``, or a sixth of all houses when there are few."""
        return min(self.unseen_houses, max(1, self.houses // 6))

    def is_unseen(self, number: int) -> bool:
        """Whether a house is kept for val_unseen."""
        return number >= self.houses - self.kept_unseen


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
    panoramas = cast_panoramas(layout, scene)
    around = survey(layout.house, scene, layout.position, panoramas)
    unseen = config.is_unseen(number)
    count = config.val_unseen_routes if unseen else config.train_routes + config.val_seen_routes
    routes = sample_routes(layout, count, _rng(config.seed, number, 1))
    rng = _rng(config.seed, number, 2)
    return BuiltHouse(
        house=layout.house,
        scan=scan_of(layout),
        features=np.stack([view_features(scene, panorama) for panorama in panoramas]),
        routes=tuple(routes),
        instructions=tuple(
            tuple(phrase.text for phrase in write_instructions(around, route, rng)) for route in routes
        ),
    )


def lay_out(seed: int, number: int) -> tuple[Layout, Scene]:
    """The first furnished plan of a house in which every viewpoint can be reached."""
    rng = _rng(seed, number, 0)
    for _ in range(_ATTEMPTS):
        house = furnish(draw_plan(rng, f"house_{number:03d}"), rng)
        scene = build_scene(house)
        layout = place_viewpoints(house, scene, rng)
        if layout is not None:
            return layout, scene
    raise RuntimeError(f"no plan in which every viewpoint can be reached for house {number}, seed {seed}")


def cast_panoramas(layout: Layout, scene: Scene) -> list[Panorama]:
    """The panoramas of all viewpoints."""
    house = layout.house
    return [
        cast_panorama(scene, eye, house.rooms[stand.room].floor, both_storeys=house.sees_both_storeys(stand))
        for eye, stand in zip(layout.position, house.stands, strict=True)
    ]


def _rng(seed: int, number: int, stream: int) -> np.random.Generator:
    """Layout, routes and words of a house have streams of their own: none changes with the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number, stream))))


@dataclass(frozen=True)
class HousesSummary:
    """What was built."""

    folder: str
    houses: int
    viewpoints: int
    edges: int
    feature_width: int
    paths: dict[str, int]  # per split
    instructions: dict[str, int]  # per split


class _Marker(msgspec.Struct, frozen=True):
    """The content of the marker file."""

    config: HousesConfig
    key: str  # of the config and the code


def build_houses(
    target: Path,
    config: HousesConfig,
    *,
    jobs: int | None = None,
    keep_existing: bool = False,
    progress: Progress | None = None,
) -> HousesSummary:
    """Build houses into a new data folder; an older one built here is replaced.

    Args:
        target: the folder to write.
        config: the same config always gives the same bytes.
        jobs: processes that work side by side; all processors when not given.
        keep_existing: keep a folder that another process finished meanwhile, as it holds the same.
        progress: called with (houses done, houses in all).

    Raises:
        UserError: the folder holds other things, cannot be written or the disk is full.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be 1 or more, got {jobs}; leave it out to use all processors")
    _check_replaceable(Path(target))
    with atomic_folder(target, keep_existing=keep_existing) as folder:
        writer = _Writer(folder, config, progress)
        writer.write(_built_houses(config, jobs or _processors()))
    return writer.summary(target)


def default_houses(progress: Progress | None = None) -> Path:
    """The data folder of the default houses, built into the cache the first time."""
    config = HousesConfig()
    folder = cache_folder() / f"houses-{_build_key(config)}"
    if not folder.is_dir():
        build_houses(folder, config, keep_existing=True, progress=progress)
    return folder


def read_plan(folder: Path, scan: str) -> House:
    """The plan of a house in a data folder.

    Raises:
        DataError: there is no such plan or it is not one.
    """
    return read_json(Path(folder) / "plans" / f"{scan}.json", House)


def _check_replaceable(target: Path) -> None:
    """Refuse to replace anything but an empty folder and one that this module built, with nothing added."""
    advice = "choose a new folder with --out or remove this one"
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target}: is a file, expected a folder; choose another one with --out")
    if not any(target.iterdir()):
        return
    try:
        read_json(target / _MARKER, _Marker)
    except UserError as error:
        raise UserError(
            f"{target}: is not empty and was not built by 'scenemem data houses' ({error}); {advice}"
        ) from error
    written = {file for pattern in _WRITTEN for file in target.glob(pattern)}
    foreign = sorted(file for file in target.rglob("*") if not file.is_dir() and file not in written)
    if foreign:
        raise UserError(
            f"{target}: holds '{foreign[0].relative_to(target)}', which is not part of the houses; {advice}"
        )


@dataclass
class _Writer:
    """Writes houses one after the other and collects what goes into files they share."""

    folder: Path
    config: HousesConfig
    progress: Progress | None
    scans: list[str] = field(default_factory=list)
    episodes: dict[str, list[Episode]] = field(default_factory=lambda: {split: [] for split in _SPLITS})
    viewpoints: int = 0
    edges: int = 0

    def write(self, houses: Iterator[BuiltHouse]) -> None:
        stream_store(
            self.folder / "features" / f"{_FEATURES}.npy",
            self._rows(houses),
            origin=self.folder,
            width=WIDTH,
            source=f"embedded houses, {self.config.houses} houses, seed {self.config.seed}",
            encoder=ENCODER,
            columns=columns(),
            track=TRACK,
            sensor=SENSOR,
        )
        (self.folder / "connectivity" / "scans.txt").write_text("".join(f"{name}\n" for name in self.scans))
        for split in _SPLITS:
            write_episodes(self.folder / "r2r" / f"R2R_{split}.json", self.episodes[split])
        marker = _Marker(self.config, _build_key(self.config))
        (self.folder / _MARKER).write_bytes(msgspec.json.encode(marker))

    def _rows(self, houses: Iterator[BuiltHouse]) -> Iterator[FeatureRow]:
        """The feature rows of all houses; everything else about a house is written on the way."""
        (self.folder / "plans").mkdir()
        for number, built in enumerate(houses):
            name = built.house.name
            write_scan(self.folder / "connectivity", built.scan)
            (self.folder / "plans" / f"{name}.json").write_bytes(msgspec.json.encode(built.house))
            self._collect(number, built)
            for stand, values in zip(built.house.stands, built.features, strict=True):
                yield FeatureRow(f"{name}_{stand.viewpoint}", values, name)
            if self.progress is not None:
                self.progress(number + 1, self.config.houses)

    def _collect(self, number: int, built: BuiltHouse) -> None:
        self.scans.append(built.house.name)
        self.viewpoints += len(built.scan.viewpoints)
        self.edges += sum(sum(viewpoint.unobstructed) for viewpoint in built.scan.viewpoints) // 2
        unseen = self.config.is_unseen(number)
        for index, (route, instructions) in enumerate(zip(built.routes, built.instructions, strict=True)):
            seen_split = "train" if index < self.config.train_routes else "val_seen"
            path_id = number * _IDS_PER_HOUSE + index
            episode = Episode(
                scan=built.house.name,
                path_id=path_id,
                path=tuple(built.house.stands[stand].viewpoint for stand in route.stands),
                heading=route.heading,
                instructions=instructions,
                instruction_ids=tuple(f"{path_id}_{n}" for n in range(len(instructions))),
                distance=round(route.distance, 2),
            )
            self.episodes["val_unseen" if unseen else seen_split].append(episode)

    def summary(self, target: Path) -> HousesSummary:
        return HousesSummary(
            folder=str(target),
            houses=len(self.scans),
            viewpoints=self.viewpoints,
            edges=self.edges,
            feature_width=WIDTH,
            paths={split: len(episodes) for split, episodes in self.episodes.items()},
            instructions={
                split: sum(len(episode.instructions) for episode in episodes)
                for split, episodes in self.episodes.items()
            },
        )


def _built_houses(config: HousesConfig, jobs: int) -> Iterator[BuiltHouse]:
    """The houses in order, built side by side; the bytes do not depend on ``jobs``."""
    done = 0
    if jobs > 1:
        # spawned, because forking a process that runs threads (torch, progress bars) is unsafe
        context = multiprocessing.get_context("spawn")
        workers = min(jobs, config.houses)
        try:
            pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker)
            try:
                for built in pool.map(partial(build_house, config), range(config.houses)):
                    yield built
                    done += 1
            finally:
                pool.shutdown(cancel_futures=True)
        except BrokenProcessPool:
            pass  # workers cannot start (a script without a main guard) or were killed: go on alone
    for number in range(done, config.houses):
        yield build_house(config, number)


def _begin_worker() -> None:
    end_with_parent()
    torch.set_num_threads(1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _build_key(config: HousesConfig) -> str:
    """Changes with the config and with every file of this package, so that a cached copy is never stale."""
    digest = hashlib.sha256(repr(config).encode())
    for file in sorted(file for file in Path(__file__).parent.iterdir() if file.is_file()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
