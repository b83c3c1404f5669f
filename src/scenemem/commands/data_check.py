"""``scenemem data check``: what a data folder holds, what is wrong with it, and what is still needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.errors import DataError, UserError
from scenemem.features.store import open_store
from scenemem.formats.annotations import find_view_objects
from scenemem.formats.feature_files import read_store
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.paths import path_pool
from scenemem.world.build import load_world
from scenemem.world.graph import World

TASKS = ("r2r", "r4r", "reverie")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where."""

    file: str
    record: str | None
    field: str | None
    reason: str


@dataclass(frozen=True)
class SplitCount:
    """How much a split holds."""

    paths: int
    instructions: int
    scans: int


@dataclass(frozen=True)
class StoreState:
    """A feature store and whether it covers the world."""

    name: str
    width: int
    viewpoints: int
    complete: bool


@dataclass
class Report:
    """Everything ``data check`` finds out about a folder."""

    scans: int = 0
    viewpoints: int = 0  # included ones
    edges: int = 0
    isolated: int = 0  # included viewpoints without an edge
    splits: dict[str, dict[str, SplitCount]] = field(default_factory=dict)  # task -> split -> count
    path_pool: int | None = None  # pairs in the training scans that back-translation may describe
    features: list[StoreState] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    needs: dict[str, str] = field(default_factory=dict)  # job -> what it still needs

    @contextmanager
    def noting_problems(self) -> Iterator[None]:
        """Turn an error in one file into a line of the report, so that the other files are looked at too."""
        try:
            yield
        except DataError as error:
            self.problems.append(Problem(error.file, error.record, error.field, error.reason))


def data_check(data: Path | None = None, *, json: bool = False) -> None:
    """Say what a data folder holds, what is wrong (file, record, reason) and what each job still needs.

    Args:
        data: the data folder; the embedded houses when left out.
        json: print one JSON object instead of a table.
    """
    report = inspect_folder(open_data(data))
    if json:
        print_json(report)
    else:
        _show(report)
    if report.problems:
        raise UserError(f"{len(report.problems)} problem(s) found; see the list above")


def inspect_folder(folder: DataFolder) -> Report:
    """Read every file a folder offers and report on it; problems are collected, not raised."""
    report = Report()
    world: World | None = None
    with report.noting_problems(), progress_bar("reading graphs") as progress:
        world = load_world(folder.connectivity, progress=progress)
        _count_graphs(report, world)
    if world is not None:
        _count_episodes(report, folder, world)
        _look_at_features(report, folder, world)
    report.needs = _needs(report, folder)
    return report


def _count_graphs(report: Report, world: World) -> None:
    degree = world.neighbour_mask.sum(dim=1)
    report.scans = len(world.scans)
    report.viewpoints = len(world.viewpoints)
    report.edges = int(degree.sum()) // 2
    report.isolated = int((degree == 0).sum())


def _count_episodes(report: Report, folder: DataFolder, world: World) -> None:
    there = [(task, split) for task in TASKS for split in SPLITS if folder.episodes(task, split).is_file()]
    with progress_bar("reading episodes") as progress:
        for done, (task, split) in enumerate(there, start=1):
            with report.noting_problems():
                episodes = load_split(folder, world, task, split)
                report.splits.setdefault(task, {})[split] = _count(episodes)
                if (task, split) == ("r2r", "train"):
                    scans = {world.scans[scan] for scan in episodes.scan.tolist()}
                    report.path_pool = len(path_pool(world, scans))
            progress(done, len(there))


def _count(episodes: EpisodeSet) -> SplitCount:
    return SplitCount(
        paths=len(set(episodes.record.tolist())),
        instructions=len(episodes),
        scans=len(set(episodes.scan.tolist())),
    )


def _look_at_features(report: Report, folder: DataFolder, world: World) -> None:
    for file in folder.feature_files():
        with report.noting_problems():
            info, _ = read_store(file)
            missing = set(world.names) - set(info.keys)
            if not missing:
                open_store(file, world)
            report.features.append(StoreState(file.stem, info.width, len(info.keys), not missing))


def _needs(report: Report, folder: DataFolder) -> dict[str, str]:
    """What stands between this folder and each job; jobs that can start are left out."""
    needs: dict[str, list[str]] = {"train on R2R": [], "train on R4R": [], "submit to the leaderboard": []}
    complete = any(store.complete for store in report.features)
    r2r, r4r = report.splits.get("r2r", {}), report.splits.get("r4r", {})
    store = (
        "a feature store ('scenemem data objects' builds one from the annotations here)"
        if find_view_objects(folder.objects)
        else "a feature store ('scenemem data features FILE', or object annotations in objects/)"
    )
    for job in ("train on R2R", "train on R4R"):
        needs[job] += [] if report.scans else ["connectivity/<scan>_connectivity.json"]
        needs[job] += [] if complete else [store]
    needs["train on R2R"] += [] if "train" in r2r else ["r2r/R2R_train.json"]
    needs["train on R4R"] += [] if "train" in r4r else ["r4r/R4R_train.json ('scenemem data r4r')"]
    needs["submit to the leaderboard"] += [] if "test" in r2r else ["r2r/R2R_test.json"]
    return {job: ", ".join(missing) for job, missing in needs.items() if missing}


def _show(report: Report) -> None:
    table = Table("what", "how much", box=None)
    table.add_row("scans", f"{report.scans:,}")
    table.add_row("viewpoints", f"{report.viewpoints:,} included, {report.isolated:,} without an edge")
    table.add_row("edges", f"{report.edges:,}")
    for task, splits in report.splits.items():
        for split, count in splits.items():
            amount = f"{count.instructions:,} instructions, {count.paths:,} paths, {count.scans:,} scans"
            table.add_row(f"{task} {split}", amount)
    if report.path_pool is not None:
        table.add_row("path pool", f"{report.path_pool:,} pairs in the training scans")
    for store in report.features:
        covers = "all viewpoints" if store.complete else f"only {store.viewpoints:,} viewpoints"
        table.add_row(f"features '{store.name}'", f"{store.width:,} columns, {covers}")
    for job, missing in report.needs.items():
        table.add_row(f"to {job}", f"still needed: {missing}")
    for problem in report.problems:
        place = ", ".join(part for part in (problem.record, problem.field) if part)
        table.add_row(
            "[bold red]problem[/]", f"{problem.file}: {place + ': ' if place else ''}{problem.reason}"
        )
    output.print(table)
