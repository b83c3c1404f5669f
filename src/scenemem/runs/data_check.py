"""What a data folder holds, what is wrong with it, and what mends each track, task and preset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from scenemem.errors import DataError, UserError
from scenemem.features.store import CAPTIONS, IMAGES, OBJECTS, ORACLE, TRACKS, covered_scans
from scenemem.formats.annotations import (
    PUBLISHED,
    CaptionFiles,
    ObjectPosition,
    ViewpointRoom,
    find_captions,
    find_view_objects,
    landmark_label_file,
    read_captions,
    read_labels,
    read_landmark_labels,
    read_table,
    read_view_objects,
    read_word_vectors,
)
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.features import verify_store
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.runs.experiment import Progress, silent
from scenemem.sources.table import FOLDER
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.paths import path_pool
from scenemem.world.build import load_world
from scenemem.world.graph import World

T = TypeVar("T")

_HOUSES = "scenemem.houses.features"
_BOXES = "objects/BBox.tar.gz"
_ROOMS = "rooms/viewpoint_rooms.tsv"
_WORDS = "glove/glove_300d.npz"
_CAPTIONS = "captions/r2r_blip_DETR_vis2text/<scan>.json"
_GRAPHS = "connectivity/<scan>_connectivity.json"
_LABELS = "objects/labels.tsv"
_POSITIONS = "objects/object_positions.tsv"


@dataclass(frozen=True)
class TaskFiles:
    """Episode files that belong together."""

    what: str
    splits: tuple[str, ...]
    file: str  # of a split
    command: str  # gets the files


TASKS = {
    "r2r": TaskFiles("Room-to-Room", SPLITS, "r2r/R2R_{}.json", "fetch r2r"),
    "r4r": TaskFiles("longer paths, made of R2R", SPLITS[:3], "r4r/R4R_{}.json", "r4r"),
    "reverie": TaskFiles(
        "goals described by their objects", SPLITS, "reverie/REVERIE_{}.json", "fetch reverie"
    ),
    "rxr": TaskFiles("long instructions in three languages", SPLITS[:3], "rxr/rxr_{}_guide.jsonl.gz", ""),
}
"""What each task is."""

LAYOUT = {"connectivity", "objects", "rooms", "captions", "glove", "lar2r", "features", "plans", "pictures"}
"""Folders that some command looks into, besides those of tasks and originals."""


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
    track: str = ""  # empty in stores of older versions
    encoder: str = ""  # what made the features
    sha256: str = ""
    buildings: int = 0  # that it has whole, and can be trained on


@dataclass(frozen=True)
class Readiness:
    """Whether a track or a task can be used, and what would change that."""

    what: str  # for a track what its features stand for, for a task what it is
    complete: bool
    stores: list[str] = field(default_factory=list)  # complete feature stores of a track
    missing: list[str] = field(default_factory=list)  # files without which it cannot be used
    worse_without: list[str] = field(default_factory=list)  # files it can do without, but not as well
    commands: list[str] = field(default_factory=list)  # mend what is missing, one after the other


@dataclass
class FolderReport:
    """What a folder holds and lacks."""

    scans: int = 0
    viewpoints: int = 0  # included ones
    edges: int = 0
    isolated: int = 0  # included viewpoints without an edge
    splits: dict[str, dict[str, SplitCount]] = field(default_factory=dict)  # task -> split -> count
    path_pool: int | None = None  # pairs in the training scans that back-translation may describe
    annotations: dict[str, int] = field(default_factory=dict)  # what -> records
    features: list[StoreState] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # folders that no command looks into
    tracks: dict[str, Readiness] = field(default_factory=dict)
    tasks: dict[str, Readiness] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def collecting_problems(self) -> Iterator[None]:
        """Turn an error in one file into a line of the report, so that the other files are read too."""
        try:
            yield
        except DataError as error:
            self.problems.append(Problem(error.file, error.record, error.field, error.reason))

    def read_each(self, title: str, items: list[T], read: Callable[[T], object], progress: Progress) -> None:
        """Read one thing after the other, with a progress bar; problems are collected."""
        with progress(title) as advance:
            for done, item in enumerate(items, start=1):
                with self.collecting_problems():
                    read(item)
                advance(done, len(items))


def inspect_folder(folder: DataFolder, progress: Progress = silent) -> FolderReport:
    """Read every file a folder offers and report on it; problems are collected, not raised."""
    report = FolderReport()
    world = _check_graphs(report, folder, progress)
    if world is not None:
        _count_episodes(report, folder, world, progress)
    _count_annotations(report, folder)
    _check_features(report, folder, world, progress)
    report.unknown = sorted(
        place.name
        for place in folder.root.iterdir()
        if place.is_dir() and place.name not in LAYOUT | {*TASKS, FOLDER} and not place.name.startswith(".")
    )
    if not any(state.encoder == _HOUSES for state in report.features):  # the houses come complete
        report.tracks = _tracks(report, folder)
    report.tasks = _tasks(report, folder)
    return report


def _check_graphs(report: FolderReport, folder: DataFolder, progress: Progress) -> World | None:
    """Check every graph; the world when all are sound."""
    files: list[Path] = []
    with report.collecting_problems():
        files = connectivity_files(folder.connectivity)
    report.read_each("reading graphs", files, read_scan, progress)
    if not files or report.problems:
        return None
    world = load_world(folder.connectivity)
    degree = world.neighbour_mask.sum(dim=1)
    report.scans = len(world.scans)
    report.viewpoints = len(world.viewpoints)
    report.edges = int(degree.sum()) // 2
    report.isolated = int((degree == 0).sum())
    return world


def _count_episodes(report: FolderReport, folder: DataFolder, world: World, progress: Progress) -> None:
    def count(of: tuple[str, str]) -> None:
        task, split = of
        episodes = load_split(folder, world, task, split)
        report.splits.setdefault(task, {})[split] = SplitCount(
            paths=len(set(episodes.record.tolist())),
            instructions=len(episodes),
            scans=len(set(episodes.scan.tolist())),
        )
        if of == ("r2r", "train"):
            report.path_pool = 0
            with suppress(UserError):  # no path obeys the rule: a small folder, not a broken one
                scans = {world.scans[scan] for scan in episodes.scan.tolist()}
                report.path_pool = len(path_pool(world, scans))

    there = [(task, split) for task in TASKS for split in SPLITS if folder.episodes(task, split).is_file()]
    report.read_each("reading episodes", there, count, progress)


def _count_annotations(report: FolderReport, folder: DataFolder) -> None:
    """Read every annotation there is, so that a broken one is found before features are built from it."""
    readers: dict[str, tuple[Path | None, Callable[[Path], Iterable[object]]]] = {
        "objects": (find_view_objects(folder.objects), read_view_objects),
        "object positions": (
            _either(folder.objects / "object_positions.tsv"),
            lambda file: read_table(file, ObjectPosition),
        ),
        "object labels": (folder.objects / "labels.tsv", lambda file: read_labels(file).values()),
        "rooms": (folder.rooms / "viewpoint_rooms.tsv", lambda file: read_table(file, ViewpointRoom)),
        "word vectors": (folder.word_vectors, lambda file: read_word_vectors(file)[0]),
    }
    for split in SPLITS:
        with suppress(DataError):  # there are none for this split
            labels = landmark_label_file(folder.root, split)
            readers[f"word labels {split}"] = (labels, lambda file: read_landmark_labels(file).values())
    for what, (file, read) in readers.items():
        if file is not None and file.exists():
            with report.collecting_problems():
                report.annotations[what] = sum(1 for _ in read(file))
    for files in _caption_files(folder):
        with report.collecting_problems():
            report.annotations[f"{files.captioner} captions"] = sum(1 for _ in read_captions(files))


def _check_features(
    report: FolderReport, folder: DataFolder, world: World | None, progress: Progress
) -> None:
    def verify(file: Path) -> None:
        info = verify_store(file)
        whole, lacks = ([], "graphs") if world is None else covered_scans(info, world)
        about = info.width, len(info.keys), not lacks, info.track, info.encoder, info.sha256, len(whole)
        report.features.append(StoreState(file.stem, *about))

    report.read_each("verifying features", folder.feature_files(), verify, progress)


def _either(file: Path) -> Path:
    """A file or, when it is not there, its packed form."""
    return file if file.is_file() else file.with_name(f"{file.name}.gz")


def _tracks(report: FolderReport, folder: DataFolder) -> dict[str, Readiness]:
    """Every track: the stores there are, or what is missing and the commands that mend it.

    That of the houses and tracks of one's own are listed when they are there.
    """
    compact = find_view_objects(folder.objects)
    named = compact is not None and not compact.name.startswith("view_objects")  # that has its labels in it
    details = [_WORDS, *([_LABELS] if named else []), _POSITIONS]
    needed: dict[str, tuple[list[str], list[str]]] = {
        CAPTIONS.name: ([_GRAPHS, _CAPTIONS], [_WORDS]),
        OBJECTS.name: ([_GRAPHS, _BOXES], details),
        IMAGES.name: ([_GRAPHS], []),
        ORACLE.name: ([_GRAPHS, _BOXES, _ROOMS], details),
    }
    there = {
        _GRAPHS: report.scans > 0,
        _BOXES: compact is not None,
        _CAPTIONS: bool(_caption_files(folder)),
        _POSITIONS: _either(folder.root / _POSITIONS).is_file(),
        **{file: (folder.root / file).is_file() for file in (_ROOMS, _WORDS, _LABELS)},
    }
    states = {}
    for name in dict.fromkeys((*needed, *(state.track for state in report.features if state.track))):
        sensor = TRACKS[name].sensor if name in TRACKS else ""
        stores = [state.name for state in report.features if state.complete and state.track == name]
        if stores:
            states[name] = Readiness(sensor, True, stores)
        if stores or name not in needed:  # the houses are built where they are used
            continue
        must, may = ([file for file in files if not there[file]] for files in needed[name])
        if name == IMAGES.name:
            must.append("pictures of all viewpoints, or a file of their features")
        fetch = [f"scenemem data fetch {name} --data {folder.quoted}"] if must or may else []
        # how pictures become features depends on what one has; 'data fetch images' explains it
        build = [] if name == IMAGES.name else [f"{TRACKS[name].command} --data {folder.quoted}"]
        states[name] = Readiness(sensor, False, [], must, may, fetch + build)
    return states


def _tasks(report: FolderReport, folder: DataFolder) -> dict[str, Readiness]:
    """Every task: the splits it lacks and the command that gets them; a task without files is listed, too."""
    states: dict[str, Readiness] = {}
    for name, task in TASKS.items():
        present = [split for split in task.splits if folder.episodes(name, split).is_file()]
        sound = report.splits.get(name, {}) if report.scans else present  # not read without graphs
        missing = [task.file.format(split) for split in task.splits if split not in sound]
        missing = missing if sound else [f"{name}/"]
        missing = missing if report.scans else [_GRAPHS, *missing]
        commands = [f"scenemem data {task.command} --data {folder.quoted}"]
        if not task.command:
            commands = ["see https://github.com/google-research-datasets/RxR"]
        if name == "r4r" and not {*task.splits} <= {*report.splits.get("r2r", {})}:
            commands = [*states["r2r"].commands, *commands]
        states[name] = Readiness(task.what, not missing, [], missing, [], commands if missing else [])
    return states


def _caption_files(folder: DataFolder) -> list[CaptionFiles]:
    found = (find_captions(folder.captions, captioner) for captioner in PUBLISHED)
    return [files for files in found if files is not None]
