"""``scenemem data check``: what a data folder holds, what is wrong with it, and what is still needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    ObjectPosition,
    ViewpointRoom,
    find_view_objects,
    read_table,
    read_view_objects,
)
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.features import verify_store
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.paths import path_pool
from scenemem.world.build import load_world
from scenemem.world.graph import World

TASKS = ("r2r", "r4r", "reverie", "rxr")


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
    annotations: dict[str, int] = field(default_factory=dict)  # what -> records
    features: list[StoreState] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    needs: dict[str, str] = field(default_factory=dict)  # preset or other job -> what it still needs

    @contextmanager
    def noting_problems(self) -> Iterator[None]:
        """Turn an error in one file into a line of the report, so that the other files are looked at too."""
        try:
            yield
        except DataError as error:
            self.problems.append(Problem(error.file, error.record, error.field, error.reason))


def data_check(data: Path | None = None, *, json: bool = False) -> None:
    """Say what a data folder holds, what is wrong (file, record, reason) and what each preset still needs.

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
    world = _look_at_graphs(report, folder)
    if world is not None:
        _count_episodes(report, folder, world)
    _count_annotations(report, folder)
    _look_at_features(report, folder, world)
    report.needs = _needs(report, folder)
    return report


def _look_at_graphs(report: Report, folder: DataFolder) -> World | None:
    """Check every graph; the world when all are sound."""
    files: list[Path] = []
    with report.noting_problems():
        files = connectivity_files(folder.connectivity)
    with progress_bar("reading graphs") as progress:
        for done, file in enumerate(files, start=1):
            with report.noting_problems():
                read_scan(file)
            progress(done, len(files))
    if not files or report.problems:
        return None
    world = load_world(folder.connectivity)
    degree = world.neighbour_mask.sum(dim=1)
    report.scans = len(world.scans)
    report.viewpoints = len(world.viewpoints)
    report.edges = int(degree.sum()) // 2
    report.isolated = int((degree == 0).sum())
    return world


def _count_episodes(report: Report, folder: DataFolder, world: World) -> None:
    there = [(task, split) for task in TASKS for split in SPLITS if folder.episodes(task, split).is_file()]
    with progress_bar("reading episodes") as progress:
        for done, (task, split) in enumerate(there, start=1):
            with report.noting_problems():
                episodes = load_split(folder, world, task, split)
                report.splits.setdefault(task, {})[split] = _count(episodes)
                if (task, split) == ("r2r", "train"):
                    scans = {world.scans[scan] for scan in episodes.scan.tolist()}
                    report.path_pool = _pool_size(world, scans)
            progress(done, len(there))


def _pool_size(world: World, scans: set[str]) -> int:
    try:
        return len(path_pool(world, scans))
    except UserError:  # no path obeys the rule: a small folder, not a broken one
        return 0


def _count_annotations(report: Report, folder: DataFolder) -> None:
    """Read every annotation there is, so that a broken one is found before features are built from it."""
    readers: dict[str, tuple[Path | None, Callable[[Path], Iterable[object]]]] = {
        "objects": (find_view_objects(folder.objects), read_view_objects),
        "object positions": (
            folder.objects / "object_positions.tsv.gz",
            lambda file: read_table(file, ObjectPosition),
        ),
        "rooms": (folder.rooms / "viewpoint_rooms.tsv", lambda file: read_table(file, ViewpointRoom)),
    }
    for what, (file, read) in readers.items():
        if file is not None and file.exists():
            with report.noting_problems():
                report.annotations[what] = sum(1 for _ in read(file))


def _count(episodes: EpisodeSet) -> SplitCount:
    return SplitCount(
        paths=len(set(episodes.record.tolist())),
        instructions=len(episodes),
        scans=len(set(episodes.scan.tolist())),
    )


def _look_at_features(report: Report, folder: DataFolder, world: World | None) -> None:
    files = folder.feature_files()
    with progress_bar("verifying features") as progress:
        for done, file in enumerate(files, start=1):
            with report.noting_problems():
                info = verify_store(file)
                complete = world is not None and set(world.names) <= set(info.keys)
                report.features.append(StoreState(file.stem, info.width, len(info.keys), complete))
            progress(done, len(files))


def _needs(report: Report, folder: DataFolder) -> dict[str, str]:
    """What stands between this folder and each preset or job; those that can start are left out."""
    store = (
        "a feature store ('scenemem data objects' builds one from the annotations here)"
        if find_view_objects(folder.objects)
        else "a feature store ('scenemem data features FILE', or object annotations in objects/)"
    )
    complete = {state.name for state in report.features if state.complete}
    graphs = [] if report.scans else ["connectivity/<scan>_connectivity.json"]
    basics = [*graphs, *([] if complete else [store])]
    needs = {}
    for name, preset in PRESETS.items():
        wanted = preset.data.features
        named = [f"the feature store '{wanted}' ('scenemem data objects')"]
        stored = basics if wanted is None else [*graphs, *([] if wanted in complete else named)]
        needs[name] = [*stored, *_missing_train(report, preset.data.task)]
    needs["any preset on R4R"] = [*basics, *_missing_train(report, "r4r")]
    needs["leaderboard submission"] = [] if "test" in report.splits.get("r2r", {}) else ["r2r/R2R_test.json"]
    return {job: ", ".join(missing) for job, missing in needs.items() if missing}


def _missing_train(report: Report, task: str) -> list[str]:
    if "train" in report.splits.get(task, {}):
        return []
    return [f"{task}/{task.upper()}_train.json" + (" ('scenemem data r4r')" if task == "r4r" else "")]


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
    for what, records in report.annotations.items():
        table.add_row(what, f"{records:,} records")
    for missing in dict.fromkeys(report.needs.values()):
        jobs = ", ".join(job for job, need in report.needs.items() if need == missing)
        table.add_row("still needed", f"{missing}  [dim](for {jobs})[/]")
    for problem in report.problems:
        place = ", ".join(part for part in (problem.record, problem.field) if part)
        table.add_row(
            "[bold red]problem[/]", f"{problem.file}: {place + ': ' if place else ''}{problem.reason}"
        )
    output.print(table)
