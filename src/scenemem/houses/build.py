"""The embedded houses: one house from its seed, all of them as a data folder, the copy in the cache."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
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
from scenemem.formats.connectivity import Scan, connectivity_files, plain_graph, read_scan, write_scan
from scenemem.formats.episodes import EpisodeRecord, write_episodes
from scenemem.formats.features import FeatureRow, stream_store
from scenemem.formats.folder import cache_folder
from scenemem.houses.features import WIDTH, columns, view_features
from scenemem.houses.furniture import furnish
from scenemem.houses.house import ENCODER, SENSOR, TRACK, House
from scenemem.houses.instructions import Phrase, write_instructions
from scenemem.houses.plan import draw_plan
from scenemem.houses.scene import Panorama, RenderScene, build_scene, cast_panorama
from scenemem.houses.viewpoints import Layout, Route, place_viewpoints, sample_routes, scan_of, survey
from scenemem.processes import end_with_parent
from scenemem.world.build import Progress

_FEATURES = "houses"  # name of the feature store
_SPLITS = ("train", "val_seen", "val_unseen")
_IDS_PER_HOUSE = 1000  # path ids are house number * this + route number
_ATTEMPTS = 200  # plans drawn before giving up; about two in three are good


@dataclass(frozen=True)
class HousesConfig:
    """Numbers of houses and routes, and the seed."""

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
    episodes: list[EpisodeRecord]  # of its split, or of train and then val_seen


def build_house(config: HousesConfig, number: int) -> BuiltHouse:
    """House ``number``; the same config and number always give the same house."""
    layout, scene = lay_out(config.seed, number)
    panoramas = cast_panoramas(layout, scene)
    around = survey(layout, scene, panoramas)
    unseen = config.is_unseen(number)
    count = config.val_unseen_routes if unseen else config.train_routes + config.val_seen_routes
    routes = sample_routes(layout, count, _rng(config.seed, number, 1))
    rng = _rng(config.seed, number, 2)
    return BuiltHouse(
        house=layout.house,
        scan=scan_of(layout),
        features=np.stack([view_features(scene, panorama) for panorama in panoramas]),
        episodes=[
            _episode(layout.house, path_id, route, write_instructions(around, route, rng))
            for path_id, route in enumerate(routes, number * _IDS_PER_HOUSE)
        ],
    )


def _episode(house: House, path_id: int, route: Route, phrases: Sequence[Phrase]) -> EpisodeRecord:
    """A route as a record of R2R."""
    return EpisodeRecord(
        scan=house.name,
        path_id=path_id,
        path=tuple(house.stands[stand].viewpoint for stand in route.stands),
        heading=route.heading,
        instructions=tuple(phrase.text for phrase in phrases),
        instruction_ids=tuple(f"{path_id}_{n}" for n in range(len(phrases))),
        distance=round(route.distance, 2),
    )


def lay_out(seed: int, number: int) -> tuple[Layout, RenderScene]:
    """The first furnished plan of a house in which every viewpoint can be reached."""
    rng = _rng(seed, number, 0)
    for _ in range(_ATTEMPTS):
        house = furnish(draw_plan(rng, _name(number)), rng)
        scene = build_scene(house)
        layout = place_viewpoints(house, scene, rng)
        if layout is not None:
            return layout, scene
    raise RuntimeError(f"no plan in which every viewpoint can be reached for house {number}, seed {seed}")


def cast_panoramas(layout: Layout, scene: RenderScene) -> list[Panorama]:
    """The panoramas of all viewpoints."""
    seen = map(layout.house.storeys_seen, layout.house.stands)
    return [cast_panorama(scene, eye, storeys) for eye, storeys in zip(layout.position, seen, strict=True)]


def _rng(seed: int, number: int, stream: int) -> np.random.Generator:
    """Layout, routes and words of a house have streams of their own: none changes with the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number, stream))))


@dataclass
class HousesSummary:
    """What was built."""

    folder: str
    houses: int = 0
    viewpoints: int = 0
    edges: int = 0
    feature_width: int = WIDTH
    paths: dict[str, int] = field(default_factory=dict)  # per split
    instructions: dict[str, int] = field(default_factory=dict)  # per split


def build_houses(
    target: Path,
    config: HousesConfig,
    *,
    jobs: int | None = None,
    keep_existing: bool = False,
    progress: Progress | None = None,
) -> HousesSummary:
    """Build houses into a new data folder.

    Args:
        target: the folder to write; must be missing or empty.
        config: the same config always gives the same bytes.
        jobs: processes that work side by side; all processors when not given.
        keep_existing: keep a folder that another process finished meanwhile, as it holds the same.
        progress: called with (houses done, houses in all).

    Raises:
        UserError: the folder is not empty, cannot be written or the disk is full.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be 1 or more, got {jobs}; leave it out to use all processors")
    target = Path(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target}: is no empty folder; choose a new one with `out` or remove this one")
    summary = HousesSummary(str(target))
    with atomic_folder(target, keep_existing=keep_existing) as folder:
        episodes: dict[str, list[EpisodeRecord]] = {split: [] for split in _SPLITS}
        houses = _built_houses(config, jobs or _processors())
        stream_store(
            folder / "features" / f"{_FEATURES}.npy",
            _written(folder, config, houses, summary, episodes, progress),
            origin=folder,
            width=WIDTH,
            source=f"embedded houses, {config.houses} houses, seed {config.seed}",
            encoder=ENCODER,
            columns=columns(),
            track=TRACK,
            sensor=SENSOR,
        )
        names = "".join(f"{_name(number)}\n" for number in range(config.houses))
        (folder / "connectivity" / "scans.txt").write_text(names)
        (folder / "houses.json").write_bytes(msgspec.json.encode(config))
        for split, found in episodes.items():
            write_episodes(folder / "r2r" / f"R2R_{split}.json", found)
            summary.paths[split] = len(found)
            summary.instructions[split] = sum(len(episode.instructions) for episode in found)
        _write_card(folder, summary)
    return summary


def _write_card(folder: Path, summary: HousesSummary) -> None:
    """Make a data folder of houses a data set that others can read: graphs as records, and a card."""
    with (folder / "graphs.jsonl").open("wb") as stream:
        for file in connectivity_files(folder / "connectivity"):
            stream.write(msgspec.json.encode(plain_graph(read_scan(file))) + b"\n")
    sizes = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))
    routes = sum(summary.paths.values())
    card = (
        (Path(__file__).parent / "card.md")
        .read_text(encoding="utf-8")
        .format(
            size=next((size for limit, size in sizes if routes < limit), "100K<n<1M"),
            rows="\n".join(
                f"| {split} | {summary.paths[split]:,} | {summary.instructions[split]:,} |"
                for split in _SPLITS
            ),
            **vars(summary),
        )
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def default_houses(progress: Progress | None = None) -> Path:
    """The data folder of the default houses, built into the cache the first time."""
    config = HousesConfig()
    folder = cache_folder() / f"houses-{_build_key(config)}"
    if not folder.is_dir():
        build_houses(folder, config, keep_existing=True, progress=progress)
    return folder


def _name(number: int) -> str:
    return f"house_{number:03d}"


def _written(
    folder: Path,
    config: HousesConfig,
    houses: Iterator[BuiltHouse],
    summary: HousesSummary,
    episodes: dict[str, list[EpisodeRecord]],
    progress: Progress | None,
) -> Iterator[FeatureRow]:
    """The feature rows of all houses; everything else about a house is written, or collected, on the way."""
    (folder / "plans").mkdir()
    for number, built in enumerate(houses):
        name = built.house.name
        write_scan(folder / "connectivity", built.scan)
        (folder / "plans" / f"{name}.json").write_bytes(msgspec.json.encode(built.house))
        summary.houses += 1
        summary.viewpoints += len(built.scan.viewpoints)
        summary.edges += sum(sum(viewpoint.unobstructed) for viewpoint in built.scan.viewpoints) // 2
        for index, episode in enumerate(built.episodes):
            seen_split = "train" if index < config.train_routes else "val_seen"
            episodes["val_unseen" if config.is_unseen(number) else seen_split].append(episode)
        for stand, values in zip(built.house.stands, built.features, strict=True):
            yield FeatureRow(f"{name}_{stand.viewpoint}", values, name)
        if progress is not None:
            progress(number + 1, config.houses)


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
